//! Which microbatches of an update a worker executes, and in how many blocks it
//! sends what it computed (`docs/FORMAT.md`, "Workers").

use schemas::contract::Batch;
use schemas::digest::Digest;
use sha2::{Digest as _, Sha256};

use super::batch;

/// The first microbatch of worker `worker` of `num_workers`, and how many it
/// executes in a row; `None` where the workers cannot share them evenly.
#[must_use]
pub fn range(batch: &Batch, num_workers: u32, worker: u32) -> Option<(u32, u32)> {
    let total = u32::try_from(batch::num_microbatches(batch)).ok()?;
    let each = total.checked_div(num_workers)?;
    let is_even = each > 0 && total.is_multiple_of(num_workers) && worker < num_workers;
    is_even.then(|| (worker * each, each))
}

/// Blocks of a range of microbatches: the fewest that are a power of two long
/// and begin at a multiple of their length.
#[must_use]
pub fn num_blocks(first: u32, count: u32) -> u32 {
    let (mut at, end, mut num_blocks) = (u64::from(first), u64::from(first) + u64::from(count), 0);
    while at < end {
        let aligned = if at == 0 { u64::MAX } else { 1 << at.trailing_zeros() };
        let fits = 1 << (end - at).ilog2();
        at += aligned.min(fits);
        num_blocks += 1;
    }
    num_blocks
}

/// Identity of a segment that another number of workers executes: SHA-256 of
/// RFC 8785 bytes.
#[must_use]
pub fn segment_identity(contract: &Digest, num_workers: u32) -> Digest {
    let text = format!(r#"{{"contract":"{contract}","workers":{num_workers}}}"#);
    Digest::sha256(Sha256::digest(text.as_bytes()).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    const BATCH: Batch =
        Batch { accumulation: 3, data_parallel: 4, global_examples: 24, microbatch_examples: 2 };

    #[test]
    fn workers_share_every_microbatch_once() {
        for num_workers in [1, 2, 3, 4, 6, 12] {
            let ranges = (0..num_workers).map(|worker| range(&BATCH, num_workers, worker).expect("even"));
            let all: Vec<u32> = ranges.flat_map(|(first, count)| first..first + count).collect();
            assert_eq!(all, (0..12).collect::<Vec<_>>(), "{num_workers} workers");
        }
        assert_eq!(range(&BATCH, 4, 1), Some((3, 3)));
        assert_eq!(range(&BATCH, 5, 0), None);
        assert_eq!(range(&BATCH, 0, 0), None);
        assert_eq!(range(&BATCH, 24, 0), None);
        assert_eq!(range(&BATCH, 4, 4), None);
    }

    /// By hand: 3..6 is 3, 4..6; 5..11 is 5, 6..8, 8..10, 10.
    #[test]
    fn blocks_by_hand() {
        for (first, count, expected) in [(0, 1, 1), (0, 3, 2), (3, 3, 2), (5, 6, 4), (0, 8, 1), (7, 0, 0)] {
            assert_eq!(num_blocks(first, count), expected, "{count} from {first}");
        }
        assert_eq!(num_blocks(0, u32::MAX), 32);
    }

    /// Computed with Python's `hashlib`.
    #[test]
    fn an_identity_binds_contract_and_workers() {
        let contract = Digest::sha256([0; 32]);
        let identity = segment_identity(&contract, 2);
        assert_eq!(identity.hex(), "43603819c5234825052ee031907863536e607a239f66d4f42d9c5733aedde20c");
        assert_ne!(identity, segment_identity(&contract, 3));
    }
}
