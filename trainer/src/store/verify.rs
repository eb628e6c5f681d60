//! Reads what the store holds of a checkpoint, and compares every digest.

use std::path::PathBuf;

use schemas::digest::Digest;
use schemas::state::{CheckpointManifest, Shard};

use crate::checkpoint::validate::MAX_MANIFEST_BYTES;
use crate::checkpoint::{CheckpointError, MANIFEST_NAME};
use crate::run::progress::Console;

use super::session::PART_BYTES;
use super::{Remote, Session, StoreError, Stored};

/// Reads every object of a checkpoint back; nothing is kept.
///
/// # Errors
/// The first that is missing or differs.
pub fn reread(
    remote: &Remote,
    console: &Console,
    stored: Stored<'_>,
    manifest: &CheckpointManifest,
    manifest_digest: Digest,
) -> Result<(), CheckpointError> {
    let session = remote.session(console);
    remote.wait(async {
        read_manifest(&session, stored, manifest_digest, MAX_MANIFEST_BYTES).await?;
        let shards: Vec<&Shard> = manifest.classes.iter().flat_map(|captured| &captured.shards).collect();
        session.begin("Reading back", shards.iter().map(|shard| shard.num_bytes).sum());
        for shard in shards {
            check_shard(&session, stored, shard).await?;
        }
        Ok(())
    })
}

/// The manifest's bytes, once their digest is what the ledger says.
///
/// # Errors
/// [`StoreError::Missing`], [`CheckpointError::Digest`], and [`StoreError`].
pub async fn read_manifest(
    session: &Session<'_>,
    stored: Stored<'_>,
    expected: Digest,
    max_bytes: u64,
) -> Result<bytes::Bytes, CheckpointError> {
    let location = &session.remote.location;
    let key = location.file(stored, MANIFEST_NAME);
    let bytes = session.get(&key, max_bytes).await?;
    let bytes = bytes.ok_or_else(|| StoreError::Missing { url: location.url(&key) })?;
    let actual = Digest::blake3(*blake3::hash(&bytes).as_bytes());
    if actual == expected {
        return Ok(bytes);
    }
    Err(CheckpointError::Digest { path: PathBuf::from(location.url(&key)), expected, actual })
}

/// Reads a shard and compares size and digest.
///
/// # Errors
/// [`CheckpointError`] where it is missing or differs.
pub async fn check_shard(
    session: &Session<'_>,
    stored: Stored<'_>,
    shard: &Shard,
) -> Result<(), CheckpointError> {
    read_shard(session, stored, shard, |_| Ok(())).await
}

/// Reads a shard piece by piece, hands each over, and compares size and digest
/// at the end: what was handed over counts only when it returns.
///
/// # Errors
/// [`CheckpointError`] where it is missing or differs, or what `take` gives.
pub async fn read_shard(
    session: &Session<'_>,
    stored: Stored<'_>,
    shard: &Shard,
    mut take: impl FnMut(&[u8]) -> Result<(), CheckpointError>,
) -> Result<(), CheckpointError> {
    let location = &session.remote.location;
    let key = location.file(stored, &shard.path);
    let path = || PathBuf::from(location.url(&key));
    let size = session.size(&key).await?;
    let size = size.ok_or_else(|| StoreError::Missing { url: location.url(&key) })?;
    if size != shard.num_bytes {
        return Err(CheckpointError::Size { path: path(), expected: shard.num_bytes, actual: size });
    }
    let mut hasher = blake3::Hasher::new();
    let mut from = 0;
    while from < size {
        let until = size.min(from + PART_BYTES);
        let bytes = session.range(&key, from..until).await?;
        hasher.update(&bytes);
        take(&bytes)?;
        session.moved(until - from);
        from = until;
    }
    let actual = Digest::blake3(*hasher.finalize().as_bytes());
    if actual == shard.digest {
        return Ok(());
    }
    Err(CheckpointError::Digest { path: path(), expected: shard.digest, actual })
}
