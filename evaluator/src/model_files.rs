//! The files of a candidate's model, checked against the one digest that the
//! ledger admits: that of `model.safetensors`, or of the index of several
//! files, which names the digest of each.

use std::path::Path;

use schemas::digest::Digest;
use schemas::model_index::{MODEL_INDEX_NAME, ModelIndex};

use crate::error::EvaluateError;
use crate::files::{check_digest, read};
use crate::forward::{MODEL_NAME, parse_index};

/// Largest weights file that is read, in bytes.
const MAX_MODEL_BYTES: u64 = 64 << 30;
/// Largest index that is read, in bytes: the bound of every document.
const MAX_INDEX_BYTES: u64 = 16 << 20;

/// A model's files in memory.
pub(crate) struct ModelFiles {
    /// The index where there is one, and every weights file by name. The first
    /// is the file whose digest stands for the model.
    pub(crate) files: Vec<(String, Vec<u8>)>,
    index: Option<ModelIndex>,
}

impl ModelFiles {
    /// Reads and checks them.
    ///
    /// # Errors
    /// A refusal where a file is not the admitted one, or the index is none.
    pub(crate) fn read(folder: &Path, expected: Digest) -> Result<Self, EvaluateError> {
        let (whole, index) = (folder.join(MODEL_NAME), folder.join(MODEL_INDEX_NAME));
        // A file that is missing altogether is reported by its usual name.
        if whole.exists() || !index.exists() {
            let bytes = read(&whole, MAX_MODEL_BYTES)?;
            check_digest(&whole, &bytes, expected, "candidate.admitted")?;
            return Ok(Self { files: vec![(MODEL_NAME.to_owned(), bytes)], index: None });
        }
        let bytes = read(&index, MAX_INDEX_BYTES)?;
        check_digest(&index, &bytes, expected, "candidate.admitted")?;
        let parsed = parse_index(&bytes)
            .map_err(|source| crate::error::Refusal::Candidate { folder: folder.to_owned(), source })?;
        let mut files = vec![(MODEL_INDEX_NAME.to_owned(), bytes)];
        for (name, digest) in &parsed.metadata.shards {
            let path = folder.join(name);
            let bytes = read(&path, MAX_MODEL_BYTES)?;
            check_digest(&path, &bytes, *digest, "the index of the candidate's model")?;
            files.push((name.clone(), bytes));
        }
        Ok(Self { files, index: Some(parsed) })
    }

    /// The index, if there is one.
    pub(crate) const fn index(&self) -> Option<&ModelIndex> {
        self.index.as_ref()
    }

    /// The safetensors files by name.
    pub(crate) fn weights(&self) -> Vec<(&str, &[u8])> {
        let files = self.files.iter().filter(|(name, _)| name != MODEL_INDEX_NAME);
        files.map(|(name, bytes)| (name.as_str(), bytes.as_slice())).collect()
    }
}
