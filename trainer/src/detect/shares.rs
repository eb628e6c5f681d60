//! Whether the workers of an attempt executed an update as they are said to.

use schemas::body::{ObservedFault, WorkerShare};
use schemas::contract::FaultKind;

use super::Mismatch;

/// Compares the shares of an update with those of `num_workers` workers: one of
/// each, in order, of the same number of microbatches, without a gap. One worker
/// has none.
///
/// # Errors
/// When they are others.
pub fn shares(
    step: u64,
    num_workers: u32,
    num_microbatches: u32,
    shares: &[WorkerShare],
) -> Result<(), Mismatch> {
    let each = num_microbatches / num_workers.max(1);
    let expected: Vec<(u32, u32, u32)> =
        (0..num_workers).filter(|_| num_workers > 1).map(|worker| (worker, worker * each, each)).collect();
    let found: Vec<(u32, u32, u32)> =
        shares.iter().map(|share| (share.worker.0, share.first_microbatch, share.num_microbatches)).collect();
    if found == expected {
        return Ok(());
    }
    let what = format!(
        "update {step} was executed in shares {found:?} (worker, first microbatch, microbatches), expected \
         {expected:?}"
    );
    Err(Mismatch::own(ObservedFault::PlanMismatch, FaultKind::TopologyChange, what))
}

#[cfg(test)]
mod tests {
    use schemas::digest::Digest;
    use schemas::ids::WorkerId;

    use super::*;

    fn of(found: &[(u32, u32, u32)]) -> Vec<WorkerShare> {
        let share = |&(worker, first_microbatch, num_microbatches): &(u32, u32, u32)| WorkerShare {
            bytes_sent: 0,
            duration_us: 1,
            first_microbatch,
            gradients: Digest::blake3([0; 32]),
            num_microbatches,
            worker: WorkerId(worker),
        };
        found.iter().map(share).collect()
    }

    #[test]
    fn each_worker_has_its_own_part_of_the_update() {
        assert_eq!(shares(3, 2, 4, &of(&[(0, 0, 2), (1, 2, 2)])), Ok(()));
        assert_eq!(shares(3, 1, 4, &[]), Ok(()));
        for found in [&[(0, 0, 4)][..], &[(0, 0, 3), (1, 3, 1)], &[(1, 0, 2), (0, 2, 2)], &[]] {
            let mismatch = shares(3, 2, 4, &of(found)).expect_err("other shares");
            assert_eq!(mismatch.cause, FaultKind::TopologyChange, "{found:?}");
            assert!(mismatch.to_string().contains("update 3"), "{mismatch}");
        }
    }
}
