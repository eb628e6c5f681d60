//! Forward pass of a Llama-shaped decoder over named tensors.
//!
//! There is no module tree: parameters are looked up by their Hugging Face
//! names, so that names, layouts and order are the manifest's and nothing has
//! identifiers of its own. Dropout multiplies the output of each branch by
//! factors that the caller made, and only in training.

use std::cell::Cell;
use std::collections::BTreeMap;

use burn::tensor::{Device, FloatDType, Int, Tensor, TensorData};
use schemas::contract::LlamaDecoder;

use super::manifest::{EMBEDDING, FINAL_NORM, HEAD, layer_path};
use super::ops::{self, AttentionShape, Tables};
use crate::randomness::dropout::{Dropout, attention_site, mlp_site};

/// Parameters by path, each flat and row-major.
pub type Parameters = BTreeMap<String, Tensor<1>>;

/// A decoder of a fixed shape on a device.
#[derive(Debug, Clone)]
pub struct Decoder {
    /// dtype of the operands of matrix products.
    compute: FloatDType,
    shape: LlamaDecoder,
    attention: AttentionShape,
    tables: Tables,
    device: Device,
    names: Vec<LayerNames>,
}

/// Paths of one layer's parameters, built once.
#[derive(Debug, Clone)]
struct LayerNames {
    input_norm: String,
    query: String,
    key: String,
    value: String,
    output: String,
    post_norm: String,
    gate: String,
    up: String,
    down: String,
}

impl LayerNames {
    fn new(layer: u32) -> Self {
        let path = |part| layer_path(layer, part);
        Self {
            input_norm: path("input_layernorm"),
            query: path("self_attn.q_proj"),
            key: path("self_attn.k_proj"),
            value: path("self_attn.v_proj"),
            output: path("self_attn.o_proj"),
            post_norm: path("post_attention_layernorm"),
            gate: path("mlp.gate_proj"),
            up: path("mlp.up_proj"),
            down: path("mlp.down_proj"),
        }
    }
}

/// Masks for the examples of one microbatch.
#[derive(Debug, Clone, Copy)]
pub struct Masks<'a> {
    /// Blocks that a stream has drawn; moves as it draws.
    pub drawn: &'a Cell<u64>,
    /// Where they come from.
    pub dropout: &'a Dropout,
    /// Global position of each example.
    pub positions: &'a [u64],
}

impl Decoder {
    /// A decoder whose shape [`super::manifest::parameters`] has accepted.
    #[must_use]
    pub fn new(shape: &LlamaDecoder, device: &Device) -> Self {
        let size = |value: u32| value as usize;
        let attention = AttentionShape {
            context_length: size(shape.context_length),
            head_dim: size(shape.head_dim),
            num_heads: size(shape.num_heads),
            num_kv_heads: size(shape.num_kv_heads),
        };
        Self {
            compute: FloatDType::F32,
            shape: shape.clone(),
            attention,
            tables: Tables::new(attention, shape.rope_theta, device),
            device: device.clone(),
            names: (0..shape.num_layers).map(LayerNames::new).collect(),
        }
    }

    /// The same, with the operands of matrix products in another dtype.
    #[must_use]
    pub fn computing_in(self, compute: FloatDType) -> Self {
        Self { compute, ..self }
    }

    /// dtype of the operands of matrix products.
    #[must_use]
    pub const fn compute(&self) -> FloatDType {
        self.compute
    }

    /// The shape.
    #[must_use]
    pub const fn shape(&self) -> &LlamaDecoder {
        &self.shape
    }

    /// Negative log likelihood in nats of every target, `[batch * context]`.
    ///
    /// `ids` and `targets` are `[batch, context]`; positions beyond an
    /// example's end must be masked out by the caller. Right padding does not
    /// reach real positions, since attention is causal.
    ///
    /// # Panics
    /// When a parameter is missing or has another size; the engine checks both
    /// where parameters enter.
    #[must_use]
    pub fn token_losses(
        &self,
        parameters: &Parameters,
        ids: Tensor<2, Int>,
        targets: Tensor<2, Int>,
        masks: Option<Masks<'_>>,
    ) -> Tensor<1> {
        ops::cross_entropy(self.logits(parameters, ids, masks), targets.flatten(0, 1))
    }

    /// Logits `[batch * context, vocabulary]` for ids `[batch, context]`.
    ///
    /// # Panics
    /// As [`Self::token_losses`].
    #[must_use]
    pub fn logits(
        &self,
        parameters: &Parameters,
        ids: Tensor<2, Int>,
        masks: Option<Masks<'_>>,
    ) -> Tensor<2> {
        let epsilon = self.shape.rms_norm_eps;
        let [vocabulary, hidden, inner] =
            [self.shape.vocab_size, self.shape.hidden_size, self.shape.intermediate_size]
                .map(|size| size as usize);
        let queries = self.attention.num_heads * self.attention.head_dim;
        let keys = self.attention.num_kv_heads * self.attention.head_dim;
        let vector = |path: &str| find(parameters, path);
        let matrix = |path: &str, shape: [usize; 2]| -> Tensor<2> { find(parameters, path).reshape(shape) };
        let linear = |x, weight| ops::linear(x, weight, self.compute);
        let embedding = matrix(EMBEDDING, [vocabulary, hidden]);
        let mut x = ops::embedding(embedding.clone(), ids);
        for (layer, names) in (0..).zip(&self.names) {
            let normed = ops::rms_norm(x.clone(), vector(&names.input_norm), epsilon);
            let mixed = ops::attention(
                linear(normed.clone(), matrix(&names.query, [queries, hidden])),
                linear(normed.clone(), matrix(&names.key, [keys, hidden])),
                linear(normed, matrix(&names.value, [keys, hidden])),
                self.attention,
                &self.tables,
                self.compute,
            );
            let branch = linear(mixed, matrix(&names.output, [hidden, queries]));
            x = x + self.dropped(branch, attention_site(layer), masks);
            let normed = ops::rms_norm(x.clone(), vector(&names.post_norm), epsilon);
            let gated = ops::gated(
                linear(normed.clone(), matrix(&names.gate, [inner, hidden])),
                linear(normed, matrix(&names.up, [inner, hidden])),
            );
            let branch = linear(gated, matrix(&names.down, [hidden, inner]));
            x = x + self.dropped(branch, mlp_site(layer), masks);
        }
        let normed = ops::rms_norm(x, vector(FINAL_NORM), epsilon);
        let head = if self.shape.tied_embeddings { embedding } else { matrix(HEAD, [vocabulary, hidden]) };
        linear(normed, head)
    }

    fn dropped(&self, branch: Tensor<2>, site: u32, masks: Option<Masks<'_>>) -> Tensor<2> {
        let Some(Masks { drawn, dropout, positions }) = masks else { return branch };
        let factors = dropout.factors(site, positions, self.attention.context_length, drawn);
        let factors = TensorData::new(factors, branch.dims());
        branch.mul(Tensor::from_data(factors, &self.device))
    }
}

fn find(parameters: &Parameters, path: &str) -> Tensor<1> {
    match parameters.get(path) {
        Some(tensor) => tensor.clone(),
        None => panic!("parameter {path} is missing: the engine must check the manifest"),
    }
}
