//! Appending entries: rows go into the database and are compared with what it
//! then holds, on the thread of the caller.
//!
//! A call of sqlx costs two changes of threads and copies of every bound value on
//! both sides, and gives no row without copying it, which was a sixth of what an
//! append cost. So a ledger that is recorded appends through the handle of sqlx's
//! connection itself, which stays its owner and is locked meanwhile. Nothing here
//! says what is hashed or signed.

use std::path::Path;

use rusqlite::types::ValueRef;
use rusqlite::{Connection, Row, Statement};
use sqlx::sqlite::LockedSqliteHandle;

use super::{HeadRow, StoreError};
use crate::failpoint;
use crate::tree::Hash;

/// Rows of one statement; more gain nothing measurable.
const MAX_ROWS: usize = 128;

const IDEM_BYTES: usize = 16;

/// A row to be inserted.
#[derive(Debug)]
pub(crate) struct NewRow {
    pub(crate) index: u64,
    pub(crate) idem: [u8; IDEM_BYTES],
    pub(crate) entry: Vec<u8>,
    pub(crate) leaf: Hash,
}

impl NewRow {
    /// As a key. One that is too large is refused by the table's trigger.
    fn seq(&self) -> i64 {
        i64::try_from(self.index).unwrap_or(i64::MAX)
    }

    /// Whether every column of what is stored is what was given.
    fn is_stored_in(&self, stored: &Row<'_>) -> rusqlite::Result<bool> {
        Ok(stored.get_ref(0)? == ValueRef::Integer(self.seq())
            && stored.get_ref(1)? == ValueRef::Blob(&self.idem)
            && stored.get_ref(2)? == ValueRef::Blob(&self.entry)
            && stored.get_ref(3)? == ValueRef::Blob(&self.leaf))
    }
}

/// The handle of a connection of sqlx, as rusqlite knows it.
pub(super) struct Lent<'h> {
    // Declared first, so that nothing uses the handle when it is given back.
    connection: Connection,
    _handle: LockedSqliteHandle<'h>,
}

impl<'h> Lent<'h> {
    pub(super) fn new(mut handle: LockedSqliteHandle<'h>) -> rusqlite::Result<Self> {
        let raw = handle.as_raw_handle().as_ptr();
        // SAFETY: the handle is open and stays so while the lock on it is held, which
        // this value does for longer than the connection made here. Nobody else uses
        // it meanwhile, and rusqlite does not close a handle that it does not own.
        // Both drivers link one SQLite, or they would not link.
        #[allow(unsafe_code, reason = "sqlx lends its handle in no other way")]
        let connection = unsafe { Connection::from_handle(raw)? };
        Ok(Self { connection, _handle: handle })
    }

    pub(super) const fn connection(&self) -> &Connection {
        &self.connection
    }
}

/// Why rows were not appended.
enum AppendError {
    /// SQLite refused.
    Database(rusqlite::Error),
    /// What is stored at this index is not what was given.
    Differs(u64),
}

impl From<rusqlite::Error> for AppendError {
    fn from(error: rusqlite::Error) -> Self {
        Self::Database(error)
    }
}

/// Appends to a ledger, one transaction after the other.
pub(crate) struct Appending<'c> {
    connection: &'c Connection,
    path: &'c Path,
    /// By number of rows less one, prepared at the first need.
    inserts: Vec<Option<Statement<'c>>>,
    stored: Option<Statement<'c>>,
    heads: Option<Statement<'c>>,
}

impl<'c> Appending<'c> {
    pub(super) fn new(connection: &'c Connection, path: &'c Path) -> Self {
        let inserts = std::iter::repeat_with(|| None).take(MAX_ROWS).collect();
        Self { connection, path, inserts, stored: None, heads: None }
    }

    /// Inserts rows and, where `sign` gives one, a head, in one transaction.
    /// `sign` is called after the rows were read back and compared.
    pub(crate) fn commit(
        &mut self,
        rows: &[NewRow],
        sign: impl FnOnce() -> Option<HeadRow>,
    ) -> Result<Option<HeadRow>, StoreError> {
        self.execute("BEGIN IMMEDIATE", "beginning a transaction")?;
        failpoint::pass("entry.insert");
        let committed = self.fill(rows, sign).and_then(|head| {
            failpoint::pass("entry.commit");
            self.execute("COMMIT", "committing")?;
            failpoint::pass("entry.committed");
            Ok(head)
        });
        // SQLite ends some transactions itself when they fail.
        if committed.is_err() && !self.connection.is_autocommit() {
            // What failed first is what is told.
            let _ = self.connection.execute_batch("ROLLBACK");
        }
        committed
    }

