//! What an attempt says of those before it, in the words of
//! `docs/FORMAT.md` ("Recovery" and "Costs of a recovery"), for every loop.
//!
//! It makes the entries and adds up what they cost. What happened, from which state
//! a run goes on and what is removed is decided by whoever executes it: the trainer
//! goes by recovery policies and doubts that other loops do not have.

use schemas::body::{
    Body, CheckpointDet, CheckpointFailedObs, CostDet, CostObs, FaultObservedDet, FaultObservedObs,
    FaultRecoveredDet, Halves, ObservedFault,
};
use schemas::contract::FaultKind;
use schemas::ids::{AttemptId, CheckpointId};
use schemas::number::Float;

use crate::reader::{ReadError, Reader};

/// What recoveries are charged to.
const RECOVERY: &str = "recovery";

/// Microseconds of a second.
const MICROSECONDS: f64 = 1e6;

/// Why a checkpoint failed that an attempt left between request and validation.
pub const NOT_VALIDATED: &str = "the attempt that wrote it ended before it was validated";

/// An earlier attempt, as far as a fault says it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Struck {
    /// Its number.
    pub attempt: AttemptId,
    /// Its last completed step, or the step that it started from.
    pub last_step: u64,
}

/// `fault.observed` of an earlier attempt.
#[must_use]
pub fn observed(
    struck: Struck,
    (fault, cause): (ObservedFault, Option<FaultKind>),
    checkpoint: Option<CheckpointId>,
    description: String,
) -> Body {
    let Struck { attempt, last_step } = struck;
    let det = FaultObservedDet { attempt, cause, fault, last_step };
    Body::FaultObserved(Box::new(Halves { det, obs: FaultObservedObs { checkpoint, description } }))
}

/// `fault.observed` of an attempt that vanished. Where it left a save half-way,
/// whether that or the rest of it was interrupted is not known.
#[must_use]
pub fn vanished(struck: Struck, is_saving: bool) -> Body {
    let cause = (!is_saving).then_some(FaultKind::WorkerLoss);
    let description = "the attempt left no terminal entry".to_owned();
    observed(struck, (ObservedFault::AttemptVanished, cause), None, description)
}

/// The halves of `checkpoint.failed` and `checkpoint.quarantined`.
#[must_use]
pub fn given_up(
    checkpoint: &CheckpointId,
    step: u64,
    reason: String,
) -> Box<Halves<CheckpointDet, CheckpointFailedObs>> {
    let obs = CheckpointFailedObs { checkpoint: checkpoint.clone(), reason };
    Box::new(Halves { det: CheckpointDet { step }, obs })
}

/// What recoveries cost and no `cost` entry has charged yet.
///
/// Sums run from one `cost` entry of a unit to the next, so that what an attempt
/// recovered and did not come to charge is charged by the one after it.
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

    /// The three entries that charge all of it. `reader` is of the ledger before
    /// this recovery: what was lost was committed by earlier attempts.
    ///
    /// # Errors
    /// When the ledger cannot be read.
    pub fn entries(&self, reader: &Reader) -> Result<[Body; 3], ReadError> {
        let seconds = self.lost_us(reader)? as f64 / MICROSECONDS;
        Ok([
            cost(RECOVERY, self.num_steps as f64, "steps", "updates that are executed again"),
            cost(RECOVERY, seconds, "s", "time of the updates that are executed again"),
            cost(RECOVERY, self.num_bytes as f64, "bytes", "checkpoints that were given up"),
        ])
    }

    /// A second pass over the ledger, since who was struck, and how far the run
    /// goes back, is known only behind the first.
    fn lost_us(&self, reader: &Reader) -> Result<u64, ReadError> {
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
#[must_use]
pub fn cost(charged_to: &str, amount: f64, unit: &str, description: &str) -> Body {
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

    #[test]
    fn who_vanished_while_it_saved_is_given_no_cause() {
        let struck = Struck { attempt: AttemptId(3), last_step: 12 };
        for (is_saving, expected) in [(true, None), (false, Some(FaultKind::WorkerLoss))] {
            let Body::FaultObserved(halves) = vanished(struck, is_saving) else {
                unreachable!("it makes observed faults")
            };
            let det = FaultObservedDet {
                attempt: AttemptId(3),
                cause: expected,
                fault: ObservedFault::AttemptVanished,
                last_step: 12,
            };
            assert_eq!((halves.det, halves.obs.checkpoint), (det, None));
        }
    }
}
