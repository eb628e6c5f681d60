//! The folder that trajectories are written into while they are compared. It
//! is removed whatever happens, short of a kill; what a killed probe left, the
//! next one of the same run removes.
//!
//! A folder is known as a probe's own by its name and by the mark in it, which
//! names the run and is locked for as long as the probe lives. What has no
//! mark, is of another run or is locked is left alone. Nothing is begun where
//! the file system has too little room for the whole probe.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use schemas::ids::RunId;

use super::error::ProbeError;
use crate::run::progress::Console;

/// Names begin with this, so that a folder which a killed probe left is known.
pub const PREFIX: &str = ".probe-";

/// Beginning of a folder's name before its mark is in it and locked. What a
/// kill leaves of it is one small file, and nobody can tell whose.
const UNMARKED_PREFIX: &str = ".new-probe-";

/// Name of the mark.
const MARK_NAME: &str = "probe-scratch";

/// What the mark begins with; the run follows.
const MARK: &str = "probe-scratch/1 ";

/// No mark is longer.
const MAX_MARK_BYTES: u64 = 4096;

/// A folder that goes when this is dropped.
#[derive(Debug)]
pub struct Scratch {
    /// Locked while the folder is in use.
    _mark: File,
    path: PathBuf,
}

impl Scratch {
    /// Makes a folder of this process's own, after it removed what killed
    /// probes of this run left.
    ///
    /// # Errors
    /// [`ProbeError::Io`].
    pub fn new(parent: &Path, run: &RunId, console: &Console) -> Result<Self, ProbeError> {
        sweep(parent, run, console)?;
        let process = std::process::id();
        let unmarked = parent.join(format!("{UNMARKED_PREFIX}{process}"));
        fs::create_dir(&unmarked).map_err(ProbeError::io("create", &unmarked))?;
        let path = parent.join(format!("{PREFIX}{process}"));
        match mark(&unmarked, run).and_then(|mark| {
            fs::rename(&unmarked, &path).map_err(ProbeError::io("create", &path))?;
            Ok(mark)
        }) {
            Ok(mark) => Ok(Self { _mark: mark, path }),
            Err(error) => {
                // The error that is told is the first one.
                let _ = fs::remove_dir_all(&unmarked);
                Err(error)
            }
        }
    }

    /// The folder.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Removes what one trajectory left in it.
    pub fn clear(&self, name: &str) {
        // What stays goes with the whole folder.
        let _ = fs::remove_dir_all(self.path.join(name));
    }
}

/// Writes and locks the mark of a folder.
fn mark(folder: &Path, run: &RunId) -> Result<File, ProbeError> {
    let path = folder.join(MARK_NAME);
    let mut file = File::create_new(&path).map_err(ProbeError::io("create", &path))?;
    flock(&file, FlockOperation::NonBlockingLockExclusive)
        .map_err(|error| ProbeError::io("lock", &path)(error.into()))?;
    file.write_all(format!("{MARK}{run}\n").as_bytes()).map_err(ProbeError::io("write", &path))?;
    Ok(file)
}

/// Removes the folders of this run's probes that no process holds any more.
fn sweep(parent: &Path, run: &RunId, console: &Console) -> Result<(), ProbeError> {
    for item in fs::read_dir(parent).map_err(ProbeError::io("read", parent))? {
        let item = item.map_err(ProbeError::io("read", parent))?;
        let name = item.file_name();
        let process = name.to_str().and_then(|name| name.strip_prefix(PREFIX)).unwrap_or_default();
        // The type is the folder's own: a link is none.
        let is_folder = item.file_type().is_ok_and(|kind| kind.is_dir());
        if !is_folder || process.is_empty() || !process.bytes().all(|byte| byte.is_ascii_digit()) {
            continue;
        }
        let path = item.path();
        // Held until the folder is gone, so that two sweeps do not meet in it.
        let Some(_mark) = abandoned(&path, run) else { continue };
        match fs::remove_dir_all(&path) {
            Ok(()) => console.say(&format!("Removed {}, which a killed probe left", path.display())),
            Err(error) => console.say(&format!("warning: could not remove {}: {error}", path.display())),
        }
    }
    Ok(())
}

