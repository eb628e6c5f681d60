//! What a fault asks of the worker processes beside the one that records.

use schemas::contract::{Contract, FaultKind, FaultPhase};

use super::Due;
use crate::engine::Engine;
use crate::run::attempt::Attempt;
use crate::run::error::RunError;
use crate::run::refusal::Refusal;

/// What is to happen to a worker, or between workers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WorkerStrike {
    /// SIGKILL, before its first microbatch or behind its last.
    Kill,
    /// It answers later than the contract's timeout, from the same places.
    AnswerLate,
    /// It gives the gradients of its update before under the current number.
    GiveStale,
    /// Its frame of the update before is sent again.
    SendAgain,
    /// So many workers execute the update.
    Restaff {
        /// How many; below the contract's, and dividing an update's
        /// microbatches.
        num_workers: u32,
    },
}

/// A strike that is on record and has to happen in the next update.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WorkerRequest {
    /// Where in it.
    pub phase: FaultPhase,
    /// What happens.
    pub strike: WorkerStrike,
    /// To which worker; 0 is the process that records.
    pub worker: u32,
}

/// What a fault asks of other processes; `None` for one that strikes the
/// process that records alone.
#[must_use]
pub(super) fn request(contract: &Contract, due: &Due) -> Option<WorkerRequest> {
    let (workers, worker, phase) = (contract.topology.workers, due.worker(), due.planned.phase);
    let strike = match (due.planned.fault, phase) {
        (FaultKind::WorkerLoss, _) if worker > 0 => WorkerStrike::Kill,
        (FaultKind::CollectiveTimeout, _) => WorkerStrike::AnswerLate,
        (FaultKind::StaleOrDelayedGradient, FaultPhase::InExchange) => WorkerStrike::SendAgain,
        (FaultKind::StaleOrDelayedGradient, _) if workers > 1 => WorkerStrike::GiveStale,
        (FaultKind::TopologyChange, _) => {
            let microbatches = contract.batch.accumulation.saturating_mul(contract.batch.data_parallel);
            WorkerStrike::Restaff { num_workers: fewer_workers(workers, microbatches, due.words()[0]) }
        }
        _ => return None,
    };
    Some(WorkerRequest { phase, strike, worker })
}

/// Another number of workers that divides the microbatches of an update.
fn fewer_workers(workers: u32, microbatches: u32, word: u32) -> u32 {
    let possible: Vec<u32> = (1..workers).filter(|count| microbatches.is_multiple_of(*count)).collect();
    // With more than one worker, one is always possible.
    possible.get(word as usize % possible.len().max(1)).copied().unwrap_or(1)
}

/// Carries out a request.
///
/// # Errors
/// [`Refusal::Unsupported`] in a trainer whose updates no other process
/// executes; the freeze refuses such a plan before.
pub(super) fn strike(_: &mut Attempt, _: &mut Engine, request: &WorkerRequest) -> Result<(), RunError> {
    Err(Refusal::Unsupported { pointer: "/faults/plan", found: format!("{request:?}") }.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_number_of_workers_is_smaller_and_divides_the_update() {
        let drawn: Vec<u32> = (0..6).map(|word| fewer_workers(4, 12, word)).collect();
        assert_eq!(drawn, [1, 2, 3, 1, 2, 3]);
    }
}
