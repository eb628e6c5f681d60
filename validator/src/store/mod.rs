//! Reads a ledger's SQLite file, and trusts nothing in it.
//!
//! Where a write-ahead log lies beside the file, both are copied to a private
//! temporary folder: a read-only open fails in a folder that cannot be written,
//! an immutable open misses the rows that are only in the log, and either could
//! touch evidence. A file without a log is read where it is, as immutable, and
//! [`Store::is_unchanged`] tells whether that was true. Its entries are read from
//! its pages (`pages`), where these are as they should be; else rows stream
//! through one statement, which no writer waits for. Either way memory does not
//! grow.

mod copy;
pub(crate) use copy::beside;
mod folder;
mod layout;
mod pages;

use std::cell::RefCell;
use std::path::{Path, PathBuf};

use rusqlite::types::ValueRef;
use rusqlite::{Connection, OpenFlags};

use crate::error::AuditError;
use crate::rule::{At, Sink};
use pages::QuickPages;

/// Largest value that is read from a row; an example table of five million
/// examples fits. A larger one is a finding.
const MAX_VALUE_BYTES: i32 = 256 << 20;

/// Pages that SQLite may hold, so that a ledger of up to this size is read from
/// the file once, for the check of its pages and for its rows together.
const MAX_CACHE_KIB: u32 = 64 << 10;

/// First bytes of a SQLite file.
const SQLITE_MAGIC: &[u8; 16] = b"SQLite format 3\0";

/// How a ledger may be opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    /// In place, page by page, where no log lies beside it and its pages are as
    /// they should be; else as a copy, or by SQLite.
    Pages,
    /// By SQLite, in place where no log lies beside it, else as a copy.
    InPlace,
    /// As a copy.
    Copy,
}

/// What the connection reads.
enum Source {
    /// The ledger itself, as it was stamped.
    InPlace(PathBuf, copy::Stamp),
    /// A copy, removed when the store is dropped.
    Copy { _folder: folder::CopyFolder },
}

/// How the entries are read.
enum Reading {
    Pages(Box<RefCell<QuickPages>>),
    Sqlite,
}

/// How the reading of the entries ended.
#[derive(Debug)]
pub(crate) enum RowsEnd {
    /// Behind the last one.
    Complete,
    /// SQLite finds the file damaged; rows before that were visited.
    Damaged(rusqlite::Error),
    /// The pages are not as they should be. What was visited counts for nothing,
    /// and SQLite has to read them.
    Refused,
}

impl RowsEnd {
    /// For a reader that lets SQLite read, which refuses no pages.
    ///
    /// # Errors
    /// When the file is damaged.
    pub(crate) fn whole(self) -> rusqlite::Result<()> {
        match self {
            Self::Complete => Ok(()),
            Self::Damaged(error) => Err(error),
            Self::Refused => {
                let code = rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_CORRUPT);
                Err(rusqlite::Error::SqliteFailure(code, Some("pages are not as they should be".to_owned())))
            }
        }
    }
}

/// A ledger's database, open for reading.
pub(crate) struct Store {
    connection: Connection,
    reading: Reading,
    // Declared after the connection, which has to close first.
    source: Source,
}

/// One row of `entries` as stored.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Row<'a> {
    pub(crate) seq: i64,
    pub(crate) idem: &'a [u8],
    pub(crate) entry: &'a [u8],
    pub(crate) leaf: &'a [u8],
}

impl<'a> Row<'a> {
    /// Columns that are longer than they may be, cut: what is left is longer
    /// still, and no longer grows with what a hostile file holds.
    pub(crate) fn cut(self) -> Self {
        let cut = |bytes: &'a [u8], most: usize| bytes.get(..most).unwrap_or(bytes);
        Self {
            idem: cut(self.idem, MAX_COLUMN_BYTES),
            entry: cut(self.entry, schemas::MAX_ENTRY_BYTES + MAX_COLUMN_BYTES),
            leaf: cut(self.leaf, MAX_COLUMN_BYTES),
            ..self
        }
    }
}

/// More than a digest or a key has, and than a finding shows of an entry.
const MAX_COLUMN_BYTES: usize = 64;

