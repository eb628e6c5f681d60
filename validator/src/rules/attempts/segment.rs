//! A run has one segment, whose identity is the contract, and another for each
//! change of the number of workers.

use schemas::body::{Body, SegmentStartDet};
use schemas::entry::Entry;
use schemas::ids::SegmentId;
use schemas::report::Route;

use crate::derive::shares;
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
               contract's digest. An attempt that another number of workers executed than the segment before it begins the next \
               one where it begins itself: with that parent, the adjudication `worker_count: N` and the identity of contract and \
               N. Progress belongs to the segment of its attempt. Warns of segments that another number than the contract's \
               executed: their claim is order-bounded.",
        why: "A segment is a span with one unchanged identity. A change that starts none would pass for the run as it was frozen.",
        remedy: "Freeze a new contract for the change and run it as a new run, or permit it as a rewrite.",
        reference: "docs/FORMAT.md, \"Order of entries\" and \"Another number of workers\"",
        gate: Route::RejectIdentity,
    }
);

/// A segment that started.
#[derive(Clone, Copy)]
struct Started {
    id: SegmentId,
    num_workers: u32,
}

/// What the attempt that is running has to begin with.
#[derive(Clone, Copy)]
struct Running {
    from_step: u64,
    num_workers: u32,
}

struct Segments<'a> {
    frozen: &'a Frozen,
    /// Whether an entry other than `segment.start` followed `attempt.start`.
    is_under_way: bool,
    /// The newest, which entries belong to.
    newest: Option<Started>,
    num_checked: u64,
    running: Option<Running>,
}

fn open(frozen: &Frozen) -> Box<dyn Check + '_> {
    Box::new(Segments { frozen, is_under_way: false, newest: None, num_checked: 0, running: None })
}

/// What `segment.start` has to say.
struct Expected {
    det: SegmentStartDet,
    num_workers: u32,
}

impl Segments<'_> {
    /// The next segment: the contract's own, or that of the attempt's workers.
    fn next(&self) -> Option<Expected> {
        let contract = &self.frozen.contract;
        let Some(newest) = self.newest else {
            let det = SegmentStartDet {
                adjudication: None,
                from_step: 0,
                identity: self.frozen.digest,
                parent: None,
                segment: SegmentId(1),
            };
            return Some(Expected { det, num_workers: contract.topology.workers });
        };
        let running = self.running.filter(|running| running.num_workers != newest.num_workers)?;
        let det = SegmentStartDet {
            adjudication: Some(format!("worker_count: {}", running.num_workers)),
            from_step: running.from_step,
            identity: shares::segment_identity(&self.frozen.digest, running.num_workers),
            parent: Some(newest.id),
            segment: SegmentId(newest.id.0.saturating_add(1)),
        };
        Some(Expected { det, num_workers: running.num_workers })
    }

    fn start(&mut self, entry: &Entry, det: &SegmentStartDet, sink: &mut Sink) {
        let index = entry.index;
        let at = |field: &str| At::entry(index, format!("/body/det/{field}"));
        let Some(expected) = self.next() else {
            let message = "a segment starts although nothing that identifies it changed";
            let newest = self.newest.map(|newest| newest.id);
            let expected = format!("segment {} to go on", or_null(newest));
            sink.rejected(at("segment"), message, expected, det.segment);
            return;
        };
        if self.is_under_way {
            let message = "a segment starts in the middle of an attempt";
            sink.rejected(At::entry(index, ""), message, "directly behind attempt.start", "later");
        }
        let wanted = &expected.det;
        if det.segment != wanted.segment {
            sink.rejected(at("segment"), "another segment starts", wanted.segment, det.segment);
        }
        if entry.header.segment != Some(wanted.segment) {
            let at = At::entry(index, "/segment");
            sink.rejected(at, "a segment starts in another", wanted.segment, or_null(entry.header.segment));
        }
        if det.identity != wanted.identity {
            let message = "the segment has another identity than contract and workers give";
            sink.rejected(at("identity"), message, wanted.identity, det.identity);
        }
        if det.from_step != wanted.from_step {
            let message = "the segment begins at another step";
            sink.rejected(at("from_step"), message, wanted.from_step, det.from_step);
        }
        if det.parent != wanted.parent {
            let (expected, actual) = (or_null(wanted.parent), or_null(det.parent));
            sink.rejected(at("parent"), "the segment comes from another", expected, actual);
        }
        if det.adjudication != wanted.adjudication {
            let (expected, actual) =
                (or_null(wanted.adjudication.as_ref()), or_null(det.adjudication.as_ref()));
            sink.rejected(at("adjudication"), "the segment has another reason", expected, actual);
        }
        if expected.num_workers != self.frozen.contract.topology.workers {
            let message = format!("segment {} is claimed to be order-bounded only", wanted.segment);
            let planned = format!("{} workers, as the contract says", self.frozen.contract.topology.workers);
            sink.warning(at("adjudication"), message, planned, expected.num_workers);
        }
        self.newest = Some(Started { id: wanted.segment, num_workers: expected.num_workers });
    }

    fn progress(&mut self, entry: &Entry, sink: &mut Sink) {
        let kind = entry.body.kind();
        if let Some(missing) = self.next() {
            let message = format!("{} precedes segment.start", kind.name());
            let expected = format!("segment.start of segment {}", missing.det.segment);
            sink.rejected(At::entry(entry.index, ""), message, expected, kind.name());
            self.newest = Some(Started { id: missing.det.segment, num_workers: missing.num_workers });
        }
        let newest = self.newest.map(|newest| newest.id);
        if entry.header.segment != newest {
            let at = At::entry(entry.index, "/segment");
            let (expected, actual) = (or_null(newest), or_null(entry.header.segment));
            sink.rejected(at, "the entry belongs to another segment", expected, actual);
        }
    }
}

impl Check for Segments<'_> {
    fn entry(&mut self, entry: &Entry, sink: &mut Sink) {
        self.num_checked += 1;
        match &entry.body {
            Body::AttemptStart(halves) => {
                let (from_step, num_workers) = (halves.det.from_step, halves.obs.plan.num_workers);
                self.running = Some(Running { from_step, num_workers });
                self.is_under_way = false;
                return;
            }
            Body::SegmentStart(halves) => return self.start(entry, &halves.det, sink),
            body if is_progress(body.kind()) => self.progress(entry, sink),
            _ => self.num_checked -= 1,
        }
        self.is_under_way = true;
    }

    fn finish(&mut self, _: &Evidence, sink: &mut Sink) -> Outcome {
        if self.newest.is_none() {
            sink.incomplete(At::place("ledger"), "no segment starts", "segment.start", "no such entry");
        }
        Outcome::Checked(self.num_checked)
    }
}
