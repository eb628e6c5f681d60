//! Faults in a save.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::Path;

use schemas::contract::{FaultKind, FaultPhase};
use schemas::state::CheckpointManifest;

use super::{Due, vanish};
use crate::checkpoint::CheckpointError;
use crate::run::error::RunError;
use crate::run::save::Stages;

/// A checkpoint as far as it has come: its folder, and the manifest in it.
type Stored<'a> = (&'a Path, &'a CheckpointManifest);

/// At a place of the save of a step. `stored` is what a corruption strikes.
///
/// # Errors
/// When a fault cannot be recorded or made to act.
pub fn in_save(
    stages: &mut dyn Stages,
    phase: FaultPhase,
    step: u64,
    stored: Option<Stored<'_>>,
) -> Result<(), RunError> {
    let Some(injector) = stages.faults() else { return Ok(()) };
    for due in injector.due(phase, step) {
        match (due.planned.fault, stored) {
            (FaultKind::CheckpointWriteInterruption, _) => {
                due.record(stages)?;
                vanish()?;
            }
            (FaultKind::SingleShardCorruption, Some((folder, manifest))) => {
                due.record(stages)?;
                flip(&due, folder, manifest)?;
            }
            _ => {}
        }
    }
    Ok(())
}

/// Flips one bit of one file that no other checkpoint shares.
fn flip(due: &Due, folder: &Path, manifest: &CheckpointManifest) -> Result<(), CheckpointError> {
    let [first, low, high, bit] = due.words();
    let shards = manifest.classes.iter().flat_map(|captured| &captured.shards);
    let is_own = |path: &str| fs::symlink_metadata(folder.join(path)).is_ok_and(|data| data.nlink() == 1);
    let mut files: Vec<(&str, u64)> = shards
        .filter(|shard| shard.num_bytes > 0 && is_own(&shard.path))
        .map(|shard| (shard.path.as_str(), shard.num_bytes))
        .collect();
    files.sort_unstable();
    let Some((name, num_bytes)) = files.get(first as usize % files.len().max(1)) else {
        let nothing = std::io::Error::other("no file of the checkpoint is its own");
        return Err(CheckpointError::io("damage", folder)(nothing));
    };
    let offset = (u64::from(low) | (u64::from(high) << 32)) % num_bytes;
    let path = folder.join(name);
    let damaged = OpenOptions::new().read(true).write(true).open(&path).and_then(|file| {
        let mut byte = [0];
        file.read_exact_at(&mut byte, offset)?;
        file.write_all_at(&[byte[0] ^ (1 << (bit % u8::BITS))], offset)?;
        file.sync_all()
    });
    damaged.map_err(CheckpointError::io("damage", path))
}
