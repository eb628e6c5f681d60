//! A private copy of a database and its WAL, for reading.
//!
//! SQLite cannot read a WAL database in a folder that it may not write, and
//! `immutable=1` misses the rows that are still in the WAL. So a reader copies
//! both files to a temporary folder (`TMPDIR`) and opens the copy; the ledger's
//! own folder is not touched. A copy taken while the WAL was being folded into
//! the database would mix two states, so it is taken again until neither the
//! database nor the WAL's header changed meanwhile.
//!
//! Closing any descriptor of a file drops the process's POSIX locks on it,
//! SQLite's among them. While a recorder of this process has a database open,
//! descriptors of copies are therefore kept until it closes.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use crate::lock::with_suffix;
use crate::private_folder::PrivateFolder;

/// Copies are retried while a writer folds its WAL into the database.
const MAX_TRIES: u32 = 200;

/// File times advance in ticks of a few milliseconds; a change within the tick
/// of the first look would be missed.
const TIME_GRANULARITY: Duration = Duration::from_millis(20);

const WAL_HEADER_BYTES: u64 = 32;

/// A copy that could not be taken.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    /// A file could not be copied.
    #[error("cannot copy {path} for reading")]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// The database changed at every try.
    #[error("{path} kept changing while it was copied; try again when its writer pauses")]
    Busy {
        /// The database.
        path: PathBuf,
    },
}

/// A private copy; its folder is removed when this is dropped.
#[derive(Debug)]
pub(crate) struct Snapshot {
    folder: PrivateFolder,
}

type FileIdentity = (u64, u64);

/// Databases that recorders of this process have open: how many recorders, and
/// descriptors that must outlive them.
static OPEN_FOR_WRITING: Mutex<BTreeMap<FileIdentity, (usize, Vec<File>)>> = Mutex::new(BTreeMap::new());

/// Marks a database as open for writing by this process.
#[derive(Debug)]
pub(crate) struct WriterMark {
    identity: FileIdentity,
}

impl WriterMark {
    pub(crate) fn set(path: &Path) -> std::io::Result<Self> {
        let metadata = std::fs::metadata(path)?;
        let identity = (metadata.dev(), metadata.ino());
        let mut open = OPEN_FOR_WRITING.lock().unwrap_or_else(PoisonError::into_inner);
        open.entry(identity).or_default().0 += 1;
        Ok(Self { identity })
    }
}

impl Drop for WriterMark {
    fn drop(&mut self) {
        let mut open = OPEN_FOR_WRITING.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(held) = open.get_mut(&self.identity) {
            held.0 -= 1;
            if held.0 == 0 {
                open.remove(&self.identity);
            }
        }
    }
}

/// Closes a descriptor of a database, or keeps it while that would drop locks.
fn release(file: File) {
    let Ok(metadata) = file.metadata() else { return };
    let mut open = OPEN_FOR_WRITING.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(held) = open.get_mut(&(metadata.dev(), metadata.ino())) {
        held.1.push(file);
    }
}

/// What must be the same before and after a copy.
#[derive(Debug, PartialEq, Eq)]
struct Stamp {
    database_bytes: u64,
    database_modified: Option<SystemTime>,
    /// Salts and checkpoint sequence: they change when the WAL starts over.
    wal_header: Option<Vec<u8>>,
}

impl Snapshot {
    /// Copies a database and its WAL, where it has one.
    pub(crate) fn take(path: &Path) -> Result<Self, SnapshotError> {
        let temporary = tempfile::env::temp_dir();
        let folder = PrivateFolder::held_in(&temporary, "ledger-read-")
            .map_err(|source| SnapshotError::Io { path: temporary, source })?;
        let snapshot = Self { folder };
        let wal = with_suffix(path, "-wal");
        for _ in 0..MAX_TRIES {
            let before = stamp(path, &wal)?;
            let recent = before.database_modified.and_then(|time| time.elapsed().ok());
            if recent.is_some_and(|age| age < TIME_GRANULARITY) {
                std::thread::sleep(TIME_GRANULARITY);
                continue;
            }
            copy(path, &snapshot.database())?;
            let copied_wal = with_suffix(&snapshot.database(), "-wal");
            match copy(&wal, &copied_wal) {
                Ok(()) => {}
                Err(SnapshotError::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => {
                    // A copy of an earlier try must not be paired with this database.
                    let _ = std::fs::remove_file(&copied_wal);
                }
                Err(error) => return Err(error),
            }
            if stamp(path, &wal)? == before {
                return Ok(snapshot);
            }
        }
        Err(SnapshotError::Busy { path: path.to_owned() })
    }

    /// The copied database.
    pub(crate) fn database(&self) -> PathBuf {
        self.folder.path().join("ledger.db")
    }
}

fn stamp(path: &Path, wal: &Path) -> Result<Stamp, SnapshotError> {
    let metadata =
        std::fs::metadata(path).map_err(|source| SnapshotError::Io { path: path.to_owned(), source })?;
    let wal_header = match File::open(wal) {
        Ok(file) => {
            let mut header = Vec::new();
            file.take(WAL_HEADER_BYTES)
                .read_to_end(&mut header)
                .map_err(|source| SnapshotError::Io { path: wal.to_owned(), source })?;
            Some(header)
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
        Err(source) => return Err(SnapshotError::Io { path: wal.to_owned(), source }),
    };
    Ok(Stamp { database_bytes: metadata.len(), database_modified: metadata.modified().ok(), wal_header })
}

fn copy(from: &Path, to: &Path) -> Result<(), SnapshotError> {
    let io = |source| SnapshotError::Io { path: from.to_owned(), source };
    let mut source = File::open(from).map_err(io)?;
    let mut target = File::create(to).map_err(|source| SnapshotError::Io { path: to.to_owned(), source })?;
    let copied = std::io::copy(&mut source, &mut target);
    release(source);
    copied.map(|_| ()).map_err(io)
}
