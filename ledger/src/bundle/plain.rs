//! Whether an export gives a ledger again as it is.
//!
//! An export holds the entries' bytes, the heads and the artifacts, and from
//! these the same three tables follow. What else a database can hold (another
//! schema, a leaf hash or key that its entry does not have, a row in a place
//! that is not its own, damaged pages) would be lost, and with it what an audit
//! finds. Such a ledger travels as its database.

use rusqlite::Connection;
use schemas::digest::decode_hex;
use schemas::{SQLITE_APPLICATION_ID, SQLITE_LAYOUT_VERSION};
use serde::Deserialize;

use super::is_of_the_machine;
use crate::head_file::split_notes;
use crate::lock::with_suffix;
use crate::note;
use crate::reader::{ReadError, Reader};
use crate::store::MIGRATION;
use crate::tree::leaf_hash;

/// Largest artifact that comes back; the validator reads no larger value.
const MAX_ARTIFACT_BYTES: usize = 256 << 20;

/// The one member of an entry that a row repeats.
#[derive(Deserialize)]
struct Keyed {
    idem: String,
}

/// Whether everything in a ledger follows from its export. What cannot be read of
/// it does not; that there is no room or memory to read it is an error.
pub(super) fn is_plain(reader: &Reader) -> Result<bool, ReadError> {
    let path = reader.path();
    // An audit says that it does not read one.
    if with_suffix(path, "-journal").exists() {
        return Ok(false);
    }
    let database = |source| ReadError::Database { path: path.to_owned(), source };
    Ok(settled(has_layout(reader.connection()).map_err(database))?
        && settled(has_plain_rows(reader.connection()).map_err(database))?
        && settled(has_plain_heads(reader))?
        && settled(has_plain_artifacts(reader))?)
}

fn settled(checked: Result<bool, ReadError>) -> Result<bool, ReadError> {
    match checked {
        Err(error) if !is_of_the_machine(&error) => Ok(false),
        checked => checked,
    }
}

fn has_layout(connection: &Connection) -> rusqlite::Result<bool> {
    let pragma = |name: &str| connection.query_row(name, [], |row| row.get::<_, i64>(0));
    let is_marked = pragma("PRAGMA application_id")? == i64::from(SQLITE_APPLICATION_ID)
        && pragma("PRAGMA user_version")? == i64::from(SQLITE_LAYOUT_VERSION)
        && pragma("PRAGMA auto_vacuum")? == 0;
    let reference = Connection::open_in_memory()?;
    reference.execute_batch(MIGRATION)?;
    let check: String = connection.query_row("PRAGMA integrity_check(1)", [], |row| row.get(0))?;
    let encoding: String = connection.query_row("PRAGMA encoding", [], |row| row.get(0))?;
    Ok(is_marked && check == "ok" && encoding == "UTF-8" && objects(connection)? == objects(&reference)?)
}

/// Type, name, table and text of every object.
type Object = (String, String, String, Option<String>);

fn objects(connection: &Connection) -> rusqlite::Result<Vec<Object>> {
    let query = "SELECT type, name, tbl_name, sql FROM sqlite_schema ORDER BY type, name, sql";
    let mut statement = connection.prepare(query)?;
    let rows = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?)))?;
    rows.collect()
}

fn has_plain_rows(connection: &Connection) -> rusqlite::Result<bool> {
    let mut statement = connection.prepare("SELECT seq, idem, entry, leaf FROM entries ORDER BY seq")?;
    let mut rows = statement.query([])?;
    let mut next: i64 = 0;
    while let Some(row) = rows.next()? {
        let (seq, idem): (i64, Vec<u8>) = (row.get(0)?, row.get(1)?);
        let (entry, leaf): (Vec<u8>, Vec<u8>) = (row.get(2)?, row.get(3)?);
        let key = serde_json::from_slice::<Keyed>(&entry).ok().and_then(|keyed| decode_hex(&keyed.idem));
        if seq != next
            || key.as_ref() != Some(&idem)
            || leaf != leaf_hash(&entry)
            || entry.contains(&b'\n')
            || entry.len() > schemas::MAX_ENTRY_BYTES
        {
            return Ok(false);
        }
        next += 1;
    }
    Ok(true)
}

fn has_plain_heads(reader: &Reader) -> Result<bool, ReadError> {
    let heads = reader.heads()?;
    let joined: String = heads.iter().map(|head| format!("{}\n", head.note)).collect();
    let notes = split_notes(&joined);
    let num_entries = reader.num_entries();
    let has_size = heads.iter().all(|head| {
        head.size <= num_entries && note::parse(&head.note).is_ok_and(|note| note.head.size == head.size)
    });
    Ok(has_size && notes.iter().eq(heads.iter().map(|head| &head.note)))
}

fn has_plain_artifacts(reader: &Reader) -> Result<bool, ReadError> {
    for digest in reader.artifacts()? {
        // Other bytes than the digest says are an error.
        if reader.artifact(&digest)?.len() > MAX_ARTIFACT_BYTES {
            return Ok(false);
        }
    }
    Ok(true)
}
