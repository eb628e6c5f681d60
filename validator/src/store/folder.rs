//! The temporary folder of a ledger's copy, which a killed audit leaves behind and a
//! later one removes.
//!
//! It is locked (`flock`) for as long as the audit reads from it, and the system lets
//! go of the lock with the process: a folder of this name and of the same user that
//! can be locked has no owner. One that is younger than a minute stays, since it may
//! have been made and not yet been locked. Nothing else is touched.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Once;
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use tempfile::TempDir;

/// How the names of these folders begin.
const PREFIX: &str = "ledger-audit-";

/// Youngest folder that is taken for abandoned.
const MIN_AGE: Duration = Duration::from_secs(60);

/// A process looks for what others left once.
static LOOKED: Once = Once::new();

/// A folder that goes when this is dropped.
pub(super) struct CopyFolder {
    folder: TempDir,
    /// Closed, and with that released, after the folder was removed; none where the
    /// file system locks no folders.
    _lock: Option<File>,
}

impl CopyFolder {
    /// Makes one in the folder for temporary files.
    pub(super) fn new() -> io::Result<Self> {
        let folder = tempfile::Builder::new().prefix(PREFIX).tempdir()?;
        let lock = File::open(folder.path()).ok();
        let lock = lock.filter(|lock| flock(lock, FlockOperation::LockExclusive).is_ok());
        let owner = fs::symlink_metadata(folder.path())?.uid();
        LOOKED.call_once(|| remove_abandoned(&tempfile::env::temp_dir(), owner));
        Ok(Self { folder, _lock: lock })
    }

    pub(super) fn path(&self) -> &Path {
        self.folder.path()
    }
}

/// Removes folders of one user that nobody holds, as far as that can be done.
fn remove_abandoned(parent: &Path, owner: u32) {
    for item in fs::read_dir(parent).into_iter().flatten().flatten() {
        if !item.file_name().to_string_lossy().starts_with(PREFIX) {
            continue;
        }
        let path = item.path();
        let Ok(metadata) = fs::symlink_metadata(&path) else { continue };
        let age = metadata.modified().ok().and_then(|time| time.elapsed().ok());
        if !metadata.is_dir() || metadata.uid() != owner || age.is_none_or(|age| age < MIN_AGE) {
            continue;
        }
        let Ok(lock) = File::open(&path) else { continue };
        if flock(&lock, FlockOperation::NonBlockingLockExclusive).is_ok() {
            let _ = fs::remove_dir_all(&path);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;

    #[test]
    fn what_a_killed_audit_left_goes_and_what_is_held_stays() {
        let parent = tempfile::tempdir().expect("a folder");
        let owner = fs::metadata(parent.path()).expect("a folder").uid();
        let left = |name: &str, is_old: bool| {
            let path = parent.path().join(name);
            fs::create_dir(&path).expect("a folder");
            fs::write(path.join("ledger.db"), b"a copy").expect("a file");
            if is_old {
                let file = File::open(&path).expect("a folder");
                file.set_modified(SystemTime::UNIX_EPOCH).expect("a time");
            }
            path
        };
        let abandoned = left("ledger-audit-1", true);
        let kept = [left("ledger-audit-2", false), left("ledger-audit-3", true), left("another-1", true)];
        let lock = File::open(&kept[1]).expect("a folder");
        flock(&lock, FlockOperation::LockExclusive).expect("a lock");
        remove_abandoned(parent.path(), owner + 1);
        assert!(abandoned.exists(), "it is somebody else's");
        remove_abandoned(parent.path(), owner);
        assert!(!abandoned.exists());
        assert!(kept.iter().all(|path| path.exists()), "{kept:?}");
        drop(lock);
        remove_abandoned(parent.path(), owner);
        assert!(!kept[1].exists(), "the control: nobody holds it any more");
    }

    #[test]
    fn a_folder_in_use_is_locked() {
        let folder = CopyFolder::new().expect("a folder");
        let other = File::open(folder.path()).expect("a folder");
        assert!(flock(&other, FlockOperation::NonBlockingLockExclusive).is_err());
        let path = folder.path().to_owned();
        drop(folder);
        assert!(!path.exists());
    }
}