    fn execute(&self, sql: &str, action: &'static str) -> Result<(), StoreError> {
        self.connection.execute_batch(sql).map_err(|source| self.failed(action, source))
    }

    fn failed(&self, action: &'static str, source: rusqlite::Error) -> StoreError {
        StoreError::Append { path: self.path.to_owned(), action, source: Box::new(source) }
    }

    fn fill(
        &mut self,
        rows: &[NewRow],
        sign: impl FnOnce() -> Option<HeadRow>,
    ) -> Result<Option<HeadRow>, StoreError> {
        self.append_rows(rows)?;
        failpoint::pass("entry.inserted");
        let head = sign();
        if let Some(head) = &head {
            self.insert_head(head).map_err(|source| self.failed("storing a head", source))?;
            failpoint::pass("head.signed");
        }
        Ok(head)
    }

    /// Inserts rows of another copy of the ledger and the heads over them, in one
    /// transaction. Nothing is signed here.
    pub(crate) fn commit_copied(&mut self, rows: &[NewRow], heads: &[HeadRow]) -> Result<(), StoreError> {
        self.execute("BEGIN IMMEDIATE", "beginning a transaction")?;
        let committed = self.append_rows(rows).and_then(|()| {
            for head in heads {
                self.insert_head(head).map_err(|source| self.failed("storing a head", source))?;
            }
            self.execute("COMMIT", "committing")
        });
        if committed.is_err() && !self.connection.is_autocommit() {
            // What failed first is what is told.
            let _ = self.connection.execute_batch("ROLLBACK");
        }
        committed
    }

    fn append_rows(&mut self, rows: &[NewRow]) -> Result<(), StoreError> {
        self.append(rows).map_err(|error| match error {
            AppendError::Database(source) => self.failed("appending entries", source),
            AppendError::Differs(index) => {
                let what = "the row that was stored is not the one that was hashed".to_owned();
                StoreError::Row { path: self.path.to_owned(), index, what }
            }
        })
    }

    fn insert_head(&mut self, head: &HeadRow) -> rusqlite::Result<()> {
        let statement = match &mut self.heads {
            Some(statement) => statement,
            none => none.insert(self.connection.prepare("INSERT INTO heads (size, note) VALUES (?, ?)")?),
        };
        let size = i64::try_from(head.size).unwrap_or(i64::MAX);
        statement.execute((size, &head.note)).map(|_| ())
    }

    /// Inserts rows, whose indices ascend by one, and compares every column of
    /// every one of them with what the table then holds.
    fn append(&mut self, rows: &[NewRow]) -> Result<(), AppendError> {
        for chunk in rows.chunks(MAX_ROWS) {
            self.insert(chunk)?;
            self.compare(chunk)?;
        }
        Ok(())
    }

    fn insert(&mut self, rows: &[NewRow]) -> rusqlite::Result<()> {
        let Some(slot) = rows.len().checked_sub(1).and_then(|slot| self.inserts.get_mut(slot)) else {
            return Ok(());
        };
        let statement = match slot {
            Some(statement) => statement,
            None => slot.insert(self.connection.prepare(&insertion(rows.len()))?),
        };
        let mut position = 0;
        let mut next = || {
            // SQLite counts from 1.
            position += 1;
            position
        };
        for row in rows {
            statement.raw_bind_parameter(next(), row.seq())?;
            statement.raw_bind_parameter(next(), &row.idem[..])?;
            statement.raw_bind_parameter(next(), &row.entry[..])?;
            statement.raw_bind_parameter(next(), &row.leaf[..])?;
        }
        let inserted = statement.raw_execute();
        // The values are not kept until the next rows come.
        statement.clear_bindings();
        inserted.map(|_| ())
    }

    fn compare(&mut self, rows: &[NewRow]) -> Result<(), AppendError> {
        let Some(first) = rows.first() else { return Ok(()) };
        let statement = match &mut self.stored {
            Some(statement) => statement,
            none => none.insert(self.connection.prepare(STORED)?),
        };
        let mut stored = statement.query([first.seq()])?;
        for row in rows {
            let is_same = stored.next()?.map_or(Ok(false), |stored| row.is_stored_in(stored))?;
            if !is_same {
                return Err(AppendError::Differs(row.index));
            }
        }
        match stored.next()? {
            None => Ok(()),
            Some(_) => Err(AppendError::Differs(first.index + rows.len() as u64)),
        }
    }
}

