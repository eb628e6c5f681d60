//! Clip coefficient from the recorded gradient norm (`docs/FORMAT.md`, "Clipping").

use schemas::policy_card::Clipping;

/// What gradients are multiplied by, in binary64; NaN for a NaN norm.
#[must_use]
pub fn coefficient(clipping: &Clipping, gradient_norm: f64) -> f64 {
    match *clipping {
        Clipping::None => 1.0,
        Clipping::GlobalNorm { epsilon, max_norm } => {
            let ratio = max_norm / (gradient_norm + epsilon);
            // `f64::min` would turn a NaN into 1.
            if ratio > 1.0 { 1.0 } else { ratio }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(norm: f64, expected: f64) {
        let clipping = Clipping::GlobalNorm { epsilon: 0.0, max_norm: 1.0 };
        assert_eq!(coefficient(&clipping, norm).to_bits(), expected.to_bits(), "norm {norm}");
    }

    #[test]
    fn small_norms_are_left_alone_and_large_ones_scaled() {
        check(0.5, 1.0);
        check(0.0, 1.0);
        check(1.0, 1.0);
        check(4.0, 0.25);
        check(f64::INFINITY, 0.0);
        assert!(coefficient(&Clipping::GlobalNorm { epsilon: 1e-6, max_norm: 1.0 }, f64::NAN).is_nan());
        assert!(coefficient(&Clipping::GlobalNorm { epsilon: 1e-6, max_norm: 1.0 }, 1.0) < 1.0);
        assert_eq!(coefficient(&Clipping::None, f64::NAN).to_bits(), 1f64.to_bits());
    }
}
