//! Metrics from their sums.

use std::f64::consts::LN_2;

use schemas::contract::{Direction, Metric};

/// The metric from its recorded sum: bits per byte is
/// `total_nats / (num_tokens * ln 2)`, a token being a byte.
#[must_use]
#[allow(clippy::cast_precision_loss, reason = "exact below 2^53, which bounds every count in an entry")]
pub fn value(metric: Metric, total_nats: f64, num_tokens: u64) -> f64 {
    match metric {
        Metric::BitsPerByte => total_nats / (num_tokens as f64 * LN_2),
    }
}

/// Whether `value` is strictly better than `other`; never for a value that is
/// not finite.
#[must_use]
pub fn better(direction: Direction, value: f64, other: f64) -> bool {
    value.is_finite()
        && match direction {
            Direction::Minimize => value < other,
            Direction::Maximize => value > other,
        }
}

/// Whether `value` reaches a threshold.
#[must_use]
pub fn reaches(direction: Direction, value: f64, threshold: f64) -> bool {
    value.is_finite()
        && match direction {
            Direction::Minimize => value <= threshold,
            Direction::Maximize => value >= threshold,
        }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uniform_model_over_bytes_costs_eight_bits() {
        let nats = 1000.0 * 256f64.ln();
        assert!((value(Metric::BitsPerByte, nats, 1000) - 8.0).abs() < 1e-12);
        assert!(value(Metric::BitsPerByte, 0.0, 0).is_nan());
    }

    #[test]
    fn nan_is_never_better_and_reaches_nothing() {
        assert!(better(Direction::Minimize, 1.0, 2.0));
        assert!(!better(Direction::Maximize, 1.0, 2.0));
        assert!(!better(Direction::Minimize, 2.0, 2.0));
        assert!(!better(Direction::Minimize, f64::NAN, 2.0));
        assert!(!better(Direction::Minimize, f64::NEG_INFINITY, 2.0));
        assert!(reaches(Direction::Minimize, 2.0, 2.0));
        assert!(!reaches(Direction::Minimize, f64::NAN, 2.0));
        assert!(!reaches(Direction::Maximize, 1.0, 2.0));
    }
}
