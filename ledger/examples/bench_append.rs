//! CPU time of recorder appends over that of a raw prepared multi-row INSERT of
//! the same bytes into the same tables, printed as JSON.
//!
//! The raw side is rusqlite with one prepared statement of 128 rows, the same
//! pragmas, commits of 2,048 entries as the recorder's under a flood, and bytes,
//! keys and leaf hashes that are ready. The recorder serialises, hashes, commits, compares what is
//! stored, and signs one head at the end. `ratio_cpu` is against the ledger's
//! own tables with their checks and triggers; `ratio_cpu_of_bare_table` against
//! a table without them, which shows what the guard rail costs. Rounds are
//! interleaved, so that all sides see the same machine.
//!
//! Arguments: entries in a round (100,000), rounds (5).

#[path = "../benches/common/mod.rs"]
mod common;

use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use common::step;
use ledger::create::create_qualification_ledger;
use ledger::keys::{KeyPair, Role};
use ledger::reader::Reader;
use ledger::recorder::{Record, Recorder};
use rusqlite::{Connection, ToSql, params_from_iter};
use schemas::ids::RunId;

const ROWS_PER_INSERT: usize = 128;
const ENTRIES_PER_COMMIT: usize = 2_048;

fn main() -> anyhow::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let num_entries: u64 = arguments.next().map_or(Ok(100_000), |text| text.parse())?;
    let num_rounds: u32 = arguments.next().map_or(Ok(5), |text| text.parse())?;
    let mut recorder_us = Vec::new();
    let mut raw_us = Vec::new();
    let mut caller_us = Vec::new();
    let mut bare_us = Vec::new();
    let (mut recorder_wall, mut raw_wall, mut num_bytes) = (Duration::ZERO, Duration::ZERO, 0);
    for _ in 0..num_rounds {
        let folder = tempfile::tempdir()?;
        let path = folder.path().join("bench.db");
        let (cpu, wall, caller) = record(&path, num_entries)?;
        caller_us.push(caller / 1000);
        recorder_us.push(cpu);
        recorder_wall += wall;
        let rows = stored(&path)?;
        num_bytes = rows.iter().map(|row| row.entry.len()).sum();
        let (cpu, wall) = insert(&folder.path().join("raw.db"), GUARDED, &rows)?;
        raw_us.push(cpu);
        raw_wall += wall;
        bare_us.push(insert(&folder.path().join("bare.db"), BARE, &rows)?.0);
    }
    let median = |values: &mut Vec<u64>| {
        values.sort_unstable();
        values[values.len() / 2] as f64
    };
    let recorder = median(&mut recorder_us);
    let (raw, bare) = (median(&mut raw_us), median(&mut bare_us));
    let entries = num_entries as f64;
    let wall_us = |wall: Duration| wall.as_micros() as f64 / entries / f64::from(num_rounds);
    let result = serde_json::json!({
        "bare_table_cpu_us_per_entry": bare / entries,
        "bytes_per_entry": num_bytes as f64 / entries,
        "caller_cpu_us_per_entry": median(&mut caller_us) / entries,
        "num_entries": num_entries,
        "num_rounds": num_rounds,
        "ratio_cpu": recorder / raw,
        "ratio_cpu_of_bare_table": recorder / bare,
        "raw_cpu_us_per_entry": raw / entries,
        "raw_wall_us_per_entry": wall_us(raw_wall),
        "recorder_cpu_us_per_entry": recorder / entries,
        "recorder_wall_us_per_entry": wall_us(recorder_wall),
    });
    writeln!(std::io::stdout(), "{result:#}")?;
    Ok(())
}

/// CPU time of this process in microseconds: all threads, ended ones included,
/// user and system, in the kernel's ticks of 10 ms (`USER_HZ`, proc(5)).
fn cpu_us() -> anyhow::Result<u64> {
    const TICK_US: u64 = 10_000;
    let stat = std::fs::read_to_string("/proc/self/stat")?;
    // The command's name may hold spaces; fields 14 and 15 follow its bracket.
    let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields);
    let ticks: Vec<u64> =
        fields.split_whitespace().skip(11).take(2).map(str::parse).collect::<Result<_, _>>()?;
    Ok(ticks.iter().sum::<u64>() * TICK_US)
}

