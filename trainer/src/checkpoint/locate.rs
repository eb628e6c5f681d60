//! Finds the checkpoint that a run goes on from: the newest that the ledger
//! calls validated and whose bytes still are what was recorded.
//!
//! A checkpoint whose bytes changed is named with what differs and never used;
//! the next older one is tried instead. So is one whose folder, as the ledger names
//! it, does not lie below the ledger's: no contract that was frozen has such a store.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use schemas::body::Counters;
use schemas::digest::Digest;
use schemas::ids::{AttemptId, CheckpointId, RunId};
use schemas::state::CheckpointManifest;

use super::validate::{self, Expected};
use super::{CheckpointError, below};

/// A validated checkpoint as the ledger records it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordedCheckpoint {
    /// Attempt that saved it.
    pub attempt: AttemptId,
    /// Its name.
    pub checkpoint: CheckpointId,
    /// Counters of the run at its step.
    pub counters: Counters,
    /// BLAKE3 of its manifest.
    pub manifest: Digest,
    /// BLAKE3 of its model shard.
    pub model: Digest,
    /// Size of all files in bytes.
    pub num_bytes: u64,
    /// Folder, relative to the ledger's folder.
    pub path: String,
    /// Its step.
    pub step: u64,
}

/// A checkpoint whose bytes were read and matched.
#[derive(Debug)]
pub struct LocatedCheckpoint {
    /// Content of every shard by path.
    pub contents: BTreeMap<String, Vec<u8>>,
    /// Its folder.
    pub folder: PathBuf,
    /// Its manifest.
    pub manifest: CheckpointManifest,
    /// What the ledger says of it.
    pub record: RecordedCheckpoint,
}

/// A checkpoint that cannot be used although the ledger calls it validated.
#[derive(Debug)]
pub struct UnusableCheckpoint {
    /// What differs.
    pub error: CheckpointError,
    /// What the ledger says of it.
    pub record: RecordedCheckpoint,
}

/// Tries checkpoints from the newest on, and stops at the first that can be
/// used. `records` may be in any order; of one step the latest attempt's comes
/// first.
pub fn newest_usable(
    ledger_folder: &Path,
    run: &RunId,
    contract: Digest,
    mut records: Vec<RecordedCheckpoint>,
) -> (Option<LocatedCheckpoint>, Vec<UnusableCheckpoint>) {
    records.sort_by_key(|record| (record.step, record.attempt));
    let mut unusable = Vec::new();
    for record in records.into_iter().rev() {
        match read(ledger_folder, (run, contract), &record, validate::load) {
            Ok((manifest, contents)) => {
                let folder = ledger_folder.join(&record.path);
                let located = LocatedCheckpoint { contents, folder, manifest, record };
                return (Some(located), unusable);
            }
            Err(error) => unusable.push(UnusableCheckpoint { error, record }),
        }
    }
    (None, unusable)
}

/// Reads all of some checkpoints that nothing goes on from, and gives those that
/// could not be used, newest first. Nothing that was read is kept.
pub fn unusable_among(
    ledger_folder: &Path,
    run: &RunId,
    contract: Digest,
    mut records: Vec<RecordedCheckpoint>,
) -> Vec<UnusableCheckpoint> {
    records.sort_by_key(|record| (record.step, record.attempt));
    let mut unusable = Vec::new();
    for record in records.into_iter().rev() {
        if let Err(error) = read(ledger_folder, (run, contract), &record, validate::reread) {
            unusable.push(UnusableCheckpoint { error, record });
        }
    }
    unusable
}

/// Reads a checkpoint in the folder that the ledger names.
fn read<T>(
    ledger_folder: &Path,
    (run, contract): (&RunId, Digest),
    record: &RecordedCheckpoint,
    how: impl FnOnce(&Path, &Expected<'_>) -> Result<T, CheckpointError>,
) -> Result<T, CheckpointError> {
    let folder = ledger_folder.join(&record.path);
    if !below::is_plain(&record.path) {
        let reason = "a checkpoint's folder has to lie below the ledger's".to_owned();
        return Err(CheckpointError::Manifest { path: folder, reason });
    }
    let expected = Expected {
        checkpoint: &record.checkpoint,
        contract,
        manifest: record.manifest,
        run,
        step: record.step,
    };
    how(&folder, &expected)
}
