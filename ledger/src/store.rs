//! The SQLite file as the writer sees it: one connection, explicit
//! transactions, and no statement but those here.
//!
//! sqlx opens, configures, checks and closes it. What is appended goes through
//! the same handle without the worker thread of sqlx (`appending`): rows are read back and compared with what was hashed, inside the transaction
//! that inserts them, before any head is signed over them. A file that is not a ledger of
//! this layout is refused before anything is changed in it.

mod appending;

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;

use schemas::{SQLITE_APPLICATION_ID, SQLITE_LAYOUT_VERSION};
use sha2::{Digest, Sha256};
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection, SqliteJournalMode, SqliteSynchronous};
use sqlx::{ConnectOptions, Connection, Row as _};

use crate::failpoint;
use crate::lock::with_suffix;
use crate::tree::{Frontier, Hash, leaf_hash};
use appending::Lent;
pub(crate) use appending::{Appending, NewRow};

/// The schema of layout 1.
pub(crate) const MIGRATION: &str = include_str!("../../migrations/0001_ledger.sql");

/// Runs blocking database work on a thread of its own, so that a caller inside
/// an asynchronous runtime can open and create ledgers too.
pub(crate) fn on_own_thread<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| match scope.spawn(work).join() {
        Ok(value) => value,
        Err(panic) => std::panic::resume_unwind(panic),
    })
}

/// Rows of one page when a ledger is read through.
const ROWS_PER_PAGE: i64 = 500;

/// First SQLite whose 3.51 line has the fix of the WAL-reset bug.
const MIN_SQLITE_VERSION: (u32, u32, u32) = (3, 51, 3);

/// A ledger file that cannot be opened or written.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// There is no such file.
    #[error("no ledger at {path}; `ledger freeze contract.json` makes one")]
    Missing {
        /// Where it was looked for.
        path: PathBuf,
    },
    /// The file is something else.
    #[error("{path} is not a ledger: {what}")]
    NotALedger {
        /// The file.
        path: PathBuf,
        /// How that was seen.
        what: String,
    },
    /// The file is shorter than its own header says.
    #[error("{path} is truncated: {actual_bytes} of {expected_bytes} bytes; restore it from a copy")]
    Truncated {
        /// The file.
        path: PathBuf,
        /// What the header asks for.
        expected_bytes: u64,
        /// What there is.
        actual_bytes: u64,
    },
    /// The layout is of a later version.
    #[error("{path} has layout {version}, this version writes {SQLITE_LAYOUT_VERSION}; use a newer `ledger`")]
    NewerLayout {
        /// The file.
        path: PathBuf,
        /// Its layout.
        version: i32,
    },
    /// Tables or triggers are not those of the layout.
    #[error("{path}: tables or triggers were changed; `ledger audit` says what the entries are worth")]
    Schema {
        /// The file.
        path: PathBuf,
    },
    /// The linked SQLite lacks a fix that durability depends on.
    #[error("SQLite {version} is linked, 3.51.3 or later is needed")]
    SqliteVersion {
        /// What is linked.
        version: String,
    },
    /// A stored row is not what it should be.
    #[error("{path}, entry {index}: {what}; run `ledger audit`")]
    Row {
        /// The file.
        path: PathBuf,
        /// The row's index.
        index: u64,
        /// What is wrong.
        what: String,
    },
    /// SQLite refused.
    #[error("{path}: {action} failed")]
    Database {
        /// The file.
        path: PathBuf,
        /// What was attempted.
        action: &'static str,
        /// Why.
        #[source]
        source: sqlx::Error,
    },
    /// SQLite refused what was appended.
    #[error("{path}: {action} failed")]
    Append {
        /// The file.
        path: PathBuf,
        /// What was attempted.
        action: &'static str,
        /// Why.
        #[source]
        source: Box<rusqlite::Error>,
    },
    /// The operating system refused.
    #[error("cannot access {path}")]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
}

