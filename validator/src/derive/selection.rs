//! Best value, patience, and the winner among candidates
//! (`docs/FORMAT.md`, "Selection state" and "candidate steps").

use schemas::contract::{Contract, Direction, EvaluationStream, StoppingRule};
use schemas::number::Float;

use super::metrics::better;

/// The stream that the selection state follows, and the improvement that
/// counts in it.
#[must_use]
pub fn followed_stream(contract: &Contract) -> Option<(&EvaluationStream, f64)> {
    let (name, min_delta) = match &contract.stopping {
        StoppingRule::Patience { stream, min_delta, .. } => (stream, *min_delta),
        StoppingRule::AtStep { .. } => (&contract.selection.stream, 0.0),
    };
    contract.evaluation.streams.iter().find(|stream| stream.name == *name).map(|stream| (stream, min_delta))
}

/// What the evaluations of one stream have come to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SelectionState {
    /// Step and value of the best evaluation; none before a finite one.
    pub best: Option<(u64, Float)>,
    /// Evaluations since the best one.
    pub without_improvement: u64,
}

impl SelectionState {
    /// The state after one more evaluation.
    #[must_use]
    pub fn after(self, direction: Direction, min_delta: f64, step: u64, value: f64) -> Self {
        let improves = value.is_finite()
            && self.best.is_none_or(|(_, best)| match direction {
                Direction::Minimize => best.0 - value > min_delta,
                Direction::Maximize => value - best.0 > min_delta,
            });
        if improves {
            Self { best: Some((step, Float(value))), without_improvement: 0 }
        } else {
            Self { without_improvement: self.without_improvement + 1, ..self }
        }
    }
}

/// The winner: the finite value that the direction prefers, the smallest step
/// among equals. `None` where no value is finite. Candidates come in step order.
pub fn winner(direction: Direction, candidates: impl IntoIterator<Item = (u64, f64)>) -> Option<(u64, f64)> {
    let mut best: Option<(u64, f64)> = None;
    for (step, value) in candidates {
        if value.is_finite() && best.is_none_or(|(_, other)| better(direction, value, other)) {
            best = Some((step, value));
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;

    fn follow(min_delta: f64, values: &[f64]) -> SelectionState {
        (0u64..).zip(values).fold(SelectionState::default(), |state, (step, value)| {
            state.after(Direction::Minimize, min_delta, step, *value)
        })
    }

    #[test]
    fn small_improvements_do_not_count() {
        assert_eq!(follow(0.0, &[3.0, 2.0, 2.0, 2.5]).best, Some((1, Float(2.0))));
        assert_eq!(follow(0.0, &[3.0, 2.0, 2.0, 2.5]).without_improvement, 2);
        assert_eq!(follow(0.5, &[3.0, 2.5, 2.4]).best, Some((2, Float(2.4))));
        assert_eq!(follow(0.5, &[3.0, 2.5]).without_improvement, 1);
    }

    #[test]
    fn values_that_are_not_finite_never_become_best() {
        assert_eq!(
            follow(0.0, &[f64::NAN, f64::NEG_INFINITY]),
            SelectionState { best: None, without_improvement: 2 }
        );
        assert_eq!(follow(0.0, &[f64::NAN, 9.0]).best, Some((1, Float(9.0))));
    }

    #[test]
    fn ties_go_to_the_earliest_and_nan_never_wins() {
        let candidates = [(1, f64::NAN), (2, 2.0), (3, 1.0), (4, 1.0), (5, f64::NEG_INFINITY)];
        assert_eq!(winner(Direction::Minimize, candidates), Some((3, 1.0)));
        assert_eq!(winner(Direction::Maximize, candidates), Some((2, 2.0)));
        assert_eq!(winner(Direction::Maximize, [(1, f64::NAN)]), None);
    }
}
