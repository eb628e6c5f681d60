//! Best value so far and patience: a function of the evaluations of one
//! stream, as `docs/FORMAT.md` ("Selection state") says.

use schemas::contract::{Contract, Direction, StoppingRule};
use schemas::number::Float;
use serde::{Deserialize, Serialize};

/// `selection_state.json`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SelectionState {
    /// Step of the best evaluation; null before the first finite one.
    pub best_step: Option<u64>,
    /// Its value.
    pub best_value: Option<Float>,
    /// Evaluations since then.
    pub evaluations_without_improvement: u64,
}

/// Follows one evaluation stream.
#[derive(Debug, Clone, PartialEq)]
pub struct SelectionTracker {
    direction: Direction,
    min_delta: f64,
    patience: Option<u32>,
    state: SelectionState,
    stream: String,
}

impl SelectionTracker {
    /// Follows the stream of the stopping rule if that has patience, else that
    /// of the selection rule; `None` where the contract has no such stream.
    #[must_use]
    pub fn new(contract: &Contract) -> Option<Self> {
        let (stream, min_delta, patience) = match &contract.stopping {
            StoppingRule::Patience { stream, min_delta, patience, .. } => {
                (stream, *min_delta, Some(*patience))
            }
            StoppingRule::AtStep { .. } => (&contract.selection.stream, 0.0, None),
        };
        let direction = contract.evaluation.streams.iter().find(|known| known.name == *stream)?.direction;
        Some(Self {
            direction,
            min_delta,
            patience,
            state: SelectionState::default(),
            stream: stream.clone(),
        })
    }

    /// Name of the stream that it follows.
    #[must_use]
    pub fn stream(&self) -> &str {
        &self.stream
    }

    /// The state after the last evaluation that was observed.
    #[must_use]
    pub const fn state(&self) -> &SelectionState {
        &self.state
    }

    /// Goes on from a state that was saved.
    #[must_use]
    pub fn with_state(self, state: SelectionState) -> Self {
        Self { state, ..self }
    }

    /// Takes the next evaluation, in step order. A value that is not finite
    /// never improves.
    pub fn observe(&mut self, step: u64, value: f64) {
        let improvement = |best: f64| match self.direction {
            Direction::Minimize => best - value,
            Direction::Maximize => value - best,
        };
        let improves = value.is_finite()
            && self.state.best_value.is_none_or(|best| improvement(best.0) > self.min_delta);
        if improves {
            self.state = SelectionState {
                best_step: Some(step),
                best_value: Some(Float(value)),
                evaluations_without_improvement: 0,
            };
        } else {
            self.state.evaluations_without_improvement += 1;
        }
    }

    /// Whether the stopping rule's patience has run out.
    #[must_use]
    pub fn is_exhausted(&self) -> bool {
        self.patience
            .is_some_and(|patience| self.state.evaluations_without_improvement >= u64::from(patience))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tracker(direction: Direction, min_delta: f64, patience: u32) -> SelectionTracker {
        SelectionTracker {
            direction,
            min_delta,
            patience: Some(patience),
            state: SelectionState::default(),
            stream: "val".to_owned(),
        }
    }

    fn check(direction: Direction, min_delta: f64, values: &[f64], best_step: Option<u64>, without: u64) {
        let mut tracker = tracker(direction, min_delta, 2);
        for (step, value) in (0..).zip(values) {
            tracker.observe(step, *value);
        }
        assert_eq!(tracker.state.best_step, best_step, "{values:?}");
        assert_eq!(tracker.state.evaluations_without_improvement, without, "{values:?}");
        assert_eq!(tracker.is_exhausted(), without >= 2);
    }

    #[test]
    fn improvement_is_by_more_than_the_delta_and_never_by_what_is_not_finite() {
        check(Direction::Minimize, 0.0, &[3.0, 2.0, 2.0], Some(1), 1);
        check(Direction::Minimize, 0.5, &[3.0, 2.5, 2.4], Some(2), 0);
        check(Direction::Minimize, 0.5, &[3.0, 2.5, 2.5], Some(0), 2);
        check(Direction::Maximize, 0.0, &[1.0, 2.0, 0.0, 1.5], Some(1), 2);
        check(Direction::Minimize, 0.0, &[f64::NAN, f64::INFINITY], None, 2);
        check(Direction::Minimize, 0.0, &[f64::NAN, 1.0], Some(1), 0);
    }
}
