//! The model's operations, each a plain function of tensors.
//!
//! They are kept behind this one module so that a fused version can take the
//! place of any of them with the plain one as its reference. Activations are
//! `[rows, channels]` with one row for each token of the microbatch, in
//! binary32; only the operands of matrix products may be of another dtype.
//!
//! `exp` and `log` inside softmax and SiLU are, on the CPU, the C library's,
//! which chooses a kernel by CPU features. Bits are the same for the same
//! binary, C library and CPU features, which is what the compiler plan binds but
//! for the library's version.

use burn::tensor::module::embedding as embedding_lookup;
use burn::tensor::{Device, FloatDType, Int, Tensor, TensorData, activation};

/// Added to a score that the causal mask hides. Its exponential is exactly 0,
/// and it is finite because shaders need not honour infinities.
const HIDDEN: f32 = -1e30;

/// Constants of the forward pass, made once for a shape.
#[derive(Debug, Clone)]
pub struct Tables {
    /// Cosines, `[1, context, 1, head_dim]`.
    cosine: Tensor<4>,
    /// Sines, `[1, context, 1, head_dim]`.
    sine: Tensor<4>,
    /// `x . rotation` is `(-x2, x1)` for the halves `(x1, x2)` of a head.
    rotation: Tensor<2>,
    /// 0 where a query may look, [`HIDDEN`] where it may not:
    /// `[1, 1, group * context, context]`, the pattern repeated for each query
    /// head that shares a key head.
    mask: Tensor<4>,
}

/// Shape of the attention.
#[derive(Debug, Clone, Copy)]
pub struct AttentionShape {
    /// Tokens of an example.
    pub context_length: usize,
    /// Per head.
    pub head_dim: usize,
    /// Query heads.
    pub num_heads: usize,
    /// Key and value heads.
    pub num_kv_heads: usize,
}

impl Tables {
    /// Tables for a shape. Angles are made in binary64 with libm and rounded
    /// once: `position * theta^(-2i / head_dim)`.
    #[must_use]
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_precision_loss,
        reason = "small counts, and binary32 is meant"
    )]
    pub fn new(shape: AttentionShape, rope_theta: f64, device: &Device) -> Self {
        let AttentionShape { context_length, head_dim, num_heads, num_kv_heads } = shape;
        let half = head_dim / 2;
        let mut cosine = Vec::with_capacity(context_length * head_dim);
        let mut sine = Vec::with_capacity(context_length * head_dim);
        for position in 0..context_length {
            for channel in 0..head_dim {
                let exponent = (2 * (channel % half)) as f64 / head_dim as f64;
                let angle = position as f64 / libm::pow(rope_theta, exponent);
                cosine.push(libm::cos(angle) as f32);
                sine.push(libm::sin(angle) as f32);
            }
        }
        let mut rotation = vec![0.0f32; head_dim * head_dim];
        for channel in 0..half {
            rotation[(channel + half) * head_dim + channel] = -1.0;
            rotation[channel * head_dim + channel + half] = 1.0;
        }
        let group = num_heads / num_kv_heads;
        let mut mask = Vec::with_capacity(group * context_length * context_length);
        for row in 0..group * context_length {
            let query = row % context_length;
            mask.extend((0..context_length).map(|key| if key <= query { 0.0 } else { HIDDEN }));
        }
        let table = [1, context_length, 1, head_dim];
        Self {
            cosine: Tensor::from_data(TensorData::new(cosine, table), device),
            sine: Tensor::from_data(TensorData::new(sine, table), device),
            rotation: Tensor::from_data(TensorData::new(rotation, [head_dim, head_dim]), device),
            mask: Tensor::from_data(
                TensorData::new(mask, [1, 1, group * context_length, context_length]),
                device,
            ),
        }
    }
}

/// Rows of the embedding: `[batch, tokens]` to `[batch * tokens, hidden]`.
#[must_use]
pub fn embedding(weight: Tensor<2>, ids: Tensor<2, Int>) -> Tensor<2> {
    embedding_lookup(weight, ids).flatten(0, 1)
}

/// `left . right` of operands that are rounded to a dtype, as are the result
/// and, in the backward pass, the incoming gradient and both outgoing ones
/// (`docs/FORMAT.md`, "Compute dtype"). In and out are binary32.
fn product<const D: usize>(left: Tensor<D>, right: Tensor<D>, compute: FloatDType) -> Tensor<D> {
    if compute == FloatDType::F32 {
        return left.matmul(right);
    }
    left.cast(compute).matmul(right.cast(compute)).cast(FloatDType::F32)
}

