//! The temporary folder of a ledger's copy, which a killed audit leaves behind and a
//! later one removes.
//!
//! In it lies a marker, which is locked (`flock`) for as long as the audit reads from
//! the folder; the system lets go of the lock with the process. It has its name only
//! since it was locked, and says which start of the machine that was: other machines
//! may share the folder and not the locks. A later audit removes a folder of this
//! name and of the same user whose marker is of this start and can be locked, from
//! the system's folder for temporary files. Nothing else is touched.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Once;

use rustix::fs::{FlockOperation, flock};
use tempfile::TempDir;

/// How the names of these folders begin.
const PREFIX: &str = "ledger-audit-";

/// How many letters and digits follow.
const NUM_RANDOM_CHARACTERS: usize = 6;

/// The file that is locked.
const MARKER: &str = ".held";

/// Its name before it is locked.
const UNLOCKED_MARKER: &str = ".held-soon";

/// Where Linux names its start (`random(4)`).
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// A process looks for what others left once.
static LOOKED: Once = Once::new();

/// A folder that goes when this is dropped.
pub(super) struct CopyFolder {
    folder: TempDir,
    /// Closed, and with that released, after the folder was removed; none where a
    /// marker cannot be locked, and then no audit takes the folder for abandoned.
    _marker: Option<File>,
}

impl CopyFolder {
    /// Makes one in the folder for temporary files.
    pub(super) fn new() -> io::Result<Self> {
        let parent = tempfile::env::temp_dir();
        let mut builder = tempfile::Builder::new();
        let folder = builder.prefix(PREFIX).rand_bytes(NUM_RANDOM_CHARACTERS).tempdir_in(&parent)?;
        let Some(text) = marker_text() else { return Ok(Self { folder, _marker: None }) };
        let marker = mark(folder.path(), &text).ok();
        let owner = fs::symlink_metadata(folder.path())?.uid();
        // Otherwise this is a folder within one that a command made for itself.
        if parent == std::env::temp_dir() {
            LOOKED.call_once(|| remove_abandoned(&parent, owner, &text));
        }
        Ok(Self { folder, _marker: marker })
    }

    pub(super) fn path(&self) -> &Path {
        self.folder.path()
    }
}

impl Drop for CopyFolder {
    fn drop(&mut self) {
        // `TempDir` comes after this, and finds nothing unless this failed.
        let _ = clear(self.folder.path()).and_then(|()| remove_cleared(self.folder.path()));
    }
}

/// Empties a folder, all but the marker: while that is there, a later audit removes
/// what an audit that was killed in here left.
fn clear(folder: &Path) -> io::Result<()> {
    for item in fs::read_dir(folder)? {
        let item = item?;
        let is_folder = item.file_type()?.is_dir();
        match item.file_name() {
            name if name == MARKER => {}
            _ if is_folder => fs::remove_dir_all(item.path())?,
            _ => fs::remove_file(item.path())?,
        }
    }
    Ok(())
}

/// Removes a folder that holds a marker or nothing.
fn remove_cleared(folder: &Path) -> io::Result<()> {
    let marker = folder.join(MARKER);
    if fs::symlink_metadata(&marker).is_ok() {
        fs::remove_file(&marker)?;
    }
    fs::remove_dir(folder)
}

/// What is written into a marker.
fn marker_text() -> Option<String> {
    let boot = fs::read_to_string(BOOT_ID).ok().filter(|boot| !boot.trim().is_empty())?;
    Some(format!("The copy of an audit that holds this file locked.\nboot {}\n", boot.trim()))
}

/// Makes a marker, which has its name once it is locked and whole.
fn mark(folder: &Path, text: &str) -> io::Result<File> {
    let path = folder.join(UNLOCKED_MARKER);
    let mut marker = File::create_new(&path)?;
    flock(&marker, FlockOperation::NonBlockingLockExclusive)?;
    marker.write_all(text.as_bytes())?;
    fs::rename(&path, folder.join(MARKER))?;
    Ok(marker)
}

/// Removes folders of one user that nobody holds, as far as that can be done.
fn remove_abandoned(parent: &Path, owner: u32, text: &str) {
    for item in fs::read_dir(parent).into_iter().flatten().flatten() {
        let name = item.file_name();
        let random = name.to_str().and_then(|name| name.strip_prefix(PREFIX)).unwrap_or_default();
        let is_name =
            random.len() == NUM_RANDOM_CHARACTERS && random.bytes().all(|byte| byte.is_ascii_alphanumeric());
        if !is_name {
            continue;
        }
        let path = item.path();
        // The lock is kept until the folder is gone: another audit may look as well.
        if let Ok(Some(_lock)) = lock_of(&path, owner, text) {
            let _ = clear(&path).and_then(|()| remove_cleared(&path));
        }
    }
}

