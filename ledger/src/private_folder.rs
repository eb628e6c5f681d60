//! Temporary folders for copies, which a killed process leaves behind and the next
//! one removes.
//!
//! A folder in the system's folder for temporary files holds a marker, a file that
//! whoever made it keeps locked (`flock`) for as long as the folder lives; the system
//! lets go of the lock with the process. The marker gets its name after it was
//! locked, so one that can be locked has no owner any more. It says which start of
//! which machine the lock is of, since a lock may not be seen from another machine.
//!
//! Removed are only folders of a known name, of the same user and directly in that
//! folder, whose marker is of this start and can be locked. Whatever else is there
//! stays: what has no marker, what an earlier start left, and all that lies elsewhere,
//! where a person's own files may have such a name.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use rustix::fs::{FlockOperation, flock};
use tempfile::TempDir;

/// The marker in a folder.
const MARKER: &str = ".held";

/// The marker until it is locked: whoever looks for markers does not see it.
const UNLOCKED_MARKER: &str = ".held-soon";

/// Names this start of this machine: `random(4)`.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// Random letters and digits that `tempfile` ends a name with.
const NUM_RANDOM_CHARACTERS: usize = 6;

/// Prefixes that this process has looked for, which once is enough for.
static LOOKED_FOR: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());

/// A private folder; it is removed when this is dropped.
#[derive(Debug)]
pub struct PrivateFolder {
    folder: TempDir,
    /// Closing it releases the lock, which is after the folder was removed. None
    /// where there can be no marker: then nobody takes the folder for abandoned.
    _marker: Option<File>,
}

impl PrivateFolder {
    /// Makes one with a marker, in a folder for temporary files. Where that is the
    /// system's, it removes what killed processes left there under the same prefix.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn held_in(parent: &Path, prefix: &str) -> io::Result<Self> {
        let folder = make(parent, prefix)?;
        let Some(text) = marker_text() else { return Ok(Self { folder, _marker: None }) };
        let marker = mark(folder.path(), &text).ok();
        let is_first = || LOOKED_FOR.lock().unwrap_or_else(PoisonError::into_inner).insert(prefix.to_owned());
        // A command may have put its own folder in place of the system's.
        if parent == std::env::temp_dir() && is_first() {
            let owner = fs::symlink_metadata(folder.path())?.uid();
            remove_abandoned(parent, prefix, owner, &text);
        }
        Ok(Self { folder, _marker: marker })
    }

    /// Makes one in a folder of the caller's. It has no marker: what a killed process
    /// leaves of it stays, and nothing else there is looked at.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn new_in(parent: &Path, prefix: &str) -> io::Result<Self> {
        Ok(Self { folder: make(parent, prefix)?, _marker: None })
    }

    /// The folder.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.folder.path()
    }
}

impl Drop for PrivateFolder {
    fn drop(&mut self) {
        // What is left of it then, `TempDir` tries once more.
        let _ = remove(self.folder.path());
    }
}

fn make(parent: &Path, prefix: &str) -> io::Result<TempDir> {
    tempfile::Builder::new().prefix(prefix).rand_bytes(NUM_RANDOM_CHARACTERS).tempdir_in(parent)
}

