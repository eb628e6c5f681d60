//! Removes the shards of a retired checkpoint and leaves its manifest.
//!
//! Nothing is removed but files that the manifest lists, and only where the
//! manifest is the one that this run's ledger recorded: a folder of another
//! run, or one that somebody changed, is refused and stays as it is.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use ledger::failpoint;
use schemas::state::{CheckpointManifest, StateClass};

use super::CheckpointError;
use super::validate::{self, Expected};
use super::writer::sync_folder;

/// What was removed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Removed {
    /// Bytes that it freed.
    pub num_bytes: u64,
    /// Their paths in the folder.
    pub paths: Vec<String>,
}

/// Paths of the shards that a retirement takes: all but those of the classes
/// that stay. A shard that a staying class lists too stays.
#[must_use]
pub fn removable<'a>(manifest: &'a CheckpointManifest, kept: &[StateClass]) -> Vec<&'a str> {
    let paths = |stays: bool| {
        let classes = manifest.classes.iter().filter(move |captured| kept.contains(&captured.class) == stays);
        classes.flat_map(|captured| &captured.shards).map(|shard| shard.path.as_str())
    };
    let staying: BTreeSet<&str> = paths(true).collect();
    paths(false).filter(|path| !staying.contains(path)).collect()
}

/// Removes what a retirement takes and is still there, and flushes the folder.
/// `between` is called after each file.
///
/// # Errors
/// [`CheckpointError`] where the manifest is not the recorded one, or a file
/// cannot be removed; what was removed before stays removed, and a second call
/// goes on with the rest.
pub fn remove(
    folder: &Path,
    expected: &Expected<'_>,
    kept: &[StateClass],
    mut between: impl FnMut(),
) -> Result<Removed, CheckpointError> {
    let manifest = validate::read_manifest(folder, expected)?;
    let mut removed = Removed::default();
    for path in removable(&manifest, kept) {
        let file = folder.join(path);
        let num_bytes = match fs::symlink_metadata(&file) {
            // Bytes that another checkpoint has too stay.
            Ok(metadata) if metadata.nlink() > 1 => 0,
            Ok(metadata) => metadata.len(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(CheckpointError::io("read", &file)(error)),
        };
        fs::remove_file(&file).map_err(CheckpointError::io("remove", &file))?;
        removed.num_bytes += num_bytes;
        removed.paths.push(path.to_owned());
        between();
    }
    if !removed.paths.is_empty() {
        sync_folder(folder)?;
        failpoint::pass("retirement.flushed");
    }
    Ok(removed)
}
