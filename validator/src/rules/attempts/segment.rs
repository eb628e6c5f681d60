//! The run has one segment, whose identity is the contract.

use schemas::body::{Body, SegmentStartDet};
use schemas::entry::Entry;
use schemas::ids::SegmentId;
use schemas::report::Route;

use crate::evidence::Evidence;
use crate::frozen::Frozen;
use crate::rule::{At, Check, Outcome, Sink};
use crate::rules::common::{declare_rule, is_progress, or_null};

declare_rule!(
    /// `GL208`.
    Segment,
    {
        code: "GL208",
        name: "segment-identity",
        what: "Segment 1 starts once, before any progress, at step 0, without parent or adjudication, and its identity is the \
               contract's digest; progress belongs to it. A second segment is refused: this edition adjudicates none.",
        why: "A segment is a span with one unchanged identity. A second one would say that something which the contract binds \
              was changed on the way.",
        remedy: "Freeze a new contract for the change and run it as a new run.",
        reference: "docs/FORMAT.md, \"Order of entries\"",
        gate: Route::RejectIdentity,
    }
);

struct Segments<'a> {
    frozen: &'a Frozen,
    is_started: bool,
    num_checked: u64,
}

fn open(frozen: &Frozen) -> Box<dyn Check + '_> {
    Box::new(Segments { frozen, is_started: false, num_checked: 0 })
}

impl Segments<'_> {
    fn start(&mut self, index: u64, det: &SegmentStartDet, sink: &mut Sink) {
        let at = |field: &str| At::entry(index, format!("/body/det/{field}"));
        if self.is_started || det.segment != SegmentId(1) {
            sink.rejected(at("segment"), "a second segment starts", "segment 1, once", det.segment);
        }
        self.is_started = true;
        if det.identity != self.frozen.digest {
            sink.rejected(
                at("identity"),
                "the segment is not the contract's",
                self.frozen.digest,
                det.identity,
            );
        }
        if det.from_step != 0 {
            sink.rejected(at("from_step"), "the first segment begins later", 0, det.from_step);
        }
        if det.parent.is_some() || det.adjudication.is_some() {
            let actual = format!("parent {}, adjudication {:?}", or_null(det.parent), det.adjudication);
            sink.rejected(at("parent"), "the first segment comes from another", "neither", actual);
        }
    }
}

impl Check for Segments<'_> {
    fn entry(&mut self, entry: &Entry, sink: &mut Sink) {
        self.num_checked += 1;
        match &entry.body {
            Body::SegmentStart(halves) => self.start(entry.index, &halves.det, sink),
            body if is_progress(body.kind()) => {
                if !self.is_started {
                    let message = format!("{} precedes segment.start", body.kind().name());
                    sink.rejected(At::entry(entry.index, ""), message, "segment.start", body.kind().name());
                    self.is_started = true;
                }
                if entry.header.segment != Some(SegmentId(1)) {
                    let at = At::entry(entry.index, "/segment");
                    sink.rejected(
                        at,
                        "the entry belongs to another segment",
                        1,
                        or_null(entry.header.segment),
                    );
                }
            }
            _ => self.num_checked -= 1,
        }
    }

    fn finish(&mut self, _: &Evidence, sink: &mut Sink) -> Outcome {
        if !self.is_started {
            sink.incomplete(At::place("ledger"), "no segment starts", "segment.start", "no such entry");
        }
        Outcome::Checked(self.num_checked)
    }
}
