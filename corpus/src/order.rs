//! Data order `keyed_permutation/1`: global position to example, with random
//! access, as `docs/FORMAT.md` ("Data order") specifies it.
//!
//! Nothing here holds a cursor: position `g` always gives the same example, so
//! a resumed run needs no sampler state, and the validator recomputes the
//! order without the trainer.

use schemas::body::PositionRange;
use sha2::{Digest, Sha512};

/// Rounds of the Feistel network.
const NUM_ROUNDS: usize = 8;

/// A permutation of `0..num_examples` for one epoch of one stream.
#[derive(Debug, Clone)]
pub struct KeyedPermutation {
    half_bits: u32,
    mask: u64,
    num_examples: u64,
    round_keys: [u64; NUM_ROUNDS],
}

/// Finaliser of splitmix64 (Steele, Lea, Flood 2014).
const fn mix(mut z: u64) -> u64 {
    z ^= z >> 30;
    z = z.wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z ^= z >> 27;
    z = z.wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

impl KeyedPermutation {
    /// The permutation of `num_examples` (at least 1) for an epoch.
    #[must_use]
    pub fn new(stream: &str, seed: u64, epoch: u64, num_examples: u64) -> Self {
        let mut hasher = Sha512::new();
        hasher.update(b"governed-ledger order/1\0");
        hasher.update(stream.as_bytes());
        hasher.update([0]);
        hasher.update(seed.to_le_bytes());
        hasher.update(epoch.to_le_bytes());
        let output = hasher.finalize();
        let mut round_keys = [0; NUM_ROUNDS];
        for (key, bytes) in round_keys.iter_mut().zip(output.chunks_exact(8)) {
            *key = bytes.iter().rev().fold(0, |word, byte| (word << 8) | u64::from(*byte));
        }
        // The smallest h >= 1 with 2^(2h) >= N; 32 covers every u64.
        let half_bits = (1..32).find(|h| 1u128 << (2 * h) >= u128::from(num_examples)).unwrap_or(32);
        Self { half_bits, mask: (1 << half_bits) - 1, num_examples, round_keys }
    }

    fn pass(&self, x: u64) -> u64 {
        let (mut left, mut right) = (x >> self.half_bits, x & self.mask);
        for key in self.round_keys {
            (left, right) = (right, left ^ (mix(right.wrapping_add(key)) & self.mask));
        }
        (left << self.half_bits) | right
    }

    /// The example at a position below the number of examples.
    #[must_use]
    pub fn example(&self, position: u64) -> u64 {
        debug_assert!(position < self.num_examples);
        let mut value = self.pass(position);
        while value >= self.num_examples {
            value = self.pass(value);
        }
        value
    }
}

/// The order of one stream over all epochs.
#[derive(Debug, Clone)]
pub struct DataOrder {
    stream: String,
    seed: u64,
    num_examples: u64,
    /// The epoch used last and its permutation; a cache, not state.
    current: (u64, KeyedPermutation),
}

impl DataOrder {
    /// The order of a stream over `num_examples` (at least 1).
    #[must_use]
    pub fn new(stream: &str, seed: u64, num_examples: u64) -> Self {
        let current = (0, KeyedPermutation::new(stream, seed, 0, num_examples));
        Self { stream: stream.to_owned(), seed, num_examples, current }
    }

    /// The example at a global position.
    pub fn example(&mut self, global_position: u64) -> u64 {
        let epoch = global_position / self.num_examples;
        if self.current.0 != epoch {
            let permutation = KeyedPermutation::new(&self.stream, self.seed, epoch, self.num_examples);
            self.current = (epoch, permutation);
        }
        self.current.1.example(global_position % self.num_examples)
    }

    /// The global positions `first .. first + count` as runs within epochs.
    #[must_use]
    pub fn ranges(&self, first: u64, count: u64) -> Vec<PositionRange> {
        let mut ranges = Vec::new();
        let (mut position, mut left) = (first, count);
        while left > 0 {
            let within = position % self.num_examples;
            let num_examples = left.min(self.num_examples - within);
            ranges.push(PositionRange { epoch: position / self.num_examples, first: within, num_examples });
            position += num_examples;
            left -= num_examples;
        }
        ranges
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_epoch_is_a_permutation_and_epochs_differ() {
        for num_examples in [1, 2, 3, 4, 5, 16, 17, 255, 1000] {
            let order = |epoch| {
                let permutation = KeyedPermutation::new("train", 7, epoch, num_examples);
                (0..num_examples).map(|x| permutation.example(x)).collect::<Vec<_>>()
            };
            let first = order(0);
            let mut sorted = first.clone();
            sorted.sort_unstable();
            assert_eq!(sorted, (0..num_examples).collect::<Vec<_>>());
            if num_examples >= 16 {
                assert_ne!(first, order(1));
            }
        }
    }

    #[test]
    fn key_depends_on_stream_and_seed() {
        let order = |stream: &str, seed| {
            let permutation = KeyedPermutation::new(stream, seed, 0, 100);
            (0..100).map(|x| permutation.example(x)).collect::<Vec<_>>()
        };
        assert_ne!(order("train", 1), order("train", 2));
        assert_ne!(order("train", 1), order("other", 1));
    }

    #[test]
    fn a_batch_may_span_epochs() {
        let order = DataOrder::new("train", 1, 10);
        let range = |epoch, first, num_examples| PositionRange { epoch, first, num_examples };
        assert_eq!(order.ranges(8, 4), [range(0, 8, 2), range(1, 0, 2)]);
        assert_eq!(order.ranges(5, 20), [range(0, 5, 5), range(1, 0, 10), range(2, 0, 5)]);
        assert_eq!(order.ranges(10, 10), [range(1, 0, 10)]);
    }
}
