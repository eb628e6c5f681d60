//! What lies in the store below a run's key and no entry calls committed: what
//! an upload left that was killed or failed.
//!
//! It is removed only where the ledger announced the checkpoint and never
//! committed it, so that nobody relies on it, and the manifest goes first, if
//! there is one: what is removed half-way must not look whole either.

use std::collections::BTreeMap;

use schemas::digest::Digest;
use schemas::ids::{CheckpointId, RunId};
use schemas::state::CheckpointManifest;
use serde::{Deserialize, Serialize};

use crate::checkpoint::MANIFEST_NAME;
use crate::checkpoint::validate::MAX_MANIFEST_BYTES;

use super::open_uploads::OpenUpload;
use super::{Session, StoreError, Stored, WRITER_NAME};

/// Largest `writer.json` that is read.
const MAX_WRITER_BYTES: u64 = 4096;

/// What `writer.json` says.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Writer {
    pub(super) checkpoint: CheckpointId,
    /// Digest of the machine.
    pub(super) host: Digest,
    pub(super) process: u32,
    pub(super) run: RunId,
    /// Nanoseconds since 1970, as a decimal string.
    pub(super) time_ns: String,
}

/// Objects and unfinished uploads below one checkpoint's key.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Leftover {
    /// Keys.
    pub objects: Vec<String>,
    /// Whether a manifest is among them: it was uploaded whole, and its
    /// acknowledgement is not on record.
    pub has_manifest: bool,
    /// Size of the objects in bytes.
    pub num_bytes: u64,
    /// Unfinished uploads.
    pub uploads: Vec<OpenUpload>,
}

impl Leftover {
    /// What it is, for people.
    #[must_use]
    pub fn text(&self) -> String {
        let manifest = if self.has_manifest { "with" } else { "no" };
        format!(
            "{} objects of {} bytes, {} unfinished uploads, {manifest} manifest",
            self.objects.len(),
            self.num_bytes,
            self.uploads.len()
        )
    }
}

/// Everything below a run's key, by the name of the checkpoint.
///
/// # Errors
/// [`StoreError`].
pub async fn by_checkpoint(
    session: &Session<'_>,
    run: &RunId,
) -> Result<BTreeMap<CheckpointId, Leftover>, StoreError> {
    let below = session.remote.location.run(run);
    let mut found: BTreeMap<CheckpointId, Leftover> = BTreeMap::new();
    let checkpoint = |key: &str| {
        let rest = key.strip_prefix(&below)?.strip_prefix('/')?;
        rest.split_once('/').map(|(name, file)| (CheckpointId::from(name), file.to_owned()))
    };
    for (key, size) in session.list(&below).await? {
        let Some((name, file)) = checkpoint(&key) else { continue };
        let leftover = found.entry(name).or_default();
        leftover.has_manifest |= file == MANIFEST_NAME;
        leftover.num_bytes += size;
        leftover.objects.push(key);
    }
    for upload in session.open_uploads(&below).await? {
        let Some((name, _)) = checkpoint(&upload.key) else { continue };
        found.entry(name).or_default().uploads.push(upload);
    }
    Ok(found)
}

/// Whether everything below a checkpoint's key was written by the process of the
/// attempt that announced it: `writer.json` names it, and a manifest, if there
/// is one, is of this checkpoint.
///
/// # Errors
/// [`StoreError`].
pub async fn is_of_process(
    session: &Session<'_>,
    stored: Stored<'_>,
    leftover: &Leftover,
    process: Option<u32>,
) -> Result<bool, StoreError> {
    let location = &session.remote.location;
    let writer = session.get(&location.file(stored, WRITER_NAME), MAX_WRITER_BYTES).await?;
    let writer = writer.and_then(|bytes| serde_json::from_slice::<Writer>(&bytes).ok());
    let names = |checkpoint: &CheckpointId, run: &RunId| checkpoint == stored.checkpoint && run == stored.run;
    let is_writer = writer
        .is_some_and(|writer| Some(writer.process) == process && names(&writer.checkpoint, &writer.run));
    if !is_writer || !leftover.has_manifest {
        return Ok(is_writer);
    }
    let manifest = session.get(&location.file(stored, MANIFEST_NAME), MAX_MANIFEST_BYTES).await?;
    let manifest = manifest.and_then(|bytes| serde_json::from_slice::<CheckpointManifest>(&bytes).ok());
    Ok(manifest.is_some_and(|manifest| names(&manifest.checkpoint, &manifest.run)))
}

/// Gives up the uploads and removes the objects: the manifest first, and who
/// wrote last.
///
/// # Errors
/// [`StoreError`]; what was removed stays removed.
pub async fn remove(session: &Session<'_>, leftover: &Leftover) -> Result<(), StoreError> {
    for upload in &leftover.uploads {
        session.abort_parts(&upload.key, &upload.id).await?;
    }
    let place = |key: &String| match key.rsplit('/').next() {
        Some(MANIFEST_NAME) => 0,
        Some(WRITER_NAME) => 2,
        _ => 1,
    };
    let mut objects: Vec<&String> = leftover.objects.iter().collect();
    objects.sort_by_key(|key| place(key));
    for key in objects {
        session.delete(key).await?;
    }
    Ok(())
}
