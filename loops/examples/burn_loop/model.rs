//! A Llama-shaped decoder of burn's own layers, and the batches that it is fed.
//!
//! Nothing here knows of contracts being recorded: it is the model of a loop that
//! was there before. Fields have the names of Llama's weights, so that burn's
//! paths are those of a checkpoint but for a norm's `gamma`. Activations are
//! `[examples, tokens, channels]` in binary32.

use anyhow::{Context, Result, anyhow};
use burn::module::Module;
use burn::nn::{Embedding, EmbeddingConfig, Initializer, Linear, LinearConfig, RmsNorm, RmsNormConfig};
use burn::tensor::module::linear as product;
use burn::tensor::{Device, Int, Tensor, TensorData, activation};
use schemas::contract::LlamaDecoder;

/// Added to the score of a key behind its query; its exponential is exactly 0.
const HIDDEN: f32 = -1e30;

/// What a forward pass needs beside the weights: numbers that are no parameters.
#[derive(Debug, Clone)]
pub(crate) struct Tables {
    /// Of the rotary positions, `[1, 1, tokens, head_dim]`.
    cosine: Tensor<4>,
    sine: Tensor<4>,
    /// 0 or [`HIDDEN`], `[1, 1, tokens, tokens]`.
    mask: Tensor<4>,
    head_dim: usize,
    num_heads: usize,
    num_kv_heads: usize,
}

impl Tables {
    #[allow(clippy::cast_possible_truncation, reason = "binary32 is meant")]
    pub(crate) fn new(shape: &LlamaDecoder, device: &Device) -> Self {
        let [length, head_dim, num_heads, num_kv_heads] =
            [shape.context_length, shape.head_dim, shape.num_heads, shape.num_kv_heads]
                .map(|size| size as usize);
        let angle = |position: usize, channel: usize| {
            let exponent = (2 * (channel % (head_dim / 2))) as f64 / head_dim as f64;
            position as f64 / shape.rope_theta.powf(exponent)
        };
        let angles: Vec<f64> = (0..length)
            .flat_map(|position| (0..head_dim).map(move |channel| (position, channel)))
            .map(|(position, channel)| angle(position, channel))
            .collect();
        let table = |of: fn(f64) -> f64| {
            let values: Vec<f32> = angles.iter().map(|angle| of(*angle) as f32).collect();
            Tensor::from_data(TensorData::new(values, [1, 1, length, head_dim]), device)
        };
        let mask: Vec<f32> = (0..length)
            .flat_map(|query| (0..length).map(move |key| if key <= query { 0.0 } else { HIDDEN }))
            .collect();
        Self {
            cosine: table(f64::cos),
            sine: table(f64::sin),
            mask: Tensor::from_data(TensorData::new(mask, [1, 1, length, length]), device),
            head_dim,
            num_heads,
            num_kv_heads,
        }
    }

    /// Rotary positions with half rotation, as Llama in `transformers`; burn's
    /// `RotaryEncoding` turns neighbours. `x` is `[examples, heads, tokens, head_dim]`.
    fn rotate(&self, x: Tensor<4>) -> Tensor<4> {
        let half = self.head_dim / 2;
        let first = x.clone().narrow(3, 0, half);
        let second = x.clone().narrow(3, half, half);
        let turned = Tensor::cat(vec![second.neg(), first], 3);
        x.mul(self.cosine.clone()).add(turned.mul(self.sine.clone()))
    }
}

/// Grouped-query attention.
#[derive(Module, Debug)]
struct Attention {
    q_proj: Linear,
    k_proj: Linear,
    v_proj: Linear,
    o_proj: Linear,
}

