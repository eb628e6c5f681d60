//! The run ended where its stopping rule says, or its budget.

use schemas::body::{Body, Outcome as RunOutcome};
use schemas::contract::{Contract, Recovery, StoppingRule};
use schemas::entry::Entry;
use schemas::report::Route;

use crate::derive::selection::{SelectionState, followed_stream};
use crate::derive::steps;
use crate::evidence::Evidence;
use crate::frozen::Frozen;
use crate::rule::{At, Check, Outcome, Sink};
use crate::rules::common::{Position, Rewindable, declare_rule};

declare_rule!(
    /// `GL209`.
    Stopping,
    {
        code: "GL209",
        name: "stopping-rule",
        what: "The last step is the one at which the frozen stopping rule is reached: the fixed step, or the first evaluation \
               without improvement for `patience` evaluations, recomputed from the evaluations. No step follows it.",
        why: "Whoever chooses the end after seeing the curve chooses the result.",
        remedy: "Let `trainer run` go on to the end. A run that went beyond it is not the contract's.",
        reference: "docs/FORMAT.md, \"Stopping\" and \"Selection state\"",
        gate: Route::RejectFrozenInputs,
    }
);

struct Stop<'a> {
    contract: &'a Contract,
    position: Position,
    selection: Rewindable<SelectionState>,
    num_checked: u64,
}

fn open(frozen: &Frozen) -> Box<dyn Check + '_> {
    Box::new(Stop {
        contract: &frozen.contract,
        position: Position::default(),
        selection: Rewindable::new(SelectionState::default()),
        num_checked: 0,
    })
}

impl Stop<'_> {
    /// Whether the rule is reached where the run stands.
    fn is_reached(&self) -> bool {
        let waited = match &self.contract.stopping {
            StoppingRule::AtStep { .. } => false,
            StoppingRule::Patience { patience, .. } => {
                self.selection.now.without_improvement >= u64::from(*patience)
            }
        };
        waited || self.position.step >= steps::latest_step(&self.contract.stopping)
    }

    fn end(&self, index: u64, outcome: RunOutcome, sink: &mut Sink) {
        let (latest, step) = (steps::latest_step(&self.contract.stopping), self.position.step);
        let at = || At::entry(index, "/body/det/outcome");
        match outcome {
            RunOutcome::Completed if !self.is_reached() => {
                let actual = format!("step {step}");
                sink.rejected(
                    at(),
                    "the run ended before its stopping rule was reached",
                    format!("step {latest}"),
                    actual,
                );
            }
            RunOutcome::Completed => {}
            RunOutcome::BudgetExhausted if self.is_reached() => {
                let message = "the stopping rule was reached, so the budget did not end the run";
                sink.rejected(at(), message, "completed", "budget_exhausted");
            }
            RunOutcome::BudgetExhausted => {
                let message = "the budget ended the run before its stopping rule";
                sink.warning(at(), message, format!("step {latest}"), format!("step {step}"));
            }
            RunOutcome::Refused if self.contract.faults.recovery == Recovery::Refuse => {
                let message = "the recovery policy ended the run before its stopping rule";
                sink.warning(at(), message, format!("step {latest}"), format!("step {step}"));
            }
            other => {
                let message = "the run ended without being completed";
                sink.incomplete(at(), message, "completed or budget_exhausted", format!("{other:?}"));
            }
        }
    }
}

impl Check for Stop<'_> {
    fn entry(&mut self, entry: &Entry, sink: &mut Sink) {
        match &entry.body {
            Body::Step(_) => {
                self.num_checked += 1;
                if self.is_reached() {
                    let at = At::entry(entry.index, "/step");
                    let message = "an update follows the step at which the stopping rule was reached";
                    sink.rejected(at, message, format!("no step after {}", self.position.step), "a step");
                }
            }
            Body::Eval(halves) => {
                if let Some((stream, min_delta)) = followed_stream(self.contract)
                    && stream.name == halves.det.stream
                {
                    let step = entry.header.step.unwrap_or(0);
                    self.selection.now =
                        self.selection.now.after(stream.direction, min_delta, step, halves.det.value.0);
                }
            }
            Body::RunEnd(halves) => {
                self.num_checked += 1;
                self.end(entry.index, halves.det.outcome, sink);
            }
            _ => {}
        }
        self.selection.entry(entry);
        self.position.entry(entry);
    }

    fn finish(&mut self, _: &Evidence, _: &mut Sink) -> Outcome {
        Outcome::Checked(self.num_checked)
    }
}
