//! The contract's floors: memory and disk that have to stay free.
//!
//! A floor that cannot be read is an error, not a pass.

use std::io;
use std::path::{Path, PathBuf};

use schemas::contract::Floors;

use super::costs;

/// A floor that was reached; the attempt leaves.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FloorReached {
    /// `MemAvailable` is below the floor.
    #[error("memory: {available} bytes are available, the floor is {floor}")]
    Memory {
        /// Bytes available.
        available: u64,
        /// The contract's floor.
        floor: u64,
    },
    /// The store's file system has too little room.
    #[error(
        "disk: {available} bytes are free at {}; one more checkpoint takes {checkpoint} and the floor is {floor}",
        path.display()
    )]
    Disk {
        /// Bytes free to this user.
        available: u64,
        /// Size of one more checkpoint.
        checkpoint: u64,
        /// The contract's floor.
        floor: u64,
        /// A folder on that file system.
        path: PathBuf,
    },
}

/// What a floor could not be compared with.
#[derive(Debug, thiserror::Error)]
pub enum FloorError {
    /// `/proc/meminfo` has no `MemAvailable`.
    #[error("/proc/meminfo does not say how much memory is available")]
    Memory,
    /// The file system does not say.
    #[error("could not read the free space at {}", path.display())]
    Disk {
        /// A folder on that file system.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

/// Compares both floors. `checkpoint_bytes` is the size that the next
/// checkpoint is expected to have.
///
/// # Errors
/// Where the system does not say what is free.
pub fn check(
    floors: &Floors,
    store: &Path,
    checkpoint_bytes: u64,
) -> Result<Option<FloorReached>, FloorError> {
    if floors.free_memory_bytes > 0 {
        let available = costs::available_memory_bytes().ok_or(FloorError::Memory)?;
        if available < floors.free_memory_bytes {
            return Ok(Some(FloorReached::Memory { available, floor: floors.free_memory_bytes }));
        }
    }
    let path = existing_ancestor(store);
    let status = rustix::fs::statvfs(&path)
        .map_err(|error| FloorError::Disk { path: path.clone(), source: error.into() })?;
    let available = status.f_bavail.saturating_mul(status.f_frsize);
    let floor = floors.free_disk_bytes;
    if available < floor.saturating_add(checkpoint_bytes) {
        return Ok(Some(FloorReached::Disk { available, checkpoint: checkpoint_bytes, floor, path }));
    }
    Ok(None)
}

/// The folder itself, or the nearest one above it that exists.
fn existing_ancestor(folder: &Path) -> PathBuf {
    folder
        .ancestors()
        .find(|ancestor| ancestor.is_dir())
        .map_or_else(|| PathBuf::from("."), Path::to_path_buf)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_floor_is_reached_from_below_only() {
        let store = std::env::temp_dir();
        let floors = Floors { free_disk_bytes: 0, free_memory_bytes: 0 };
        assert_eq!(check(&floors, &store, 0).expect("the system says"), None);
        let memory = Floors { free_memory_bytes: u64::MAX, ..floors.clone() };
        assert!(matches!(
            check(&memory, &store, 0).expect("the system says"),
            Some(FloorReached::Memory { .. })
        ));
        let disk = Floors { free_disk_bytes: u64::MAX, ..floors };
        let found = check(&disk, &store.join("not/made/yet"), 1).expect("the system says");
        assert!(matches!(found, Some(FloorReached::Disk { .. })));
    }
}
