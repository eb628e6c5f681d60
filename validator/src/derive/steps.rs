//! At which steps a contract evaluates and saves.

use schemas::contract::{Budget, CandidateFamily, Contract, StoppingRule};

/// Whether something with an interval is due: at step 0, at every multiple,
/// and at the last step.
#[must_use]
pub fn is_due(step: u64, every_steps: u64, last_step: u64) -> bool {
    step == 0 || step == last_step || (every_steps > 0 && step.is_multiple_of(every_steps))
}

/// Step at which the stopping rule ends the run at the latest.
#[must_use]
pub const fn latest_step(stopping: &StoppingRule) -> u64 {
    match stopping {
        StoppingRule::AtStep { step } => *step,
        StoppingRule::Patience { max_step, .. } => *max_step,
    }
}

/// Largest step that rule and budget allow.
#[must_use]
pub const fn max_step(stopping: &StoppingRule, budget: &Budget) -> u64 {
    let latest = latest_step(stopping);
    if latest < budget.max_steps { latest } else { budget.max_steps }
}

/// Whether the checkpoint of a step belongs to the candidate family.
#[must_use]
pub fn is_candidate(contract: &Contract, step: u64, last_step: u64) -> bool {
    match contract.selection.family {
        CandidateFamily::FinalOnly => step == last_step,
        CandidateFamily::EveryEvaluatedCheckpoint => {
            let stream =
                contract.evaluation.streams.iter().find(|stream| stream.name == contract.selection.stream);
            step != 0
                && is_due(step, contract.checkpoints.every_steps, last_step)
                && stream.is_some_and(|stream| is_due(step, stream.every_steps, last_step))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_multiples_and_last_are_due() {
        let due: Vec<u64> = (0..=11).filter(|step| is_due(*step, 4, 11)).collect();
        assert_eq!(due, [0, 4, 8, 11]);
        assert_eq!((0..=3).filter(|step| is_due(*step, 0, 3)).collect::<Vec<_>>(), [0, 3]);
    }

    #[test]
    fn the_smaller_limit_holds() {
        let budget = |max_steps| Budget { max_attempts: 1, max_steps, max_tokens: None, max_wall_s: None };
        assert_eq!(max_step(&StoppingRule::AtStep { step: 10 }, &budget(20)), 10);
        let patience =
            StoppingRule::Patience { max_step: 30, min_delta: 0.0, patience: 2, stream: "val".to_owned() };
        assert_eq!(max_step(&patience, &budget(20)), 20);
    }
}
