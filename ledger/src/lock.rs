//! One writer at a time: an advisory lock on `<ledger>.lock`.
//!
//! The lock is the operating system's (`flock`), so a killed writer leaves none
//! behind, unless it was forked: a child has the same open file, and holds the
//! lock as long as it lives. The process id inside the file only serves the
//! message. The file stays, because removing it would race with the next writer.

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};

/// A lock that was not taken.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// Another writer holds it.
    #[error("{ledger} is being written by {}; wait for it to end, or stop it", holder_text(*.holder))]
    Held {
        /// The ledger.
        ledger: PathBuf,
        /// Its process id, where it could be read.
        holder: Option<u32>,
    },
    /// The lock file could not be made.
    #[error("cannot lock {path}; a ledger is written only where its folder is writable")]
    Io {
        /// The lock file.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
}

fn holder_text(holder: Option<u32>) -> String {
    match holder {
        None => "another process".to_owned(),
        Some(process) if is_gone(process) => format!(
            "process {process}, which does not run here any more: a process that it forked may hold the lock still \
             (`fuser` on the lock file names it)"
        ),
        Some(process) => format!("process {process}"),
    }
}

/// Whether no process of this number is there. One that cannot be asked, since it
/// is somebody else's, is there.
fn is_gone(process: u32) -> bool {
    let process = i32::try_from(process).ok().filter(|process| *process > 0).and_then(Pid::from_raw);
    process.is_some_and(|process| test_kill_process(process) == Err(Errno::SRCH))
}

/// Appends a suffix to a path's last component: `run.db` gives `run.db.lock`.
pub(crate) fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut text = path.as_os_str().to_owned();
    text.push(suffix);
    PathBuf::from(text)
}

/// Held from the opening of a recorder to its end.
#[derive(Debug)]
pub(crate) struct WriterLock {
    /// Closing it releases the lock.
    _file: File,
}

impl WriterLock {
    /// Takes the lock or says who has it.
    pub(crate) fn acquire(ledger: &Path) -> Result<Self, LockError> {
        let path = with_suffix(ledger, ".lock");
        let io = |source: std::io::Error| LockError::Io { path: path.clone(), source };
        let mut file =
            OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path).map_err(io)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => {
                let mut text = String::new();
                let holder = (&mut file).take(32).read_to_string(&mut text).ok();
                let holder = holder.and_then(|_| text.trim().parse().ok());
                return Err(LockError::Held { ledger: ledger.to_owned(), holder });
            }
            Err(error) => return Err(io(error.into())),
        }
        file.set_len(0).map_err(io)?;
        file.seek(SeekFrom::Start(0)).map_err(io)?;
        writeln!(file, "{}", std::process::id()).map_err(io)?;
        Ok(Self { _file: file })
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn a_lock_that_outlives_its_process_says_so() {
        let folder = tempfile::tempdir().expect("a folder");
        let ledger = folder.path().join("run.db");
        let held = WriterLock::acquire(&ledger).expect("nobody has it");
        let refused = WriterLock::acquire(&ledger).expect_err("it is held").to_string();
        let own = format!("is being written by process {};", std::process::id());
        assert!(refused.contains(&own), "{refused}");

        // As a child of a killed process holds it: the number is of one that ended.
        let mut ended = Command::new("true").spawn().expect("a process");
        ended.wait().expect("its end");
        std::fs::write(with_suffix(&ledger, ".lock"), format!("{}\n", ended.id())).expect("the number");
        let refused = WriterLock::acquire(&ledger).expect_err("it is held").to_string();
        let gone = format!("process {}, which does not run here any more", ended.id());
        assert!(refused.contains(&gone) && refused.contains("forked"), "{refused}");
        drop(held);
        let _ = WriterLock::acquire(&ledger).expect("it is free");
    }
}
