//! Reading a ledger for programs that show or use one.
//!
//! A reader works on a private copy (database and WAL), so it never writes into
//! the ledger's folder, and it reads the head file first, so that head is never
//! ahead of the copied rows. It gives no verdict: it checks what it must rely
//! on (layout, index, shape) and leaves the rest to the validator.

use std::path::{Path, PathBuf};

use rusqlite::{Connection, OpenFlags, OptionalExtension, params};
use schemas::digest::{Algorithm, Digest};
use schemas::entry::{Entry, LedgerKind};
use schemas::ids::RunId;

use crate::frozen::{FrozenContract, FrozenError};
use crate::head_file::{self, HeadFileError};
use crate::note::{self, NoteError};
use crate::snapshot::{Snapshot, SnapshotError};
use crate::store::{self, StoreError};

/// Rows of one page: a statement is never left half read.
const ROWS_PER_PAGE: u32 = 256;

/// A ledger that cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The file is not a ledger of this layout.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// No private copy could be taken.
    #[error(transparent)]
    Snapshot(#[from] SnapshotError),
    /// SQLite refused.
    #[error("{path}: reading failed")]
    Database {
        /// The ledger.
        path: PathBuf,
        /// Why.
        #[source]
        source: rusqlite::Error,
    },
    /// There is no such entry.
    #[error("{path} has no entry {index}; it holds {num_entries}")]
    NoEntry {
        /// The ledger.
        path: PathBuf,
        /// What was asked for.
        index: u64,
        /// Entries that there are.
        num_entries: u64,
    },
    /// An entry's bytes are not an entry.
    #[error("{path}, entry {index}: not an entry of this format; run `ledger audit`")]
    Entry {
        /// The ledger.
        path: PathBuf,
        /// The entry's index.
        index: u64,
        /// Why.
        #[source]
        source: serde_json::Error,
    },
    /// An entry says that it is another one.
    #[error("{path}, entry {index}: its bytes say that it is entry {stated}; run `ledger audit`")]
    Index {
        /// The ledger.
        path: PathBuf,
        /// The row's index.
        index: u64,
        /// What the bytes say.
        stated: u64,
    },
    /// Entry 0 does not hold a contract.
    #[error("{path}")]
    Contract {
        /// The ledger.
        path: PathBuf,
        /// Why.
        #[source]
        source: FrozenError,
    },
    /// There is no such artifact.
    #[error("{path} holds no artifact {digest}")]
    NoArtifact {
        /// The ledger.
        path: PathBuf,
        /// What was asked for.
        digest: Digest,
    },
    /// An artifact's bytes do not have its digest.
    #[error("{path}: the artifact stored as {digest} has other bytes; run `ledger audit`")]
    ArtifactDigest {
        /// The ledger.
        path: PathBuf,
        /// Its name.
        digest: Digest,
    },
    /// The ledger holds no head, or one that is not a note.
    #[error("{path}: no usable head in the ledger")]
    Head {
        /// The ledger.
        path: PathBuf,
        /// Why.
        #[source]
        source: NoteError,
    },
    /// The head file cannot be read.
    #[error(transparent)]
    HeadFile(#[from] HeadFileError),
}

/// A head as the ledger stores it, not verified.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredHead {
    /// Tree size of its row.
    pub size: u64,
    /// The signed note.
    pub note: String,
}

/// A ledger, opened for reading at one moment.
#[derive(Debug)]
pub struct Reader {
    connection: Connection,
    head_beside: Option<String>,
    num_entries: u64,
    path: PathBuf,
    /// Removes the copy when the reader is dropped; after `connection`.
    snapshot: Snapshot,
}

