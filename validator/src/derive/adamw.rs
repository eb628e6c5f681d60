//! The update rule of the policy card in numbers (`docs/FORMAT.md`, "Update
//! rule"): its coefficients, and what follows from them for the sum of all second
//! moments without any gradient at hand.
//!
//! With `g` the clipped gradient, a second moment becomes `beta2 v + (1 - beta2) g^2`,
//! so the sum of all of them becomes `beta2 S + (1 - beta2) |g|^2`, and `|g|` is the
//! recorded norm times its clip coefficient. In real numbers that is an equality;
//! [`Growth`] bounds what rounding to binary32 can make of it.

use schemas::policy_card::UpdateRule;

/// Half a unit in the last place of binary32, relative, with room for the
/// roundings to binary64 of the bound itself.
pub const ROUNDING: f64 = 1.0 / 16_777_216.0 + 1.0 / 1_125_899_906_842_624.0;

/// What the smallest numbers lose at most, for one element and one update: a few
/// units of the last place of a subnormal binary32.
const UNDERFLOW: f64 = 4.0 * 1.401_298_464_324_817e-45;

/// Squares beyond this may be too large for binary32 in one element.
const MAX_SQUARE: f64 = 1e38;

/// Elements that the trainer adds in one partial sum of squares.
const CHUNK: f64 = 4096.0;

/// Numbers of one update for one parameter group, in binary32.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Coefficients {
    /// What a parameter is multiplied by for its decay.
    pub keep: f32,
    /// Added to the root of the second moment.
    pub epsilon: f32,
    /// Weight of the gradient in the first moment.
    pub first_weight: f32,
    /// What a second moment is multiplied by.
    pub second_keep: f32,
    /// Root of the second moment's bias correction.
    pub second_root: f32,
    /// Weight of the squared gradient in the second moment.
    pub second_weight: f32,
    /// Rate with the first moment's bias correction.
    pub step_size: f32,
}

impl Coefficients {
    /// Of the update that is number `count` (from 1) among those that were not
    /// skipped.
    #[must_use]
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_precision_loss,
        reason = "binary32 is meant, and no run has 2^53 updates"
    )]
    pub fn new(rule: &UpdateRule, count: u64, rate: f64, decay: f64) -> Self {
        let UpdateRule::Adamw { beta1, beta2, epsilon, .. } = rule;
        let correction = |beta: f64| 1.0 - libm::pow(beta, count as f64);
        Self {
            keep: (1.0 - rate * decay) as f32,
            epsilon: *epsilon as f32,
            first_weight: (1.0 - beta1) as f32,
            second_keep: *beta2 as f32,
            second_root: libm::sqrt(correction(*beta2)) as f32,
            second_weight: (1.0 - beta2) as f32,
            step_size: (rate / correction(*beta1)) as f32,
        }
    }

    /// What the update subtracts from a decayed parameter, from the moments that it
    /// leaves.
    #[must_use]
    pub fn subtracted(&self, first: f32, second: f32) -> f32 {
        self.step_size * first / (second.sqrt() / self.second_root + self.epsilon)
    }
}

/// Bounds of a number that is not negative.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Bounds {
    /// At least this.
    pub low: f64,
    /// At most this.
    pub high: f64,
}

impl Bounds {
    /// A number that is known.
    #[must_use]
    pub const fn exactly(value: f64) -> Self {
        Self { low: value, high: value }
    }

    /// The same, where it was summed with this relative error.
    #[must_use]
    pub fn about(value: f64, error: f64) -> Self {
        Self { low: value * (1.0 - error), high: value * (1.0 + error) }
    }

    /// Whether a number, or one of those that another bound allows, is within.
    /// What is not a number is not.
    #[must_use]
    pub fn meets(&self, other: &Self) -> bool {
        other.high >= self.low && other.low <= self.high
    }
}

/// What updates in a row make of the sum of all second moments: `keep S + added`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Growth {
    keep: Bounds,
    added: Bounds,
    is_known: bool,
}

impl Growth {
    /// No update.
    pub const NONE: Self = Self { keep: Bounds::exactly(1.0), added: Bounds::exactly(0.0), is_known: true };

    /// What nothing is known of.
    pub const UNKNOWN: Self = Self { is_known: false, ..Self::NONE };

    /// One more update, of so many elements, by a gradient of this norm before it
    /// is multiplied by `clip`.
    #[must_use]
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_precision_loss,
        reason = "binary32 is meant, and no model has 2^53 elements"
    )]
    pub fn then(self, rule: &UpdateRule, clip: f64, norm: f64, num_elements: u64) -> Self {
        let UpdateRule::Adamw { beta2, .. } = rule;
        let (keep, weight) = (f64::from(*beta2 as f32), f64::from((1.0 - beta2) as f32));
        let clipped = f64::from(clip as f32) * norm;
        let square = clipped * clipped;
        if square.is_nan() || square > MAX_SQUARE {
            return Self::UNKNOWN;
        }
        let num_elements = num_elements as f64;
        // The norm is a root of sums in binary64, of partial sums by lanes.
        let of_norm = (CHUNK + num_elements / CHUNK) * f64::EPSILON;
        let lost = num_elements * UNDERFLOW;
        // Two products and the sum behind them: on the way of `v` two roundings, on
        // that of `g` five, since the clipped gradient is rounded and squared.
        let bound = |sign: f64| {
            let rounded = 1.0 + sign * ROUNDING;
            (keep * rounded.powi(2), weight * square * rounded.powi(5) * (1.0 + sign * of_norm))
        };
        let ((keep_low, new_low), (keep_high, new_high)) = (bound(-1.0), bound(1.0));
        Self {
            keep: Bounds { low: self.keep.low * keep_low, high: self.keep.high * keep_high },
            added: Bounds {
                low: (self.added.low * keep_low + new_low - lost).max(0.0),
                high: self.added.high * keep_high + new_high + lost,
            },
            is_known: self.is_known,
        }
    }

    /// The sum behind the updates from the one before them; `None` where nothing is
    /// known.
    #[must_use]
    pub fn of(&self, before: &Bounds) -> Option<Bounds> {
        let bounds = Bounds {
            low: self.keep.low * before.low + self.added.low,
            high: self.keep.high * before.high + self.added.high,
        };
        (self.is_known && bounds.high.is_finite()).then_some(bounds)
    }
}