impl Attention {
    fn forward(&self, x: Tensor<3>, tables: &Tables) -> Tensor<3> {
        let [examples, tokens, _] = x.dims();
        let (heads, kv_heads, size) = (tables.num_heads, tables.num_kv_heads, tables.head_dim);
        let split = |y: Tensor<3>, heads: usize| y.reshape([examples, tokens, heads, size]).swap_dims(1, 2);
        let query = tables.rotate(split(self.q_proj.forward(x.clone()), heads));
        let key = tables.rotate(split(self.k_proj.forward(x.clone()), kv_heads));
        let value = split(self.v_proj.forward(x), kv_heads);
        // Query head h attends to key head h / (heads / kv_heads).
        let shared = |y: Tensor<4>| {
            y.unsqueeze_dim::<5>(2).repeat_dim(2, heads / kv_heads).reshape([examples, heads, tokens, size])
        };
        let scores = query.matmul(shared(key).swap_dims(2, 3)).div_scalar((size as f64).sqrt());
        let weights = activation::softmax(scores.add(tables.mask.clone()), 3);
        let mixed = weights.matmul(shared(value)).swap_dims(1, 2);
        self.o_proj.forward(mixed.reshape([examples, tokens, heads * size]))
    }
}

/// SwiGLU (Shazeer 2020).
#[derive(Module, Debug)]
struct Mlp {
    gate_proj: Linear,
    up_proj: Linear,
    down_proj: Linear,
}

impl Mlp {
    fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        let gate = activation::silu(self.gate_proj.forward(x.clone()));
        self.down_proj.forward(gate.mul(self.up_proj.forward(x)))
    }
}

/// Attention and MLP, each behind a norm and with a residual.
#[derive(Module, Debug)]
struct Layer {
    input_layernorm: RmsNorm,
    self_attn: Attention,
    post_attention_layernorm: RmsNorm,
    mlp: Mlp,
}

impl Layer {
    fn forward(&self, x: Tensor<3>, tables: &Tables) -> Tensor<3> {
        let normed = self.input_layernorm.forward(x.clone());
        let x = x.add(self.self_attn.forward(normed, tables));
        let normed = self.post_attention_layernorm.forward(x.clone());
        x.add(self.mlp.forward(normed))
    }
}

/// What lies under `model.` in the weights.
#[derive(Module, Debug)]
struct Decoder {
    embed_tokens: Embedding,
    layers: Vec<Layer>,
    norm: RmsNorm,
}

/// The model of a contract's architecture.
#[derive(Module, Debug)]
pub(crate) struct Llama {
    model: Decoder,
    /// `None`: the head is the embedding.
    lm_head: Option<Linear>,
}

impl Llama {
    /// A model with parameters that burn draws, on a device with autodiff.
    pub(crate) fn new(shape: &LlamaDecoder, device: &Device) -> Self {
        let [width, inner, vocabulary] =
            [shape.hidden_size, shape.intermediate_size, shape.vocab_size].map(|size| size as usize);
        let [queries, keys] =
            [shape.num_heads, shape.num_kv_heads].map(|heads| (heads * shape.head_dim) as usize);
        let drawn = || Initializer::Normal { mean: 0.0, std: shape.initializer_std };
        let linear = |input: usize, output: usize| {
            LinearConfig::new(input, output).with_bias(false).with_initializer(drawn()).init(device)
        };
        let norm = || RmsNormConfig::new(width).with_epsilon(shape.rms_norm_eps).init(device);
        let layer = |_| Layer {
            input_layernorm: norm(),
            self_attn: Attention {
                q_proj: linear(width, queries),
                k_proj: linear(width, keys),
                v_proj: linear(width, keys),
                o_proj: linear(queries, width),
            },
            post_attention_layernorm: norm(),
            mlp: Mlp {
                gate_proj: linear(width, inner),
                up_proj: linear(width, inner),
                down_proj: linear(inner, width),
            },
        };
        let embed_tokens = EmbeddingConfig::new(vocabulary, width).with_initializer(drawn()).init(device);
        Self {
            model: Decoder { embed_tokens, layers: (0..shape.num_layers).map(layer).collect(), norm: norm() },
            lm_head: (!shape.tied_embeddings).then(|| linear(width, vocabulary)),
        }
    }

