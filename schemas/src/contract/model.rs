//! Architecture, data, order, objective, credit, update.

use serde::{Deserialize, Serialize};

use super::FileBinding;
use crate::data::LicenseClass;
use crate::digest::Digest;
use crate::number::DecimalU64;

/// The model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(tag = "family", rename_all = "snake_case", deny_unknown_fields)]
pub enum Architecture {
    /// A Llama-shaped decoder: RMSNorm, rotary positions (half rotation),
    /// SwiGLU, optional grouped-query attention, no biases.
    LlamaDecoder(LlamaDecoder),
}

/// Shape of a Llama-shaped decoder.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct LlamaDecoder {
    /// Longest input in tokens.
    pub context_length: u32,
    /// Probability of dropping an element of each residual branch's output;
    /// 0 for none. The mask is a function of seed, site and example.
    pub dropout: f64,
    /// Per head; `num_heads * head_dim` need not equal `hidden_size`.
    pub head_dim: u32,
    /// Width of the residual stream.
    pub hidden_size: u32,
    /// Standard deviation of every matrix's initial values.
    pub initializer_std: f64,
    /// Width of the gated MLP.
    pub intermediate_size: u32,
    /// Query heads.
    pub num_heads: u32,
    /// Key and value heads; divides `num_heads`.
    pub num_kv_heads: u32,
    /// Blocks.
    pub num_layers: u32,
    /// Added to the mean square.
    pub rms_norm_eps: f64,
    /// Base of the rotary frequencies.
    pub rope_theta: f64,
    /// Whether the output head is the embedding, by identity.
    pub tied_embeddings: bool,
    /// Size of the vocabulary; 256 for bytes.
    pub vocab_size: u32,
}

/// The data lease.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct DataLease {
    /// License classes that may be trained on.
    pub admitted_license_classes: Vec<LicenseClass>,
    /// Last day of the lease, `YYYY-MM-DD` in UTC; null: no expiry.
    pub expires: Option<String>,
    /// The build manifest.
    pub manifest: FileBinding,
    /// Terms of the lease.
    pub terms: String,
    /// Example table of the train split; see [`crate::data::ExampleRecord`].
    pub train_examples: FileBinding,
    /// Example table of the val split.
    pub val_examples: FileBinding,
}

/// Position to example.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(tag = "scheme", deny_unknown_fields)]
pub enum OrderPolicy {
    /// A fresh keyed permutation of the train examples for each epoch, with
    /// random access; specified in `docs/FORMAT.md` ("Data order"). Step `t`
    /// (from 1) takes the global positions `(t-1)*B .. t*B`; position `g` is
    /// example `permutation(g / N)[g % N]`. A batch may span epochs; nothing
    /// is dropped.
    #[serde(rename = "keyed_permutation/1")]
    KeyedPermutation,
    /// The examples of each epoch in table order through a buffer, from which
    /// one is drawn at random at a time; specified in `docs/FORMAT.md`
    /// ("Shuffle buffer"). Positions are consumed as above; which example is
    /// next depends on what was drawn before.
    #[serde(rename = "shuffle_buffer/1")]
    ShuffleBuffer {
        /// Examples that the buffer holds; at least 2.
        size: u32,
    },
}

/// What is minimised.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Objective {
    /// Mean over target tokens of the negative log likelihood in nats.
    NextTokenCrossEntropy,
}

/// How credit reaches parameters.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(tag = "rule", rename_all = "snake_case", deny_unknown_fields)]
pub enum CreditRule {
    /// Reverse-mode differentiation of the objective.
    Backpropagation,
    /// Fitness of perturbed parameters.
    Evolution {
        /// Whether perturbations come in mirrored pairs.
        antithetic: bool,
        /// Members evaluated for one update.
        population: u64,
        /// Rank of a perturbation; null for full rank.
        rank: Option<u64>,
    },
}

/// The optimizer policy card.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct UpdateBinding {
    /// The card.
    pub card: FileBinding,
}

/// Seeds by purpose. Each purpose derives its own key, so equal seeds do not
/// give related draws.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Seeds {
    /// Data order.
    pub data_order: DecimalU64,
    /// Dropout masks.
    pub dropout: DecimalU64,
    /// Initial values.
    pub initialization: DecimalU64,
}

/// The sealed set and who opens it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Qualification {
    /// What is measured, such as `bits_per_byte`.
    pub metric: Metric,
    /// BLAKE3 of the plaintext, so that the opened set can be recognised.
    pub plaintext: Digest,
    /// The sealed file (age, to `keys.qualifier_recipient`).
    pub sealed: FileBinding,
}

/// A number computed from a model and a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Metric {
    /// Summed negative log2 likelihood over the number of target bytes.
    BitsPerByte,
}
