//! Temporary folders for copies, which a killed process leaves behind and the next
//! one removes.
//!
//! A folder is locked (`flock`) by whoever made it for as long as it lives, and the
//! system lets go of the lock with the process. So a folder of a known name, of the
//! same user, that can be locked has no owner. None is removed that is younger than
//! a minute: it may have been made and not yet been locked. Nothing else is touched.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use tempfile::TempDir;

/// Youngest folder that is taken for abandoned.
const MIN_AGE: Duration = Duration::from_secs(60);

/// Folders and prefixes that this process has looked at, which once is enough for.
static LOOKED_AT: Mutex<BTreeSet<(PathBuf, String)>> = Mutex::new(BTreeSet::new());

/// A private folder; it is removed when this is dropped.
#[derive(Debug)]
pub struct PrivateFolder {
    folder: TempDir,
    /// Closing it releases the lock, which is after the folder was removed. None
    /// where the file system locks no folders: then nobody takes it for abandoned.
    _lock: Option<File>,
}

impl PrivateFolder {
    /// Makes one in `parent`, and removes what killed processes left there under
    /// the same prefix.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn new_in(parent: &Path, prefix: &str) -> io::Result<Self> {
        let folder = tempfile::Builder::new().prefix(prefix).tempdir_in(parent)?;
        let lock = File::open(folder.path()).ok();
        let lock = lock.filter(|lock| flock(lock, FlockOperation::LockExclusive).is_ok());
        let mut looked_at = LOOKED_AT.lock().unwrap_or_else(PoisonError::into_inner);
        if looked_at.insert((parent.to_owned(), prefix.to_owned())) {
            let owner = fs::symlink_metadata(folder.path())?.uid();
            remove_abandoned(parent, prefix, owner);
        }
        Ok(Self { folder, _lock: lock })
    }

    /// The folder.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.folder.path()
    }
}

/// Removes folders of one user that begin with a prefix and that nobody holds. What
/// cannot be removed harms nothing but room, and the next process tries again.
fn remove_abandoned(parent: &Path, prefix: &str, owner: u32) {
    for item in fs::read_dir(parent).into_iter().flatten().flatten() {
        if !item.file_name().to_string_lossy().starts_with(prefix) {
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

    /// A folder with something in it, as a killed process leaves one.
    fn left(parent: &Path, name: &str, is_old: bool) -> PathBuf {
        let path = parent.join(name);
        fs::create_dir(&path).expect("a folder");
        fs::write(path.join("ledger.db"), b"a copy").expect("a file");
        if is_old {
            make_old(&path);
        }
        path
    }

    fn make_old(path: &Path) {
        File::open(path).and_then(|file| file.set_modified(SystemTime::UNIX_EPOCH)).expect("a time");
    }

    #[test]
    fn what_a_killed_process_left_goes_and_nothing_else_does() {
        let parent = tempfile::tempdir().expect("a folder");
        let abandoned = left(parent.path(), "copy-1", true);
        let others = left(parent.path(), "other-1", true);
        let young = left(parent.path(), "copy-2", false);
        let held = left(parent.path(), "copy-3", true);
        let lock = File::open(&held).expect("a folder");
        flock(&lock, FlockOperation::LockExclusive).expect("a lock");
        fs::write(parent.path().join("copy-4"), b"no folder").expect("a file");
        std::os::unix::fs::symlink(&others, parent.path().join("copy-5")).expect("a link");

        let mine = PrivateFolder::new_in(parent.path(), "copy-").expect("a folder");
        assert!(!abandoned.exists());
        for kept in [&others, &young, &held, &parent.path().join("copy-4"), &parent.path().join("copy-5")] {
            assert!(kept.exists(), "{}", kept.display());
        }
        // One that lives is held, however old it is.
        make_old(mine.path());
        let owner = fs::metadata(parent.path()).expect("a folder").uid();
        remove_abandoned(parent.path(), "copy-", owner);
        assert!(mine.path().exists() && held.exists());
        remove_abandoned(parent.path(), "other-", owner + 1);
        assert!(others.exists(), "it is somebody else's");
        // The control: without its lock it goes.
        drop(lock);
        remove_abandoned(parent.path(), "copy-", owner);
        assert!(!held.exists());
        let path = mine.path().to_owned();
        drop(mine);
        assert!(!path.exists());
    }
}