impl Reader {
    /// Opens a ledger by copying it.
    ///
    /// # Errors
    /// When the file is missing, not a ledger, truncated, of a newer layout, or
    /// cannot be copied. A missing head file is not an error.
    pub fn open(path: &Path) -> Result<Self, ReadError> {
        if !path.exists() {
            return Err(StoreError::Missing { path: path.to_owned() }.into());
        }
        let head_beside = match head_file::read_last(&head_file::path_for(path)) {
            Ok(note) => Some(note),
            Err(HeadFileError::Missing { .. } | HeadFileError::Empty { .. }) => None,
            Err(error) => return Err(error.into()),
        };
        let snapshot = Snapshot::take(path)?;
        store::check_header(&snapshot.database()).map_err(|error| named(error, path))?;
        let database = |source| ReadError::Database { path: path.to_owned(), source };
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = Connection::open_with_flags(snapshot.database(), flags).map_err(database)?;
        connection
            .execute_batch(
                "PRAGMA trusted_schema = OFF; PRAGMA cell_size_check = ON; PRAGMA mmap_size = 0;
                 PRAGMA query_only = ON;",
            )
            .map_err(database)?;
        let num_entries: i64 = connection
            .query_row("SELECT coalesce(max(seq), -1) + 1 FROM entries", [], |row| row.get(0))
            .map_err(database)?;
        let num_entries = u64::try_from(num_entries).unwrap_or(0);
        Ok(Self { connection, head_beside, num_entries, path: path.to_owned(), snapshot })
    }

    /// The ledger that was opened.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Entries at the moment of opening.
    #[must_use]
    pub const fn num_entries(&self) -> u64 {
        self.num_entries
    }

    pub(crate) const fn connection(&self) -> &Connection {
        &self.connection
    }

    /// The copy that is read, for who wants the same moment as bytes.
    pub(crate) const fn snapshot(&self) -> &Snapshot {
        &self.snapshot
    }

    fn failed(&self, source: rusqlite::Error) -> ReadError {
        ReadError::Database { path: self.path.clone(), source }
    }

    /// Stored bytes of an entry.
    ///
    /// # Errors
    /// When there is no such entry or SQLite cannot read it.
    pub fn entry_bytes(&self, index: u64) -> Result<Vec<u8>, ReadError> {
        let no_entry =
            || ReadError::NoEntry { path: self.path.clone(), index, num_entries: self.num_entries };
        let seq = i64::try_from(index).map_err(|_| no_entry())?;
        let mut statement = self
            .connection
            .prepare("SELECT entry FROM entries WHERE seq = ?1")
            .map_err(|source| self.failed(source))?;
        let bytes = statement.query_row([seq], |row| row.get(0)).optional();
        bytes.map_err(|source| self.failed(source))?.ok_or_else(no_entry)
    }

    /// An entry.
    ///
    /// # Errors
    /// When there is none, or its bytes are not an entry with that index.
    pub fn entry(&self, index: u64) -> Result<Entry, ReadError> {
        self.parse(index, &self.entry_bytes(index)?)
    }

    fn parse(&self, index: u64, bytes: &[u8]) -> Result<Entry, ReadError> {
        let path = || self.path.clone();
        let entry =
            Entry::from_slice(bytes).map_err(|source| ReadError::Entry { path: path(), index, source })?;
        if entry.index != index {
            return Err(ReadError::Index { path: path(), index, stated: entry.index });
        }
        Ok(entry)
    }