/// Where the file or its disk is the matter.
pub(crate) const STORAGE_HINT: &str = "make the file writable and room on its disk, then run the same command again; nothing acknowledged is lost";

/// Whether SQLite says that the disk, its rights or another process are the
/// matter, and not the content (<https://www.sqlite.org/rescode.html>).
fn is_storage(code: Option<i32>) -> bool {
    use libsqlite3_sys::{
        SQLITE_BUSY, SQLITE_CANTOPEN, SQLITE_FULL, SQLITE_IOERR, SQLITE_PERM, SQLITE_READONLY,
    };
    // The low byte is the primary code.
    code.is_none_or(|code| {
        let storage = [SQLITE_BUSY, SQLITE_CANTOPEN, SQLITE_FULL, SQLITE_IOERR, SQLITE_PERM, SQLITE_READONLY];
        storage.contains(&(code & 0xff))
    })
}

impl StoreError {
    /// SQLite's result code, where it gave one.
    fn sqlite_code(&self) -> Option<i32> {
        match self {
            Self::Database { source, .. } => source.as_database_error()?.code()?.parse().ok(),
            Self::Append { source, .. } => Some(source.sqlite_error()?.extended_code),
            _ => None,
        }
    }

    /// What can be done about it.
    #[must_use]
    pub fn hint(&self) -> &'static str {
        match self {
            Self::Missing { .. } => "`ledger freeze contract.json` makes one",
            Self::NotALedger { .. } => "name a ledger, such as run.db, or restore it from a copy",
            Self::Truncated { .. } => "restore it, with its -wal file, from a copy",
            Self::NewerLayout { .. } => "use programs of the version that wrote it, or later",
            Self::Schema { .. } | Self::Row { .. } => {
                "`ledger audit` says what is wrong with it; restore it from a copy"
            }
            Self::SqliteVersion { .. } => "build with the SQLite that comes with the sources",
            Self::Database { .. } | Self::Append { .. } if !is_storage(self.sqlite_code()) => {
                "`ledger audit` says what is wrong with it; restore it from a copy"
            }
            Self::Database { .. } | Self::Append { .. } | Self::Io { .. } => STORAGE_HINT,
        }
    }
}

/// A head as the `heads` table holds it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct HeadRow {
    pub(crate) size: u64,
    pub(crate) note: String,
}

/// Index, entry and leaf hash as stored.
type StoredRow = (i64, Vec<u8>, Vec<u8>);

/// What a read-through of all entries found.
pub(crate) struct Scan {
    pub(crate) frontier: Frontier,
    /// Roots at the sizes that were asked for, in the same order; `None` for
    /// sizes beyond the end.
    pub(crate) roots: Vec<Option<Hash>>,
    pub(crate) first: Option<Vec<u8>>,
    pub(crate) last: Option<Vec<u8>>,
}

pub(crate) struct Store {
    connection: SqliteConnection,
    path: PathBuf,
    runtime: tokio::runtime::Runtime,
}

impl Store {
    /// Creates a database with the schema. The file must not exist.
    pub(crate) fn create(path: &Path) -> Result<Self, StoreError> {
        let io = |source| StoreError::Io { path: path.to_owned(), source };
        File::create_new(path).map_err(io)?;
        let mut store = Self::connect(path)?;
        store.execute_script(MIGRATION)?;
        Ok(store)
    }

    /// Opens an existing ledger after checking header, layout and schema. The
    /// caller holds the writer's lock.
    pub(crate) fn open(path: &Path) -> Result<Self, StoreError> {
        check_header(path)?;
        let mut store = Self::connect(path)?;
        match store.check_layout() {
            Ok(()) => Ok(store),
            Err(error) => {
                store.close()?;
                Err(error)
            }
        }
    }