/// One row of `heads`.
#[derive(Debug, Clone)]
pub(crate) struct HeadRow {
    pub(crate) size: i64,
    pub(crate) note: Vec<u8>,
}

impl Store {
    /// Opens a ledger. `None` when it holds nothing that can be read; the
    /// reason is a finding.
    ///
    /// # Errors
    /// When the file is missing or unreadable, or cannot be copied.
    pub(crate) fn open(path: &Path, access: Access, sink: &mut Sink) -> Result<Option<Self>, AuditError> {
        let header = copy::read_header(path)?;
        if !header.starts_with(SQLITE_MAGIC) {
            let start = &header[..16.min(header.len())];
            let found = if header.is_empty() { "an empty file".to_owned() } else { printable(start) };
            sink.rejected(
                At::place(display(path))
                    .remedy("name the run's ledger, such as run.db, or restore it from a copy"),
                "the file is not a SQLite database",
                "the first 16 bytes \"SQLite format 3\\0\"",
                found,
            );
            return Ok(None);
        }
        copy::warn_of_journal(path, sink);
        let stamp = copy::stamp(path).map_err(|source| AuditError::ledger(path, source))?;
        let uri = immutable_uri(path).filter(|_| access != Access::Copy && stamp.is_without_log());
        let is_whole = uri.is_some() && access == Access::Pages;
        let (opened, source) = match uri {
            Some(uri) => (open_read_only(uri.as_ref()), Source::InPlace(path.to_owned(), stamp)),
            None => {
                let folder = folder::CopyFolder::new()
                    .map_err(|source| AuditError::Temporary { path: tempfile::env::temp_dir(), source })?;
                let copied = copy::snapshot(path, folder.path())?;
                (open_read_only(&copied), Source::Copy { _folder: folder })
            }
        };
        let connection = match opened {
            Ok(connection) => connection,
            Err(error) => {
                unreadable(path, sink, &error);
                return Ok(None);
            }
        };
        let store = Self { connection, reading: Reading::Sqlite, source };
        if let Err(error) = store.configure() {
            unreadable(path, sink, &error);
            return Ok(None);
        }
        match layout::check(&store.connection, path, is_whole, sink) {
            Ok(reading) => Ok(reading.map(|reading| Self { reading, ..store })),
            Err(error) => {
                unreadable(path, sink, &error);
                Ok(None)
            }
        }
    }

    /// Whether what was read is what lies there: a copy always is, a ledger in
    /// place unless a writer has been at work since.
    pub(crate) fn is_unchanged(&self) -> bool {
        match &self.source {
            Source::InPlace(path, before) => copy::stamp(path).is_ok_and(|after| after == *before),
            Source::Copy { .. } => true,
        }
    }

