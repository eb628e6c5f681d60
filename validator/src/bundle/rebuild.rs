//! A ledger's database from the export in a bundle, and whether the rest of the
//! export is of that ledger.
//!
//! Rows follow from the entries' bytes: place, key and leaf hash. Nothing is
//! judged here that an audit judges, so that an entry which is false in an export
//! is as false in the database; what cannot be a row at all is refused.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use rusqlite::{Connection, OpenFlags, params};
use schemas::MAX_ENTRY_BYTES;
use schemas::digest::{decode_hex, encode_hex};
use serde::Deserialize;

use super::error::{BundleError, Refusal};
use super::{Place, read_document};
use crate::note::Note;
use crate::tree::{Frontier, leaf_hash};

const LAYOUT_1: &str = include_str!("../../../migrations/0001_ledger.sql");

/// Largest artifact: more than a value that an audit reads.
const MAX_ARTIFACT_BYTES: u64 = 256 << 20;

/// Largest file of heads or proofs.
const MAX_HEADS_BYTES: u64 = 256 << 20;

/// The member of an entry that its row repeats.
#[derive(Deserialize)]
struct Keyed {
    idem: String,
}

/// What of `proofs.json` says of which entries it is.
#[derive(Deserialize)]
struct Proven {
    num_entries: u64,
    root: String,
}

/// What of entry 0 holds the contract.
#[derive(Deserialize)]
struct FirstEntry {
    body: FirstBody,
}

#[derive(Deserialize)]
struct FirstBody {
    det: FirstDet,
}

#[derive(Deserialize)]
struct FirstDet {
    contract: String,
}

/// Makes `database` of the export in `export`.
pub(super) fn rebuild(export: &Path, database: &Path, place: &Place<'_>) -> Result<(), BundleError> {
    let failed = |source| BundleError::Database { path: database.to_owned(), source };
    let flags =
        OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(database, flags).map_err(failed)?;
    // Made new and thrown away: a journal would guard nothing.
    connection
        .execute_batch("PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF; PRAGMA temp_store = MEMORY;")
        .and_then(|()| connection.execute_batch(LAYOUT_1))
        .and_then(|()| connection.execute_batch("BEGIN"))
        .map_err(failed)?;
    let first = entries(&connection, export, database, place)?;
    heads(&connection, export, database, place)?;
    artifacts(&connection, export, database, place)?;
    connection.execute_batch("COMMIT").map_err(failed)?;
    drop(connection);
    contract(export, first.as_deref(), place)
}

/// Inserts the entries; returns the first one.
fn entries(
    connection: &Connection,
    export: &Path,
    database: &Path,
    place: &Place<'_>,
) -> Result<Option<Vec<u8>>, BundleError> {
    let path = export.join("entries.jsonl");
    let failed = |source| BundleError::Database { path: database.to_owned(), source };
    let io = |source| BundleError::Io { path: path.clone(), source };
    let mut file = BufReader::new(File::open(&path).map_err(io)?);
    let sql = "INSERT INTO entries (seq, idem, entry, leaf) VALUES (?1, ?2, ?3, ?4)";
    let mut statement = connection.prepare(sql).map_err(failed)?;
    let (mut line, mut frontier, mut first) = (Vec::new(), Frontier::new(), None);
    loop {
        line.clear();
        let limit = MAX_ENTRY_BYTES as u64 + 2;
        if (&mut file).take(limit).read_until(b'\n', &mut line).map_err(io)? == 0 {
            break;
        }
        let index = frontier.size();
        let refuse = |what: String| {
            let what = format!("line {}: {what}", index + 1);
            place.refused("export/entries.jsonl", Refusal::Export(what))
        };
        if line.pop() != Some(b'\n') {
            return Err(refuse("incomplete, or longer than an entry may be".to_owned()));
        }
        let keyed: Keyed = serde_json::from_slice(&line).map_err(|error| refuse(error.to_string()))?;
        let key = decode_hex(&keyed.idem).filter(|key| key.len() == 16);
        let key = key.ok_or_else(|| refuse(format!("{:?} is no idempotency key", keyed.idem)))?;
        let leaf = leaf_hash(&line);
        let seq = i64::try_from(index).map_err(|_| refuse("too many entries".to_owned()))?;
        statement.execute(params![seq, key, line, leaf]).map_err(|error| refuse(error.to_string()))?;
        frontier.append(leaf);
        if index == 0 {
            first = Some(line.clone());
        }
    }
    proofs(export, &frontier, place)?;
    Ok(first)
}

