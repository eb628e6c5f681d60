//! Whether the file has layout 1 and nothing else.
//!
//! `migrations/0001_ledger.sql` is the layout's definition. It is run in an
//! empty database in memory, and every object of the ledger must have the same
//! text: a table with a generated column, a view in a table's place or a
//! dropped trigger would make the same query mean something else.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::Path;

use rusqlite::Connection;
use schemas::{SQLITE_APPLICATION_ID, SQLITE_LAYOUT_VERSION};

use super::pages::{QuickPages, Roots};
use super::{Reading, display, unreadable};
use crate::rule::{At, Sink};

const LAYOUT_1: &str = include_str!("../../../migrations/0001_ledger.sql");

/// A row of `sqlite_schema`.
#[derive(PartialEq, Eq)]
struct Object {
    table: String,
    /// None for the index that SQLite makes for a UNIQUE column.
    sql: Option<String>,
}

/// Objects by (type, name). A name that is there twice has two objects.
type Objects = BTreeMap<(String, String), Vec<Object>>;

/// Checks identification, schema and page structure. `None` when the rows
/// must not be read because they could not mean what layout 1 says; else how
/// they are to be read. `pages`: whether the file holds all of them.
pub(super) fn check(
    connection: &Connection,
    path: &Path,
    pages: bool,
    sink: &mut Sink,
) -> rusqlite::Result<Option<Reading>> {
    if !check_identification(connection, path, sink)? {
        return Ok(None);
    }
    let expected = expected_objects()?;
    let quick = if pages { quick_pages(connection, path, &expected) } else { None };
    if quick.is_none() {
        check_pages(connection, path, sink);
    }
    let actual = objects(connection)?;
    let reading = quick.map_or(Reading::Sqlite, |pages| Reading::Pages(Box::new(RefCell::new(pages))));
    Ok(compare(&expected, &actual, path, sink).then_some(reading))
}

/// The file's pages, where its schema is that of layout 1 and they are in order.
fn quick_pages(connection: &Connection, path: &Path, expected: &Objects) -> Option<QuickPages> {
    if objects(connection).ok()? != *expected {
        return None;
    }
    let root = |name: &str| {
        let query = "SELECT rootpage FROM sqlite_schema WHERE name = ?1";
        connection.query_row(query, [name], |row| row.get::<_, u32>(0)).ok()
    };
    let roots = Roots {
        artifacts: root("artifacts")?,
        artifacts_index: root("sqlite_autoindex_artifacts_1")?,
        entries: root("entries")?,
        entries_index: root("sqlite_autoindex_entries_1")?,
        heads: root("heads")?,
    };
    QuickPages::open(path, roots).ok()
}

fn check_identification(connection: &Connection, path: &Path, sink: &mut Sink) -> rusqlite::Result<bool> {
    let application: i64 = connection.query_row("PRAGMA application_id", [], |row| row.get(0))?;
    let version: i64 = connection.query_row("PRAGMA user_version", [], |row| row.get(0))?;
    let mut is_known = true;
    if application != i64::from(SQLITE_APPLICATION_ID) {
        sink.rejected(
            At::place(display(path))
                .remedy("name the run's ledger, such as run.db, or restore it from a copy"),
            "the database is not marked as a ledger",
            format!("application_id {SQLITE_APPLICATION_ID:#010x}"),
            format!("{application:#010x}"),
        );
    }
    if version > i64::from(SQLITE_LAYOUT_VERSION) {
        sink.not_evaluated(
            At::place(display(path)).remedy("audit it with a validator that knows this layout"),
            "the ledger has a newer layout than this validator reads",
            format!("user_version {SQLITE_LAYOUT_VERSION}"),
            version,
        );
        is_known = false;
    } else if version != i64::from(SQLITE_LAYOUT_VERSION) {
        sink.rejected(
            At::place(display(path))
                .remedy("name the run's ledger, such as run.db, or restore it from a copy"),
            "the database does not have a ledger's layout version",
            format!("user_version {SQLITE_LAYOUT_VERSION}"),
            version,
        );
    }
    Ok(is_known)
}

/// SQLite's own check of page structure. Contents are checked row by row.
fn check_pages(connection: &Connection, path: &Path, sink: &mut Sink) {
    let result = (|| {
        let mut statement = connection.prepare("PRAGMA integrity_check(10)")?;
        let rows = statement.query_map([], |row| row.get::<_, String>(0))?;
        rows.collect::<rusqlite::Result<Vec<_>>>()
    })();
    match result {
        Ok(lines) if lines == ["ok"] => {}
        Ok(lines) => {
            for line in lines {
                sink.tampered(At::place(display(path)), "SQLite's integrity check fails", "ok", line);
            }
        }
        Err(error) => unreadable(path, sink, &error),
    }
}

fn expected_objects() -> rusqlite::Result<Objects> {
    let connection = Connection::open_in_memory()?;
    connection.execute_batch(LAYOUT_1)?;
    objects(&connection)
}

fn objects(connection: &Connection) -> rusqlite::Result<Objects> {
    let mut statement = connection.prepare("SELECT type, name, tbl_name, sql FROM sqlite_schema")?;
    let rows = statement.query_map([], |row| {
        Ok(((row.get(0)?, row.get(1)?), Object { table: row.get(2)?, sql: row.get(3)? }))
    })?;
    let mut found = Objects::new();
    for row in rows {
        let (key, object) = row?;
        found.entry(key).or_default().push(object);
    }
    Ok(found)
}

fn compare(expected: &Objects, actual: &Objects, path: &Path, sink: &mut Sink) -> bool {
    let mut is_readable = true;
    let remedy = "restore the ledger from a copy; its schema is never changed after the freeze";
    let text = |objects: &Vec<Object>| {
        let each = objects.iter().map(|object| {
            let sql = object.sql.as_deref().unwrap_or("an automatic index");
            format!("on table {}: {sql}", object.table)
        });
        each.collect::<Vec<_>>().join("; and again ")
    };
    for ((kind, name), object) in expected {
        let found = actual.get(&(kind.clone(), name.clone()));
        if found == Some(object) {
            continue;
        }
        sink.tampered(
            At::place(format!("{}, {kind} {name}", display(path))).remedy(remedy),
            format!("the {kind} {name} of layout 1 is missing or changed"),
            text(object),
            found.map_or_else(|| "missing".to_owned(), text),
        );
        is_readable &= kind != "table";
    }
    for (kind, name) in actual.keys().filter(|key| !expected.contains_key(key)) {
        sink.tampered(
            At::place(format!("{}, {kind} {name}", display(path))).remedy(remedy),
            format!("the {kind} {name} does not belong to layout 1"),
            "no such object",
            format!("{kind} {name}"),
        );
    }
    is_readable
}
