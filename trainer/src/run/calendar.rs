//! What the contract asks for at a step: functions of the contract, the step and
//! the evaluations; the clock counts for the wall-time budget alone.

use std::time::Duration;

use schemas::body::{Counters, Outcome};
use schemas::contract::{CandidateFamily, Contract, MidAccumulation, StoppingRule};

use crate::state::SelectionTracker;

/// The step that the run ends at unless something ends it earlier.
pub(super) fn last_step_bound(contract: &Contract) -> u64 {
    let by_rule = match contract.stopping {
        StoppingRule::AtStep { step } => step,
        StoppingRule::Patience { max_step, .. } => max_step,
    };
    by_rule.min(contract.budget.max_steps)
}

/// Whether the entry of a step carries the digests of the state.
pub(super) fn is_digest_step(contract: &Contract, step: u64) -> bool {
    contract.state_digest_every_steps.is_some_and(|every| every > 0 && step.is_multiple_of(every))
}

/// Whether, and why, a step is the last (`docs/FORMAT.md`, "Stopping").
/// `wall_us` is that of all attempts together.
pub(super) fn stop(
    contract: &Contract,
    step: u64,
    counters: Counters,
    selection: &SelectionTracker,
    wall_us: u64,
) -> Option<(Outcome, String)> {
    if step == 0 {
        return None;
    }
    let completed = |reason: String| Some((Outcome::Completed, reason));
    let exhausted = |reason: String| Some((Outcome::BudgetExhausted, reason));
    match &contract.stopping {
        StoppingRule::AtStep { step: last } if step >= *last => {
            return completed(format!("the stopping rule ends the run at step {last}"));
        }
        StoppingRule::Patience { stream, patience, .. } if selection.is_exhausted() => {
            return completed(format!("{stream} did not improve for {patience} evaluations"));
        }
        StoppingRule::Patience { max_step, .. } if step >= *max_step => {
            return completed(format!("the stopping rule ends the run at step {max_step} at the latest"));
        }
        _ => {}
    }
    let budget = &contract.budget;
    if step >= budget.max_steps {
        return exhausted(format!("the budget of {} steps is used", budget.max_steps));
    }
    if let Some(max_tokens) = budget.max_tokens.filter(|max_tokens| counters.tokens >= *max_tokens) {
        return exhausted(format!("{} of {max_tokens} tokens are used", counters.tokens));
    }
    let max_wall_s = budget.max_wall_s?;
    if wall_us < max_wall_s.saturating_mul(1_000_000) {
        return None;
    }
    exhausted(format!("{:.1} of {max_wall_s} s are used", Duration::from_micros(wall_us).as_secs_f64()))
}

/// Microbatches of the next update after which the due state of a step is
/// saved.
pub(super) fn microbatches_before_save(contract: &Contract, step: u64, is_last: bool) -> u32 {
    let inside = contract.checkpoints.after_microbatches.filter(|_| step > 0 && !is_last);
    inside.unwrap_or(0)
}

/// Most sums of each gradient that a checkpoint holds: one for each binary digit
/// of the microbatches that are done.
pub(crate) fn max_sums(contract: &Contract) -> u64 {
    let digits = u32::BITS - contract.batch.accumulation.leading_zeros();
    match contract.checkpoints.mid_accumulation {
        MidAccumulation::RoundToBoundary => 0,
        MidAccumulation::SaveGradients => u64::from(digits),
    }
}

/// Whether the checkpoint of an evaluated step becomes a candidate; one of a
/// step that only a signal saved does not.
pub(super) fn is_of_family(contract: &Contract, step: u64, is_last: bool) -> bool {
    let is_due = step.is_multiple_of(contract.checkpoints.every_steps) || is_last;
    match contract.selection.family {
        CandidateFamily::EveryEvaluatedCheckpoint => step > 0 && is_due,
        CandidateFamily::FinalOnly => is_last,
    }
}