fn proofs(export: &Path, frontier: &Frontier, place: &Place<'_>) -> Result<(), BundleError> {
    let Some(bytes) = read_document(&export.join("proofs.json"), MAX_HEADS_BYTES)? else { return Ok(()) };
    let name = "export/proofs.json";
    let proven: Proven = serde_json::from_slice(&bytes)
        .map_err(|error| place.refused(name, Refusal::Export(error.to_string())))?;
    let root = encode_hex(&frontier.root());
    if (proven.num_entries, &proven.root) == (frontier.size(), &root) {
        return Ok(());
    }
    let what = format!(
        "the proofs are of {} entries with root {}, the entries are {} with root {root}",
        proven.num_entries,
        proven.root,
        frontier.size()
    );
    Err(place.refused(name, Refusal::SecondSubject(what)))
}

fn heads(
    connection: &Connection,
    export: &Path,
    database: &Path,
    place: &Place<'_>,
) -> Result<(), BundleError> {
    let failed = |source| BundleError::Database { path: database.to_owned(), source };
    let bytes = read_document(&export.join("heads.txt"), MAX_HEADS_BYTES)?.unwrap_or_default();
    let mut statement =
        connection.prepare("INSERT INTO heads (size, note) VALUES (?1, ?2)").map_err(failed)?;
    let mut rest = bytes.as_slice();
    while !rest.is_empty() {
        let at = bytes.len() - rest.len();
        let refuse =
            |what: String| place.refused("export/heads.txt", Refusal::Export(format!("byte {at}: {what}")));
        let (note, behind) = Note::parse_prefix(rest).map_err(|error| refuse(error.to_string()))?;
        let text = rest.get(..rest.len() - behind.len()).unwrap_or_default();
        let text = std::str::from_utf8(text).map_err(|error| refuse(error.to_string()))?;
        let size = i64::try_from(note.size).map_err(|_| refuse("too large a size".to_owned()))?;
        statement.execute(params![size, text]).map_err(|error| refuse(error.to_string()))?;
        rest =
            behind.strip_prefix(b"\n").ok_or_else(|| refuse("no empty line behind the note".to_owned()))?;
    }
    Ok(())
}

fn artifacts(
    connection: &Connection,
    export: &Path,
    database: &Path,
    place: &Place<'_>,
) -> Result<(), BundleError> {
    let failed = |source| BundleError::Database { path: database.to_owned(), source };
    let folder = export.join("artifacts");
    if !folder.exists() {
        return Ok(());
    }
    let io = |source| BundleError::Io { path: folder.clone(), source };
    let mut paths: Vec<PathBuf> = Vec::new();
    for item in fs::read_dir(&folder).map_err(io)? {
        paths.push(item.map_err(io)?.path());
    }
    paths.sort();
    let mut statement =
        connection.prepare("INSERT INTO artifacts (digest, bytes) VALUES (?1, ?2)").map_err(failed)?;
    for path in paths {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let member = format!("export/artifacts/{name}");
        let digest = decode_hex(name).unwrap_or_default();
        let bytes = read_document(&path, MAX_ARTIFACT_BYTES)?.ok_or_else(|| {
            place.refused(&member, Refusal::Export("an artifact is larger than is read".to_owned()))
        })?;
        statement
            .execute(params![digest, bytes])
            .map_err(|error| place.refused(&member, Refusal::Export(error.to_string())))?;
    }
    Ok(())
}

/// `contract.json` is what entry 0 holds, and not another contract.
fn contract(export: &Path, first: Option<&[u8]>, place: &Place<'_>) -> Result<(), BundleError> {
    let Some(bytes) = read_document(&export.join("contract.json"), MAX_HEADS_BYTES)? else { return Ok(()) };
    let held = first.and_then(|first| serde_json::from_slice::<FirstEntry>(first).ok());
    if held.is_some_and(|held| held.body.det.contract.as_bytes() == bytes) {
        return Ok(());
    }
    let what = "it is not the contract that entry 0 holds".to_owned();
    Err(place.refused("export/contract.json", Refusal::SecondSubject(what)))
}
