//! Nothing is kept that the policy lets go.
//!
//! A warning and never more: `docs/FORMAT.md` makes retiring a permission and no
//! duty, so that a run that was killed between two entries is no less accepted.
//! But whoever saves decides by the policy each time a save is over, and a state
//! that is still there at the next one was decided otherwise.

use std::collections::BTreeSet;

use schemas::body::{Body, Outcome as Ended};
use schemas::contract::KeepPolicy;
use schemas::entry::Entry;
use schemas::ids::CheckpointId;
use schemas::report::Route;

use crate::derive::retention::Retention;
use crate::evidence::Evidence;
use crate::frozen::Frozen;
use crate::rule::{At, Check, Outcome, Rule, RuleInfo, Sink};

/// `GL650`.
#[derive(Debug)]
pub(crate) struct KeptCheckpoints;

static INFO: RuleInfo = RuleInfo {
    code: "GL650",
    name: "kept-checkpoints",
    what: "Where the contract chooses what is kept, no checkpoint is still usable that nothing keeps when an attempt asks for its next \
           save behind one that it finished, and when the last attempt ends the run. Where one is, it is a warning.",
    why: "Which state is kept longer than the policy says was then chosen by somebody who had seen the values, and the room that \
          the contract expects is not the room that is taken.",
    remedy: "Prune with `trainer checkpoint prune`; for the next run find out why nothing was retired, such as a `keep` that was \
             changed in the trainer.",
    reference: "docs/FORMAT.md, \"Retention\"; schemas::contract::KeepPolicy",
    gate: Route::RequestStateInventory,
};

impl Rule for KeptCheckpoints {
    fn info(&self) -> &'static RuleInfo {
        &INFO
    }

    fn open<'a>(&self, frozen: &'a Frozen) -> Box<dyn Check + 'a> {
        let is_chosen = matches!(frozen.contract.checkpoints.keep, KeepPolicy::Chosen { .. });
        Box::new(Kept {
            has_decided: false,
            is_chosen,
            num_decisions: 0,
            retention: Retention::new(&frozen.contract),
            told: BTreeSet::new(),
        })
    }

    /// Beside an asynchronous save updates are recorded that lie behind its
    /// retirements in logical order, and were made before them.
    fn follows_recorded_order(&self) -> bool {
        true
    }
}

struct Kept<'a> {
    /// Whether the attempt has finished a save, and so decided once.
    has_decided: bool,
    is_chosen: bool,
    num_decisions: u64,
    retention: Retention<'a>,
    /// Checkpoints that were named already.
    told: BTreeSet<CheckpointId>,
}

impl Kept<'_> {
    /// Looks at what is there when a decision was made and carried out.
    fn judge(&mut self, entry: &Entry, sink: &mut Sink) {
        self.num_decisions += 1;
        let told = &self.told;
        let kept: Vec<CheckpointId> =
            self.retention.unkept().filter(|id| !told.contains(*id)).cloned().collect();
        for id in kept {
            let message = format!("{id} is kept, and neither the policy nor a protection keeps it");
            sink.warning(At::entry(entry.index, "/kind"), message, "checkpoint.retired before", "usable");
            self.told.insert(id);
        }
    }
}

impl Check for Kept<'_> {
    fn entry(&mut self, entry: &Entry, sink: &mut Sink) {
        if !self.is_chosen {
            return;
        }
        match &entry.body {
            Body::AttemptStart(_) => self.has_decided = false,
            // The save before this one was over, and what followed from it is on record.
            Body::CheckpointRequested(_) if self.has_decided => self.judge(entry, sink),
            Body::AttemptEnd(halves)
                if matches!(halves.det.outcome, Ended::Completed | Ended::BudgetExhausted) =>
            {
                self.judge(entry, sink);
            }
            _ => {}
        }
        self.retention.entry(entry);
        self.has_decided |= matches!(entry.body, Body::CheckpointValidated(_));
    }

    fn finish(&mut self, _: &Evidence, _: &mut Sink) -> Outcome {
        if !self.is_chosen {
            return Outcome::NotApplicable("the contract keeps every checkpoint".to_owned());
        }
        Outcome::Checked(self.num_decisions)
    }
}
