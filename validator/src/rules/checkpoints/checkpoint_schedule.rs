//! State is saved when the contract says, and at no other step.

use std::collections::BTreeSet;

use schemas::body::{Body, Outcome as Ended};
use schemas::contract::{Contract, MidAccumulation, SaveMode};
use schemas::entry::Entry;
use schemas::report::Route;

use crate::derive::steps;
use crate::evidence::Evidence;
use crate::frozen::Frozen;
use crate::rule::{At, Check, Outcome, Sink};
use crate::rules::common::{Checkpoints, LastStep, declare_rule};

declare_rule!(
    /// `GL601`.
    CheckpointSchedule,
    {
        code: "GL601",
        name: "checkpoint-schedule",
        what: "A validated checkpoint exists for step 0, every multiple of the contract's interval and the last step (of a run that was not lost), and none is \
               requested at another step; but where the contract saves inside of accumulation windows, an attempt that ends before \
               the run does may save where it ends.",
        why: "A missing checkpoint removes a candidate and a point of comparison; an additional one widens the choice.",
        remedy: "None for a finished run. Save at the contract's steps only; when a signal ends an attempt too, unless \
                 `checkpoints.mid_accumulation` is `save_gradients`.",
        reference: "docs/FORMAT.md, \"Evaluation, checkpoint and candidate steps\"; schemas::contract::CheckpointPolicy",
        gate: Route::RequestStateInventory,
    }
);

/// Missing steps that are named; further ones are counted by the first of them.
const MAX_MISSING: usize = 20;

struct Schedule<'a> {
    checkpoints: Checkpoints,
    contract: &'a Contract,
    last: LastStep,
    newest_request: Option<u64>,
    /// Requests at steps that only the last step could justify.
    unscheduled: Vec<(u64, u64)>,
    /// Such a request that nothing followed in its attempt yet, where the
    /// contract lets an attempt save where it ends.
    where_it_ends: Option<(u64, u64)>,
}

impl Schedule<'_> {
    /// Follows what justifies a request at another step: that its attempt did
    /// nothing more.
    fn follow(&mut self, entry: &Entry) {
        let is_over = match &entry.body {
            // It ended there, or vanished.
            Body::AttemptStart(_) => return self.where_it_ends = None,
            Body::AttemptEnd(halves) => {
                matches!(halves.det.outcome, Ended::Completed | Ended::BudgetExhausted)
            }
            Body::CheckpointRequested(_) | Body::Eval(_) | Body::Step(_) => true,
            _ => false,
        };
        if is_over {
            self.unscheduled.extend(self.where_it_ends.take());
        }
    }
}

fn open(frozen: &Frozen) -> Box<dyn Check + '_> {
    Box::new(Schedule {
        checkpoints: Checkpoints::default(),
        contract: &frozen.contract,
        last: LastStep::default(),
        newest_request: None,
        unscheduled: Vec::new(),
        where_it_ends: None,
    })
}

impl Check for Schedule<'_> {
    fn entry(&mut self, entry: &Entry, _: &mut Sink) {
        self.follow(entry);
        if let Body::CheckpointRequested(halves) = &entry.body
            && !steps::is_due(halves.det.step, self.contract.checkpoints.every_steps, u64::MAX)
        {
            let request = (entry.index, halves.det.step);
            if self.contract.checkpoints.mid_accumulation == MidAccumulation::SaveGradients {
                self.where_it_ends = Some(request);
            } else {
                self.unscheduled.push(request);
            }
        }
        if let Body::CheckpointRequested(halves) = &entry.body {
            self.newest_request = Some(halves.det.step);
        }
        self.checkpoints.entry(entry);
        self.last.entry(entry);
    }

    fn finish(&mut self, _: &Evidence, sink: &mut Sink) -> Outcome {
        let (last_step, every_steps) = (self.last.step(), self.contract.checkpoints.every_steps);
        // One that was lost may have been lost in the save of its last step.
        let is_over = self.last.is_reached();
        for (index, step) in self.unscheduled.iter().filter(|(_, step)| !(is_over && *step == last_step)) {
            // Of an unfinished run this may be the last step.
            if is_over || *step != last_step {
                let message = format!("a checkpoint is taken at step {step}, which is not due");
                let expected = format!("step 0, multiples of {every_steps}, the last step");
                sink.rejected(At::entry(*index, "/body/det/step"), message, expected, step);
            }
        }
        let all = self.checkpoints.all.values();
        let validated: BTreeSet<u64> = all
            .filter(|checkpoint| checkpoint.validated.is_some())
            .map(|checkpoint| checkpoint.step)
            .collect();
        let due = (0..=last_step).step_by(usize::try_from(every_steps.max(1)).unwrap_or(usize::MAX));
        let due = due.filter(|step| is_over || *step < last_step).chain(is_over.then_some(last_step));
        // Of an unfinished run the save that training went on beside may still
        // be in flight, or have ended the attempt.
        let is_beside = self.contract.checkpoints.mode == SaveMode::Asynchronous && !is_over;
        let in_flight = self.newest_request.filter(|_| is_beside);
        let missing = due.filter(|step| !validated.contains(step) && Some(*step) != in_flight);
        for step in missing.take(MAX_MISSING) {
            let message = format!("no validated checkpoint of step {step}");
            sink.rejected(At::place("ledger"), message, "checkpoint.validated", "no such entry");
        }
        Outcome::Checked(validated.len() as u64)
    }
}
