//! The decoder itself: tokens in, logits out.

use std::path::Path;

use pulp::Arch;
use schemas::model_index::ModelIndex;

use super::config::Config;
use super::index::MODEL_NAME;
use super::matmul::{Extent, Packed, Product, rounded};
use super::weights::{Layer, ModelError, Weights, read_candidate};

/// A decoder, ready to run. Shared by threads; each brings a [`Scratch`].
#[derive(Debug, Clone)]
pub struct Decoder {
    config: Config,
    weights: Weights,
    /// `theta^(-2i / head_dim)` for each of the `head_dim / 2` pairs.
    frequencies: Vec<f64>,
    arch: Arch,
}

/// Memory of one thread, grown to the longest window that it has seen.
#[derive(Debug, Default)]
pub struct Scratch {
    residual: Vec<f64>,
    normed: Vec<f64>,
    qkv: Vec<f64>,
    query: Vec<f64>,
    scores: Vec<f64>,
    mixed: Vec<f64>,
    gate_up: Vec<f64>,
    activated: Vec<f64>,
    branch: Vec<f64>,
    logits: Vec<f64>,
    keys: Packed,
    values: Packed,
    rotary: Vec<(f64, f64)>,
}

/// A buffer of a length, with anything in it: whoever asks for it fills it.
fn resized(buffer: &mut Vec<f64>, length: usize) -> &mut [f64] {
    buffer.resize(length, 0.0);
    buffer
}

/// Llama's RMSNorm of each row, rounded as an operand: `x / sqrt(mean(x^2) +
/// eps) * weight`.
fn rms_norm(input: &[f64], weight: &[f64], eps: f64, out: &mut [f64]) {
    let width = weight.len();
    for (row, out) in input.chunks_exact(width).zip(out.chunks_exact_mut(width)) {
        let squares: f64 = row.iter().map(|value| value * value).sum();
        #[allow(clippy::cast_precision_loss, reason = "a width is far below 2^53")]
        let scale = 1.0 / (squares / width as f64 + eps).sqrt();
        for ((out, value), weight) in out.iter_mut().zip(row).zip(weight) {
            *out = rounded(value * scale * weight);
        }
    }
}

fn add(residual: &mut [f64], branch: &[f64]) {
    for (residual, branch) in residual.iter_mut().zip(branch) {
        *residual += branch;
    }
}

/// Softmax of `row` in place, rounded as an operand.
fn softmax(row: &mut [f64]) {
    let largest = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let mut sum = 0.0;
    for value in row.iter_mut() {
        *value = libm::exp(*value - largest);
        sum += *value;
    }
    for value in row {
        *value = rounded(*value / sum);
    }
}

impl Decoder {
    /// A decoder from the bytes of `config.json` and of a safetensors file.
    ///
    /// # Errors
    /// When either is malformed or they do not fit together.
    pub fn from_bytes(config: &[u8], model: &[u8]) -> Result<Self, ModelError> {
        Self::from_files(config, None, &[(MODEL_NAME, model)])
    }

    /// A decoder from the bytes of `config.json` and of the safetensors files
    /// of a model, by name, with the index of several.
    ///
    /// # Errors
    /// As [`Decoder::from_bytes`], and when index and files do not agree.
    pub fn from_files(
        config: &[u8],
        index: Option<&ModelIndex>,
        files: &[(&str, &[u8])],
    ) -> Result<Self, ModelError> {
        let config = Config::from_json(config)?;
        let weights = Weights::from_files(&config, index, files)?;
        #[allow(clippy::cast_precision_loss, reason = "channels are far below 2^53")]
        let frequency =
            |pair: usize| libm::pow(config.rope_theta, -((2 * pair) as f64) / config.head_dim as f64);
        let frequencies = (0..config.head_dim / 2).map(frequency).collect();
        Ok(Self { config, weights, frequencies, arch: Arch::new() })
    }

    /// A decoder from a candidate's folder. Digests are the caller's business.
    ///
    /// # Errors
    /// As [`Decoder::from_bytes`], and when a file cannot be read.
    pub fn load(folder: &Path) -> Result<Self, ModelError> {
        let candidate = read_candidate(folder)?;
        let files: Vec<(&str, &[u8])> =
            candidate.files.iter().map(|(name, bytes)| (name.as_str(), bytes.as_slice())).collect();
        Self::from_files(&candidate.config, candidate.index.as_ref(), &files)
    }

