//! Wall time of a checkpoint commit over that of a plain write and fsync of
//! the same bytes, printed as JSON: `bench_checkpoint FOLDER [MEBIBYTES] [ROUNDS]`.
//!
//! The commit stages two tensor files and one small file, hashes them, flushes
//! each, writes the manifest, flushes, renames and flushes the store. The plain
//! side writes what these hold into one file and flushes file and folder; the
//! direct side does so past the page cache, from memory that is aligned for it.
//! Rounds are interleaved, so that both sides see the same disk.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use schemas::digest::Digest;
use schemas::ids::{AttemptId, CheckpointId, RunId};
use schemas::state::{NotApplicableReason, StateClass, StateClassDeclaration};
use trainer::checkpoint::manifest::ManifestHeader;
use trainer::checkpoint::writer::Staging;
use trainer::export::{FileKind, NamedTensor};

/// Rows of a tensor, which has 1,024 columns of f32.
const NUM_ROWS: u64 = 1_024;
const NUM_COLUMNS: u64 = 1_024;
const TENSOR_BYTES: u64 = NUM_ROWS * NUM_COLUMNS * 4;

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    // Named, because the usual temporary folder may be in memory.
    let parent = arguments.next().context("bench_checkpoint FOLDER [MEBIBYTES] [ROUNDS]")?;
    let mebibytes: u64 = arguments.next().map_or(Ok(192), |text| text.parse())?;
    let num_rounds: u64 = arguments.next().map_or(Ok(7), |text| text.parse())?;
    // A third is the model, the rest its two moments.
    let num_tensors = ((mebibytes << 20) / TENSOR_BYTES / 3).max(1);
    let model = tensors("weight", num_tensors)?;
    let optimizer = tensors("moment", 2 * num_tensors)?;
    let folder = tempfile::tempdir_in(parent)?;
    let aligned = Aligned::new(model.iter().chain(&optimizer));
    let (mut committed, mut raw, mut direct) = (Vec::new(), Vec::new(), Vec::new());
    let mut num_bytes = 0;
    for round in 0..num_rounds {
        let (bytes, duration) = commit(&folder.path().join("store"), round, &model, &optimizer)?;
        num_bytes = bytes;
        committed.push(duration);
        raw.push(write_raw(folder.path(), round, &model, &optimizer)?);
        direct.push(write_direct(folder.path(), round, &aligned)?);
    }
    committed.sort();
    raw.sort();
    direct.sort();
    let median = |durations: &[Duration]| durations[durations.len() / 2].as_secs_f64();
    let result = serde_json::json!({
        "commit_ms": median(&committed) * 1e3,
        "direct_ms": median(&direct) * 1e3,
        "direct_throughput_ratio": median(&direct) / median(&committed),
        "num_bytes": num_bytes,
        "num_rounds": num_rounds,
        "ratio": median(&committed) / median(&raw),
        "ratio_of_best": committed[0].as_secs_f64() / raw[0].as_secs_f64(),
        "raw_ms": median(&raw) * 1e3,
    });
    writeln!(std::io::stdout(), "{result}")?;
    Ok(())
}

/// Tensors of bytes that no file system can compress away.
fn tensors(name: &str, count: u64) -> Result<Vec<NamedTensor>> {
    let mut state = 0x9E37_79B9_7F4A_7C15_u64;
    let mut word = || {
        // xorshift64 (Marsaglia 2003).
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let make = |index: u64| -> Result<NamedTensor> {
        let bytes = (0..TENSOR_BYTES / 8).flat_map(|_| word().to_le_bytes()).collect();
        let shape = vec![NUM_ROWS, NUM_COLUMNS];
        Ok(NamedTensor { name: format!("{name}.{index:04}"), dtype: "F32".to_owned(), shape, bytes })
    };
    (0..count).map(make).collect()
}

fn commit(
    store: &Path,
    round: u64,
    model: &[NamedTensor],
    optimizer: &[NamedTensor],
) -> Result<(u64, Duration)> {
    let captured = |class| StateClassDeclaration { class, not_applicable: None };
    let declarations = [
        captured(StateClass::Model),
        captured(StateClass::Optimizer),
        StateClassDeclaration {
            class: StateClass::RngCpu,
            not_applicable: Some(NotApplicableReason::CounterBasedRandomness),
        },
        captured(StateClass::DataCursor),
    ];
    let checkpoint = CheckpointId(format!("bench-{round}"));
    let header = ManifestHeader {
        attempt: AttemptId(1),
        checkpoint: &checkpoint,
        contract: Digest::sha256([0; 32]),
        declarations: &declarations,
        run: &RunId::from("bench"),
        step: round,
    };
    let started = Instant::now();
    let mut staging = Staging::begin(store, &checkpoint)?;
    staging.add_tensors(StateClass::Model, "model.safetensors", FileKind::Model, model)?;
    staging.add_tensors(StateClass::Optimizer, "optimizer.safetensors", FileKind::State, optimizer)?;
    staging.add_bytes(StateClass::DataCursor, "data_cursor.json", b"{\"examples\":0,\"step\":0}")?;
    let committed = staging.finish(&header)?.commit()?;
    let duration = started.elapsed();
    std::fs::remove_dir_all(&committed.folder).context("the bench's own checkpoint")?;
    Ok((committed.num_bytes, duration))
}

fn write_raw(
    folder: &Path,
    round: u64,
    model: &[NamedTensor],
    optimizer: &[NamedTensor],
) -> Result<Duration> {
    let path = folder.join(format!("raw-{round}"));
    let started = Instant::now();
    let mut file = File::create_new(&path)?;
    for tensor in model.iter().chain(optimizer) {
        file.write_all(&tensor.bytes)?;
    }
    file.sync_all()?;
    File::open(folder)?.sync_all()?;
    let duration = started.elapsed();
    std::fs::remove_file(&path)?;
    Ok(duration)
}

/// What direct input and output asks of addresses and sizes, at most.
const BLOCK_BYTES: usize = 4096;

/// Bytes of one direct write.
const DIRECT_BYTES: usize = 8 << 20;

/// All tensors one after another, at an address that a block begins at.
struct Aligned {
    first: usize,
    memory: Vec<u8>,
    num_bytes: usize,
}

impl Aligned {
    fn new<'a>(tensors: impl Iterator<Item = &'a NamedTensor> + Clone) -> Self {
        let num_bytes: usize = tensors.clone().map(|tensor| tensor.bytes.len()).sum();
        let mut memory = vec![0; num_bytes + BLOCK_BYTES];
        let first = memory.as_ptr().align_offset(BLOCK_BYTES);
        let mut at = first;
        for tensor in tensors {
            memory[at..at + tensor.bytes.len()].copy_from_slice(&tensor.bytes);
            at += tensor.bytes.len();
        }
        Self { first, memory, num_bytes }
    }

    fn bytes(&self) -> &[u8] {
        &self.memory[self.first..self.first + self.num_bytes]
    }
}

fn write_direct(folder: &Path, round: u64, aligned: &Aligned) -> Result<Duration> {
    let path = folder.join(format!("direct-{round}"));
    let flags = i32::try_from(rustix::fs::OFlags::DIRECT.bits())?;
    let started = Instant::now();
    let mut file = File::options().write(true).create_new(true).custom_flags(flags).open(&path)?;
    for chunk in aligned.bytes().chunks(DIRECT_BYTES) {
        file.write_all(chunk)?;
    }
    file.sync_all()?;
    File::open(folder)?.sync_all()?;
    let duration = started.elapsed();
    std::fs::remove_file(&path)?;
    Ok(duration)
}