    /// Logits `[examples, tokens, vocabulary]` of ids `[examples, tokens]`.
    fn forward(&self, ids: Tensor<2, Int>, tables: &Tables) -> Tensor<3> {
        let mut x = self.model.embed_tokens.forward(ids);
        for layer in &self.model.layers {
            x = layer.forward(x, tables);
        }
        let x = self.model.norm.forward(x);
        match &self.lm_head {
            Some(head) => head.forward(x),
            None => product(x, self.model.embed_tokens.weight.val().transpose(), None),
        }
    }

    /// Negative log likelihood in nats of each target, `[examples * tokens]`; 0
    /// where there is none.
    pub(crate) fn nats(&self, batch: &Batch, tables: &Tables) -> Tensor<1> {
        let logits = self.forward(batch.inputs.clone(), tables).flatten::<2>(0, 1);
        let rows = logits.dims()[0];
        let targets = batch.targets.clone().reshape([rows, 1]);
        let likelihoods = activation::log_softmax(logits, 1).gather(1, targets).reshape([rows]);
        likelihoods.neg().mul(batch.is_target.clone())
    }
}

/// Examples as tensors of one fixed shape; short ones are padded on the right with
/// zeros, which no real position looks at.
#[derive(Debug)]
pub(crate) struct Batch {
    /// `[examples, tokens]`.
    inputs: Tensor<2, Int>,
    targets: Tensor<2, Int>,
    /// 1 for a target and 0 for padding, `[examples * tokens]`.
    is_target: Tensor<1>,
    num_targets: Vec<usize>,
    length: usize,
}

impl Batch {
    /// Of each example its inputs and the last target, as the recorder offers them.
    pub(crate) fn new(examples: &[Vec<u8>], length: usize, device: &Device) -> Self {
        let num_elements = examples.len() * length;
        let (mut inputs, mut targets) = (vec![0_i32; num_elements], vec![0_i32; num_elements]);
        let mut is_target = vec![0.0_f32; num_elements];
        let rows = inputs.chunks_mut(length).zip(targets.chunks_mut(length));
        let rows = rows.zip(is_target.chunks_mut(length));
        for (example, ((inputs, targets), is_target)) in examples.iter().zip(rows) {
            let slots = inputs.iter_mut().zip(targets).zip(is_target);
            for (pair, ((input, target), is_target)) in example.windows(2).zip(slots) {
                if let [byte, next] = pair {
                    (*input, *target, *is_target) = (i32::from(*byte), i32::from(*next), 1.0);
                }
            }
        }
        let shape = [examples.len(), length];
        Self {
            inputs: Tensor::from_data(TensorData::new(inputs, shape), device),
            targets: Tensor::from_data(TensorData::new(targets, shape), device),
            is_target: Tensor::from_data(TensorData::new(is_target, [num_elements]), device),
            num_targets: examples.iter().map(|example| example.len().saturating_sub(1)).collect(),
            length,
        }
    }

    /// What enters the model, read back from its tensors and not from the files: the
    /// recorder digests it, and an audit compares that with the frozen text.
    pub(crate) fn fed(&self) -> Result<Vec<Vec<u8>>> {
        let read = |ids: &Tensor<2, Int>| {
            ids.try_to_vec_as::<i32>().map_err(|error| anyhow!("reading ids: {error}"))
        };
        let byte = |id: &i32| u8::try_from(*id).with_context(|| format!("the id {id} is no byte"));
        let (inputs, targets) = (read(&self.inputs)?, read(&self.targets)?);
        let rows = inputs.chunks(self.length).zip(targets.chunks(self.length)).zip(&self.num_targets);
        rows.map(|((inputs, targets), num_targets)| {
            let last = targets.iter().take(*num_targets).next_back();
            inputs.iter().take(*num_targets).chain(last).map(byte).collect::<Result<Vec<u8>>>()
        })
        .collect()
    }
}