    fn check_layout(&mut self) -> Result<(), StoreError> {
        let version: i64 = self.scalar("PRAGMA user_version")?;
        if version != i64::from(SQLITE_LAYOUT_VERSION) {
            let what = format!("layout {version} is unknown");
            return Err(StoreError::NotALedger { path: self.path.clone(), what });
        }
        let mut reference = Self::connect_with(SqliteConnectOptions::new().in_memory(true), &self.path)?;
        reference.execute_script(MIGRATION)?;
        if self.schema_digest()? == reference.schema_digest()? {
            return Ok(());
        }
        Err(StoreError::Schema { path: self.path.clone() })
    }

    fn connect(path: &Path) -> Result<Self, StoreError> {
        // A control of the power cuts: nothing else turns it off.
        let is_unflushed = failpoint::is_on("synchronous.off");
        let synchronous = if is_unflushed { SqliteSynchronous::Off } else { SqliteSynchronous::Full };
        let options = SqliteConnectOptions::new()
            .filename(path)
            .create_if_missing(false)
            .journal_mode(SqliteJournalMode::Wal)
            .synchronous(synchronous)
            .busy_timeout(Duration::from_secs(5))
            // 16 MiB: more than the largest transaction dirties.
            .pragma("cache_size", "-16384")
            // Folding the WAL in after 16 MiB halves the pages written twice.
            .pragma("wal_autocheckpoint", "4000")
            .pragma("cell_size_check", "ON")
            .pragma("journal_size_limit", "67108864")
            .pragma("mmap_size", "0");
        let mut store = Self::connect_with(options, path)?;
        let version: String = store.scalar("SELECT sqlite_version()")?;
        if parse_version(&version).is_none_or(|version| version < MIN_SQLITE_VERSION) {
            return Err(StoreError::SqliteVersion { version });
        }
        Ok(store)
    }

