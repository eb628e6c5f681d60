//! How far the examples that an update drew lie from those that its step
//! determines: what a data cursor that went back or on leaves in the record.

use std::fmt;
use std::ops::Range;

use schemas::body::PositionRange;
use schemas::contract::{Batch, FaultKind};

use super::batch;

/// Largest global batch of which every shift is tried: each costs the batch
/// once more.
const MAX_SEARCHED_EXAMPLES: u32 = 512;

/// A distance in examples; never 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shift {
    /// So many examples before their place: they were drawn already.
    Back(u64),
    /// So many behind it: those between were left out.
    On(u64),
}

impl Shift {
    fn between(expected: u64, actual: u64) -> Option<Self> {
        match expected.cmp(&actual) {
            std::cmp::Ordering::Equal => None,
            std::cmp::Ordering::Greater => Some(Self::Back(expected - actual)),
            std::cmp::Ordering::Less => Some(Self::On(actual - expected)),
        }
    }

    /// The shift of ranges that are a whole batch in a row, and not the step's.
    #[must_use]
    pub fn of_ranges(batch: &Batch, step: u64, num_examples: u64, ranges: &[PositionRange]) -> Option<Self> {
        let position =
            |range: &PositionRange| range.epoch.checked_mul(num_examples)?.checked_add(range.first);
        let first = position(ranges.first()?)?;
        let mut next = first;
        for range in ranges {
            if position(range)? != next || range.first >= num_examples {
                return None;
            }
            next = next.checked_add(range.num_examples)?;
        }
        let is_whole = next - first == u64::from(batch.global_examples);
        Self::between(batch::first_position(batch, step)?, first).filter(|_| is_whole)
    }

    /// Between two counts of consumed examples.
    #[must_use]
    pub fn of_counts(expected: u64, actual: u64) -> Option<Self> {
        Self::between(expected, actual)
    }

    /// Every shift of at most a global batch, the nearest first; none of a batch
    /// that is too large to try them.
    pub fn within(batch: &Batch) -> impl Iterator<Item = Self> {
        let most = Some(batch.global_examples).filter(|most| *most <= MAX_SEARCHED_EXAMPLES);
        (1..=u64::from(most.unwrap_or(0))).flat_map(|distance| [Self::Back(distance), Self::On(distance)])
    }

    /// Positions moved by it; `None` where they would leave 64 bits.
    #[must_use]
    pub fn apply(self, positions: &Range<u64>) -> Option<Range<u64>> {
        Some(match self {
            Self::Back(by) => positions.start.checked_sub(by)?..positions.end.checked_sub(by)?,
            Self::On(by) => positions.start.checked_add(by)?..positions.end.checked_add(by)?,
        })
    }

    /// The family that does this to a cursor.
    #[must_use]
    pub const fn cause(self) -> FaultKind {
        match self {
            Self::Back(_) => FaultKind::DataCursorRewind,
            Self::On(_) => FaultKind::DataCursorSkip,
        }
    }
}

impl fmt::Display for Shift {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Back(by) => write!(formatter, "{by} positions before its own: the cursor was rewound"),
            Self::On(by) => write!(formatter, "{by} positions behind its own: the cursor skipped"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BATCH: Batch =
        Batch { accumulation: 2, data_parallel: 1, global_examples: 4, microbatch_examples: 2 };

    fn range(epoch: u64, first: u64, num_examples: u64) -> PositionRange {
        PositionRange { epoch, first, num_examples }
    }

    #[test]
    fn whole_batches_have_a_direction_and_a_distance() {
        let shift = |ranges: &[PositionRange]| Shift::of_ranges(&BATCH, 3, 7, ranges);
        // Step 3 draws positions 8 to 12: 1 to 5 of the second epoch.
        assert_eq!(shift(&[range(1, 1, 4)]), None);
        assert_eq!(shift(&[range(0, 6, 1), range(1, 0, 3)]), Some(Shift::Back(2)));
        assert_eq!(shift(&[range(1, 4, 3), range(2, 0, 1)]), Some(Shift::On(3)));
        assert_eq!(shift(&[range(1, 4, 3)]), None, "a part of a batch");
        assert_eq!(shift(&[range(1, 4, 2), range(2, 0, 2)]), None, "with a gap");
        assert_eq!(shift(&[]), None);
    }

    #[test]
    fn every_distance_is_tried_and_none_leaves_the_positions() {
        let all: Vec<Shift> = Shift::within(&BATCH).collect();
        assert_eq!(all.len(), 8);
        assert_eq!(all[..2], [Shift::Back(1), Shift::On(1)]);
        assert_eq!(Shift::Back(3).apply(&(2..6)), None);
        assert_eq!(Shift::On(3).apply(&(2..6)), Some(5..9));
        let large = Batch { global_examples: u32::MAX, ..BATCH };
        assert_eq!(Shift::within(&large).count(), 0);
        assert_eq!(Shift::of_counts(4, 4), None);
        assert_eq!(Shift::of_counts(4, 5).map(Shift::cause), Some(FaultKind::DataCursorSkip));
    }
}
