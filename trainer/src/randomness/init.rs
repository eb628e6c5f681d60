//! Initial values of parameters: a function of seed and parameter path.
//!
//! Normal values come from Box-Muller over Philox words in binary64 with the
//! functions of `libm`, then are rounded to binary32 once
//! (`docs/FORMAT.md`, "Initial values"). Order of initialisation, device and
//! thread count have no influence.

use std::f64::consts::PI;

use schemas::parameters::Initializer;

use super::philox::{key, philox};

/// 2^-32.
const UNIT: f64 = 1.0 / 4_294_967_296.0;

/// The initial values of a parameter, row-major.
#[must_use]
pub fn values(initializer: &Initializer, path: &str, seed: u64, num_elements: usize) -> Vec<f32> {
    match *initializer {
        Initializer::Ones => vec![1.0; num_elements],
        Initializer::Normal { std } => normal(path, seed, std, num_elements),
    }
}

#[allow(clippy::cast_possible_truncation, reason = "words and binary32 are meant")]
fn normal(path: &str, seed: u64, std: f64, num_elements: usize) -> Vec<f32> {
    let key = key(&format!("init:{path}"), seed);
    let mut values = Vec::with_capacity(num_elements.next_multiple_of(4));
    for block in 0..num_elements.div_ceil(4) as u64 {
        let words = philox(key, [block as u32, (block >> 32) as u32, 0, 0]);
        for pair in words.chunks_exact(2) {
            let radius = libm::sqrt(-2.0 * libm::log(uniform(pair[0])));
            let angle = 2.0 * PI * uniform(pair[1]);
            values.push((radius * libm::cos(angle) * std) as f32);
            values.push((radius * libm::sin(angle) * std) as f32);
        }
    }
    values.truncate(num_elements);
    values
}

/// A word as a number strictly between 0 and 1.
fn uniform(word: u32) -> f64 {
    (f64::from(word) + 0.5) * UNIT
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[allow(clippy::cast_precision_loss, reason = "a small count")]
    fn moments_are_those_of_a_normal() {
        let values = values(&Initializer::Normal { std: 0.02 }, "a", 3, 100_001);
        assert_eq!(values.len(), 100_001);
        let count = values.len() as f64;
        let mean = values.iter().map(|v| f64::from(*v)).sum::<f64>() / count;
        let variance = values.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>() / count;
        assert!(mean.abs() < 3e-4, "mean {mean}");
        assert!((variance.sqrt() - 0.02).abs() < 3e-4, "deviation {}", variance.sqrt());
    }

    #[test]
    fn a_prefix_does_not_depend_on_the_length() {
        let make = |path: &str, count| values(&Initializer::Normal { std: 1.0 }, path, 3, count);
        assert_eq!(make("a", 5), make("a", 9)[..5]);
        assert_ne!(make("a", 5), make("b", 5));
    }
}