    fn connect_with(options: SqliteConnectOptions, path: &Path) -> Result<Self, StoreError> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
        let runtime = runtime.map_err(|source| StoreError::Io { path: path.to_owned(), source })?;
        let options = options
            .pragma("trusted_schema", "OFF")
            .pragma("recursive_triggers", "ON")
            .statement_cache_capacity(256)
            .disable_statement_logging();
        let connection = runtime.block_on(options.connect()).map_err(|source| StoreError::Database {
            path: path.to_owned(),
            action: "opening",
            source,
        })?;
        Ok(Self { connection, path: path.to_owned(), runtime })
    }

    fn execute_script(&mut self, script: &'static str) -> Result<(), StoreError> {
        let executed = self.runtime.block_on(sqlx::raw_sql(script).execute(&mut self.connection));
        executed.map(|_| ()).map_err(|source| self.failed("creating the tables", source))
    }

    fn scalar<T>(&mut self, sql: &'static str) -> Result<T, StoreError>
    where
        T: for<'r> sqlx::Decode<'r, sqlx::Sqlite> + sqlx::Type<sqlx::Sqlite> + Send + Unpin,
    {
        let fetched = self.runtime.block_on(sqlx::query_scalar(sql).fetch_one(&mut self.connection));
        fetched.map_err(|source| self.failed("reading", source))
    }

    fn failed(&self, action: &'static str, source: sqlx::Error) -> StoreError {
        StoreError::Database { path: self.path.clone(), action, source }
    }

    fn row_error(&self, index: i64, what: impl Into<String>) -> StoreError {
        StoreError::Row { path: self.path.clone(), index: index.unsigned_abs(), what: what.into() }
    }

    /// SHA-256 over what `sqlite_schema` says of every table, index and trigger.
    fn schema_digest(&mut self) -> Result<Hash, StoreError> {
        let sql = "SELECT type, name, tbl_name, coalesce(sql, '') FROM sqlite_schema ORDER BY type, name";
        let rows = self.runtime.block_on(sqlx::query(sql).fetch_all(&mut self.connection));
        let rows = rows.map_err(|source| self.failed("reading the schema", source))?;
        let mut hasher = Sha256::new();
        for row in rows {
            for column in 0..4 {
                let text: String =
                    row.try_get(column).map_err(|source| self.failed("reading the schema", source))?;
                hasher.update((text.len() as u64).to_le_bytes());
                hasher.update(text);
            }
        }
        Ok(hasher.finalize().into())
    }

    /// All heads, smallest first.
    pub(crate) fn heads(&mut self) -> Result<Vec<HeadRow>, StoreError> {
        let sql = "SELECT size, note FROM heads ORDER BY size";
        let rows: Result<Vec<(i64, String)>, _> =
            self.runtime.block_on(sqlx::query_as(sql).fetch_all(&mut self.connection));
        let rows = rows.map_err(|source| self.failed("reading the heads", source))?;
        Ok(rows.into_iter().map(|(size, note)| HeadRow { size: size.unsigned_abs(), note }).collect())
    }

    /// Reads every entry, checks index and leaf hash, and gives the tree.
    /// `sizes` must ascend.
    pub(crate) fn scan(&mut self, sizes: &[u64]) -> Result<Scan, StoreError> {
        let mut scan =
            Scan { frontier: Frontier::new(), roots: vec![None; sizes.len()], first: None, last: None };
        let mut wanted = sizes.iter().copied().zip(0..).peekable();
        let mut note_root = |frontier: &Frontier, roots: &mut Vec<Option<Hash>>| {
            while let Some((_, position)) = wanted.next_if(|(size, _)| *size == frontier.size()) {
                let position: usize = position;
                roots[position] = Some(frontier.root());
            }
        };
        note_root(&scan.frontier, &mut scan.roots);
        let mut next = 0i64;
        loop {
            let page = self.page(next)?;
            if page.is_empty() {
                return Ok(scan);
            }
            for (seq, entry, leaf) in page {
                if seq != next {
                    return Err(self.row_error(next, format!("is missing; the next one stored is {seq}")));
                }
                let hash = leaf_hash(&entry);
                if leaf != hash {
                    return Err(self.row_error(seq, "the stored leaf hash is not that of the entry"));
                }
                scan.frontier.append(hash);
                note_root(&scan.frontier, &mut scan.roots);
                if seq == 0 {
                    scan.first = Some(entry.clone());
                }
                scan.last = Some(entry);
                next = seq + 1;
            }
        }
    }

    fn page(&mut self, from: i64) -> Result<Vec<StoredRow>, StoreError> {
        let sql = "SELECT seq, entry, leaf FROM entries WHERE seq >= ? ORDER BY seq LIMIT ?";
        let query = sqlx::query_as(sql).bind(from).bind(ROWS_PER_PAGE);
        let page = self.runtime.block_on(query.fetch_all(&mut self.connection));
        page.map_err(|source| self.failed("reading the entries", source))
    }

    /// Lends SQLite's own handle to `work`, which appends through it. The worker
    /// thread of sqlx waits meanwhile.
    ///
    /// # Errors
    /// When that thread has ended; `work` was not called then.
    pub(crate) fn write_with<T>(
        &mut self,
        work: impl FnOnce(&mut Appending<'_>) -> T,
    ) -> Result<T, StoreError> {
        let Self { connection, path, runtime } = self;
        let locked = runtime.block_on(connection.lock_handle());
        let failed =
            |source| StoreError::Database { path: path.clone(), action: "lending the handle", source };
        let lent = Lent::new(locked.map_err(failed)?);
        let action = "lending the handle";
        let failed = |source| StoreError::Append { path: path.clone(), action, source: Box::new(source) };
        let lent = lent.map_err(failed)?;
        let mut appending = Appending::new(lent.connection(), path);
        Ok(work(&mut appending))
    }

    /// Whether an artifact is stored.
    pub(crate) fn has_artifact(&mut self, digest: &[u8; 32]) -> Result<bool, StoreError> {
        let query = sqlx::query_scalar("SELECT count(*) FROM artifacts WHERE digest = ?").bind(&digest[..]);
        let counted: Result<i64, _> = self.runtime.block_on(query.fetch_one(&mut self.connection));
        counted.map(|num| num > 0).map_err(|source| self.failed("reading the artifacts", source))
    }

    /// Inserts artifacts by their BLAKE3 digests; equal ones are stored once.
    pub(crate) fn insert_artifacts(&mut self, artifacts: &[(&[u8; 32], &[u8])]) -> Result<(), StoreError> {
        let Self { connection, path, runtime } = self;
        let inserted = runtime.block_on(async {
            let mut transaction = connection.begin_with("BEGIN IMMEDIATE").await?;
            for (digest, bytes) in artifacts {
                sqlx::query("INSERT INTO artifacts (digest, bytes) VALUES (?, ?)")
                    .bind(&digest[..])
                    .bind(*bytes)
                    .execute(&mut *transaction)
                    .await?;
            }
            transaction.commit().await
        });
        let action = "storing an artifact";
        inserted.map_err(|source| StoreError::Database { path: path.clone(), action, source })
    }

    /// Folds the WAL into the database and closes both.
    pub(crate) fn close(self) -> Result<(), StoreError> {
        let Self { connection, path, runtime } = self;
        let closed = runtime.block_on(connection.close());
        closed.map_err(|source| StoreError::Database { path, action: "closing", source })
    }
}

fn parse_version(text: &str) -> Option<(u32, u32, u32)> {
    let mut parts = text.split('.').map(|part| part.parse().ok());
    Some((parts.next()??, parts.next()??, parts.next()??))
}

/// Reads the 100-byte header, so that a file that is not a ledger is refused
/// before SQLite changes anything in it.
pub(crate) fn check_header(path: &Path) -> Result<(), StoreError> {
    let io = |source: std::io::Error| match source.kind() {
        std::io::ErrorKind::NotFound => StoreError::Missing { path: path.to_owned() },
        _ => StoreError::Io { path: path.to_owned(), source },
    };
    let not_a_ledger = |what: String| StoreError::NotALedger { path: path.to_owned(), what };
    let mut file = File::open(path).map_err(io)?;
    let metadata = file.metadata().map_err(io)?;
    if !metadata.is_file() {
        return Err(not_a_ledger("it is not a file".to_owned()));
    }
    let mut header = [0u8; 100];
    if let Err(error) = file.read_exact(&mut header) {
        return Err(match error.kind() {
            std::io::ErrorKind::UnexpectedEof => {
                not_a_ledger(format!("it has only {} bytes", metadata.len()))
            }
            _ => io(error),
        });
    }
    if !header.starts_with(b"SQLite format 3\0") {
        return Err(not_a_ledger("it is not an SQLite database".to_owned()));
    }
    let word = |at: usize| u32::from_be_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
    let application = word(68).cast_signed();
    if application != SQLITE_APPLICATION_ID {
        return Err(not_a_ledger(format!("it is an SQLite database of another kind ({application:#010x})")));
    }
    let version = word(60).cast_signed();
    if version > SQLITE_LAYOUT_VERSION {
        return Err(StoreError::NewerLayout { path: path.to_owned(), version });
    }
    // A page size of 65536 does not fit its two bytes and is written as 1.
    let page_bytes = match u16::from_be_bytes([header[16], header[17]]) {
        1 => 65_536,
        bytes => u64::from(bytes),
    };
    let expected_bytes = page_bytes * u64::from(word(28));
    // A full disk can stop SQLite between the header and the pages that it
    // counts; they are then still in the WAL, and nothing is lost.
    let has_wal = std::fs::metadata(with_suffix(path, "-wal")).is_ok_and(|wal| wal.len() > 0);
    if metadata.len() < expected_bytes && !has_wal {
        let actual_bytes = metadata.len();
        return Err(StoreError::Truncated { path: path.to_owned(), expected_bytes, actual_bytes });
    }
    Ok(())
}
