//! What a fault does to the worker processes beside the one that records, and
//! between them. It is ordered here; the collective carries it out in the next
//! update.

use std::sync::atomic::AtomicBool;

use schemas::contract::{Contract, FaultKind, FaultPhase};

use super::Due;
use crate::engine::Engine;
use crate::run::attempt::Attempt;
use crate::run::error::RunError;
use crate::workers::{FaultPlace, WorkerFault};

/// Whether it strikes another process, or what passes between them, and not the
/// state of the one that records.
pub(super) fn is_between(due: &Due) -> bool {
    match due.planned.fault {
        FaultKind::WorkerLoss => due.worker() > 0,
        FaultKind::CollectiveTimeout | FaultKind::TopologyChange => true,
        _ => false,
    }
}

/// Whether a worker is there and executes microbatches: of one that does not,
/// nothing can be ordered.
fn executes(attempt: &Attempt, worker: u32) -> bool {
    attempt.collective.as_ref().is_some_and(|collective| worker < collective.num_executing())
}

/// Orders what acts before the first microbatch of the next update. In an
/// attempt of one process, or of fewer than the struck one, there is nobody to
/// strike, and it waits.
///
/// # Errors
/// When the ledger cannot be written.
pub(super) fn before_forward(attempt: &mut Attempt, contract: &Contract, due: &Due) -> Result<(), RunError> {
    if !executes(attempt, due.worker()) {
        return Ok(());
    }
    due.record(attempt)?;
    let Some(collective) = &mut attempt.collective else { return Ok(()) };
    match due.planned.fault {
        FaultKind::WorkerLoss => collective.order(due.worker(), WorkerFault::Die(FaultPlace::BeforeForward)),
        FaultKind::CollectiveTimeout => {
            collective.order(due.worker(), WorkerFault::Stall(FaultPlace::BeforeForward));
        }
        _ => {
            let microbatches = contract.batch.accumulation.saturating_mul(contract.batch.data_parallel);
            let num_workers = fewer_workers(collective.num_workers(), microbatches, due.words()[0]);
            collective.execute_with(num_workers);
        }
    }
    Ok(())
}

/// Orders what acts behind the last microbatch of update `step`, or while its
/// shares are sent.
///
/// # Errors
/// When the ledger cannot be written.
pub(super) fn in_exchange(attempt: &mut Attempt, waiting: Vec<Due>, step: u64) -> Result<(), RunError> {
    for due in waiting {
        let worker = due.worker();
        let relabelled = due.planned.phase == FaultPhase::BeforeExchange;
        let fault = match due.planned.fault {
            FaultKind::WorkerLoss => WorkerFault::Die(FaultPlace::AfterBackward),
            FaultKind::CollectiveTimeout => WorkerFault::Stall(FaultPlace::AfterBackward),
            _ => WorkerFault::Stale { relabelled },
        };
        let needs_last = matches!(fault, WorkerFault::Stale { .. });
        let can_act = match &attempt.collective {
            // Without the update before there is nothing stale to give; it waits
            // for an attempt that executes both.
            Some(collective) => {
                let is_there = executes(attempt, worker);
                is_there && (!needs_last || collective.has_executed(step.saturating_sub(1)))
            }
            // In an attempt of one process there is nobody to strike.
            None => false,
        };
        // The process that records has no place of its own behind its backward
        // pass; the freeze refuses such a plan.
        if !can_act || worker == 0 && !needs_last {
            continue;
        }
        due.record(attempt)?;
        if let Some(collective) = &mut attempt.collective {
            collective.order(worker, fault);
        }
    }
    Ok(())
}

/// Gives the state that a fault changed here to the other workers: what is lost
/// or moved is so for all of them.
///
/// # Errors
/// When a worker cannot be told.
pub(super) fn restate(attempt: &mut Attempt, engine: &Engine) -> Result<(), RunError> {
    let Some(collective) = &mut attempt.collective else { return Ok(()) };
    collective.restate(engine, &AtomicBool::new(false)).map(|_| ())
}

/// Another number of workers that divides the microbatches of an update.
fn fewer_workers(workers: u32, microbatches: u32, word: u32) -> u32 {
    let possible: Vec<u32> = (1..workers).filter(|count| microbatches.is_multiple_of(*count)).collect();
    // With more than one worker, one is always possible.
    possible.get(word as usize % possible.len().max(1)).copied().unwrap_or(1)
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
