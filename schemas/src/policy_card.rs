//! The optimizer policy card: an update rule as an executable specification.
//!
//! An optimizer's name is an index into a family. Two runs that both say
//! AdamW can differ in epsilon placement, exclusions, moment precision,
//! schedule and clipping, so a card states all of it.

use serde::{Deserialize, Serialize};

/// One optimizer policy card, a file of its own that the contract names.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct PolicyCard {
    /// Approximation algorithm and precision; null for exact update rules.
    pub approximation: Option<Approximation>,
    /// How microbatches become one gradient.
    pub batch_semantics: BatchSemantics,
    /// What a checkpoint must hold of this optimizer, by tensor suffix.
    pub checkpoint_state: Vec<OptimizerTensor>,
    /// Gradient clipping before the update.
    pub clipping: Clipping,
    /// Where state and updates live, and what is communicated.
    pub distribution: Distribution,
    /// What handles the parameters that the primary family does not.
    pub fallback: Option<Fallback>,
    /// [`crate::POLICY_CARD_FORMAT`].
    pub format: String,
    /// Parameter groups; every trainable parameter is in exactly one.
    pub groups: Vec<ParameterGroup>,
    /// Which code executes it.
    pub implementation: Implementation,
    /// Name of the card.
    pub name: String,
    /// What a result under this card does not show. At least one.
    pub nonclaims: Vec<String>,
    /// How parameters are scaled by width and depth.
    pub parameterization: Parameterization,
    /// Curvature or preconditioner refresh in steps; null for first-order rules.
    pub preconditioner_every_steps: Option<u64>,
    /// What may be tried when the run goes wrong, in order; empty: nothing.
    pub rescue_ladder: Vec<String>,
    /// When this policy ends a run early; null: only by the contract's rule.
    pub stopping_rule: Option<String>,
    /// Trials that chose these values.
    pub tuning: Tuning,
    /// The update, with all of its constants.
    pub update: UpdateRule,
    /// Version of the card's content.
    pub version: String,
}

/// Approximation used by an update rule.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Approximation {
    /// Name of the algorithm.
    pub algorithm: String,
    /// Iterations or terms.
    pub num_iterations: u64,
    /// dtype it runs in.
    pub precision: String,
}

/// How a global batch becomes one gradient.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum BatchSemantics {
    /// The gradient of the summed token losses over the number of target
    /// tokens in the whole global batch, however it is split.
    MeanOverGlobalTokens,
}

/// A state tensor that a checkpoint holds for each parameter.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct OptimizerTensor {
    /// safetensors spelling of the dtype.
    pub dtype: String,
    /// Appended to the parameter's path after a dot: `exp_avg`.
    pub suffix: String,
}

/// Gradient clipping.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Clipping {
    /// No clipping.
    None,
    /// Multiply every gradient by `min(1, max_norm / (norm + epsilon))`, the
    /// norm being the Euclidean norm over all trainable parameters.
    GlobalNorm {
        /// Added to the norm; PyTorch's `clip_grad_norm_` uses 1e-6.
        epsilon: f64,
        /// Upper bound of the norm after clipping.
        max_norm: f64,
    },
}

/// Placement of optimizer state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Distribution {
    /// What workers exchange at each update; `none` for one process.
    pub communication: String,
    /// `replicated` or `sharded`.
    pub placement: String,
}

/// A second update rule for parameters that the first is not eligible for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Fallback {
    /// Groups that it handles.
    pub groups: Vec<String>,
    /// Its update.
    pub update: UpdateRule,
}

/// Which code executes an update rule.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Implementation {
    /// Package and module.
    pub name: String,
    /// What its numbers were checked against.
    pub reference: String,
}

/// One parameter group.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ParameterGroup {
    /// Which parameters: by the rule's words, applied in the order of groups.
    pub eligible: Eligibility,
    /// Multiplies the scheduled rate.
    pub learning_rate_multiplier: f64,
    /// Name that contract, manifest and entries use.
    pub name: String,
    /// Decoupled weight decay.
    pub weight_decay: f64,
}

/// Which parameters a group takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Eligibility {
    /// Weights with two dimensions that are not the embedding.
    Matrices,
    /// The token embedding (and the head tied to it).
    Embeddings,
    /// Norm scales, biases and every other vector.
    Vectors,
    /// Every trainable parameter that no earlier group took.
    Rest,
}

/// Parameterization by width and depth.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Parameterization {
    /// No multipliers by width or depth.
    Standard,
}

/// The search that chose the card's values.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Tuning {
    /// How many trials were run, of this arm.
    pub num_trials: u64,
    /// What was searched; empty when nothing was.
    pub search_space: String,
}

/// An update equation with its constants.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(tag = "family", rename_all = "snake_case", deny_unknown_fields)]
pub enum UpdateRule {
    /// AdamW (Loshchilov and Hutter 2019) in PyTorch's order: decay the
    /// parameter by `1 - rate * decay`, update both moments, then subtract
    /// `rate / (1 - beta1^t) * m / (sqrt(v) / sqrt(1 - beta2^t) + epsilon)`.
    Adamw {
        /// First-moment decay.
        beta1: f64,
        /// Second-moment decay.
        beta2: f64,
        /// Added outside the root, after bias correction.
        epsilon: f64,
        /// safetensors spelling of the moments' dtype.
        moment_dtype: String,
    },
}
