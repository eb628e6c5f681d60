//! The loss scale of a run that computes in binary16: what the loss is
//! multiplied by before the backward pass, and how overflows move it
//! (`docs/FORMAT.md`, "Loss scaling").
//!
//! Every factor is a power of two, so scaling and its reversal change no bits
//! but of what leaves the range of a dtype, which is what it is for.

use schemas::body::Overflow;
use schemas::contract::LossScaler;
use schemas::number::Float;
use serde::{Deserialize, Serialize};

/// Least scale: the least normal binary32, so that the reciprocal is finite.
const LEAST_SCALE: f64 = f32::MIN_POSITIVE as f64;

/// Largest scale: the largest power of two in binary32.
const LARGEST_SCALE: f64 = (1u128 << 127) as f64;

/// What a scaler has come to: `loss_scaler.json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScaleState {
    /// Scale of the next backward pass.
    pub scale: Float,
    /// Steps that were skipped, over the run.
    pub skipped: u64,
    /// Steps in a row without overflow since the scale moved.
    pub without_overflow: u64,
}

/// A loss scaler with its state.
#[derive(Debug, Clone)]
pub struct LossScale {
    backoff: f64,
    growth: f64,
    growth_interval: u64,
    state: ScaleState,
}

/// Whether a number is a power of two that a normal binary32 holds.
#[must_use]
pub fn is_power_of_two(value: f64) -> bool {
    let mantissa = value.to_bits() & ((1 << 52) - 1);
    (LEAST_SCALE..=LARGEST_SCALE).contains(&value) && mantissa == 0
}

impl LossScale {
    /// At its first scale.
    #[must_use]
    pub const fn new(scaler: &LossScaler) -> Self {
        let state = ScaleState { scale: Float(scaler.initial), skipped: 0, without_overflow: 0 };
        let LossScaler { backoff, growth, growth_interval, .. } = *scaler;
        Self { backoff, growth, growth_interval, state }
    }

    /// What it has come to.
    #[must_use]
    pub const fn state(&self) -> &ScaleState {
        &self.state
    }

    /// Factor of the loss, which binary32 holds exactly.
    #[must_use]
    #[allow(clippy::cast_possible_truncation, reason = "scales are powers of two within binary32")]
    pub const fn factor(&self) -> f32 {
        self.state.scale.0 as f32
    }

    /// Takes whether a step's gradient was not finite, and gives what the step
    /// records of it.
    pub fn observe(&mut self, found: bool) -> Overflow {
        let scale = self.state.scale;
        let state = &mut self.state;
        if found {
            state.scale = Float((scale.0 * self.backoff).max(LEAST_SCALE));
            state.skipped += 1;
            state.without_overflow = 0;
        } else {
            state.without_overflow += 1;
            if state.without_overflow == self.growth_interval {
                state.scale = Float((scale.0 * self.growth).min(LARGEST_SCALE));
                state.without_overflow = 0;
            }
        }
        Overflow { found, scale, skipped: found }
    }

    /// Goes on from a state of step `step`.
    ///
    /// # Errors
    /// Says why the scaler could not have come to it; nothing changes then.
    pub fn restore(&mut self, step: u64, state: ScaleState) -> Result<(), String> {
        if !is_power_of_two(state.scale.0) {
            return Err(format!("the scale {} is no power of two in binary32", state.scale));
        }
        if state.without_overflow >= self.growth_interval {
            let interval = self.growth_interval;
            return Err(format!("{} steps without overflow of {interval}", state.without_overflow));
        }
        if state.skipped.saturating_add(state.without_overflow) > step {
            return Err(format!("{} steps skipped of {step}", state.skipped));
        }
        self.state = state;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scale() -> LossScale {
        LossScale::new(&LossScaler { backoff: 0.5, growth: 4.0, growth_interval: 2, initial: 1024.0 })
    }

    /// By hand: two steps without overflow, one with, one without, two with.
    #[test]
    fn grows_backs_off_and_counts() {
        let mut scale = scale();
        let mut trace = Vec::new();
        for found in [false, false, true, false, true, true, false, false] {
            let overflow = scale.observe(found);
            assert_eq!((overflow.found, overflow.skipped), (found, found));
            trace.push(overflow.scale.0);
        }
        assert_eq!(trace, [1024.0, 1024.0, 4096.0, 2048.0, 2048.0, 1024.0, 512.0, 512.0]);
        let expected = ScaleState { scale: Float(2048.0), skipped: 3, without_overflow: 0 };
        assert_eq!(*scale.state(), expected);
    }

    #[test]
    fn stays_within_binary32() {
        let mut least = scale();
        (0..400).for_each(|_| _ = least.observe(true));
        assert_eq!(least.factor().to_bits(), f32::MIN_POSITIVE.to_bits());
        let mut largest = scale();
        (0..400).for_each(|_| _ = largest.observe(false));
        assert!(largest.factor().is_finite() && largest.factor() > 1e38);
        assert!(is_power_of_two(largest.state().scale.0) && is_power_of_two(least.state().scale.0));
        for other in [0.0, -2.0, 3.0, f64::NAN, f64::INFINITY, 1e-60] {
            assert!(!is_power_of_two(other), "{other}");
        }
    }

    #[test]
    fn refuses_what_it_could_not_have_come_to() {
        let state =
            |scale, skipped, without_overflow| ScaleState { scale: Float(scale), skipped, without_overflow };
        for (state, says) in [
            (state(3.0, 0, 0), "power of two"),
            (state(2.0, 0, 2), "without overflow"),
            (state(2.0, 9, 0), "skipped"),
        ] {
            let (mut refusing, untouched) = (scale(), scale());
            let refusal = refusing.restore(8, state).expect_err(says);
            assert!(refusal.contains(says), "{refusal}");
            assert_eq!(refusing.state(), untouched.state());
        }
        let mut other = scale();
        assert_eq!(other.restore(8, state(2.0, 7, 1)), Ok(()));
        assert_eq!(other.factor().to_bits(), 2.0f32.to_bits());
    }
}
