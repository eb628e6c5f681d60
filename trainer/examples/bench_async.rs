//! Time that an asynchronous save holds the training loop, over that of copying
//! the same bytes, printed as JSON: `bench_async LEDGER ROUNDS`.
//!
//! The loop is held while it copies its state and hands it to the saver; what
//! the saver then does is waited for outside of the measurement. The other side
//! copies the tensors of that state into memory that was written before, which
//! is the least that a copy can cost. Rounds are interleaved, so that both sides
//! see the same machine. The ledger that it leaves is no run's: its attempt is
//! interrupted, and its checkpoints are removed.

use std::io::Write;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use trainer::engine::Engine;
use trainer::run::attempt::Attempt;
use trainer::run::resume::ResumeState;
use trainer::run::saver::Saver;
use trainer::run::train::{Loop, Trained};
use trainer::run::{RunOptions, run_with};
use trainer::state::Derivation;
use trainer::state::anomaly::SinceLast;
use trainer::state::registry::{self, CapturedState, Content, Source};
use trainer::store::working_folder;

// That of the `trainer` program.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Rounds that are not measured: the first ones fetch memory from the system.
const NUM_WARM: u64 = 2;

#[derive(Debug, Default)]
struct Measured {
    copied: Vec<Duration>,
    held: Vec<Duration>,
    num_bytes: u64,
}

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let usage = "bench_async LEDGER ROUNDS";
    let ledger = PathBuf::from(arguments.next().context(usage)?);
    let num_rounds: u64 = arguments.next().context(usage)?.parse().context(usage)?;
    ensure!(num_rounds > 0, "{usage}: at least one round");
    let options = RunOptions { is_quiet: true, ledger, ..RunOptions::default() };
    let mut measured = None;
    let report = run_with(&options, &mut |attempt, engine, context, resume| {
        measured = Some(measure(attempt, engine, context, &resume, num_rounds));
        Ok(Trained::interrupted(context.interrupt.received()))
    })?;
    let mut measured = measured.with_context(|| format!("nothing was saved: {}", report.reason))??;
    let median = |durations: &mut Vec<Duration>| {
        durations.sort();
        durations[durations.len() / 2].as_secs_f64()
    };
    let (held, copied) = (median(&mut measured.held), median(&mut measured.copied));
    let result = serde_json::json!({
        "copied_ms": copied * 1e3,
        "held_ms": held * 1e3,
        "num_bytes": measured.num_bytes,
        "num_rounds": num_rounds,
        "ratio": held / copied,
    });
    writeln!(std::io::stdout(), "{result}")?;
    Ok(())
}

fn measure(
    attempt: &mut Attempt,
    engine: &mut Engine,
    context: &Loop<'_>,
    resume: &ResumeState,
    num_rounds: u64,
) -> Result<Measured> {
    // Moments that were never written would be read from one page of zeros.
    let outcome = engine.step(context.interrupt.flag())?;
    ensure!(outcome.is_some(), "interrupted");
    let engine = &*engine;
    let capture = |step| -> Result<CapturedState> {
        let derivation = Derivation {
            contract: &context.frozen.contract,
            counters: engine.counters(),
            num_train_examples: engine.num_train_examples(),
            num_workers: context.num_workers,
            plan: context.plan,
            selection: resume.selection.state(),
            step,
        };
        Ok(registry::capture(&Source { derivation, engine })?)
    };
    let source = tensors(capture(0)?);
    let mut target = source.clone();
    let saver = Saver::new(context.frozen, context.ledger_folder);
    let store = context.ledger_folder.join(working_folder(&context.frozen.contract.checkpoints.store));
    let mut measured =
        Measured { num_bytes: source.iter().map(|tensor| tensor.len() as u64).sum(), ..Measured::default() };
    for round in 0..NUM_WARM + num_rounds {
        let started = Instant::now();
        let state = capture(round)?;
        let saving = saver.begin(attempt, (state, SinceLast::default()), started.elapsed())?;
        let held = started.elapsed();
        let saved = saving.wait(attempt)?;
        std::fs::remove_dir_all(store.join(saved.checkpoint.as_str()))
            .context("the bench's own checkpoint")?;

        let started = Instant::now();
        for (to, from) in target.iter_mut().zip(&source) {
            to.copy_from_slice(from);
        }
        std::hint::black_box(&target);
        let copied = started.elapsed();
        if round >= NUM_WARM {
            measured.held.push(held);
            measured.copied.push(copied);
        }
    }
    Ok(measured)
}

/// Bytes of every tensor that is saved.
fn tensors(state: CapturedState) -> Vec<Vec<u8>> {
    let shards = state.classes.into_iter().flat_map(|(_, shards)| shards);
    let mut all = Vec::new();
    for shard in shards {
        if let Content::Tensors(_, tensors) = shard.content {
            all.extend(tensors.into_iter().map(|tensor| tensor.bytes));
        }
    }
    all
}
