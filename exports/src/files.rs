//! Files that other formats name by SHA-256, read once and compared with the
//! BLAKE3 digest that the audit saw.

use std::fs::File;
use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};

use schemas::digest::Digest;
use schemas::model_index::{MODEL_INDEX_NAME, ModelIndex};
use sha2::Digest as _;

use crate::ExportError;

/// Buffer of a file that is digested, in bytes.
const BUFFER_BYTES: usize = 1 << 20;

/// Largest index of a model that is read: the bound of every document.
const MAX_INDEX_BYTES: u64 = 16 << 20;

/// The weights of a model in one file.
const MODEL_NAME: &str = "model.safetensors";

/// The configuration of a model.
const CONFIG_NAME: &str = "config.json";

/// A file by both of its digests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HashedFile {
    /// As the ledger names it.
    pub blake3: Digest,
    /// Relative to the ledger's folder, or as it was asked for.
    pub name: String,
    /// Size in bytes.
    pub num_bytes: u64,
    /// As other tools name it.
    pub sha256: Digest,
}

/// Reads a file once for both of its digests, and compares with the one that is
/// known.
///
/// # Errors
/// When it cannot be read, or has other bytes than `expected` says.
pub fn hash_file(folder: &Path, name: &str, expected: &Digest) -> Result<HashedFile, ExportError> {
    let path = folder.join(name);
    let io = |source| ExportError::Io { path: path.clone(), source };
    let mut reader = BufReader::with_capacity(BUFFER_BYTES, File::open(&path).map_err(io)?);
    let (mut blake3, mut sha256) = (blake3::Hasher::new(), sha2::Sha256::new());
    let mut buffer = vec![0; BUFFER_BYTES];
    let mut num_bytes = 0;
    loop {
        let num_read = reader.read(&mut buffer).map_err(io)?;
        let Some(read) = buffer.get(..num_read).filter(|read| !read.is_empty()) else { break };
        blake3.update(read);
        sha256.update(read);
        num_bytes += num_read as u64;
    }
    let blake3 = Digest::blake3(*blake3.finalize().as_bytes());
    if blake3 != *expected {
        return Err(ExportError::Changed { path, expected: *expected, actual: blake3 });
    }
    let sha256 = Digest::sha256(sha256.finalize().into());
    Ok(HashedFile { blake3, name: name.to_owned(), num_bytes, sha256 })
}

/// The files of a candidate: `model.safetensors`, or the index and the files
/// that it names, and `config.json`, named relative to the ledger's folder. Of a
/// model in several files the audited digest is that of the index, which names
/// theirs.
///
/// # Errors
/// When a file is missing or not the one that was audited.
pub fn candidate_files(
    ledger_folder: &Path,
    checkpoint: &str,
    model: &Digest,
    config: &Digest,
) -> Result<Vec<HashedFile>, ExportError> {
    let folder = ledger_folder.join(checkpoint);
    let index = folder.join(MODEL_INDEX_NAME);
    let mut named = if folder.join(MODEL_NAME).exists() || !index.exists() {
        vec![(MODEL_NAME.to_owned(), *model)]
    } else {
        let mut named = vec![(MODEL_INDEX_NAME.to_owned(), *model)];
        named.extend(read_index(&index)?.metadata.shards);
        named
    };
    named.push((CONFIG_NAME.to_owned(), *config));
    let hashed =
        named.iter().map(|(file, digest)| hash_file(ledger_folder, &format!("{checkpoint}/{file}"), digest));
    hashed.collect()
}

fn read_index(path: &PathBuf) -> Result<ModelIndex, ExportError> {
    let io = |source| ExportError::Io { path: path.clone(), source };
    let mut bytes = Vec::new();
    File::open(path).map_err(io)?.take(MAX_INDEX_BYTES).read_to_end(&mut bytes).map_err(io)?;
    let content = |what: String| ExportError::Content { path: path.clone(), what };
    let index: ModelIndex = serde_json::from_slice(&bytes).map_err(|error| content(error.to_string()))?;
    // The index is compared with its digest like any other file; a name that
    // leads elsewhere is refused before that.
    match index.metadata.shards.keys().find(|name| name.contains('/') || name.starts_with('.')) {
        Some(name) => Err(content(format!("it names {name:?}, which is not a file beside it"))),
        None => Ok(index),
    }
}