    /// Its shape.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Logits `[tokens.len(), vocab_size]`, row-major: row `t` from the tokens
    /// up to and including `t`. Every byte is in the vocabulary, as
    /// [`Config::from_json`] checks.
    pub fn logits<'s>(&self, tokens: &[u8], scratch: &'s mut Scratch) -> &'s [f64] {
        let (length, hidden) = (tokens.len(), self.config.hidden_size);
        self.embed(tokens, scratch);
        self.fill_rotary(length, &mut scratch.rotary);
        for layer in &self.weights.layers {
            self.attention(layer, length, scratch);
            self.feed_forward(layer, length, scratch);
        }
        let normed = resized(&mut scratch.normed, length * hidden);
        rms_norm(&scratch.residual, &self.weights.final_norm, self.config.rms_norm_eps, normed);
        self.product(
            &scratch.normed,
            length,
            &self.weights.head,
            self.config.vocab_size,
            &mut scratch.logits,
        );
        &scratch.logits
    }

    /// Sum over the targets of the negative log likelihood in nats. `window`
    /// holds the inputs and one byte more: each byte but the first is a target.
    pub fn nats(&self, window: &[u8], scratch: &mut Scratch) -> f64 {
        let Some((_, inputs)) = window.split_last() else { return 0.0 };
        let logits = self.logits(inputs, scratch);
        let mut total = 0.0;
        for (row, &target) in logits.chunks_exact(self.config.vocab_size).zip(&window[1..]) {
            let largest = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let sum: f64 = row.iter().map(|logit| libm::exp(logit - largest)).sum();
            total += libm::log(sum) + largest - row[usize::from(target)];
        }
        total
    }

    fn embed(&self, tokens: &[u8], scratch: &mut Scratch) {
        let hidden = self.config.hidden_size;
        let residual = resized(&mut scratch.residual, tokens.len() * hidden);
        for (row, &token) in residual.chunks_exact_mut(hidden).zip(tokens) {
            let first = usize::from(token) * hidden;
            let embedding = &self.weights.embedding[first..first + hidden];
            for (value, weight) in row.iter_mut().zip(embedding) {
                *value = f64::from(*weight);
            }
        }
    }

    /// Cosine and sine of `position * frequency`, `[length, head_dim / 2]`.
    fn fill_rotary(&self, length: usize, rotary: &mut Vec<(f64, f64)>) {
        let pairs = self.frequencies.len();
        for position in rotary.len() / pairs..length {
            #[allow(clippy::cast_precision_loss, reason = "positions are far below 2^53")]
            let angles = self.frequencies.iter().map(|frequency| position as f64 * frequency);
            rotary.extend(angles.map(|angle| (libm::cos(angle), libm::sin(angle))));
        }
    }

    fn product(&self, left: &[f64], rows: usize, right: &Packed, width: usize, out: &mut Vec<f64>) {
        let left_stride = left.len() / rows.max(1);
        let out = resized(out, rows * width);
        let extent = Extent::Full;
        Product { left, left_stride, rows, right, extent, out, out_stride: width }.compute(self.arch);
    }

    fn attention(&self, layer: &Layer, length: usize, scratch: &mut Scratch) {
        let Config { head_dim, hidden_size, num_heads, num_kv_heads, .. } = self.config;
        let normed = resized(&mut scratch.normed, length * hidden_size);
        rms_norm(&scratch.residual, &layer.input_norm, self.config.rms_norm_eps, normed);
        let width = (num_heads + 2 * num_kv_heads) * head_dim;
        self.product(&scratch.normed, length, &layer.qkv, width, &mut scratch.qkv);
        for head in 0..num_heads + num_kv_heads {
            rotate(&mut scratch.qkv, width, head * head_dim, &scratch.rotary, head_dim);
        }
        resized(&mut scratch.mixed, length * num_heads * head_dim);
        let group = num_heads / num_kv_heads;
        for kv_head in 0..num_kv_heads {
            let key = (num_heads + kv_head) * head_dim;
            let value = key + num_kv_heads * head_dim;
            let qkv = &scratch.qkv;
            scratch.keys.fill(length, head_dim, |n, k| rounded(qkv[n * width + key + k]));
            scratch.values.fill(head_dim, length, |n, k| rounded(qkv[k * width + value + n]));
            for head in kv_head * group..(kv_head + 1) * group {
                self.one_head(head, length, width, scratch);
            }
        }
        self.product(&scratch.mixed, length, &layer.output, hidden_size, &mut scratch.branch);
        add(&mut scratch.residual, &scratch.branch);
    }

    /// Causal attention of one query head, into its columns of `mixed`.
    fn one_head(&self, head: usize, length: usize, width: usize, scratch: &mut Scratch) {
        let head_dim = self.config.head_dim;
        #[allow(clippy::cast_precision_loss, reason = "channels are far below 2^53")]
        let scale = 1.0 / (head_dim as f64).sqrt();
        scratch.query.clear();
        for row in scratch.qkv.chunks_exact(width) {
            scratch.query.extend(row[head * head_dim..(head + 1) * head_dim].iter().copied().map(rounded));
        }
        let scores = resized(&mut scratch.scores, length * length);
        Product {
            left: &scratch.query,
            left_stride: head_dim,
            rows: length,
            right: &scratch.keys,
            extent: Extent::CausalOutputs,
            out: scores,
            out_stride: length,
        }
        .compute(self.arch);
        for (position, row) in scores.chunks_exact_mut(length).enumerate() {
            let (seen, hidden) = row.split_at_mut(position + 1);
            seen.iter_mut().for_each(|score| *score *= scale);
            softmax(seen);
            hidden.fill(0.0);
        }
        let out_stride = self.config.num_heads * head_dim;
        Product {
            left: &scratch.scores,
            left_stride: length,
            rows: length,
            right: &scratch.values,
            extent: Extent::CausalInner,
            out: &mut scratch.mixed[head * head_dim..],
            out_stride,
        }
        .compute(self.arch);
        for row in scratch.mixed.chunks_exact_mut(out_stride) {
            for value in &mut row[head * head_dim..(head + 1) * head_dim] {
                *value = rounded(*value);
            }
        }
    }

    fn feed_forward(&self, layer: &Layer, length: usize, scratch: &mut Scratch) {
        let Config { hidden_size, intermediate_size, .. } = self.config;
        let normed = resized(&mut scratch.normed, length * hidden_size);
        rms_norm(&scratch.residual, &layer.post_attention_norm, self.config.rms_norm_eps, normed);
        self.product(&scratch.normed, length, &layer.gate_up, 2 * intermediate_size, &mut scratch.gate_up);
        let activated = resized(&mut scratch.activated, length * intermediate_size);
        let rows = scratch.gate_up.chunks_exact(2 * intermediate_size);
        for (out, row) in activated.chunks_exact_mut(intermediate_size).zip(rows) {
            let (gate, up) = row.split_at(intermediate_size);
            for ((out, gate), up) in out.iter_mut().zip(gate).zip(up) {
                // SiLU: x * sigmoid(x).
                *out = rounded(gate / (1.0 + libm::exp(-gate)) * up);
            }
        }
        self.product(&scratch.activated, length, &layer.down, hidden_size, &mut scratch.branch);
        add(&mut scratch.residual, &scratch.branch);
    }
}

/// Rotates one head of every row by its position: channel `i` pairs with
/// channel `i + head_dim / 2` (Hugging Face's `rotate_half`).
fn rotate(rows: &mut [f64], width: usize, first: usize, rotary: &[(f64, f64)], head_dim: usize) {
    let pairs = head_dim / 2;
    for (row, angles) in rows.chunks_exact_mut(width).zip(rotary.chunks_exact(pairs)) {
        let (low, high) = row[first..first + head_dim].split_at_mut(pairs);
        for ((low, high), (cosine, sine)) in low.iter_mut().zip(high).zip(angles) {
            (*low, *high) = (*low * cosine - *high * sine, *high * cosine + *low * sine);
        }
    }
}
