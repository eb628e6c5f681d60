//! A rate that falls when an evaluation stream stops improving, as
//! `docs/FORMAT.md` ("Plateau") says: PyTorch's `ReduceLROnPlateau` with an
//! absolute threshold.
//!
//! What it has come to is state: it depends on every evaluation before, and is
//! saved with the class `scheduler`.

use schemas::contract::{Contract, Direction, ScheduleShape};
use schemas::number::Float;
use serde::{Deserialize, Serialize};

/// What the evaluations of the watched stream have come to, for one group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlateauState {
    /// Evaluations in a row that did not improve.
    pub bad_evaluations: u64,
    /// The best value; null before the first finite one.
    pub best: Option<Float>,
    /// Evaluations that are left of the cooldown.
    pub cooldown: u64,
    /// The parameter group.
    pub group: String,
    /// Rate of the next update, before the group's multiplier.
    pub rate: Float,
}

/// The rule of one group, and its state.
#[derive(Debug, Clone, PartialEq)]
pub struct Plateau {
    cooldown: u64,
    direction: Direction,
    factor: f64,
    floor: f64,
    min_delta: f64,
    patience: u64,
    /// What it has come to.
    pub state: PlateauState,
    stream: String,
}

impl Plateau {
    /// Before any evaluation; `None` for other shapes, and where the contract
    /// has no such stream.
    #[must_use]
    pub fn new(group: &str, shape: &ScheduleShape, contract: &Contract) -> Option<Self> {
        let ScheduleShape::Plateau { cooldown, factor, floor, min_delta, patience, rate, stream } = shape
        else {
            return None;
        };
        let watched = contract.evaluation.streams.iter().find(|known| known.name == *stream)?;
        Some(Self {
            cooldown: *cooldown,
            direction: watched.direction,
            factor: *factor,
            floor: *floor,
            min_delta: *min_delta,
            patience: *patience,
            state: PlateauState {
                bad_evaluations: 0,
                best: None,
                cooldown: 0,
                group: group.to_owned(),
                rate: Float(*rate),
            },
            stream: stream.clone(),
        })
    }

    /// Takes the next evaluation of any stream, in step order. A value that is
    /// not finite never improves.
    pub fn observe(&mut self, stream: &str, value: f64) {
        if stream != self.stream {
            return;
        }
        let state = &mut self.state;
        let improves = value.is_finite()
            && state.best.is_none_or(|best| match self.direction {
                Direction::Minimize => best.0 - value > self.min_delta,
                Direction::Maximize => value - best.0 > self.min_delta,
            });
        if improves {
            state.best = Some(Float(value));
            state.bad_evaluations = 0;
        } else {
            state.bad_evaluations += 1;
        }
        if state.cooldown > 0 {
            state.cooldown -= 1;
            state.bad_evaluations = 0;
        }
        if state.bad_evaluations > self.patience {
            state.rate = Float((state.rate.0 * self.factor).max(self.floor));
            state.cooldown = self.cooldown;
            state.bad_evaluations = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(values: &[f64], rates: &[f64]) {
        let mut plateau = Plateau {
            cooldown: 1,
            direction: Direction::Minimize,
            factor: 0.5,
            floor: 0.3,
            min_delta: 0.1,
            patience: 1,
            state: PlateauState {
                bad_evaluations: 0,
                best: None,
                cooldown: 0,
                group: "all".to_owned(),
                rate: Float(1.0),
            },
            stream: "val".to_owned(),
        };
        for (at, (value, rate)) in values.iter().zip(rates).enumerate() {
            plateau.observe("other", 0.0);
            plateau.observe("val", *value);
            assert_eq!(plateau.state.rate.0.to_bits(), rate.to_bits(), "evaluation {at} of {values:?}");
        }
    }

    #[test]
    fn it_falls_after_patience_waits_out_the_cooldown_and_stops_at_the_floor() {
        check(&[3.0, 2.0, 1.0, 0.5], &[1.0; 4]);
        check(&[3.0, 2.95, 2.95], &[1.0, 1.0, 0.5]);
        check(&[3.0, 3.0, 3.0, 3.0, 3.0, 3.0, 3.0], &[1.0, 1.0, 0.5, 0.5, 0.5, 0.3, 0.3]);
        check(&[f64::NAN, f64::NAN], &[1.0, 0.5]);
        check(&[3.0, f64::NAN, 1.0, 1.0, 1.0], &[1.0, 1.0, 1.0, 1.0, 0.5]);
    }
}
