//! GL106 `frozen-before-run`.

use schemas::body::{Body, Kind};
use schemas::digest::Digest;
use schemas::entry::Entry;
use schemas::report::Route;

use crate::evidence::Evidence;
use crate::frozen::Frozen;
use crate::rule::{At, Check, Outcome, Rule, RuleInfo, Sink};

/// Text of the rule.
pub(crate) static INFO: RuleInfo = RuleInfo {
    code: "GL106",
    name: "frozen-before-run",
    what: "The owner signed a head over the frozen contract alone, there is no second freeze, and run and attempts name this contract's digest.",
    why: "A contract that is written or replaced after the run began can be fitted to its outcome.",
    remedy: "freeze first, then train from the ledger that the freeze wrote",
    reference: "docs/FORMAT.md, \"Order of entries\"",
    gate: Route::RejectFrozenInputs,
};

pub(crate) struct FrozenBeforeRun;

impl Rule for FrozenBeforeRun {
    fn info(&self) -> &'static RuleInfo {
        &INFO
    }

    fn open<'a>(&self, frozen: &'a Frozen) -> Box<dyn Check + 'a> {
        Box::new(State { digest: frozen.digest, num_checked: 0 })
    }
}

struct State {
    digest: Digest,
    num_checked: u64,
}

impl State {
    fn compare(&mut self, entry: &Entry, named: Digest, sink: &mut Sink) {
        self.num_checked += 1;
        if named != self.digest {
            sink.rejected(
                At::entry(entry.index, "/body/det/contract"),
                format!("{} names another contract", entry.body.kind().name()),
                self.digest,
                named,
            );
        }
    }
}

impl Check for State {
    fn ignores_steps(&self) -> bool {
        true
    }

    fn entry(&mut self, entry: &Entry, sink: &mut Sink) {
        match &entry.body {
            Body::ContractFrozen(_) => {
                self.num_checked += 1;
                if entry.index != 0 {
                    sink.rejected(
                        At::entry(entry.index, "/kind"),
                        "a second contract was frozen into the run",
                        "contract.frozen as entry 0 only",
                        Kind::ContractFrozen.name(),
                    );
                }
            }
            Body::RunStart(halves) => self.compare(entry, halves.det.contract, sink),
            Body::AttemptStart(halves) => self.compare(entry, halves.det.contract, sink),
            _ => {}
        }
    }

    fn finish(&mut self, evidence: &Evidence, sink: &mut Sink) -> Outcome {
        self.num_checked += 1;
        if !evidence.heads.iter().any(|head| head.size == 1) {
            sink.rejected(
                At::place("heads"),
                "no verified head by the owner covers the contract alone",
                "a head of size 1, signed at the freeze",
                evidence
                    .heads
                    .first()
                    .map_or("no verified head".to_owned(), |head| format!("size {}", head.size)),
            );
        }
        Outcome::Checked(self.num_checked)
    }
}
