//! Learning rates as a closed function of the step, in binary64.
//!
//! `cos` is libm's and nothing is fused, because the platform's cosine differs
//! between machines in the last place and the validator recomputes every rate
//! to the bit (`docs/FORMAT.md`, "Learning rates").

use std::f64::consts::PI;

use schemas::contract::ScheduleShape;

/// Rate of a shape at step `t`, from 1. A plateau's is that before any
/// evaluation; what they make of it is the trainer's.
#[must_use]
#[allow(clippy::cast_precision_loss, reason = "step numbers stay far below 2^53")]
pub fn rate(shape: &ScheduleShape, t: u64) -> f64 {
    match *shape {
        ScheduleShape::Constant { rate } | ScheduleShape::Plateau { rate, .. } => rate,
        ScheduleShape::WarmupCosine { floor, peak, total_steps, warmup_steps } => {
            if t <= warmup_steps {
                peak * (t as f64 / warmup_steps as f64)
            } else if t < total_steps {
                let progress = (t - warmup_steps) as f64 / (total_steps - warmup_steps) as f64;
                floor + (peak - floor) * (0.5 * (1.0 + libm::cos(PI * progress)))
            } else {
                floor
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(warmup_steps: u64, t: u64, expected: f64) {
        let shape = ScheduleShape::WarmupCosine { floor: 0.1, peak: 1.1, total_steps: 20, warmup_steps };
        let actual = rate(&shape, t);
        assert!((actual - expected).abs() < 1e-15, "step {t}: {actual} is not {expected}");
    }

    #[test]
    fn warmup_peak_middle_and_floor() {
        check(10, 1, 0.11);
        check(10, 10, 1.1);
        check(10, 15, 0.6);
        check(10, 20, 0.1);
        check(10, 999, 0.1);
        check(0, 10, 0.6);
    }
}
