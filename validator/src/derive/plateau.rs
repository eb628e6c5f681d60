//! Rates that fall when an evaluation stream stops improving
//! (`docs/FORMAT.md`, "Plateau").

use schemas::contract::{Contract, Direction, ScheduleShape};
use schemas::number::Float;

/// What the evaluations have come to for one parameter group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupPlateau {
    /// Evaluations in a row that did not improve.
    pub bad_evaluations: u64,
    /// The best value; none before a finite one.
    pub best: Option<Float>,
    /// Evaluations that are left of the cooldown.
    pub cooldown: u64,
    /// The group.
    pub group: String,
    /// Rate of the next update, before the group's multiplier.
    pub rate: Float,
}

/// Those of every group whose schedule watches evaluations.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Plateaus(pub Vec<GroupPlateau>);

impl Plateaus {
    /// Before any evaluation, in the order of `groups`.
    pub fn new<'a>(contract: &Contract, groups: impl IntoIterator<Item = &'a str>) -> Self {
        let of_group = |group: &str| {
            let schedule = contract.schedule.iter().find(|schedule| schedule.group == group)?;
            let ScheduleShape::Plateau { rate, .. } = schedule.shape else { return None };
            let (group, rate) = (group.to_owned(), Float(rate));
            Some(GroupPlateau { bad_evaluations: 0, best: None, cooldown: 0, group, rate })
        };
        Self(groups.into_iter().filter_map(of_group).collect())
    }

    /// The rate of a group; `None` where its schedule watches nothing.
    #[must_use]
    pub fn rate(&self, group: &str) -> Option<f64> {
        self.0.iter().find(|plateau| plateau.group == group).map(|plateau| plateau.rate.0)
    }

    /// Takes the next evaluation of any stream.
    pub fn observe(&mut self, contract: &Contract, name: &str, value: f64) {
        let stream = contract.evaluation.streams.iter().find(|stream| stream.name == name);
        let Some(direction) = stream.map(|stream| stream.direction) else { return };
        for plateau in &mut self.0 {
            let schedule = contract.schedule.iter().find(|schedule| schedule.group == plateau.group);
            let Some(shape) = schedule.map(|schedule| &schedule.shape) else { continue };
            if matches!(shape, ScheduleShape::Plateau { stream, .. } if stream == name) {
                plateau.observe(shape, direction, value);
            }
        }
    }
}

impl GroupPlateau {
    fn observe(&mut self, shape: &ScheduleShape, direction: Direction, value: f64) {
        let ScheduleShape::Plateau { cooldown, factor, floor, min_delta, patience, .. } = shape else {
            return;
        };
        let gain = |best: f64| match direction {
            Direction::Minimize => best - value,
            Direction::Maximize => value - best,
        };
        if value.is_finite() && self.best.is_none_or(|best| gain(best.0) > *min_delta) {
            self.best = Some(Float(value));
            self.bad_evaluations = 0;
        } else {
            self.bad_evaluations = self.bad_evaluations.saturating_add(1);
        }
        if self.cooldown > 0 {
            self.cooldown -= 1;
            self.bad_evaluations = 0;
        }
        if self.bad_evaluations > *patience {
            let fallen = self.rate.0 * factor;
            self.rate = Float(if fallen > *floor { fallen } else { *floor });
            self.cooldown = *cooldown;
            self.bad_evaluations = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By hand: the best, one bad one that is tolerated, a fall, a cooldown in
    /// which nothing counts, and a fall onto the floor.
    #[test]
    fn a_trace_by_hand() {
        let mut contract = crate::fixture::contract();
        let stream = contract.evaluation.streams[0].name.clone();
        contract.schedule[1].shape = ScheduleShape::Plateau {
            cooldown: 1,
            factor: 0.5,
            floor: 0.3,
            min_delta: 0.1,
            patience: 1,
            rate: 1.0,
            stream: stream.clone(),
        };
        let groups = ["matrices", "embeddings", "vectors"];
        let mut plateaus = Plateaus::new(&contract, groups);
        assert_eq!(plateaus.rate("matrices"), None);
        let mut rates = Vec::new();
        for value in [3.0, 2.95, f64::NAN, 3.0, 3.0, 3.0, 1.0] {
            plateaus.observe(&contract, "another", 0.0);
            plateaus.observe(&contract, &stream, value);
            rates.push(plateaus.rate("embeddings").map(f64::to_bits));
        }
        let expected = [1.0, 1.0, 0.5, 0.5, 0.5, 0.3, 0.3f64].map(|rate| Some(rate.to_bits()));
        assert_eq!(rates, expected);
        assert_eq!(plateaus.0[0].best, Some(Float(1.0)));
    }
}
