//! The loss scale as overflows move it (`docs/FORMAT.md`, "Loss scaling").

use schemas::contract::LossScaler;

/// Least scale: 2^-126.
const LEAST: f64 = f32::MIN_POSITIVE as f64;
/// Largest scale: 2^127.
const LARGEST: f64 = 1.701_411_834_604_692_3e38;

/// What a scaler has come to.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ScaleState {
    /// Scale of the next step.
    pub scale: f64,
    /// Steps that were skipped.
    pub skipped: u64,
    /// Steps in a row without overflow since the scale moved.
    pub without_overflow: u64,
}

impl ScaleState {
    /// Before the first step.
    #[must_use]
    pub const fn new(scaler: &LossScaler) -> Self {
        Self { scale: scaler.initial, skipped: 0, without_overflow: 0 }
    }

    /// After a step with an overflow, or without.
    #[must_use]
    pub fn after(self, scaler: &LossScaler, has_overflow: bool) -> Self {
        if has_overflow {
            let scale = (self.scale * scaler.backoff).max(LEAST);
            return Self { scale, skipped: self.skipped.saturating_add(1), without_overflow: 0 };
        }
        let counted = self.without_overflow.saturating_add(1);
        if counted < scaler.growth_interval {
            return Self { without_overflow: counted, ..self };
        }
        Self { scale: (self.scale * scaler.growth).min(LARGEST), without_overflow: 0, ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SCALER: LossScaler = LossScaler { backoff: 0.25, growth: 2.0, growth_interval: 3, initial: 64.0 };

    #[test]
    fn a_trace_by_hand() {
        let mut state = ScaleState::new(&SCALER);
        let mut trace = Vec::new();
        for has_overflow in [false, false, true, false, false, false, false, true] {
            trace.push(state.scale);
            state = state.after(&SCALER, has_overflow);
        }
        assert_eq!(trace, [64.0, 64.0, 64.0, 16.0, 16.0, 16.0, 32.0, 32.0]);
        assert_eq!(state, ScaleState { scale: 8.0, skipped: 2, without_overflow: 0 });
    }

    #[test]
    fn it_stays_a_normal_binary32() {
        let far = |has_overflow| {
            (0..600).fold(ScaleState::new(&SCALER), |state, _| state.after(&SCALER, has_overflow)).scale
        };
        assert_eq!(far(true).to_bits(), 2f64.powi(-126).to_bits());
        assert_eq!(far(false).to_bits(), 2f64.powi(127).to_bits());
    }
}
