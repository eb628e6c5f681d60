//! Learning rate of a step, bit for bit (`docs/FORMAT.md`, "Learning rates").
//!
//! `cos` is that of the `libm` crate and expressions are evaluated in the
//! written order; Rust never contracts them to fused multiply-add.

use std::f64::consts::PI;

use schemas::contract::ScheduleShape;

/// The scheduled rate of update `step`, from 1, before the group's multiplier;
/// of a plateau that before any evaluation.
#[must_use]
pub fn rate(shape: &ScheduleShape, step: u64) -> f64 {
    match *shape {
        ScheduleShape::Constant { rate } | ScheduleShape::Plateau { rate, .. } => rate,
        ScheduleShape::WarmupCosine { floor, peak, total_steps, warmup_steps } => {
            if step <= warmup_steps {
                peak * (as_f64(step) / as_f64(warmup_steps))
            } else if step < total_steps {
                let progress = as_f64(step - warmup_steps) / as_f64(total_steps - warmup_steps);
                floor + (peak - floor) * (0.5 * (1.0 + libm::cos(PI * progress)))
            } else {
                floor
            }
        }
    }
}

/// Step numbers stay below 2^53 (`schemas::MAX_JSON_INTEGER`), so this is exact.
#[allow(clippy::cast_precision_loss, reason = "exact below 2^53, which bounds every step number")]
fn as_f64(step: u64) -> f64 {
    step as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: ScheduleShape =
        ScheduleShape::WarmupCosine { floor: 1e-4, peak: 1e-3, total_steps: 110, warmup_steps: 10 };

    fn check(step: u64, expected: f64) {
        assert_eq!(rate(&SHAPE, step).to_bits(), expected.to_bits(), "step {step}");
    }

    /// By hand: 3/10 of the peak; the peak; half-way; the end; beyond it.
    #[test]
    fn corners_of_warmup_and_cosine() {
        check(3, 1e-3 * 0.3);
        check(10, 1e-3);
        check(60, 1e-4 + (1e-3 - 1e-4) * (0.5 * (1.0 + libm::cos(PI * 0.5))));
        assert!((rate(&SHAPE, 60) - 5.5e-4).abs() < 1e-18);
        check(110, 1e-4);
        check(1 << 40, 1e-4);
    }

    #[test]
    fn no_warmup_and_total_within_warmup_are_defined() {
        let shape = |total_steps, warmup_steps| ScheduleShape::WarmupCosine {
            floor: 0.0,
            peak: 1.0,
            total_steps,
            warmup_steps,
        };
        assert!(rate(&shape(4, 0), 1) < 1.0);
        assert_eq!(rate(&shape(4, 8), 8).to_bits(), 1f64.to_bits());
        assert_eq!(rate(&shape(4, 8), 9).to_bits(), 0f64.to_bits());
        assert_eq!(rate(&ScheduleShape::Constant { rate: 0.25 }, 9).to_bits(), 0.25f64.to_bits());
    }
}
