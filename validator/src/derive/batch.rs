//! Batch arithmetic: which positions a step consumes, in how many microbatches.

use schemas::body::PositionRange;
use schemas::contract::Batch;

/// Whether `global = microbatch * accumulation * data_parallel`, all positive.
#[must_use]
pub fn reconciles(batch: &Batch) -> bool {
    let product = u64::from(batch.microbatch_examples)
        .checked_mul(u64::from(batch.accumulation))
        .and_then(|product| product.checked_mul(u64::from(batch.data_parallel)));
    batch.global_examples > 0 && product == Some(u64::from(batch.global_examples))
}

/// Microbatches that make the gradient of one update.
#[must_use]
pub fn num_microbatches(batch: &Batch) -> u64 {
    u64::from(batch.accumulation) * u64::from(batch.data_parallel)
}

/// First global position that update `step` (from 1) consumes; `None` for step
/// 0, and where the position would leave 64 bits.
#[must_use]
pub fn first_position(batch: &Batch, step: u64) -> Option<u64> {
    step.checked_sub(1)?.checked_mul(u64::from(batch.global_examples))
}

/// Ranges that a step may have: more would not fit into an entry's 65,535
/// bytes, and a contract may claim any batch over any few examples.
const MAX_RANGES: usize = 4096;

/// The ranges of update `step` over `num_examples` examples an epoch, split at
/// epoch ends; `None` where there is nothing to draw from, or more than
/// [`MAX_RANGES`] ranges.
#[must_use]
pub fn ranges(batch: &Batch, step: u64, num_examples: u64) -> Option<Vec<PositionRange>> {
    let mut position = first_position(batch, step)?;
    let end = position.checked_add(u64::from(batch.global_examples))?;
    let mut ranges = Vec::new();
    while position < end {
        if ranges.len() >= MAX_RANGES {
            return None;
        }
        let epoch = position.checked_div(num_examples)?;
        let first = position % num_examples;
        let count = (num_examples - first).min(end - position);
        ranges.push(PositionRange { epoch, first, num_examples: count });
        position += count;
    }
    Some(ranges)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BATCH: Batch =
        Batch { accumulation: 2, data_parallel: 1, global_examples: 8, microbatch_examples: 4 };

    fn check(step: u64, num_examples: u64, expected: &[(u64, u64, u64)]) {
        let ranges = ranges(&BATCH, step, num_examples).expect("there are examples");
        let ranges: Vec<_> = ranges.iter().map(|r| (r.epoch, r.first, r.num_examples)).collect();
        assert_eq!(ranges, expected, "step {step} of {num_examples}");
    }

    #[test]
    fn ranges_split_at_epoch_ends() {
        check(1, 20, &[(0, 0, 8)]);
        check(3, 20, &[(0, 16, 4), (1, 0, 4)]);
        check(5, 20, &[(1, 12, 8)]);
        check(6, 20, &[(2, 0, 8)]);
        check(2, 3, &[(2, 2, 1), (3, 0, 3), (4, 0, 3), (5, 0, 1)]);
    }

    #[test]
    fn arithmetic_that_does_not_reconcile_or_overflows_is_seen() {
        assert!(reconciles(&BATCH));
        assert!(!reconciles(&Batch { global_examples: 9, ..BATCH }));
        let huge = u32::MAX;
        let overflowing =
            Batch { accumulation: huge, data_parallel: huge, global_examples: 1, microbatch_examples: huge };
        assert!(!reconciles(&overflowing));
        assert!(!reconciles(&Batch { accumulation: 0, global_examples: 0, ..BATCH }));
        assert_eq!(num_microbatches(&BATCH), 2);
        assert_eq!(ranges(&BATCH, 0, 20), None);
        assert_eq!(ranges(&BATCH, 1, 0), None);
        assert_eq!(ranges(&BATCH, u64::MAX, 20), None);
        let large = Batch { global_examples: u32::MAX, ..BATCH };
        assert_eq!(ranges(&large, 1, 1), None);
    }
}
