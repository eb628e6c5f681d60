//! CPU time of recorder appends over that of a raw prepared multi-row INSERT of
//! the same bytes, printed as JSON.
//!
//! The raw side is rusqlite with one prepared statement of 100 rows, the same
//! table without triggers, the same pragmas, the same commits of 128 entries,
//! and bytes, keys and leaf hashes that are ready. The recorder serialises,
//! hashes, commits, compares what is stored, and signs one head at the end.
//! Rounds are interleaved, so that both sides see the same machine.

use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use ledger::create::create_qualification_ledger;
use ledger::keys::{KeyPair, Role};
use ledger::reader::Reader;
use ledger::recorder::{Record, Recorder};
use rusqlite::{Connection, params_from_iter, types::Value};
use schemas::body::{Body, Counters, Credit, Draw, GroupUpdate, Halves, PositionRange, StepDet, StepObs};
use schemas::digest::Digest;
use schemas::ids::{AttemptId, RunId, SegmentId};
use schemas::number::Float;

const ROWS_PER_INSERT: usize = 100;
const ENTRIES_PER_COMMIT: usize = 128;

fn main() -> anyhow::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let num_entries: u64 = arguments.next().map_or(Ok(100_000), |text| text.parse())?;
    let num_rounds: u32 = arguments.next().map_or(Ok(5), |text| text.parse())?;
    let mut recorder_us = Vec::new();
    let mut raw_us = Vec::new();
    let (mut recorder_wall, mut raw_wall, mut num_bytes) = (Duration::ZERO, Duration::ZERO, 0);
    for _ in 0..num_rounds {
        let folder = tempfile::tempdir()?;
        let path = folder.path().join("bench.db");
        let (cpu, wall) = record(&path, num_entries)?;
        recorder_us.push(cpu);
        recorder_wall += wall;
        let rows = stored(&path)?;
        num_bytes = rows.iter().map(|row| row.entry.len()).sum();
        let (cpu, wall) = insert(&folder.path().join("raw.db"), rows)?;
        raw_us.push(cpu);
        raw_wall += wall;
    }
    let best = |values: &[u64]| values.iter().copied().min().unwrap_or(0);
    let median = |values: &mut Vec<u64>| {
        values.sort_unstable();
        values[values.len() / 2]
    };
    let ratio_of_best = best(&recorder_us) as f64 / best(&raw_us) as f64;
    let (recorder_median, raw_median) = (median(&mut recorder_us), median(&mut raw_us));
    let result = serde_json::json!({
        "bytes_per_entry": num_bytes as f64 / num_entries as f64,
        "num_entries": num_entries,
        "num_rounds": num_rounds,
        "ratio_cpu": recorder_median as f64 / raw_median as f64,
        "ratio_cpu_of_best": ratio_of_best,
        "raw_cpu_us_per_entry": raw_median as f64 / num_entries as f64,
        "raw_wall_us_per_entry": raw_wall.as_micros() as f64 / (num_entries * u64::from(num_rounds)) as f64,
        "recorder_cpu_us_per_entry": recorder_median as f64 / num_entries as f64,
        "recorder_wall_us_per_entry":
            recorder_wall.as_micros() as f64 / (num_entries * u64::from(num_rounds)) as f64,
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

fn record(path: &Path, num_entries: u64) -> anyhow::Result<(u64, Duration)> {
    let key = KeyPair::random(Role::Qualifier)?;
    create_qualification_ledger(path, &key, &RunId::from("bench"))?;
    let recorder = Recorder::open(path, key)?;
    let records: Vec<Record> = (1..=num_entries).map(step).collect();
    let (cpu, wall) = (cpu_us()?, Instant::now());
    for record in records {
        recorder.append(record)?;
    }
    recorder.close()?;
    Ok((cpu_us()? - cpu, wall.elapsed()))
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

fn insert(path: &Path, rows: Vec<StoredRow>) -> anyhow::Result<(u64, Duration)> {
    let connection = Connection::open(path)?;
    connection.execute_batch(
        "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; PRAGMA cell_size_check = ON;
         PRAGMA mmap_size = 0; PRAGMA journal_size_limit = 67108864;
         CREATE TABLE entries (seq INTEGER PRIMARY KEY, idem BLOB NOT NULL UNIQUE, entry BLOB NOT NULL,
         leaf BLOB NOT NULL) STRICT;",
    )?;
    let values = |num_rows: usize| vec!["(?,?,?,?)"; num_rows].join(",");
    let sql = |num_rows: usize| format!("INSERT INTO entries VALUES {}", values(num_rows));
    let rest = ENTRIES_PER_COMMIT - ROWS_PER_INSERT;
    let (cpu, wall) = (cpu_us()?, Instant::now());
    let mut whole = connection.prepare(&sql(ROWS_PER_INSERT))?;
    let mut remainder = connection.prepare(&sql(rest))?;
    let mut rows = rows.into_iter();
    loop {
        let batch: Vec<StoredRow> = rows.by_ref().take(ENTRIES_PER_COMMIT).collect();
        if batch.is_empty() {
            break;
        }
        connection.execute_batch("BEGIN IMMEDIATE")?;
        let mut batch = batch.into_iter();
        loop {
            let chunk: Vec<StoredRow> = batch.by_ref().take(ROWS_PER_INSERT).collect();
            let num_rows = chunk.len();
            let parameters = chunk.into_iter().flat_map(|row| {
                [
                    Value::Integer(row.seq),
                    Value::Blob(row.idem),
                    Value::Blob(row.entry),
                    Value::Blob(row.leaf),
                ]
            });
            match num_rows {
                0 => break,
                ROWS_PER_INSERT => whole.execute(params_from_iter(parameters))?,
                _ if num_rows == rest => remainder.execute(params_from_iter(parameters))?,
                _ => connection.prepare(&sql(num_rows))?.execute(params_from_iter(parameters))?,
            };
        }
        connection.execute_batch("COMMIT")?;
    }
    drop((whole, remainder));
    connection.close().map_err(|(_, error)| error)?;
    Ok((cpu_us()? - cpu, wall.elapsed()))
}

/// A step as a training run records it.
fn step(number: u64) -> Record {
    let digest = |tag: u8| Digest::blake3([tag ^ number.to_le_bytes()[0]; 32]);
    let credit = Credit::Backpropagation {
        gradient_norm: Float(1.234_567_890_123_456_7),
        loss: Float(2.0 + 1.0 / number as f64),
        num_microbatches: 2,
        num_tokens: 512,
    };
    let draw = Draw {
        ids: digest(1),
        inputs: digest(2),
        purpose: "update".to_owned(),
        ranges: vec![PositionRange { epoch: number / 125, first: number % 125, num_examples: 8 }],
        stream: "train".to_owned(),
    };
    let update = |group: &str| GroupUpdate {
        clip_coefficient: Float(0.812_345_678),
        group: group.to_owned(),
        learning_rate: Float(0.003 / (1.0 + number as f64)),
        parameter_norm: None,
        update_norm: None,
        weight_decay: Float(0.1),
    };
    let det = StepDet {
        counters: Counters { evaluations: 0, examples: 8 * number, tokens: 512 * number },
        credit,
        draws: vec![draw],
        overflow: None,
        state: None,
        updates: vec![update("matrices"), update("rest")],
    };
    let obs = StepObs { bytes_sent: 0, duration_us: 37_000 + number, recording_us: 12, resident_bytes: None };
    Record::new(Body::Step(Box::new(Halves { det, obs })))
        .attempt(AttemptId(1))
        .segment(SegmentId(1))
        .step(number)
}
