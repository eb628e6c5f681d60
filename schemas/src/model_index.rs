//! The index of a model whose weights lie in several files: which tensor is in
//! which file, as Hugging Face loaders read it, and the digest of each file.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::digest::Digest;

/// Name of the index. Loaders look for it where there is no
/// `model.safetensors`.
pub const MODEL_INDEX_NAME: &str = "model.safetensors.index.json";
/// Name of the file of the parameters that no update changes.
pub const FROZEN_MODEL_NAME: &str = "model-frozen.safetensors";
/// Name of the file of all other parameters.
pub const TRAINABLE_MODEL_NAME: &str = "model-trainable.safetensors";

/// `model.safetensors.index.json`. Its own digest stands for the whole model,
/// since it names that of every file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelIndex {
    /// What loaders do not need.
    pub metadata: ModelIndexMetadata,
    /// File of each tensor, by the tensor's name.
    pub weight_map: BTreeMap<String, String>,
}

/// Size and digests of a model in several files.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelIndexMetadata {
    /// BLAKE3 of each file, by its name.
    pub shards: BTreeMap<String, Digest>,
    /// Size of all tensors in bytes, without headers.
    pub total_size: u64,
}
