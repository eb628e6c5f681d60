//! Gradient norm and clipping coefficient.
//!
//! The norm is a sum of fixed shape: chunks of [`CHUNK`] elements in binary64,
//! each with [`LANES`] interleaved partial sums, then the chunks in order. It
//! does not depend on thread count or tensor library, whose own sum varies
//! above four million elements.

use schemas::policy_card::Clipping;

/// Elements of one partial sum.
pub const CHUNK: usize = 4096;
/// Interleaved accumulators within a chunk.
pub const LANES: usize = 8;

/// Sum of squares in the fixed shape.
#[must_use]
pub fn sum_of_squares(values: &[f32]) -> f64 {
    values.chunks(CHUNK).map(chunk_sum_of_squares).sum()
}

fn chunk_sum_of_squares(chunk: &[f32]) -> f64 {
    let mut lanes = [0.0f64; LANES];
    let mut groups = chunk.chunks_exact(LANES);
    for group in &mut groups {
        for (lane, value) in lanes.iter_mut().zip(group) {
            let value = f64::from(*value);
            *lane += value * value;
        }
    }
    let tail: f64 = groups.remainder().iter().map(|value| f64::from(*value).powi(2)).sum();
    lanes.iter().sum::<f64>() + tail
}

/// Euclidean norm over several tensors, in their order.
pub fn global_norm<'a>(gradients: impl IntoIterator<Item = &'a [f32]>) -> f64 {
    libm::sqrt(gradients.into_iter().map(sum_of_squares).sum())
}

/// What every gradient is multiplied by (`docs/FORMAT.md`, "Clipping").
#[must_use]
pub fn coefficient(clipping: &Clipping, gradient_norm: f64) -> f64 {
    match *clipping {
        Clipping::None => 1.0,
        // `f64::min` would turn a NaN into 1 and hide it.
        Clipping::GlobalNorm { .. } if gradient_norm.is_nan() => f64::NAN,
        Clipping::GlobalNorm { epsilon, max_norm } => (max_norm / (gradient_norm + epsilon)).min(1.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn norm_of_tensors_of_any_length() {
        let long: Vec<f32> = vec![0.5; 10_003];
        let norm = global_norm([long.as_slice(), &[2.0, 1.0]]);
        assert!((norm - (10_003.0f64 * 0.25 + 5.0).sqrt()).abs() < 1e-12);
    }

    #[test]
    fn a_norm_that_is_nan_is_not_hidden() {
        let clipping = Clipping::GlobalNorm { epsilon: 1e-6, max_norm: 1.0 };
        assert!(coefficient(&clipping, f64::NAN).is_nan());
        assert_eq!(coefficient(&clipping, f64::INFINITY).to_bits(), 0.0f64.to_bits());
        assert_eq!(coefficient(&clipping, 0.5).to_bits(), 1.0f64.to_bits());
        assert!((coefficient(&clipping, 2.0) - 0.5).abs() < 1e-6);
        assert_eq!(coefficient(&Clipping::None, f64::NAN).to_bits(), 1.0f64.to_bits());
    }
}