    /// Nothing in a hostile schema may run, and no value may be huge.
    fn configure(&self) -> rusqlite::Result<()> {
        use rusqlite::config::DbConfig;
        use rusqlite::limits::Limit;
        let connection = &self.connection;
        connection.set_db_config(DbConfig::SQLITE_DBCONFIG_DEFENSIVE, true)?;
        connection.set_db_config(DbConfig::SQLITE_DBCONFIG_TRUSTED_SCHEMA, false)?;
        connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_TRIGGER, false)?;
        connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_VIEW, false)?;
        connection.set_limit(Limit::SQLITE_LIMIT_LENGTH, MAX_VALUE_BYTES)?;
        connection.set_limit(Limit::SQLITE_LIMIT_ATTACHED, 0)?;
        connection.execute_batch(&format!(
            "PRAGMA query_only = ON; PRAGMA cell_size_check = ON; PRAGMA mmap_size = 0; PRAGMA temp_store = MEMORY; \
             PRAGMA cache_size = -{MAX_CACHE_KIB};"
        ))
    }

    /// Entries in the file as SQLite counts them; for progress only.
    pub(crate) fn num_rows(&self) -> u64 {
        let count =
            self.connection.query_row("SELECT coalesce(max(seq), -1) + 1 FROM entries", [], |row| row.get(0));
        count.map_or(0, |count: i64| u64::try_from(count).unwrap_or(0))
    }

    /// The bytes of the first row, which should be the frozen contract.
    pub(crate) fn first_entry(&self) -> Option<Vec<u8>> {
        self.connection
            .query_row("SELECT entry FROM entries ORDER BY seq LIMIT 1", [], |row| {
                Ok(bytes(row.get_ref(0)?).to_vec())
            })
            .ok()
    }

    /// Calls `visit` with every row in ascending `seq`.
    pub(crate) fn for_each_row(&self, visit: &mut dyn FnMut(Row<'_>)) -> RowsEnd {
        if let Reading::Pages(pages) = &self.reading {
            return match pages.borrow_mut().for_each_entry(visit) {
                Ok(()) => RowsEnd::Complete,
                Err(pages::Refused) => RowsEnd::Refused,
            };
        }
        match self.each_row(visit) {
            Ok(()) => RowsEnd::Complete,
            Err(error) => RowsEnd::Damaged(error),
        }
    }

    fn each_row(&self, visit: &mut dyn FnMut(Row<'_>)) -> rusqlite::Result<()> {
        let mut statement =
            self.connection.prepare("SELECT seq, idem, entry, leaf FROM entries ORDER BY seq")?;
        let mut rows = statement.query([])?;
        while let Some(row) = rows.next()? {
            let seq = match row.get_ref(0)? {
                ValueRef::Integer(seq) => seq,
                _ => -1,
            };
            visit(Row {
                seq,
                idem: bytes(row.get_ref(1)?),
                entry: bytes(row.get_ref(2)?),
                leaf: bytes(row.get_ref(3)?),
            });
        }
        Ok(())
    }

    /// Every stored head, in ascending size.
    ///
    /// # Errors
    /// When SQLite finds the file damaged.
    pub(crate) fn heads(&self) -> rusqlite::Result<Vec<HeadRow>> {
        let mut statement = self.connection.prepare("SELECT size, note FROM heads ORDER BY size")?;
        let rows = statement
            .query_map([], |row| Ok(HeadRow { size: row.get(0)?, note: bytes(row.get_ref(1)?).to_vec() }))?;
        rows.collect()
    }

    /// Calls `visit` with digest and bytes of every artifact.
    ///
    /// # Errors
    /// When SQLite finds the file damaged.
    pub(crate) fn for_each_artifact(&self, mut visit: impl FnMut(&[u8], &[u8])) -> rusqlite::Result<()> {
        let mut statement = self.connection.prepare("SELECT digest, bytes FROM artifacts ORDER BY digest")?;
        let mut rows = statement.query([])?;
        while let Some(row) = rows.next()? {
            visit(bytes(row.get_ref(0)?), bytes(row.get_ref(1)?));
        }
        Ok(())
    }
}

/// Content of a BLOB or TEXT; nothing of other types, which STRICT tables
/// cannot hold in these columns.
fn bytes(value: ValueRef<'_>) -> &[u8] {
    match value {
        ValueRef::Blob(bytes) | ValueRef::Text(bytes) => bytes,
        _ => &[],
    }
}

fn open_read_only(path: &Path) -> rusqlite::Result<Connection> {
    let flags =
        OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX | OpenFlags::SQLITE_OPEN_URI;
    Connection::open_with_flags(path, flags)
}

/// `file:/path?immutable=1`; `None` for a path that is not UTF-8 or cannot be
/// made absolute.
fn immutable_uri(path: &Path) -> Option<String> {
    let absolute = std::path::absolute(path).ok()?;
    let mut uri = "file:".to_owned();
    for byte in absolute.to_str()?.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'/' | b'.' | b'-' | b'_' | b'~' => {
                uri.push(char::from(byte));
            }
            _ => uri.push_str(&format!("%{byte:02X}")),
        }
    }
    Some(uri + "?immutable=1")
}

/// A damaged file: SQLite itself could not go on.
pub(crate) fn unreadable(path: &Path, sink: &mut Sink, error: &rusqlite::Error) {
    sink.tampered(
        At::place(display(path)),
        "SQLite finds the file damaged",
        "a database that can be read to its end",
        error,
    );
}

/// A path as text.
pub(crate) fn display(path: &Path) -> String {
    path.display().to_string()
}

fn printable(bytes: &[u8]) -> String {
    format!("\"{}\"", bytes.escape_ascii())
}
