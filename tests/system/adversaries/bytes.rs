//! Files and rows that are changed by somebody who holds no key.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use ledger::head_file;
use ledger::tree::leaf_hash;
use rusqlite::{Connection, params};
use serde_json::Value;
use system_tests::dump;
use system_tests::forgery::past_triggers;
use system_tests::run_folder::{RunFolder, flip_byte};

use super::{Attacked, Kept};

fn before() -> Result<(RunFolder, Kept)> {
    let run = RunFolder::trained();
    Connection::open(run.ledger())?.execute_batch("PRAGMA wal_checkpoint(TRUNCATE)")?;
    let kept = Kept::of(&run)?;
    Ok((run, kept))
}

/// Changes the byte at `offset` of every occurrence of `wanted` in a file.
fn change_bytes(path: &Path, wanted: &[u8], offset: usize) -> Result<()> {
    let mut bytes = std::fs::read(path)?;
    let places: Vec<usize> = bytes
        .windows(wanted.len())
        .enumerate()
        .filter(|(_, window)| *window == wanted)
        .map(|(place, _)| place)
        .collect();
    ensure!(!places.is_empty(), "{} does not hold what is to be changed", path.display());
    for place in places {
        bytes[place + offset] ^= 1;
    }
    std::fs::write(path, bytes)?;
    Ok(())
}

/// Place of the last digit of an entry's time, which stays a digit when its
/// lowest bit flips.
fn digit_of(entry: &[u8]) -> Result<usize> {
    const KEY: &[u8] = b"\"time_us\":";
    let key = entry.windows(KEY.len()).position(|window| window == KEY).context("an entry's time")?;
    let digits = entry[key + KEY.len()..].iter().take_while(|byte| byte.is_ascii_digit()).count();
    Ok(key + KEY.len() + digits - 1)
}

pub(super) fn entry() -> Result<Attacked> {
    let (run, kept) = before()?;
    let entries = dump::raw_entries(&run.ledger())?;
    // Small enough to lie in one page, and in the middle of the run.
    let heartbeat = entries.iter().skip(2).min_by_key(|entry| entry.len()).context("an entry")?;
    change_bytes(&run.ledger(), heartbeat, digit_of(heartbeat)?)?;
    Ok(Attacked::new(run, kept))
}

pub(super) fn head() -> Result<Attacked> {
    let (run, kept) = before()?;
    let notes = head_file::read_all(&head_file::path_for(&run.ledger()), 1 << 20)?;
    let note = notes.get(notes.len() / 2).context("a head")?;
    // Base64 of the signature, not its end, where bits may mean nothing.
    change_bytes(&run.ledger(), note.as_bytes(), note.len() - 40)?;
    Ok(Attacked::new(run, kept))
}

pub(super) fn frozen_file() -> Result<Attacked> {
    let (run, kept) = before()?;
    let contract: Value = serde_json::from_slice(&std::fs::read(run.contract())?)?;
    let manifest = run.path().join(contract["data"]["manifest"]["path"].as_str().context("a manifest")?);
    let listed: Value = serde_json::from_slice(&std::fs::read(&manifest)?)?;
    let shards = listed["shards"].as_array().context("shards")?;
    let shard = shards.iter().find(|shard| shard["split"] == "train").context("a train shard")?;
    flip_byte(&manifest.with_file_name(shard["path"].as_str().context("a path")?), 1000);
    Ok(Attacked::new(run, kept))
}

/// A row in the middle.
fn middle(run: &RunFolder) -> Result<i64> {
    Ok(i64::try_from(run.entries().len() / 2)?)
}

pub(super) fn row_updated() -> Result<Attacked> {
    let (run, kept) = before()?;
    let row = middle(&run)?;
    let mut entry = dump::raw_entries(&run.ledger())?[usize::try_from(row)?].clone();
    let digit = digit_of(&entry)?;
    entry[digit] ^= 1;
    past_triggers(&run.ledger(), |connection| {
        let leaf = leaf_hash(&entry);
        let sql = "UPDATE entries SET entry = ?1, leaf = ?2 WHERE seq = ?3";
        ensure!(connection.execute(sql, params![entry, leaf.as_slice(), row])? == 1, "no row {row}");
        Ok(())
    })?;
    Ok(Attacked::new(run, kept))
}

pub(super) fn row_removed() -> Result<Attacked> {
    let (run, kept) = before()?;
    let row = middle(&run)?;
    past_triggers(&run.ledger(), |connection| {
        ensure!(connection.execute("DELETE FROM entries WHERE seq = ?1", [row])? == 1, "no row {row}");
        connection.execute("UPDATE entries SET seq = seq - 1 WHERE seq > ?1", [row])?;
        Ok(())
    })?;
    Ok(Attacked::new(run, kept))
}

pub(super) fn triggers_left_off() -> Result<Attacked> {
    let (run, kept) = before()?;
    let connection = Connection::open(run.ledger())?;
    connection.execute_batch("DROP TRIGGER entries_delete; PRAGMA wal_checkpoint(TRUNCATE)")?;
    Ok(Attacked::new(run, kept))
}
