//! Averaged parameters of a step from those of the step before
//! (`docs/FORMAT.md`, "Averages").

use schemas::contract::{AverageOrder, Averages};

/// Whether the averages after update `step` are a copy and no average: of the
/// parameters that the update left, or found.
#[must_use]
pub fn is_copy(averages: &Averages, step: u64) -> bool {
    step < averages.first_step
}

/// The average of one element after update `step`, from the average before it
/// and from the parameter that the update found and the one that it left.
#[must_use]
#[allow(clippy::cast_possible_truncation, reason = "averages are binary32")]
pub fn next(averages: &Averages, step: u64, average: f32, found: f32, left: f32) -> f32 {
    let parameter = match averages.order {
        AverageOrder::AfterUpdate => left,
        AverageOrder::BeforeUpdate => found,
    };
    if is_copy(averages, step) {
        return parameter;
    }
    let kept = averages.decay as f32 * average;
    let added = (1.0 - averages.decay) as f32 * parameter;
    kept + added
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(order: AverageOrder, step: u64, expected: f32) {
        let averages = Averages { decay: 0.75, first_step: 3, order };
        assert_eq!(next(&averages, step, 4.0, 8.0, 16.0).to_bits(), expected.to_bits(), "{order:?} {step}");
    }

    /// By hand: 0.75 * 4 + 0.25 * 16, and with 8.
    #[test]
    fn one_element_by_hand() {
        check(AverageOrder::AfterUpdate, 2, 16.0);
        check(AverageOrder::AfterUpdate, 3, 7.0);
        check(AverageOrder::BeforeUpdate, 2, 8.0);
        check(AverageOrder::BeforeUpdate, 3, 5.0);
    }
}
