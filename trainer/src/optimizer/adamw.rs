//! AdamW in PyTorch's order of operations (`torch.optim.AdamW`,
//! `foreach=False`): decay the parameter, update both moments, correct both for
//! bias, subtract.
//!
//! Numbers: parameters, gradients and moments are binary32. Everything that is
//! one number a step (decay factor, bias corrections, step size) is made in
//! binary64 from the scheduled rate, with `beta^t` by libm's `pow`, and rounded
//! to binary32 once, where it meets the tensors. Nothing is fused.

use super::clip::CHUNK;

/// Suffixes of the state tensors of a parameter.
pub const STATE_SUFFIXES: [&str; 2] = ["exp_avg", "exp_avg_sq"];

/// Constants of the rule.
#[derive(Debug, Clone, Copy)]
pub struct AdamW {
    /// First-moment decay.
    pub beta1: f64,
    /// Second-moment decay.
    pub beta2: f64,
    /// Added outside the root, after bias correction.
    pub epsilon: f64,
}

/// Moments of one parameter.
#[derive(Debug, Clone, PartialEq)]
pub struct Moments {
    /// First moment.
    pub exp_avg: Vec<f32>,
    /// Second moment.
    pub exp_avg_sq: Vec<f32>,
}

impl Moments {
    /// Moments before the first update.
    #[must_use]
    pub fn zeros(num_elements: usize) -> Self {
        Self { exp_avg: vec![0.0; num_elements], exp_avg_sq: vec![0.0; num_elements] }
    }
}

/// Numbers of one step for one parameter group, in binary32.
#[derive(Debug, Clone, Copy)]
pub struct Coefficients {
    clip: f32,
    keep: f32,
    first_weight: f32,
    second_keep: f32,
    second_weight: f32,
    second_root: f32,
    epsilon: f32,
    step_size: f32,
}

/// Squared norms of one parameter tensor after an update.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct SquaredNorms {
    /// Of the parameter.
    pub parameter: f64,
    /// Of its change, decay included.
    pub update: f64,
}

impl AdamW {
    /// Numbers of step `t` (from 1).
    #[must_use]
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_precision_loss,
        reason = "binary32 is meant, and step numbers stay far below 2^53"
    )]
    pub fn coefficients(
        &self,
        t: u64,
        learning_rate: f64,
        weight_decay: f64,
        clip_coefficient: f64,
    ) -> Coefficients {
        let correction1 = 1.0 - libm::pow(self.beta1, t as f64);
        let correction2 = 1.0 - libm::pow(self.beta2, t as f64);
        Coefficients {
            clip: clip_coefficient as f32,
            keep: (1.0 - learning_rate * weight_decay) as f32,
            first_weight: (1.0 - self.beta1) as f32,
            second_keep: self.beta2 as f32,
            second_weight: (1.0 - self.beta2) as f32,
            second_root: libm::sqrt(correction2) as f32,
            epsilon: self.epsilon as f32,
            step_size: (learning_rate / correction1) as f32,
        }
    }
}

/// Updates one tensor and its moments in place. All four slices have the same
/// length. The norms are summed in the fixed shape of
/// [`super::clip::sum_of_squares`]' chunks.
///
/// # Panics
/// When the lengths differ.
pub fn update(
    parameter: &mut [f32],
    gradient: &[f32],
    moments: &mut Moments,
    coefficients: &Coefficients,
) -> SquaredNorms {
    assert_eq!(parameter.len(), gradient.len(), "one gradient element for each parameter element");
    assert_eq!(parameter.len(), moments.exp_avg.len(), "first moments belong to the parameter");
    assert_eq!(parameter.len(), moments.exp_avg_sq.len(), "second moments belong to the parameter");
    let mut norms = SquaredNorms::default();
    let chunks = parameter
        .chunks_mut(CHUNK)
        .zip(gradient.chunks(CHUNK))
        .zip(moments.exp_avg.chunks_mut(CHUNK))
        .zip(moments.exp_avg_sq.chunks_mut(CHUNK));
    for (((parameter, gradient), exp_avg), exp_avg_sq) in chunks {
        let chunk = update_chunk(parameter, gradient, exp_avg, exp_avg_sq, coefficients);
        norms.parameter += chunk.parameter;
        norms.update += chunk.update;
    }
    norms
}

/// Squared norm of a parameter, as [`update`] sums it.
#[must_use]
pub fn squared_norm(parameter: &[f32]) -> f64 {
    let of_chunk = |chunk: &[f32]| chunk.iter().fold(0.0, |sum, p| sum + f64::from(*p) * f64::from(*p));
    parameter.chunks(CHUNK).fold(0.0, |sum, chunk| sum + of_chunk(chunk))
}

fn update_chunk(
    parameter: &mut [f32],
    gradient: &[f32],
    exp_avg: &mut [f32],
    exp_avg_sq: &mut [f32],
    c: &Coefficients,
) -> SquaredNorms {
    let mut norms = SquaredNorms::default();
    let moments = exp_avg.iter_mut().zip(exp_avg_sq.iter_mut());
    for ((p, g), (m, v)) in parameter.iter_mut().zip(gradient).zip(moments) {
        let before = *p;
        let g = g * c.clip;
        *m += c.first_weight * (g - *m);
        *v = *v * c.second_keep + c.second_weight * g * g;
        let denominator = v.sqrt() / c.second_root + c.epsilon;
        *p = before * c.keep - c.step_size * *m / denominator;
        let change = f64::from(*p) - f64::from(before);
        norms.parameter += f64::from(*p) * f64::from(*p);
        norms.update += change * change;
    }
    norms
}