/// The locked marker of a folder that was abandoned; none where it was not, or where
/// that cannot be said.
fn lock_of(folder: &Path, owner: u32, text: &str) -> io::Result<Option<File>> {
    let path = folder.join(MARKER);
    let of_folder = fs::symlink_metadata(folder)?;
    let of_marker = fs::symlink_metadata(&path)?;
    let is_one = of_folder.is_dir()
        && of_marker.is_file()
        && [of_folder.uid(), of_marker.uid()] == [owner; 2]
        && of_marker.len() == text.len() as u64
        && fs::read(&path)? == text.as_bytes();
    if !is_one {
        return Ok(None);
    }
    let marker = OpenOptions::new().read(true).write(true).open(&path)?;
    let is_free = flock(&marker, FlockOperation::NonBlockingLockExclusive).is_ok();
    Ok(is_free.then_some(marker))
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::time::{Duration, Instant};

    use super::*;

    const MAX_WAIT: Duration = Duration::from_secs(5);

    #[test]
    fn what_a_killed_audit_left_goes_and_all_else_stays() {
        let parent = tempfile::tempdir().expect("a folder");
        let parent = parent.path();
        let owner = fs::metadata(parent).expect("a folder").uid();
        let text = marker_text().expect("the system names its start");
        let left = |name: &str, marker: Option<&str>| -> PathBuf {
            let path = parent.join(name);
            fs::create_dir(&path).expect("a folder");
            fs::write(path.join("ledger.db"), b"a copy").expect("a file");
            if let Some(marker) = marker {
                fs::write(path.join(MARKER), marker).expect("a marker");
            }
            path
        };
        let abandoned = left("ledger-audit-Ab12Cd", Some(&text));
        let other_start = text.replace("boot ", "boot-");
        assert!(other_start != text && other_start.len() == text.len());
        let kept = [
            left("ledger-audit-aaaaaa", None),
            left("ledger-audit-bbbbbb", Some(&other_start)),
            left("ledger-audit-notes", Some(&text)),
            left("ledger-audit-of-may", Some(&text)),
            left("ledger-audit-may-26", Some(&text)),
            left("ledger-audits-Ab12Cd", Some(&text)),
        ];
        let held = left("ledger-audit-cccccc", None);
        let lock = mark(&held, &text).expect("a lock");
        remove_abandoned(parent, owner + 1, &text);
        assert!(abandoned.exists(), "it is somebody else's");
        remove_abandoned(parent, owner, &text);
        assert!(!abandoned.exists());
        assert!(kept.iter().chain([&held]).all(|path| path.join("ledger.db").exists()), "{kept:?}");
        // The control: nobody holds it any more, but for a moment a program that
        // another test starts.
        drop(lock);
        let until = Instant::now() + MAX_WAIT;
        while held.exists() && Instant::now() < until {
            remove_abandoned(parent, owner, &text);
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(!held.exists());
        assert!(kept.iter().all(|path| path.exists()), "{kept:?}");
    }

    #[test]
    fn the_marker_is_the_last_to_go() {
        let parent = tempfile::tempdir().expect("a folder");
        let parent = parent.path();
        let owner = fs::metadata(parent).expect("a folder").uid();
        let text = marker_text().expect("the system names its start");
        let folder = parent.join("ledger-audit-Ab12Cd");
        fs::create_dir_all(folder.join("checkpoints")).expect("folders");
        for name in ["ledger.db", "checkpoints/weights", UNLOCKED_MARKER] {
            fs::write(folder.join(name), b"a copy").expect("a file");
        }
        fs::write(folder.join(MARKER), &text).expect("a marker");
        // An audit that is killed here has left what the next one removes.
        clear(&folder).expect("cleared");
        let left: Vec<_> = fs::read_dir(&folder).expect("a folder").flatten().collect();
        assert!(left.len() == 1 && left[0].file_name() == MARKER, "{left:?}");
        remove_abandoned(parent, owner, &text);
        assert!(!folder.exists());
    }

    #[test]
    fn a_folder_in_use_is_locked() {
        let folder = CopyFolder::new().expect("a folder");
        let owner = fs::metadata(folder.path()).expect("a folder").uid();
        let text = fs::read_to_string(folder.path().join(MARKER)).expect("a marker");
        assert_eq!(Some(&text), marker_text().as_ref());
        assert!(lock_of(folder.path(), owner, &text).expect("it is there").is_none());
        let path = folder.path().to_owned();
        drop(folder);
        assert!(!path.exists());
    }
}
