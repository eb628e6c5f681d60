//! Whether anybody tried that the declared state is all of the state.

use schemas::body::Body;
use schemas::entry::Entry;
use schemas::report::Route;

use crate::evidence::Evidence;
use crate::frozen::Frozen;
use crate::rule::{At, Check, Outcome, Sink};
use crate::rules::checkpoints::probes::cold;
use crate::rules::common::declare_rule;

declare_rule!(
    /// `GL647`.
    ClosureEvidence,
    {
        code: "GL647",
        name: "closure-evidence",
        what: "Notes a run in which no probe with everything restored, or no cold control, was made: that its inventory of state is \
               complete rests on the contract alone. Notes probes after which no checkpoint was called \
               resume-qualified.",
        why: "A schema of state classes passes while real state of a framework stays outside of it; only a process that goes on \
              from what was saved, and one that goes on without it, can tell.",
        remedy: "Probe a checkpoint with `trainer probe`. A note changes no verdict.",
        reference: "docs/FORMAT.md, \"Resume probes\"",
        gate: Route::RequestStateInventory,
    }
);

struct Tried<'a> {
    frozen: &'a Frozen,
    num_cold: u64,
    num_entries: u64,
    num_full: u64,
    num_qualified: u64,
}

fn open(frozen: &Frozen) -> Box<dyn Check + '_> {
    Box::new(Tried { frozen, num_cold: 0, num_entries: 0, num_full: 0, num_qualified: 0 })
}

impl Check for Tried<'_> {
    fn entry(&mut self, entry: &Entry, _: &mut Sink) {
        self.num_entries += 1;
        match &entry.body {
            Body::ProbeResult(halves) if halves.det.withheld.is_empty() => self.num_full += 1,
            Body::ProbeResult(halves) if halves.det.withheld == cold(&self.frozen.contract) => {
                self.num_cold += 1;
            }
            Body::CheckpointResumeQualified(_) => self.num_qualified += 1,
            _ => {}
        }
    }

    fn finish(&mut self, _: &Evidence, sink: &mut Sink) -> Outcome {
        let at = || At::place("ledger");
        if self.num_full == 0 || self.num_cold == 0 {
            let message = "that the declared state is all of the state was not tried";
            let actual = format!("{} and {}", self.num_full, self.num_cold);
            sink.note(at(), message, "a probe with everything restored, and a cold control", actual);
        } else if self.num_qualified == 0 {
            let message = "checkpoints were probed, and none is called resume-qualified";
            sink.note(at(), message, "checkpoint.resume_qualified", "none");
        }
        Outcome::Checked(self.num_entries)
    }
}
