//! Reads a checkpoint back from disk and compares every digest.
//!
//! What is returned are the bytes that were hashed, so that nothing is read a
//! second time, and possibly differently, when state is restored from them. Only
//! regular files are read, through no link, and no more bytes than are on record: a
//! checkpoint may be somebody else's.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::Path;

use schemas::CHECKPOINT_MANIFEST_FORMAT;
use schemas::digest::Digest;
use schemas::ids::{CheckpointId, RunId};
use schemas::state::{CheckpointManifest, Shard};

use super::{CheckpointError, MANIFEST_NAME, below};

/// Largest manifest that is read: the bound of every document.
pub const MAX_MANIFEST_BYTES: u64 = 16 << 20;

/// Bytes read at once while hashing.
const BUFFER_BYTES: usize = 1 << 20;

/// What a manifest has to say to be the expected one.
#[derive(Debug, Clone, Copy)]
pub struct Expected<'a> {
    /// Name of the checkpoint.
    pub checkpoint: &'a CheckpointId,
    /// SHA-256 of the contract.
    pub contract: Digest,
    /// BLAKE3 of the manifest.
    pub manifest: Digest,
    /// The run.
    pub run: &'a RunId,
    /// Logical step.
    pub step: u64,
}

/// Reads every file back and compares size and digest, after asking the
/// system to forget what it cached, so that the disk itself is read where the
/// file system allows it.
///
/// # Errors
/// [`CheckpointError`] for the first file that differs.
pub fn reread(folder: &Path, expected: &Expected<'_>) -> Result<CheckpointManifest, CheckpointError> {
    drop_cache(&folder.join(MANIFEST_NAME));
    let manifest = read_manifest(folder, expected)?;
    for shard in shards(&manifest) {
        let path = folder.join(&shard.path);
        drop_cache(&path);
        check_shard(&path, shard)?;
    }
    Ok(manifest)
}

/// Reads the manifest and every shard into memory, and compares each digest.
///
/// # Errors
/// [`CheckpointError`] for the first file that differs.
pub fn load(
    folder: &Path,
    expected: &Expected<'_>,
) -> Result<(CheckpointManifest, BTreeMap<String, Vec<u8>>), CheckpointError> {
    let manifest = read_manifest(folder, expected)?;
    let mut contents = BTreeMap::new();
    for shard in shards(&manifest) {
        let path = folder.join(&shard.path);
        let opened = below::resolve(folder, &shard.path).and_then(|found| below::regular(&found));
        let (file, num_bytes) = opened.map_err(CheckpointError::io("read", &path))?;
        check_size(&path, shard, num_bytes)?;
        let bytes = below::read_all(file, shard.num_bytes).map_err(CheckpointError::io("read", &path))?;
        check_digest(&path, shard.digest, Digest::blake3(*blake3::hash(&bytes).as_bytes()))?;
        contents.insert(shard.path.clone(), bytes);
    }
    Ok((manifest, contents))
}

fn shards(manifest: &CheckpointManifest) -> impl Iterator<Item = &Shard> {
    manifest.classes.iter().flat_map(|captured| &captured.shards)
}

fn manifest_bytes(path: &Path) -> Result<Vec<u8>, CheckpointError> {
    let (file, size) = below::regular(path).map_err(CheckpointError::io("read", path))?;
    if size > MAX_MANIFEST_BYTES {
        let reason = format!("{size} bytes; a manifest has at most {MAX_MANIFEST_BYTES}");
        return Err(CheckpointError::Manifest { path: path.to_owned(), reason });
    }
    below::read_all(file, MAX_MANIFEST_BYTES).map_err(CheckpointError::io("read", path))
}

/// Reads the manifest of a folder that no ledger is compared with.
///
/// # Errors
/// [`CheckpointError`] where it is no manifest of this format, or lists a path
/// that leaves the folder.
pub fn parse_manifest(folder: &Path) -> Result<CheckpointManifest, CheckpointError> {
    let path = folder.join(MANIFEST_NAME);
    let refuse = |reason: String| CheckpointError::Manifest { path: path.clone(), reason };
    let bytes = manifest_bytes(&path)?;
    let manifest: CheckpointManifest =
        serde_json::from_slice(&bytes).map_err(|error| refuse(error.to_string()))?;
    if manifest.format != CHECKPOINT_MANIFEST_FORMAT {
        return Err(refuse(format!(
            "format: expected {CHECKPOINT_MANIFEST_FORMAT}, found {}",
            manifest.format
        )));
    }
    if let Some(shard) = shards(&manifest).find(|shard| !below::is_plain(&shard.path)) {
        return Err(refuse(format!("shard path {:?} leaves the folder", shard.path)));
    }
    Ok(manifest)
}

