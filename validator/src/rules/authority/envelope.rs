//! Memory and traffic stay within what the team expected.

use schemas::body::Body;
use schemas::contract::ExpectedEnvelope;
use schemas::entry::Entry;
use schemas::report::Route;

use crate::evidence::Evidence;
use crate::frozen::Frozen;
use crate::rule::{At, Check, Outcome, Sink};
use crate::rules::common::declare_rule;

declare_rule!(
    /// `GL706`.
    Envelope,
    {
        code: "GL706",
        name: "expected-envelope",
        what: "Warns where resident memory, or the bytes that a worker sent for an update, exceed what the contract expects.",
        why: "An expectation that is missed shows that the team did not know what would run; the next run needs a better one.",
        remedy: "Correct `expected` in the next contract. A warning changes no verdict.",
        reference: "schemas::contract::ExpectedEnvelope",
        gate: Route::RejectTopology,
    }
);

struct Exceeded<'a> {
    expected: &'a ExpectedEnvelope,
    is_memory_reported: bool,
    is_traffic_reported: bool,
    num_checked: u64,
}

fn open(frozen: &Frozen) -> Box<dyn Check + '_> {
    Box::new(Exceeded {
        expected: &frozen.contract.expected,
        is_memory_reported: false,
        is_traffic_reported: false,
        num_checked: 0,
    })
}

impl Exceeded<'_> {
    /// The first excess is enough: memory does not shrink.
    fn memory(&mut self, index: u64, pointer: &str, bytes: u64, sink: &mut Sink) {
        if bytes > self.expected.memory_bytes && !self.is_memory_reported {
            self.is_memory_reported = true;
            let expected = format!("at most {}", self.expected.memory_bytes);
            sink.warning(
                At::entry(index, pointer),
                "more memory was resident than expected",
                expected,
                bytes,
            );
        }
    }
}

impl Check for Exceeded<'_> {
    fn entry(&mut self, entry: &Entry, sink: &mut Sink) {
        match &entry.body {
            Body::Step(halves) => {
                self.num_checked += 1;
                if let Some(bytes) = halves.obs.resident_bytes {
                    self.memory(entry.index, "/body/obs/resident_bytes", bytes, sink);
                }
                // What is expected is of one worker, and the entry's sum is of all.
                let of_workers = halves.obs.shares.iter().map(|share| share.bytes_sent).max();
                let sent = of_workers.unwrap_or(halves.obs.bytes_sent);
                let expected = self.expected.communication_bytes_per_step;
                if sent > expected && !self.is_traffic_reported {
                    self.is_traffic_reported = true;
                    let at = At::entry(entry.index, "/body/obs/bytes_sent");
                    sink.warning(
                        at,
                        "a worker sent more bytes than expected",
                        format!("at most {expected}"),
                        sent,
                    );
                }
            }
            Body::AttemptEnd(halves) => {
                let bytes = halves.obs.cost.peak_resident_bytes;
                self.memory(entry.index, "/body/obs/cost/peak_resident_bytes", bytes, sink);
            }
            _ => {}
        }
    }

    fn finish(&mut self, _: &Evidence, _: &mut Sink) -> Outcome {
        Outcome::Checked(self.num_checked)
    }
}