/// The mark of a folder of this run that nobody holds; locked now.
fn abandoned(folder: &Path, run: &RunId) -> Option<File> {
    let mut file = open_mark(&folder.join(MARK_NAME)).ok()?;
    let mut text = String::new();
    (&mut file).take(MAX_MARK_BYTES).read_to_string(&mut text).ok()?;
    if text != format!("{MARK}{run}\n") {
        return None;
    }
    flock(&file, FlockOperation::NonBlockingLockExclusive).ok()?;
    Some(file)
}

fn open_mark(path: &Path) -> io::Result<File> {
    if fs::symlink_metadata(path)?.is_file() {
        File::open(path)
    } else {
        Err(io::ErrorKind::InvalidInput.into())
    }
}

/// Bytes that a probe may need at once: every state of the reference, and of
/// one resumed trajectory, of which none may be equal.
#[must_use]
pub const fn needed_bytes(state_bytes: u64, num_steps: u64) -> u64 {
    state_bytes.saturating_mul(num_steps.saturating_add(1)).saturating_mul(2)
}

/// Refuses a probe that its file system has no room for.
///
/// # Errors
/// [`ProbeError::NoRoom`], and [`ProbeError::Io`] where the system does not say.
pub fn check_room(folder: &Path, needed: u64) -> Result<(), ProbeError> {
    let status = rustix::fs::statvfs(folder)
        .map_err(|error| ProbeError::io("read the free space of", folder)(error.into()))?;
    let available = status.f_bavail.saturating_mul(status.f_frsize);
    if available < needed {
        return Err(ProbeError::NoRoom { available, needed, path: folder.to_owned() });
    }
    Ok(())
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.path) {
            let _ = writeln!(
                io::stderr().lock(),
                "warning: could not remove {}: {error}; it holds nothing that is needed",
                self.path.display()
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(name: &str) -> RunId {
        RunId(name.to_owned())
    }

    fn folder(parent: &Path, name: &str, mark: Option<&str>) -> PathBuf {
        let path = parent.join(name);
        fs::create_dir(&path).expect("a folder");
        if let Some(mark) = mark {
            fs::write(path.join(MARK_NAME), mark).expect("a mark");
        }
        fs::write(path.join("state"), "bytes").expect("a file");
        path
    }

    #[test]
    fn what_killed_probes_of_this_run_left_goes_and_nothing_else() {
        let parent = tempfile::tempdir().expect("a folder");
        let parent = parent.path();
        let own = format!("{MARK}a\n");
        let left = folder(parent, ".probe-4000001", Some(&own));
        let kept = [
            folder(parent, ".probe-4000002", Some(&format!("{MARK}b\n"))),
            folder(parent, ".probe-4000003", None),
            folder(parent, ".probe-mine", Some(&own)),
            folder(parent, "probe-4000004", Some(&own)),
            folder(parent, ".probe-4000005", Some(&own)),
        ];
        std::os::unix::fs::symlink(&kept[0], parent.join(".probe-4000006")).expect("a link");
        let held = File::open(kept[4].join(MARK_NAME)).expect("the mark");
        flock(&held, FlockOperation::NonBlockingLockExclusive).expect("a lock");

        let console = Console::new(true);
        let scratch = Scratch::new(parent, &run("a"), &console).expect("a folder of its own");
        assert!(!left.exists());
        for path in &kept {
            assert!(path.join("state").exists(), "{}", path.display());
        }
        assert!(fs::symlink_metadata(parent.join(".probe-4000006")).is_ok());
        // A live one is not swept, and is gone when it is dropped.
        sweep(parent, &run("a"), &console).expect("a folder");
        let path = scratch.path().to_owned();
        assert!(path.is_dir());
        drop(scratch);
        assert!(!path.exists());
        drop(held);
        sweep(parent, &run("a"), &console).expect("a folder");
        assert!(!kept[4].exists());
    }

    #[test]
    fn room_is_for_both_trajectories_and_is_asked_for_before() {
        assert_eq!(needed_bytes(10, 4), 100);
        assert_eq!(needed_bytes(u64::MAX, 4), u64::MAX);
        let parent = tempfile::tempdir().expect("a folder");
        check_room(parent.path(), 1).expect("a byte");
        match check_room(parent.path(), u64::MAX) {
            Err(ProbeError::NoRoom { available, needed, .. }) => assert!(available < needed),
            other => panic!("{other:?}"),
        }
    }
}