#[cfg(test)]
#[allow(clippy::cast_possible_truncation, reason = "binary32 is meant")]
mod tests {
    use super::*;

    fn rule(beta2: f64) -> UpdateRule {
        UpdateRule::Adamw { beta1: 0.9, beta2, epsilon: 1e-8, moment_dtype: "F32".to_owned() }
    }

    /// Numbers that look arbitrary, of magnitudes that vary by `2^spread`.
    fn arbitrary(state: &mut u64, spread: u32) -> f32 {
        *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let unit = f64::from(u32::try_from(*state >> 40).expect("24 bits")) / f64::from(1u32 << 24) - 0.5;
        let exponent = i32::try_from((*state >> 20) % u64::from(spread + 1)).expect("small");
        (unit * 2f64.powi(-exponent)) as f32
    }

    fn sum(values: &[f32]) -> f64 {
        values.iter().map(|value| f64::from(*value)).sum()
    }

    /// The recurrence as the trainer executes it, and the bounds beside it.
    fn check(beta2: f64, clip: f64, num_updates: u32, spread: u32) {
        let (rule, mut state, mut growth) = (rule(beta2), 7, Growth::NONE);
        let coefficients = Coefficients::new(&rule, 1, 0.0, 0.0);
        let mut moments = vec![0f32; 1000];
        for update in 0..num_updates {
            let gradient: Vec<f32> = moments.iter().map(|_| arbitrary(&mut state, spread)).collect();
            let norm = gradient.iter().map(|g| f64::from(*g).powi(2)).sum::<f64>().sqrt();
            for (v, g) in moments.iter_mut().zip(&gradient) {
                let g = g * clip as f32;
                *v = *v * coefficients.second_keep + coefficients.second_weight * g * g;
            }
            growth = growth.then(&rule, clip, norm, 1000);
            let bounds = growth.of(&Bounds::exactly(0.0)).expect("all are finite");
            let actual = Bounds::about(sum(&moments), 1e-12);
            assert!(bounds.meets(&actual), "update {update}: {actual:?} is not in {bounds:?}");
        }
        let bounds = growth.of(&Bounds::exactly(0.0)).expect("all are finite");
        let width = (bounds.high - bounds.low) / bounds.high;
        assert!(spread > 40 || width < 1e-6 + 4.0 * ROUNDING / (1.0 - beta2), "{width} is no bound");
        // A norm that was another one, and a false constant, which norms that never
        // change would not tell: their mean is the same by any weights.
        let other = |beta2: f64, factor: f64| {
            let rule = self::rule(beta2);
            let norms = (0..num_updates).map(|update| factor * (1.0 + f64::from(update % 2)));
            let growth = norms.fold(Growth::NONE, |growth, norm| growth.then(&rule, clip, norm, 1000));
            growth.of(&Bounds::exactly(0.0)).expect("finite")
        };
        assert!(!other(beta2, 1.0).meets(&other(beta2, 1.001)));
        assert!(!other(beta2, 1.0).meets(&other(1.0 - (1.0 - beta2) * 1.01, 1.0)));
    }

    #[test]
    fn sums_of_moments_are_within_their_bounds() {
        for (beta2, spread) in [(0.5, 0), (0.95, 10), (0.999, 20)] {
            for clip in [1.0, 0.37, 1e-3] {
                check(beta2, clip, 200, spread);
            }
        }
    }

    #[test]
    fn what_vanishes_in_binary32_is_within_the_bounds_too() {
        let (rule, norm) = (rule(0.95), 1.0);
        let growth = Growth::NONE.then(&rule, 1e-30, norm, 1000);
        let bounds = growth.of(&Bounds::exactly(0.0)).expect("finite");
        assert!(bounds.meets(&Bounds::exactly(0.0)) && bounds.high < 1e-40, "{bounds:?}");
    }

    #[test]
    fn what_is_not_finite_tells_nothing() {
        for norm in [f64::NAN, f64::INFINITY, 1e30] {
            let growth = Growth::NONE.then(&rule(0.95), 1.0, norm, 10).then(&rule(0.95), 1.0, 1.0, 10);
            assert_eq!(growth.of(&Bounds::exactly(0.0)), None, "{norm}");
        }
        assert!(!Bounds::exactly(1.0).meets(&Bounds::exactly(f64::NAN)));
    }

    #[test]
    fn coefficients_are_those_of_the_formula() {
        let first = Coefficients::new(&rule(0.95), 1, 1e-3, 0.1);
        assert_eq!(first.step_size.to_bits(), ((1e-3f64 / (1.0 - 0.9)) as f32).to_bits());
        assert_eq!(first.keep.to_bits(), 0.9999f32.to_bits());
        // At the first update the moments are those of one gradient: its sign is what is left.
        let (m, v) = (first.first_weight * 0.25, first.second_weight * 0.0625);
        assert!((first.subtracted(m, v) - 1e-3).abs() < 1e-8);
        assert!((first.subtracted(-m, v) + 1e-3).abs() < 1e-8);
    }
}
