//! What recoveries cost: steps and seconds that are thrown away, bytes that are
//! given up (`docs/FORMAT.md`, "Costs of a recovery").
//!
//! Sums run from one `cost` entry of a unit to the next, so that what an attempt
//! recovered and did not come to charge is charged by the one after it.

use ledger::reader::Reader;
use schemas::body::{Body, CostDet, CostObs, FaultRecoveredDet, Halves};
use schemas::ids::AttemptId;
use schemas::number::Float;

use super::attempt::Attempt;
use super::error::RunError;

/// What recoveries are charged to.
const RECOVERY: &str = "recovery";

/// Microseconds of a second.
const MICROSECONDS: f64 = 1e6;

/// What no `cost` entry has charged yet.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Charges {
    num_bytes: u64,
    num_steps: u64,
    /// Whose steps were lost, and the step behind which they were.
    spans: Vec<(AttemptId, u64)>,
}

impl Charges {
    /// Takes a `fault.recovered`.
    pub fn recovered(&mut self, det: &FaultRecoveredDet) {
        self.num_steps += det.num_steps_lost;
        self.spans.push((det.attempt, det.from_step));
    }

    /// Takes a `checkpoint.failed` or `checkpoint.quarantined`, with the size of
    /// what was committed, 0 where nothing was.
    pub fn given_up(&mut self, num_bytes: u64) {
        self.num_bytes += num_bytes;
    }

    /// Takes a `cost`.
    pub fn charged(&mut self, det: &CostDet, obs: &CostObs) {
        match (det.charged_to.as_str(), obs.unit.as_str()) {
            (RECOVERY, "steps") => self.num_steps = 0,
            (RECOVERY, "s") => self.spans.clear(),
            (RECOVERY, "bytes") => self.num_bytes = 0,
            _ => {}
        }
    }

    /// Whether there is a `fault.recovered` that nobody has charged.
    #[must_use]
    pub const fn is_open(&self) -> bool {
        !self.spans.is_empty()
    }

    /// Writes what is not charged yet, in three entries.
    ///
    /// # Errors
    /// When the ledger cannot be read or written.
    pub fn record(&self, attempt: &mut Attempt, step: u64, reader: &Reader) -> Result<(), RunError> {
        let seconds = self.lost_us(reader)? as f64 / MICROSECONDS;
        let entries = [
            ("steps", self.num_steps as f64, "updates that are executed again"),
            ("s", seconds, "time of the updates that are executed again"),
            ("bytes", self.num_bytes as f64, "checkpoints that were given up"),
        ];
        for (unit, amount, description) in entries {
            attempt.record(step, cost(RECOVERY, amount, unit, description))?;
        }
        Ok(())
    }

    /// A second pass over the ledger, since who was struck, and how far the run
    /// goes back, is known only behind the first.
    fn lost_us(&self, reader: &Reader) -> Result<u64, RunError> {
        let mut lost_us = 0;
        for entry in reader.entries(0) {
            let entry = entry?;
            let (Body::Step(halves), Some(attempt), Some(step)) =
                (&entry.body, entry.header.attempt, entry.header.step)
            else {
                continue;
            };
            let of_step = self.spans.iter().filter(|(struck, from)| *struck == attempt && step > *from);
            lost_us += of_step.count() as u64 * halves.obs.duration_us;
        }
        Ok(lost_us)
    }
}

/// A `cost` entry.
pub(super) fn cost(charged_to: &str, amount: f64, unit: &str, description: &str) -> Body {
    let obs = CostObs { amount: Float(amount), description: description.to_owned(), unit: unit.to_owned() };
    Body::Cost(Box::new(Halves { det: CostDet { charged_to: charged_to.to_owned() }, obs }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recovered(attempt: u32, from_step: u64, num_steps_lost: u64) -> FaultRecoveredDet {
        FaultRecoveredDet { attempt: AttemptId(attempt), from_step, num_steps_lost }
    }

    fn charge(charges: &mut Charges, charged_to: &str, unit: &str) {
        let Body::Cost(halves) = cost(charged_to, 1.0, unit, "") else { unreachable!("it makes costs") };
        charges.charged(&halves.det, &halves.obs);
    }

    /// What an attempt recovered and did not charge, the next one does, also
    /// where nothing struck that attempt.
    #[test]
    fn a_recovery_is_open_until_it_is_charged() {
        let mut charges = Charges::default();
        charges.given_up(7);
        assert!(!charges.is_open(), "nobody recovered from anything");
        charges.recovered(&recovered(1, 10, 0));
        charge(&mut charges, "recovery", "steps");
        assert!(charges.is_open());
        charge(&mut charges, "recovery", "s");
        assert!(!charges.is_open());
    }

    /// An attempt that vanished within its recovery has charged one of three.
    #[test]
    fn what_was_not_charged_stays_open_by_unit() {
        let mut charges = Charges::default();
        charges.recovered(&recovered(1, 10, 4));
        charges.given_up(100);
        charge(&mut charges, "recovery", "steps");
        charge(&mut charges, "operator", "s");
        assert_eq!(charges, Charges { num_bytes: 100, num_steps: 0, spans: vec![(AttemptId(1), 10)] });
        charges.recovered(&recovered(2, 10, 3));
        let spans = vec![(AttemptId(1), 10), (AttemptId(2), 10)];
        assert_eq!(charges, Charges { num_bytes: 100, num_steps: 3, spans });
        for unit in ["steps", "s", "bytes"] {
            charge(&mut charges, "recovery", unit);
        }
        assert_eq!(charges, Charges::default());
    }
}
