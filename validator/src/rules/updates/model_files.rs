//! The files that hold a model's tensors: one, or two and an index where
//! parameters are frozen.

use schemas::model_index::{FROZEN_MODEL_NAME, MODEL_INDEX_NAME, TRAINABLE_MODEL_NAME};
use schemas::parameters::ParameterManifest;
use schemas::state::{CheckpointManifest, Shard, StateClass};

use super::tensors::{self, MODEL_FILE, TensorFile};
use crate::derive::safetensors::Tensor;
use crate::derive::split;
use crate::evidence::Evidence;

/// Names of the safetensors files of a model, in path order.
pub(crate) fn names(is_split: bool) -> &'static [&'static str] {
    if is_split { &[FROZEN_MODEL_NAME, TRAINABLE_MODEL_NAME] } else { &[MODEL_FILE] }
}

/// Files of the model class, in path order.
pub(crate) fn class_files(is_split: bool) -> Vec<&'static str> {
    let mut files = vec!["config.json"];
    files.extend(names(is_split));
    if is_split {
        files.push(MODEL_INDEX_NAME);
    }
    files
}

/// The shard whose digest stands for the model: its one file, or the index of
/// several.
pub(crate) fn root(manifest: &CheckpointManifest) -> Option<&Shard> {
    let find = |name| tensors::shard(manifest, StateClass::Model, name);
    find(MODEL_FILE).or_else(|| find(MODEL_INDEX_NAME))
}

/// The files of a checkpoint's model, with their headers read.
pub(crate) struct ModelFiles {
    pub(crate) files: Vec<TensorFile>,
}

impl ModelFiles {
    /// Opens every file; errors in words.
    pub(crate) fn open(
        evidence: &Evidence,
        folder: &str,
        manifest: &ParameterManifest,
    ) -> Result<Self, String> {
        let names = names(split::is_split(manifest)).iter();
        let files = names.map(|name| TensorFile::open(evidence, &format!("{folder}/{name}")));
        Ok(Self { files: files.collect::<Result<_, _>>()? })
    }

    /// A tensor, and the file that it is in; the first that has it.
    pub(crate) fn find(&mut self, name: &str) -> Option<(&mut TensorFile, Tensor)> {
        self.files.iter_mut().find_map(|file| {
            let tensor = file.header.tensors.iter().find(|tensor| tensor.info.name == name).cloned()?;
            Some((file, tensor))
        })
    }
}
