//! What a run's files say, read without any code of the project.
//!
//! SQLite content comes row by row through rusqlite from a private copy of
//! database and WAL; other files count by their bytes. Two equal dumps hold
//! the same content, whatever bytes of unused page space differ.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use rusqlite::types::ValueRef;
use rusqlite::{Connection, OpenFlags};

/// Every row of every table, the schema, and the two numbers in the header
/// that name the format, as text.
///
/// # Errors
/// When the file cannot be copied, or SQLite cannot read it as a database.
pub fn database(path: &Path) -> Result<String> {
    let (connection, _folder) = private_copy(path)?;
    let mut text = String::new();
    for pragma in ["application_id", "user_version"] {
        let number: i64 = connection.query_row(&format!("PRAGMA {pragma}"), [], |row| row.get(0))?;
        writeln!(text, "{pragma} {number}")?;
    }
    rows(&connection, "SELECT type, name, tbl_name, sql FROM sqlite_schema ORDER BY name", &mut text)?;
    for table in tables(&connection)? {
        writeln!(text, "table {table}")?;
        rows(&connection, &format!("SELECT * FROM \"{table}\" ORDER BY 1"), &mut text)?;
    }
    Ok(text)
}

/// Every entry of a ledger in order, parsed.
///
/// # Errors
/// As [`database`]; and when an entry is not JSON.
pub fn entries(path: &Path) -> Result<Vec<serde_json::Value>> {
    let (connection, _folder) = private_copy(path)?;
    let mut statement = connection.prepare("SELECT entry FROM entries ORDER BY seq")?;
    let rows = statement.query_map([], |row| row.get::<_, Vec<u8>>(0))?;
    rows.map(|bytes| Ok(serde_json::from_slice(&bytes?)?)).collect()
}

/// Every entry of a ledger in order, as its bytes.
///
/// # Errors
/// As [`database`].
pub fn raw_entries(path: &Path) -> Result<Vec<Vec<u8>>> {
    let (connection, _folder) = private_copy(path)?;
    let mut statement = connection.prepare("SELECT entry FROM entries ORDER BY seq")?;
    let rows = statement.query_map([], |row| row.get::<_, Vec<u8>>(0))?;
    Ok(rows.collect::<rusqlite::Result<_>>()?)
}

/// BLAKE3 of every file below `folder`, by relative path.
///
/// # Errors
/// When a folder or file cannot be read.
pub fn files(folder: &Path) -> Result<BTreeMap<PathBuf, blake3::Hash>> {
    let hash = |name: PathBuf| {
        let path = folder.join(&name);
        let bytes = std::fs::read(&path).with_context(|| path.display().to_string())?;
        Ok((name, blake3::hash(&bytes)))
    };
    names(folder)?.into_iter().map(hash).collect()
}

/// Path of every file below `folder`, relative to it.
///
/// # Errors
/// When a folder cannot be read.
pub fn names(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut stack = vec![folder.to_owned()];
    while let Some(current) = stack.pop() {
        for item in std::fs::read_dir(&current).with_context(|| current.display().to_string())? {
            let path = item?.path();
            if path.is_dir() {
                stack.push(path);
            } else {
                found.push(path.strip_prefix(folder)?.to_owned());
            }
        }
    }
    Ok(found)
}

/// `path` with `suffix` appended to its name, as SQLite names a WAL.
#[must_use]
pub fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}

/// A connection to a copy of database and WAL, and the folder that holds it.
fn private_copy(path: &Path) -> Result<(Connection, tempfile::TempDir)> {
    let folder = tempfile::tempdir()?;
    let copy = folder.path().join("copy.db");
    std::fs::copy(path, &copy).with_context(|| path.display().to_string())?;
    let wal = with_suffix(path, "-wal");
    if wal.exists() {
        std::fs::copy(&wal, folder.path().join("copy.db-wal"))?;
    }
    // Read-write, because a WAL is only read by a connection that may make
    // its index; the copy is nobody else's.
    let connection = Connection::open_with_flags(&copy, OpenFlags::SQLITE_OPEN_READ_WRITE)?;
    Ok((connection, folder))
}

fn tables(connection: &Connection) -> Result<Vec<String>> {
    let query = "SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY name";
    let mut statement = connection.prepare(query)?;
    let names = statement.query_map([], |row| row.get(0))?;
    Ok(names.collect::<rusqlite::Result<_>>()?)
}

fn rows(connection: &Connection, query: &str, text: &mut String) -> Result<()> {
    let mut statement = connection.prepare(query)?;
    let num_columns = statement.column_count();
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        for column in 0..num_columns {
            match row.get_ref(column)? {
                ValueRef::Null => text.push_str("null"),
                ValueRef::Integer(number) => write!(text, "i{number}")?,
                ValueRef::Real(number) => write!(text, "r{:016x}", number.to_bits())?,
                ValueRef::Text(bytes) => write!(text, "t{}", schemas::digest::encode_hex(bytes))?,
                ValueRef::Blob(bytes) => write!(text, "b{}", schemas::digest::encode_hex(bytes))?,
            }
            text.push(if column + 1 == num_columns { '\n' } else { '\t' });
        }
    }
    Ok(())
}
