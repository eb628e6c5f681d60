//! The index of a model in several files.

use std::collections::BTreeMap;

use safetensors::SafeTensors;
use schemas::model_index::ModelIndex;

use super::weights::ModelError;

/// Most files of a model.
const MAX_FILES: usize = 64;

/// The weights file of a model in one file.
pub const MODEL_NAME: &str = "model.safetensors";

fn refuse<T>(reason: String) -> Result<T, ModelError> {
    Err(ModelError::Index { reason })
}

/// Parses an index and checks that it names plain files only, each of them used.
///
/// # Errors
/// [`ModelError::Index`].
pub fn parse_index(bytes: &[u8]) -> Result<ModelIndex, ModelError> {
    let index: ModelIndex = match serde_json::from_slice(bytes) {
        Ok(index) => index,
        Err(error) => return refuse(format!("it is not of its shape: {error}")),
    };
    let files = &index.metadata.shards;
    if files.is_empty() || files.len() > MAX_FILES {
        return refuse(format!("it names {} files, expected 1 to {MAX_FILES}", files.len()));
    }
    for name in files.keys() {
        let is_plain = name.ends_with(".safetensors") && !name.contains(['/', '\\', '\0']);
        if !is_plain || name == MODEL_NAME {
            return refuse(format!("{name:?} is no name of a weights file beside it"));
        }
        if !index.weight_map.values().any(|file| file == name) {
            return refuse(format!("no tensor is in {name}"));
        }
    }
    match index.weight_map.iter().find(|(_, file)| !files.contains_key(*file)) {
        Some((tensor, file)) => refuse(format!("{tensor} is in {file}, of which it has no digest")),
        None => Ok(index),
    }
}

/// Checks that every file holds exactly the tensors that the index says.
pub(super) fn check(index: &ModelIndex, files: &[(&str, SafeTensors<'_>)]) -> Result<(), ModelError> {
    let mut found: BTreeMap<String, String> = BTreeMap::new();
    let mut total_size = 0;
    for (file, tensors) in files {
        for name in tensors.names() {
            if let Some(other) = found.insert(name.to_string(), (*file).to_owned()) {
                return refuse(format!("{name} is in {other} and in {file}"));
            }
            total_size += tensors.tensor(name)?.data().len() as u64;
        }
    }
    if let Some((tensor, file)) =
        index.weight_map.iter().find(|(tensor, file)| found.get(*tensor) != Some(file))
    {
        return refuse(format!("{tensor} is not in {file}"));
    }
    if let Some(tensor) = found.keys().find(|tensor| !index.weight_map.contains_key(*tensor)) {
        return refuse(format!("it has no {tensor}"));
    }
    if index.metadata.total_size != total_size {
        return refuse(format!("it says {} bytes, the tensors have {total_size}", index.metadata.total_size));
    }
    Ok(())
}