/// Removes a folder. Its marker goes last: a process that is killed meanwhile leaves
/// one that the next process knows and removes.
fn remove(folder: &Path) -> io::Result<()> {
    remove_but_marker(folder)?;
    match fs::remove_file(folder.join(MARKER)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    fs::remove_dir(folder)
}

/// Removes everything in a folder but its marker. No link is followed.
fn remove_but_marker(folder: &Path) -> io::Result<()> {
    for item in fs::read_dir(folder)? {
        let item = item?;
        if item.file_name() == MARKER {
            continue;
        }
        if item.file_type()?.is_dir() {
            fs::remove_dir_all(item.path())?;
        } else {
            fs::remove_file(item.path())?;
        }
    }
    Ok(())
}

/// What a marker holds; none where the system does not name its start.
fn marker_text() -> Option<String> {
    let boot = fs::read_to_string(BOOT_ID).ok()?;
    let boot = boot.trim();
    let is_named = !boot.is_empty();
    is_named.then(|| format!("A private copy, in use while this file is locked.\nboot {boot}\n"))
}

/// Puts a locked marker into a folder. Where that fails, on a file system without
/// locks or without room, there is none that anybody would look at.
fn mark(folder: &Path, text: &str) -> io::Result<File> {
    let unlocked = folder.join(UNLOCKED_MARKER);
    let mut marker = File::create_new(&unlocked)?;
    flock(&marker, FlockOperation::NonBlockingLockExclusive)?;
    marker.write_all(text.as_bytes())?;
    fs::rename(&unlocked, folder.join(MARKER))?;
    Ok(marker)
}

/// Removes folders of one user that were left. What cannot be removed harms nothing
/// but room, and the next process tries again.
fn remove_abandoned(parent: &Path, prefix: &str, owner: u32, text: &str) {
    for item in fs::read_dir(parent).into_iter().flatten().flatten() {
        if !is_name(&item.file_name(), prefix) {
            continue;
        }
        let path = item.path();
        // Locked until it is gone, so that of two processes one removes it.
        if let Some(_marker) = take_marker(&path, owner, text) {
            let _ = remove(&path);
        }
    }
}

/// Whether a name is one that `tempfile` makes of a prefix.
fn is_name(name: &OsStr, prefix: &str) -> bool {
    let random = name.to_str().and_then(|name| name.strip_prefix(prefix));
    random.is_some_and(|random| {
        random.len() == NUM_RANDOM_CHARACTERS && random.bytes().all(|byte| byte.is_ascii_alphanumeric())
    })
}

/// The marker of a folder of one user, locked; none where the folder is another's,
/// has no marker of this text, or is in use.
fn take_marker(folder: &Path, owner: u32, text: &str) -> Option<File> {
    let path = folder.join(MARKER);
    let (outer, inner) = (fs::symlink_metadata(folder).ok()?, fs::symlink_metadata(&path).ok()?);
    let is_own = outer.uid() == owner && inner.uid() == owner;
    if !is_own || !outer.is_dir() || !inner.is_file() || inner.len() != text.len() as u64 {
        return None;
    }
    // Network file systems lock only for writing what was opened for it.
    let marker = File::options().read(true).write(true).open(&path).ok()?;
    if fs::read(&path).ok()? != text.as_bytes() {
        return None;
    }
    flock(&marker, FlockOperation::NonBlockingLockExclusive).ok()?;
    Some(marker)
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::time::{Duration, Instant};

    use super::*;

    const MAX_WAIT: Duration = Duration::from_secs(5);

    fn text() -> String {
        marker_text().expect("the system names its start")
    }

    /// A folder with something in it, as a killed process leaves one.
    fn left(parent: &Path, name: &str, marker: Option<&str>) -> PathBuf {
        let path = parent.join(name);
        fs::create_dir(&path).expect("a folder");
        fs::write(path.join("ledger.db"), b"a copy").expect("a file");
        if let Some(marker) = marker {
            fs::write(path.join(MARKER), marker).expect("a marker");
        }
        path
    }

    #[test]
    fn what_a_killed_process_left_goes_and_nothing_else_does() {
        let parent = tempfile::tempdir().expect("a folder");
        let parent = parent.path();
        let text = text();
        let mut other_start = text.clone().into_bytes();
        let last = other_start.len() - 2;
        other_start[last] ^= 1;
        let other_start = String::from_utf8(other_start).expect("ASCII");

        let abandoned = left(parent, "copy-Ab12Cd", Some(&text));
        let mut kept = vec![
            left(parent, "copy-aaaaaa", None),
            left(parent, "copy-bbbbbb", Some(&other_start)),
            left(parent, "copy-cccccc", Some("")),
            left(parent, "copy-notes", Some(&text)),
            left(parent, "copy-notes-2", Some(&text)),
            left(parent, "copy-abc-12", Some(&text)),
            left(parent, "other-Ab12Cd", Some(&text)),
        ];
        // One whose maker was stopped before it had locked the marker.
        let early = left(parent, "copy-dddddd", None);
        fs::write(early.join(UNLOCKED_MARKER), &text).expect("a file");
        // A marker that is a link, and a folder and a file that only have the name.
        let linked = left(parent, "copy-eeeeee", None);
        std::os::unix::fs::symlink(abandoned.join(MARKER), linked.join(MARKER)).expect("a link");
        std::os::unix::fs::symlink(&kept[6], parent.join("copy-ffffff")).expect("a link");
        fs::write(parent.join("copy-gggggg"), &text).expect("a file");
        kept.extend([early, linked, parent.join("copy-ffffff"), parent.join("copy-gggggg")]);
        let held = left(parent, "copy-hhhhhh", None);
        let lock = mark(&held, &text).expect("a lock");

        let owner = fs::metadata(parent).expect("a folder").uid();
        remove_abandoned(parent, "copy-", owner + 1, &text);
        assert!(abandoned.exists(), "it is somebody else's");
        remove_abandoned(parent, "copy-", owner, &text);
        assert!(!abandoned.exists());
        for path in kept.iter().chain([&held]) {
            assert!(fs::symlink_metadata(path).is_ok(), "{}", path.display());
        }
        assert!(kept[0].join("ledger.db").exists());
        // The control: without its lock it goes. A program that another test starts
        // may have the descriptor for a moment, between `fork` and `exec`.
        drop(lock);
        let until = Instant::now() + MAX_WAIT;
        while held.exists() && Instant::now() < until {
            remove_abandoned(parent, "copy-", owner, &text);
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(!held.exists());
    }

    #[test]
    fn a_removal_that_is_killed_leaves_the_marker_to_the_next_one() {
        let parent = tempfile::tempdir().expect("a folder");
        let parent = parent.path();
        let text = text();
        let folder = left(parent, "copy-Ab12Cd", Some(&text));
        fs::create_dir_all(folder.join("checkpoints/one")).expect("folders");
        fs::write(folder.join("checkpoints/one/weights"), b"w").expect("a file");
        let outside = left(parent, "outside", None);
        std::os::unix::fs::symlink(&outside, folder.join("link")).expect("a link");
        // As far as a removal comes before the marker's turn.
        remove_but_marker(&folder).expect("removed");
        let names: Vec<_> = fs::read_dir(&folder).expect("a folder").map(|item| item.expect("one")).collect();
        assert_eq!(names.iter().map(fs::DirEntry::file_name).collect::<Vec<_>>(), [MARKER]);
        assert!(outside.join("ledger.db").exists(), "a link is not followed");
        let owner = fs::metadata(parent).expect("a folder").uid();
        remove_abandoned(parent, "copy-", owner, &text);
        assert!(!folder.exists());
        // One without a marker goes as well.
        remove(&outside).expect("removed");
        assert!(!outside.exists());
    }

    #[test]
    fn a_folder_for_temporary_files_is_held_and_one_elsewhere_has_no_marker() {
        let temporary = std::env::temp_dir();
        let prefix = format!("ledger-test-{}-", std::process::id());
        let abandoned = tempfile::Builder::new().prefix(&prefix).tempdir().expect("a folder").keep();
        assert!(is_name(abandoned.file_name().expect("a name"), &prefix), "{}", abandoned.display());
        fs::write(abandoned.join(MARKER), text()).expect("a marker");

        let elsewhere = PrivateFolder::new_in(&temporary, &prefix).expect("a folder");
        assert_eq!(fs::read_dir(elsewhere.path()).expect("a folder").count(), 0);
        assert!(abandoned.exists(), "what lies beside it is not looked at");
        let mine = PrivateFolder::held_in(&temporary, &prefix).expect("a folder");
        assert!(!abandoned.exists() && elsewhere.path().exists());

        // One that lives is held.
        let owner = fs::metadata(mine.path()).expect("a folder").uid();
        assert_eq!(fs::read_to_string(mine.path().join(MARKER)).expect("a marker"), text());
        remove_abandoned(&temporary, &prefix, owner, &text());
        assert!(mine.path().exists());
        let path = mine.path().to_owned();
        drop(mine);
        assert!(!path.exists());
    }
}
