//! Several workers: what they need of the contract, and when another number of
//! them may execute an attempt.

use schemas::contract::{
    Collective, Contract, Device, EquivalenceClass, LlamaDecoder, MidAccumulation, PermittedRewrite,
};

use super::model::num_parameters;
use super::problem::Problems;
use super::schedule;

/// Most workers: an entry tells of each, and no host has use for more processes.
const MAX_WORKERS: u32 = 64;
/// Longest that a worker may be silent: an hour. A bound that nothing exceeds
/// finds no worker that hangs.
const MAX_TIMEOUT_MS: u32 = 3_600_000;
/// Bytes of an element of a sum.
const BYTES_PER_ELEMENT: u64 = 4;

pub(super) fn check(contract: &Contract, problems: &mut Problems) {
    let topology = &contract.topology;
    let workers = topology.workers;
    problems.require(
        workers <= MAX_WORKERS,
        "/topology/workers",
        format!("is {workers}; expected at most {MAX_WORKERS}"),
        "workers are processes of one host; raise /batch/accumulation instead",
    );
    match &topology.collective {
        None => problems.require(
            workers <= 1,
            "/topology/collective",
            format!("is missing, and there are {workers} workers"),
            "say how long a worker may be silent: {\"heartbeat_ms\": 500, \"replica_digest_every_steps\": 100, \
             \"timeout_ms\": 30000}",
        ),
        Some(collective) => {
            problems.require(
                workers > 1,
                "/topology/collective",
                "is there, and there is one worker",
                "leave it out",
            );
            check_collective(collective, schedule::num_steps(contract), problems);
        }
    }
    check_worker_count(contract, problems);
    if workers <= 1 {
        return;
    }
    problems.require(
        contract.plan.device == Device::Cpu,
        "/plan/device",
        format!("is {:?}, and there are {workers} workers; expected \"cpu\"", contract.plan.device),
        "the trainer of this edition has no collective between devices",
    );
    problems.require(
        contract.checkpoints.mid_accumulation == MidAccumulation::RoundToBoundary,
        "/checkpoints/mid_accumulation",
        "is \"save_gradients\", and the sums of an unfinished update lie in several processes",
        "say \"round_to_boundary\"",
    );
}

fn check_collective(collective: &Collective, last: u64, problems: &mut Problems) {
    let Collective { heartbeat_ms, replica_digest_every_steps, timeout_ms } = *collective;
    problems.require_count(replica_digest_every_steps, "/topology/collective/replica_digest_every_steps");
    problems.require(
        replica_digest_every_steps <= last,
        "/topology/collective/replica_digest_every_steps",
        format!("is {replica_digest_every_steps}; expected at most {last}, the run's last step"),
        "replicas that are never compared may differ unseen; compare them at every hundredth step, or sooner",
    );
    problems.require(
        (1..=MAX_TIMEOUT_MS).contains(&timeout_ms),
        "/topology/collective/timeout_ms",
        format!("is {timeout_ms}; expected 1 to {MAX_TIMEOUT_MS}"),
        "several times what an update takes, such as 30000",
    );
    problems.require(
        heartbeat_ms > 0 && heartbeat_ms < timeout_ms,
        "/topology/collective/heartbeat_ms",
        format!("is {heartbeat_ms}; expected at least 1 and below timeout_ms, {timeout_ms}"),
        "a worker that says less often that it lives than it may be silent is always late",
    );
}

/// Another number of workers gives the same bits where everything drawn is a
/// function of its coordinates; what is claimed of it stays the weaker class.
fn check_worker_count(contract: &Contract, problems: &mut Problems) {
    const POINTER: &str = "/topology/permitted_rewrites";
    if !contract.topology.permitted_rewrites.contains(&PermittedRewrite::WorkerCount) {
        return;
    }
    problems.require(
        contract.topology.workers > 1,
        POINTER,
        "permits \"worker_count\", and one worker needs no collective, which others would",
        "leave it out, or start with several workers; `trainer run --workers 1` is then one of the others",
    );
    problems.require(
        contract.resume.class != EquivalenceClass::Bitwise,
        "/resume/class",
        "is \"bitwise\", and /topology/permitted_rewrites permits \"worker_count\"",
        "claim \"operation_order_bounded\" with a tolerance, or leave the permission out",
    );
    problems.require(
        contract.dropout_draws.is_keyed(),
        "/dropout_draws/scheme",
        "is \"philox_stream/1\", where each worker has a stream, and /topology/permitted_rewrites permits \
         \"worker_count\"",
        "say \"keyed/1\", or leave the permission out: other workers would draw other masks",
    );
}

/// What a worker sends at least: the sums of its blocks of microbatches.
pub(super) fn check_traffic(
    contract: &Contract,
    decoder: &LlamaDecoder,
    num_frozen: u64,
    problems: &mut Problems,
) {
    let (workers, accumulation) = (contract.topology.workers, contract.batch.accumulation);
    if workers <= 1 || workers > MAX_WORKERS {
        return;
    }
    let ranges = (1..workers).map(|worker| (worker.saturating_mul(accumulation), accumulation));
    let num_blocks = ranges.map(|(first, length)| num_blocks(first, length)).max().unwrap_or(0);
    let gradient = num_parameters(decoder).saturating_sub(num_frozen).saturating_mul(BYTES_PER_ELEMENT);
    let least = gradient.saturating_mul(num_blocks);
    let expected = contract.expected.communication_bytes_per_step;
    problems.require(
        expected > least,
        "/expected/communication_bytes_per_step",
        format!("is {expected}; the sums of gradients that a worker sends for one update take {least}"),
        "allow for token losses, ids and text on top: about a tenth more, or measure a short run",
    );
}

/// Blocks that so many microbatches from `first` on make (`docs/FORMAT.md`,
/// "Reduction"): the largest powers of two that begin at a multiple of
/// themselves.
fn num_blocks(first: u32, length: u32) -> u64 {
    let end = first.saturating_add(length);
    let (mut next, mut count) = (first, 0);
    while next < end {
        let aligned = if next == 0 { u32::MAX } else { 1 << next.trailing_zeros() };
        next += aligned.min(1 << (end - next).ilog2());
        count += 1;
    }
    count
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_has_the_fewest_aligned_blocks() {
        for (first, length, expected) in
            [(0, 4, 1), (0, 3, 2), (2, 2, 1), (3, 3, 2), (1, 6, 4), (6, 6, 2), (5, 0, 0), (7, 1, 1)]
        {
            assert_eq!(num_blocks(first, length), expected, "{first} and {length}");
        }
    }
}