/// Reads the manifest alone, and compares its digest and what it says of itself.
///
/// # Errors
/// [`CheckpointError`] where it is not the expected one, or lists a path that
/// leaves the folder.
pub fn read_manifest(folder: &Path, expected: &Expected<'_>) -> Result<CheckpointManifest, CheckpointError> {
    let path = folder.join(MANIFEST_NAME);
    let refuse = |reason: String| CheckpointError::Manifest { path: path.clone(), reason };
    let bytes = manifest_bytes(&path)?;
    check_digest(&path, expected.manifest, Digest::blake3(*blake3::hash(&bytes).as_bytes()))?;
    let manifest: CheckpointManifest =
        serde_json::from_slice(&bytes).map_err(|error| refuse(error.to_string()))?;
    let differs = |what: &str, expected: &dyn std::fmt::Display, actual: &dyn std::fmt::Display| {
        refuse(format!("{what}: expected {expected}, found {actual}"))
    };
    if manifest.format != CHECKPOINT_MANIFEST_FORMAT {
        return Err(differs("format", &CHECKPOINT_MANIFEST_FORMAT, &manifest.format));
    }
    if manifest.checkpoint != *expected.checkpoint {
        return Err(differs("checkpoint", expected.checkpoint, &manifest.checkpoint));
    }
    if manifest.run != *expected.run {
        return Err(differs("run", expected.run, &manifest.run));
    }
    if manifest.contract != expected.contract {
        return Err(differs("contract", &expected.contract, &manifest.contract));
    }
    if manifest.step != expected.step {
        return Err(differs("step", &expected.step, &manifest.step));
    }
    for captured in &manifest.classes {
        if captured.step != expected.step {
            let what = format!("step of state class `{}`", captured.class);
            return Err(differs(&what, &expected.step, &captured.step));
        }
        if let Some(shard) = captured.shards.iter().find(|shard| !below::is_plain(&shard.path)) {
            return Err(refuse(format!("shard path {:?} leaves the folder", shard.path)));
        }
    }
    Ok(manifest)
}

fn check_size(path: &Path, shard: &Shard, actual: u64) -> Result<(), CheckpointError> {
    if actual == shard.num_bytes {
        Ok(())
    } else {
        Err(CheckpointError::Size { path: path.to_owned(), expected: shard.num_bytes, actual })
    }
}

/// Reads a shard and compares size and digest.
///
/// # Errors
/// [`CheckpointError`] where it differs or cannot be read.
pub fn check_shard(path: &Path, shard: &Shard) -> Result<(), CheckpointError> {
    let (file, num_bytes) = below::regular(path).map_err(CheckpointError::io("read", path))?;
    check_size(path, shard, num_bytes)?;
    let mut file = file.take(shard.num_bytes.saturating_add(1));
    let mut hasher = blake3::Hasher::new();
    let mut buffer = vec![0; BUFFER_BYTES];
    loop {
        let num_read = file.read(&mut buffer).map_err(CheckpointError::io("read", path))?;
        if num_read == 0 {
            break;
        }
        hasher.update(&buffer[..num_read]);
    }
    check_digest(path, shard.digest, Digest::blake3(*hasher.finalize().as_bytes()))
}

fn check_digest(path: &Path, expected: Digest, actual: Digest) -> Result<(), CheckpointError> {
    if expected == actual {
        Ok(())
    } else {
        Err(CheckpointError::Digest { path: path.to_owned(), expected, actual })
    }
}

/// Asks the system to drop a flushed file's cached pages. It is advice: on a
/// file system without pages to drop (tmpfs) the memory is what there is.
pub(super) fn drop_cache(path: &Path) {
    if let Ok((file, _)) = below::regular(path) {
        let _ = rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed);
    }
}
