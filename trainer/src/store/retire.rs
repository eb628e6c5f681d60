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
use super::{Remote, Stored};

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
    let stored = Stored { checkpoint: expected.checkpoint, run: expected.run };
    let location = &remote.location;
    remote.wait(async {
        let found: BTreeMap<String, u64> =
            session.list(&location.folder(stored)).await?.into_iter().collect();
        let bytes = read_manifest(&session, stored, expected.manifest, MAX_MANIFEST_BYTES).await?;
        let manifest = serde_json::from_slice(&bytes).map_err(|error| CheckpointError::Manifest {
            path: location.url(&location.folder(stored)).into(),
            reason: error.to_string(),
        })?;
        let mut removed = Removed::default();
        for path in removable(&manifest, kept) {
            let key = location.file(stored, path);
            if let Some(num_bytes) = found.get(&key) {
                session.delete(&key).await?;
                removed.num_bytes += num_bytes;
                removed.paths.push(location.url(&key));
            }
        }
        Ok(removed)
    })
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