/// The rows of a call are the last ones.
const STORED: &str = "SELECT seq, idem, entry, leaf FROM entries WHERE seq >= ? ORDER BY seq";

fn insertion(num_rows: usize) -> String {
    format!("INSERT INTO entries (seq, idem, entry, leaf) VALUES {}", vec!["(?,?,?,?)"; num_rows].join(","))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::leaf_hash;

    const TABLE: &str = "CREATE TABLE entries (seq INTEGER PRIMARY KEY, idem BLOB NOT NULL UNIQUE, \
                         entry BLOB NOT NULL, leaf BLOB NOT NULL) STRICT";

    fn new_row(index: u64, num_bytes: usize) -> NewRow {
        let mut idem = [0; IDEM_BYTES];
        idem[..8].copy_from_slice(&index.to_be_bytes());
        let entry: Vec<u8> =
            (0..num_bytes).map(|at| u8::try_from((at + num_bytes) % 256).unwrap_or(0)).collect();
        NewRow { index, idem, leaf: leaf_hash(&entry), entry }
    }

    /// Appends to a table with this trigger, and gives what the table then holds.
    fn append_to(trigger: &str, rows: &[NewRow]) -> (Result<(), AppendError>, Vec<NewRow>) {
        let connection = Connection::open_in_memory().expect("in memory");
        connection.execute_batch(TABLE).expect("a table");
        connection.execute_batch(trigger).expect("a trigger");
        let result = Appending::new(&connection, Path::new("in memory")).append(rows);
        let sql = "SELECT seq, idem, entry, leaf FROM entries ORDER BY seq";
        let mut statement = connection.prepare(sql).expect("a query");
        let stored = statement.query_map([], |row| {
            Ok(NewRow {
                index: row.get::<_, i64>(0)?.unsigned_abs(),
                idem: row.get(1)?,
                entry: row.get(2)?,
                leaf: row.get(3)?,
            })
        });
        let stored = stored.expect("rows").collect::<Result<_, _>>().expect("rows");
        (result, stored)
    }

    #[test]
    fn rows_of_every_number_and_size_are_stored_as_they_were_given() {
        let sizes = [2, 3, 64, 1200, 65_535, 9, 65_535, 30_000, 30_000, 30_000, 200];
        for num_rows in [0, 1, 2, 11, 127, 128, 129, 300] {
            let mut rows: Vec<NewRow> = Vec::new();
            for (index, size) in (0..num_rows).zip(sizes.iter().cycle()) {
                rows.push(new_row(index, *size));
            }
            let (result, stored) = append_to("SELECT 1", &rows);
            assert!(result.is_ok());
            let same = |left: &NewRow, right: &NewRow| {
                (left.index, left.idem, &left.entry, left.leaf)
                    == (right.index, right.idem, &right.entry, right.leaf)
            };
            assert_eq!(stored.len(), rows.len());
            assert!(stored.iter().zip(&rows).all(|(left, right)| same(left, right)), "{num_rows} rows");
        }
    }

    /// A table that stores something else stands for a store that does.
    #[test]
    fn a_row_that_is_stored_with_other_bytes_is_seen() {
        let rows: Vec<NewRow> = (0..300).map(|index| new_row(index, 400)).collect();
        let triggers = [
            "UPDATE entries SET entry = zeroblob(400) WHERE seq = 200",
            "UPDATE entries SET entry = substr(entry, 1, 399) WHERE seq = 200",
            "UPDATE entries SET entry = CAST(entry || x'00' AS BLOB) WHERE seq = 200",
            "UPDATE entries SET idem = randomblob(16) WHERE seq = 200",
            "UPDATE entries SET leaf = zeroblob(32) WHERE seq = 200",
            "DELETE FROM entries WHERE seq = 200",
            "UPDATE entries SET seq = 1000 WHERE seq = 200",
        ];
        for change in triggers {
            let trigger = format!(
                "CREATE TRIGGER change AFTER INSERT ON entries WHEN NEW.seq = 200 BEGIN {change}; END"
            );
            let (result, stored) = append_to(&trigger, &rows);
            assert!(stored.len() >= 200, "{change}: {} rows", stored.len());
            assert!(matches!(result, Err(AppendError::Differs(200))), "{change}");
        }
    }

    #[test]
    fn what_sqlite_refuses_is_its_error() {
        let rows = [new_row(0, 10), new_row(1, 10), new_row(1, 11)];
        let (result, stored) = append_to("SELECT 1", &rows);
        assert!(matches!(result, Err(AppendError::Database(_))));
        assert_eq!(stored.len(), 0);
    }
}
