//! The manifest of parameters: every tensor that the architecture has, and
//! whether the run may change it.

use serde::{Deserialize, Serialize};

/// Whether updates reach a parameter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum ParameterStatus {
    /// Updated at every step.
    Trainable,
    /// Never updated; its bytes stay those of the initial state.
    Frozen,
    /// Trainable, but no loss reaches it.
    Unreachable,
}

/// One parameter tensor.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ParameterDeclaration {
    /// safetensors spelling of the stored dtype: `F32`.
    pub dtype: String,
    /// Parameter group of the policy card; null unless trainable.
    pub group: Option<String>,
    /// How the initial value is made.
    pub initializer: Initializer,
    /// Hugging Face name, such as `model.layers.0.self_attn.q_proj.weight`.
    pub path: String,
    /// Row-major extents; a linear weight is `[out, in]`.
    pub shape: Vec<u64>,
    /// Whether updates reach it.
    pub status: ParameterStatus,
    /// Path of the parameter whose storage this one shares, by identity; a
    /// tied parameter is stored once, under the other's name.
    pub tied_to: Option<String>,
}

/// How an initial value is made: a function of seed and parameter path.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(tag = "scheme", rename_all = "snake_case", deny_unknown_fields)]
pub enum Initializer {
    /// Every element is one.
    Ones,
    /// Normal with mean 0, drawn as `docs/FORMAT.md` ("Initial values") says.
    Normal {
        /// Standard deviation, positive.
        std: f64,
    },
}

/// Every parameter of a model, in path order.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ParameterManifest {
    /// [`crate::PARAMETER_MANIFEST_FORMAT`].
    pub format: String,
    /// The parameters.
    pub parameters: Vec<ParameterDeclaration>,
}