    /// All entries from an index on, in pages. After an error the iterator ends.
    pub fn entries(&self, from: u64) -> impl Iterator<Item = Result<Entry, ReadError>> + '_ {
        self.rows(from).map(|row| row.and_then(|(index, bytes)| self.parse(index, &bytes)))
    }

    /// Index and stored bytes of all entries from an index on, in pages. After
    /// an error the iterator ends.
    pub fn rows(&self, from: u64) -> impl Iterator<Item = Result<(u64, Vec<u8>), ReadError>> + '_ {
        let mut next = Some(from);
        let mut page: std::vec::IntoIter<(u64, Vec<u8>)> = Vec::new().into_iter();
        std::iter::from_fn(move || {
            loop {
                if let Some(row) = page.next() {
                    next = Some(row.0 + 1);
                    return Some(Ok(row));
                }
                match self.page(next.take()?) {
                    Ok(rows) if rows.is_empty() => return None,
                    Ok(rows) => page = rows.into_iter(),
                    Err(error) => return Some(Err(error)),
                }
            }
        })
    }

    fn page(&self, from: u64) -> Result<Vec<(u64, Vec<u8>)>, ReadError> {
        let Ok(seq) = i64::try_from(from) else { return Ok(Vec::new()) };
        let read = || -> Result<Vec<(u64, Vec<u8>)>, rusqlite::Error> {
            let sql = "SELECT seq, entry FROM entries WHERE seq >= ?1 ORDER BY seq LIMIT ?2";
            let mut statement = self.connection.prepare(sql)?;
            let rows = statement.query_map(params![seq, ROWS_PER_PAGE], |row| {
                Ok((row.get::<_, i64>(0)?.unsigned_abs(), row.get(1)?))
            })?;
            rows.collect()
        };
        read().map_err(|source| self.failed(source))
    }

    /// The frozen contract, with digest, signature and run checked.
    ///
    /// # Errors
    /// When the ledger is not that of a run or one of these does not hold.
    pub fn contract(&self) -> Result<FrozenContract, ReadError> {
        let entry = self.entry(0)?;
        FrozenContract::from_entry(&entry)
            .map_err(|source| ReadError::Contract { path: self.path.clone(), source })
    }

    /// Bytes of a frozen file.
    ///
    /// # Errors
    /// When there is none of that digest, or its bytes have another one.
    pub fn artifact(&self, digest: &Digest) -> Result<Vec<u8>, ReadError> {
        let bytes: Option<Vec<u8>> = self
            .connection
            .query_row("SELECT bytes FROM artifacts WHERE digest = ?1", [&digest.bytes[..]], |row| row.get(0))
            .optional()
            .map_err(|source| self.failed(source))?;
        let found = bytes.filter(|_| digest.algorithm == Algorithm::Blake3);
        let bytes =
            found.ok_or_else(|| ReadError::NoArtifact { path: self.path.clone(), digest: *digest })?;
        if blake3::hash(&bytes).as_bytes() != &digest.bytes {
            return Err(ReadError::ArtifactDigest { path: self.path.clone(), digest: *digest });
        }
        Ok(bytes)
    }

    /// Digests of all stored artifacts, in ascending order.
    ///
    /// # Errors
    /// When SQLite cannot read them.
    pub fn artifacts(&self) -> Result<Vec<Digest>, ReadError> {
        let read = || -> Result<Vec<Digest>, rusqlite::Error> {
            let mut statement = self.connection.prepare("SELECT digest FROM artifacts ORDER BY digest")?;
            let rows = statement.query_map([], |row| row.get::<_, [u8; 32]>(0))?;
            rows.map(|row| row.map(Digest::blake3)).collect()
        };
        read().map_err(|source| self.failed(source))
    }

    /// Every head in the ledger, smallest first, not verified.
    ///
    /// # Errors
    /// When SQLite cannot read them.
    pub fn heads(&self) -> Result<Vec<StoredHead>, ReadError> {
        let read = || -> Result<Vec<StoredHead>, rusqlite::Error> {
            let mut statement = self.connection.prepare("SELECT size, note FROM heads ORDER BY size")?;
            let rows = statement.query_map([], |row| {
                Ok(StoredHead { size: row.get::<_, i64>(0)?.unsigned_abs(), note: row.get(1)? })
            })?;
            rows.collect()
        };
        read().map_err(|source| self.failed(source))
    }

    /// The last note of the head file beside the ledger, read before the
    /// ledger was copied; `None` where there is no such file or note.
    #[must_use]
    pub fn head_beside(&self) -> Option<&str> {
        self.head_beside.as_deref()
    }

    /// Kind and identifier of the ledger, from its newest head.
    ///
    /// # Errors
    /// When the ledger holds no head or its origin is not a ledger's.
    pub fn identity(&self) -> Result<(LedgerKind, RunId), ReadError> {
        let head = |what| ReadError::Head { path: self.path.clone(), source: NoteError::Malformed { what } };
        let heads = self.heads()?;
        let newest = heads.last().ok_or_else(|| head("there is none"))?;
        let parsed = note::parse(&newest.note)
            .map_err(|source| ReadError::Head { path: self.path.clone(), source })?;
        note::parse_origin(&parsed.head.origin).ok_or_else(|| head("its origin is not that of a ledger"))
    }
}

/// Errors found in the copy are reported of the original.
fn named(error: StoreError, original: &Path) -> StoreError {
    let path = original.to_owned();
    match error {
        StoreError::Missing { .. } => StoreError::Missing { path },
        StoreError::NotALedger { what, .. } => StoreError::NotALedger { path, what },
        StoreError::Truncated { expected_bytes, actual_bytes, .. } => {
            StoreError::Truncated { path, expected_bytes, actual_bytes }
        }
        StoreError::NewerLayout { version, .. } => StoreError::NewerLayout { path, version },
        StoreError::Io { source, .. } => StoreError::Io { path, source },
        other => other,
    }
}