/// CPU time of the calling thread in nanoseconds (proc(5), `schedstat`).
fn thread_cpu_ns() -> anyhow::Result<u64> {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat")?;
    Ok(stat.split_whitespace().next().unwrap_or("0").parse()?)
}

/// CPU time of the process, wall time, and CPU time of the calling thread in
/// its appends: what a training loop pays itself.
fn record(path: &Path, num_entries: u64) -> anyhow::Result<(u64, Duration, u64)> {
    let key = KeyPair::random(Role::Qualifier)?;
    create_qualification_ledger(path, &key, &RunId::from("bench"))?;
    let recorder = Recorder::open(path, key)?;
    let records: Vec<Record> = (1..=num_entries).map(step).collect();
    let (cpu, wall) = (cpu_us()?, Instant::now());
    let caller_ns = thread_cpu_ns()?;
    for record in records {
        recorder.append(record)?;
    }
    let caller_ns = thread_cpu_ns()? - caller_ns;
    recorder.close()?;
    Ok((cpu_us()? - cpu, wall.elapsed(), caller_ns))
}

struct StoredRow {
    seq: i64,
    idem: Vec<u8>,
    entry: Vec<u8>,
    leaf: Vec<u8>,
}

fn stored(path: &Path) -> anyhow::Result<Vec<StoredRow>> {
    let mut rows = Vec::new();
    for row in Reader::open(path)?.rows(0) {
        let (index, entry) = row?;
        let parsed = schemas::entry::Entry::from_slice(&entry)?;
        let idem = schemas::digest::decode_hex(parsed.header.idem.as_str()).unwrap_or_default();
        let leaf = ledger::tree::leaf_hash(&entry).to_vec();
        rows.push(StoredRow { seq: i64::try_from(index)?, idem, entry, leaf });
    }
    Ok(rows)
}

/// The bare table.
const BARE: &str = "CREATE TABLE entries (seq INTEGER PRIMARY KEY, idem BLOB NOT NULL UNIQUE,
    entry BLOB NOT NULL, leaf BLOB NOT NULL) STRICT;";

/// The ledger's own tables, checks and triggers.
const GUARDED: &str = include_str!("../../migrations/0001_ledger.sql");

fn insert(path: &Path, schema: &str, rows: &[StoredRow]) -> anyhow::Result<(u64, Duration)> {
    let connection = Connection::open(path)?;
    connection.execute_batch(
        "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; PRAGMA cell_size_check = ON;
         PRAGMA mmap_size = 0; PRAGMA journal_size_limit = 67108864; PRAGMA recursive_triggers = ON;
         PRAGMA cache_size = -16384; PRAGMA wal_autocheckpoint = 4000;",
    )?;
    connection.execute_batch(schema)?;
    let values = |num_rows: usize| vec!["(?,?,?,?)"; num_rows].join(",");
    let sql = |num_rows: usize| format!("INSERT INTO entries VALUES {}", values(num_rows));
    let (cpu, wall) = (cpu_us()?, Instant::now());
    let mut whole = connection.prepare(&sql(ROWS_PER_INSERT))?;
    for batch in rows.chunks(ENTRIES_PER_COMMIT) {
        connection.execute_batch("BEGIN IMMEDIATE")?;
        for chunk in batch.chunks(ROWS_PER_INSERT) {
            // References: nothing of the rows is copied but by SQLite itself.
            let parameters = chunk
                .iter()
                .flat_map(|row| -> [&dyn ToSql; 4] { [&row.seq, &row.idem, &row.entry, &row.leaf] });
            match chunk.len() {
                ROWS_PER_INSERT => whole.execute(params_from_iter(parameters))?,
                num_rows => connection.prepare(&sql(num_rows))?.execute(params_from_iter(parameters))?,
            };
        }
        connection.execute_batch("COMMIT")?;
    }
    drop(whole);
    connection.close().map_err(|(_, error)| error)?;
    Ok((cpu_us()? - cpu, wall.elapsed()))
}
