//! Removes the shards of a retired checkpoint from the store; its manifest stays
//! there too.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use schemas::state::StateClass;

use crate::checkpoint::CheckpointError;
use crate::checkpoint::retire::{Removed, removable};
use crate::checkpoint::validate::{Expected, MAX_MANIFEST_BYTES};
use crate::run::progress::Console;

use super::verify::read_manifest;
use super::{Remote, Session, Stored};

/// Longest time that a run waits for a removal, which the next attempt can
/// finish.
pub const LIMIT: Duration = Duration::from_secs(60);

/// Removes what a retirement takes and is still there.
///
/// # Errors
/// [`CheckpointError`] where the store's manifest is not the recorded one, or
/// the store refuses or cannot be asked; a second call goes on with the rest.
pub fn remove(
    remote: &Remote,
    console: &Console,
    expected: &Expected<'_>,
    kept: &[StateClass],
) -> Result<Removed, CheckpointError> {
    let session = remote.short_session(console, LIMIT);
    remote.wait(async {
        let mut removed = Removed::default();
        for (key, num_bytes) in objects(&session, expected, kept).await? {
            session.delete(&key).await?;
            removed.num_bytes += num_bytes;
            removed.paths.push(remote.location.url(&key));
        }
        Ok(removed)
    })
}

/// What [`remove`] would remove; nothing is.
///
/// # Errors
/// As [`remove`].
pub fn present(
    remote: &Remote,
    console: &Console,
    expected: &Expected<'_>,
    kept: &[StateClass],
) -> Result<Removed, CheckpointError> {
    let session = remote.short_session(console, LIMIT);
    let objects = remote.wait(objects(&session, expected, kept))?;
    Ok(Removed {
        num_bytes: objects.iter().map(|(_, num_bytes)| num_bytes).sum(),
        paths: objects.iter().map(|(key, _)| remote.location.url(key)).collect(),
    })
}

/// Objects that a retirement takes and that are there, with their sizes.
async fn objects(
    session: &Session<'_>,
    expected: &Expected<'_>,
    kept: &[StateClass],
) -> Result<Vec<(String, u64)>, CheckpointError> {
    let stored = Stored { checkpoint: expected.checkpoint, run: expected.run };
    let location = &session.remote.location;
    let found: BTreeMap<String, u64> = session.list(&location.folder(stored)).await?.into_iter().collect();
    let bytes = read_manifest(session, stored, expected.manifest, MAX_MANIFEST_BYTES).await?;
    let manifest = serde_json::from_slice(&bytes).map_err(|error| CheckpointError::Manifest {
        path: location.url(&location.folder(stored)).into(),
        reason: error.to_string(),
    })?;
    let keys = removable(&manifest, kept).into_iter().map(|path| location.file(stored, path));
    Ok(keys.filter_map(|key| found.get(&key).map(|num_bytes| (key.clone(), *num_bytes))).collect())
}

/// Names of the files of every checkpoint that the store holds of a run.
pub type Files = BTreeMap<String, BTreeSet<String>>;

/// All of a run at once, so that retirements of long ago cost no request each.
///
/// # Errors
/// [`CheckpointError::Store`].
pub fn files(
    remote: &Remote,
    console: &Console,
    run: &schemas::ids::RunId,
) -> Result<Files, CheckpointError> {
    let session = remote.short_session(console, LIMIT);
    let below = format!("{}/", remote.location.run(run));
    let mut files = Files::new();
    for (key, _) in remote.wait(session.list(&remote.location.run(run)))? {
        let rest = key.strip_prefix(&below).unwrap_or(&key);
        if let Some((checkpoint, file)) = rest.split_once('/') {
            files.entry(checkpoint.to_owned()).or_default().insert(file.to_owned());
        }
    }
    Ok(files)
}
