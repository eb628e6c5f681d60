//! Gives the reader something that does not change: the file itself where no
//! write-ahead log lies beside it, else a copy of both as one consistent pair.
//!
//! A writer may be at work. The log alone could be reset between the two
//! copies, so file sizes, times and the log's salts are compared before and
//! after, and the copy is taken again when they moved. A file that is read in
//! place is compared in the same way when the reading is over.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use crate::error::AuditError;
use crate::rule::{At, Sink};

/// Copies before giving up; each takes longer than a writer's checkpoint.
const MAX_TRIES: u32 = 8;

/// Bytes of a write-ahead log's header, which holds its salts.
const WAL_HEADER_BYTES: usize = 32;

/// First 100 bytes of the file, fewer where it is shorter.
pub(super) fn read_header(path: &Path) -> Result<Vec<u8>, AuditError> {
    let unreadable = |source| AuditError::ledger(path, source);
    let metadata = fs::metadata(path).map_err(unreadable)?;
    if !metadata.is_file() {
        let source = io::Error::new(io::ErrorKind::InvalidInput, "not a regular file");
        return Err(AuditError::ledger(path, source));
    }
    let mut header = Vec::new();
    File::open(path).and_then(|file| file.take(100).read_to_end(&mut header)).map_err(unreadable)?;
    Ok(header)
}

/// What changes when a writer commits or checkpoints.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Stamp {
    database: (u64, Option<SystemTime>),
    log: Option<(u64, Vec<u8>)>,
}

impl Stamp {
    /// Whether the database alone holds every row: frames follow a log's header.
    pub(super) fn is_without_log(&self) -> bool {
        self.log.as_ref().is_none_or(|(length, _)| *length == 0)
    }
}

/// Reads the stamp of a ledger.
pub(super) fn stamp(database: &Path) -> io::Result<Stamp> {
    let metadata = fs::metadata(database)?;
    let log = &beside(database, "-wal");
    let opened = fs::metadata(log).and_then(|metadata| {
        if metadata.is_file() {
            return File::open(log);
        }
        // A FIFO or a device would block, or never end.
        let message = format!("{}: not a regular file", log.display());
        Err(io::Error::new(io::ErrorKind::InvalidInput, message))
    });
    let log = match opened {
        Ok(file) => {
            let length = file.metadata()?.len();
            let mut header = Vec::new();
            file.take(WAL_HEADER_BYTES as u64).read_to_end(&mut header)?;
            Some((length, header))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => return Err(error),
    };
    Ok(Stamp { database: (metadata.len(), metadata.modified().ok()), log })
}

/// Copies `path` and its log into `folder`; returns the copy's path.
pub(super) fn snapshot(path: &Path, folder: &Path) -> Result<PathBuf, AuditError> {
    let log = beside(path, "-wal");
    let copy = folder.join("ledger.db");
    let log_copy = folder.join("ledger.db-wal");
    for _ in 0..MAX_TRIES {
        let before = stamp(path).map_err(|source| AuditError::ledger(path, source))?;
        copy_file(path, &copy, path)?;
        match &before.log {
            Some(_) => copy_file(&log, &log_copy, path)?,
            None => match fs::remove_file(&log_copy) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(AuditError::Temporary { path: log_copy, source: error });
                }
                _ => {}
            },
        }
        let after = stamp(path).map_err(|source| AuditError::ledger(path, source))?;
        if before == after {
            return Ok(copy);
        }
    }
    Err(AuditError::Busy { path: path.to_owned() })
}

fn copy_file(from: &Path, to: &Path, ledger: &Path) -> Result<(), AuditError> {
    let mut source = File::open(from).map_err(|source| AuditError::ledger(ledger, source))?;
    let mut target =
        File::create(to).map_err(|source| AuditError::Temporary { path: to.to_owned(), source })?;
    io::copy(&mut source, &mut target)
        .map(|_| ())
        .map_err(|source| AuditError::Temporary { path: to.to_owned(), source })
}

/// A rollback journal is never read; SQLite itself would apply it.
pub(super) fn warn_of_journal(path: &Path, sink: &mut Sink) {
    let journal = beside(path, "-journal");
    if journal.exists() {
        sink.warning(
            At::place(journal.display().to_string()),
            "a rollback journal lies beside the ledger; it is not read",
            "none, since the writer keeps a write-ahead log",
            "a file",
        );
    }
}

/// `run.db` with a suffix: `run.db-wal`.
pub(crate) fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}