/// `x . weight^T` with a weight in its stored layout `[out, in]`.
#[must_use]
pub fn linear(x: Tensor<2>, weight: Tensor<2>, compute: FloatDType) -> Tensor<2> {
    product(x, weight.transpose(), compute)
}

/// `x / sqrt(mean(x^2) + epsilon) * scale` over channels (Zhang and Sennrich 2019).
#[must_use]
pub fn rms_norm(x: Tensor<2>, scale: Tensor<1>, epsilon: f64) -> Tensor<2> {
    // Multiplying by a reciprocal that has one column spares the backward pass
    // of a full-width division.
    let inverse = x.clone().square().mean_dim(1).add_scalar(epsilon).sqrt().recip();
    x.mul(inverse).mul(scale.unsqueeze())
}

/// `silu(gate) * up` (Shazeer 2020).
#[must_use]
pub fn gated(gate: Tensor<2>, up: Tensor<2>) -> Tensor<2> {
    activation::silu(gate).mul(up)
}

/// Rotary positions on `[batch, tokens, heads, head_dim]` (Su et al. 2021),
/// rotating halves as Llama checkpoints expect, not neighbours.
fn rotary(x: Tensor<4>, tables: &Tables) -> Tensor<4> {
    let [batch, tokens, heads, head_dim] = x.dims();
    // A product with a signed permutation matrix is exact, and cheaper on the
    // tape than slices and a concatenation.
    let turned = x
        .clone()
        .reshape([batch * tokens * heads, head_dim])
        .matmul(tables.rotation.clone())
        .reshape([batch, tokens, heads, head_dim]);
    x.mul(tables.cosine.clone()).add(turned.mul(tables.sine.clone()))
}

/// Causal attention over flat queries `[rows, heads * head_dim]` and keys and
/// values `[rows, kv_heads * head_dim]`; the result has the queries' shape.
/// Query head `h` attends to key head `h / (heads / kv_heads)`.
#[must_use]
#[allow(clippy::cast_precision_loss, reason = "head dimensions are small")]
pub fn attention(
    queries: Tensor<2>,
    keys: Tensor<2>,
    values: Tensor<2>,
    shape: AttentionShape,
    tables: &Tables,
    compute: FloatDType,
) -> Tensor<2> {
    let AttentionShape { context_length: tokens, head_dim, num_heads, num_kv_heads } = shape;
    let batch = queries.dims()[0] / tokens;
    let group = num_heads / num_kv_heads;
    let queries = rotary(queries.reshape([batch, tokens, num_heads, head_dim]), tables)
        .swap_dims(1, 2)
        .reshape([batch, num_kv_heads, group * tokens, head_dim])
        .mul_scalar(1.0 / (head_dim as f64).sqrt());
    let keys = rotary(keys.reshape([batch, tokens, num_kv_heads, head_dim]), tables);
    let values = values.reshape([batch, tokens, num_kv_heads, head_dim]).swap_dims(1, 2);
    let scores = product(queries, keys.permute([0, 2, 3, 1]), compute).add(tables.mask.clone());
    // softmax(s) . v as (exp(s - max) . v) / sum(exp(s - max)): the division
    // then runs over head_dim columns and not over context_length, forward and
    // backward. The maximum is a constant to the gradient.
    let largest = scores.clone().detach().max_dim(3);
    let exponentials = scores.sub(largest).exp();
    let sums = exponentials.clone().sum_dim(3);
    product(exponentials, values, compute)
        .mul(sums.recip())
        .reshape([batch, num_heads, tokens, head_dim])
        .swap_dims(1, 2)
        .reshape([batch * tokens, num_heads * head_dim])
}

/// Negative log likelihood in nats of each row's target: `[rows]`, as the
/// logarithm of the summed exponentials less the target's logit, both relative
/// to the row's largest logit.
#[must_use]
pub fn cross_entropy(logits: Tensor<2>, targets: Tensor<1, Int>) -> Tensor<1> {
    let rows = logits.dims()[0];
    let largest = logits.clone().detach().max_dim(1);
    let shifted = logits.sub(largest);
    let of_target = shifted.clone().gather(1, targets.reshape([rows, 1]));
    shifted.exp().sum_dim(1).log().sub(of_target).reshape([rows])
}
