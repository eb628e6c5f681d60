//! What the record of a step costs: one process and one engine that goes on
//! with a record and without it in turns. Prints one JSON object with the costs
//! of every quad of blocks; `scripts/bench` makes the figure of them.
//!
//! `bench_step LEDGER QUADS STEPS`, with the threads of `RAYON_NUM_THREADS`
//!
//! The attempt is one of `trainer run`, from its first entry to its last. In
//! its loop's place stand blocks of updates:
//!
//! - *Recorded*: turns of the trainer's own loop, with all that it does for a
//!   step besides the update: entry, line for people, costs, floors, and the
//!   group commits of the recorder's thread.
//! - *Bare*: updates of the same engine and nothing else. They are in no entry,
//!   so the run is no evidence of anything; its ledger is to be thrown away.
//!
//! A block of one kind, two of the other and one of the first make a quad; all
//! four meet nearly the same machine, and a machine that gets slower at an even
//! rate favours neither kind.
//!
//! The recorder commits behind the loop's back, so that a block that ended at a
//! fixed step would leave its last commit to the block after it. A recorded
//! block starts with nothing queued and goes on, beyond the least number of
//! steps, to the turn in which a group commit ended: it pays for whole rounds of
//! queueing and committing. The entries since, one or two, are committed outside
//! the clock.
#![allow(clippy::print_stdout, reason = "the result of this program is what it prints")]

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde::Serialize;
use trainer::engine::Engine;
use trainer::run::attempt::Attempt;
use trainer::run::resume::ResumeState;
use trainer::run::signals::Interrupt;
use trainer::run::train::{Loop, Trained, Training};
use trainer::run::{RunOptions, run_with};

// That of the `trainer` program.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Time in which idle threads stop spinning; the kernel brings a thread's CPU
/// time up to date when it leaves its processor.
const SETTLE: Duration = Duration::from_millis(1);

/// What a block does besides its updates.
#[derive(Debug, Clone, Copy)]
enum Kind {
    Bare,
    Recorded,
}

/// What blocks of one kind took.
#[derive(Debug, Default, Clone, Copy, Serialize)]
struct Cost {
    /// Of all threads of the process.
    cpu_ns: u64,
    num_steps: u64,
    wall_ns: u64,
}

/// Two blocks of each kind.
#[derive(Debug, Default, Clone, Copy, Serialize)]
struct Quad {
    bare: Cost,
    recorded: Cost,
}

/// The attempt between two blocks.
struct Bench<'a> {
    attempt: &'a mut Attempt,
    engine: &'a mut Engine,
    interrupt: &'a Interrupt,
    min_steps: u64,
    /// Of the last recorded block; a bare one gets as many.
    num_steps: u64,
    training: Training<'a>,
}

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let usage = "bench_step LEDGER QUADS STEPS";
    let ledger = PathBuf::from(arguments.next().context(usage)?);
    let num_quads: u32 = arguments.next().context(usage)?.parse().context(usage)?;
    let min_steps: u64 = arguments.next().context(usage)?.parse().context(usage)?;
    ensure!(min_steps > 0, "{usage}: a block has at least one step");
    let options = RunOptions { ledger, ..RunOptions::default() };
    let mut measured = None;
    let report = run_with(&options, &mut |attempt, engine, context, resume| {
        measured = Some(measure(attempt, engine, context, resume, num_quads, min_steps));
        // The ledger has no word for a bench that is over.
        Ok(Trained::interrupted(context.interrupt.received()))
    })?;
    let quads = measured.with_context(|| format!("no step was made: {}", report.reason))??;
    println!(
        "{}",
        serde_json::json!({
            "min_steps": min_steps,
            "num_threads": rayon::current_num_threads(),
            "quads": quads,
        })
    );
    Ok(())
}

fn measure(
    attempt: &mut Attempt,
    engine: &mut Engine,
    context: &Loop<'_>,
    resume: ResumeState,
    num_quads: u32,
    min_steps: u64,
) -> Result<Vec<Quad>> {
    let training = Training::begin(attempt, context, resume)?;
    let interrupt = context.interrupt;
    let mut bench = Bench { attempt, engine, interrupt, min_steps, num_steps: min_steps, training };
    // The first turn evaluates and saves the initial state. Neither kind is
    // measured cold.
    for kind in [Kind::Recorded, Kind::Bare] {
        bench.block(kind)?;
    }
    let mut quads = Vec::new();
    for number in 0..num_quads {
        let mut quad = Quad::default();
        for kind in order(number) {
            let block = bench.block(kind)?;
            let sum = match kind {
                Kind::Bare => &mut quad.bare,
                Kind::Recorded => &mut quad.recorded,
            };
            sum.cpu_ns += block.cpu_ns;
            sum.num_steps += block.num_steps;
            sum.wall_ns += block.wall_ns;
        }
        quads.push(quad);
    }
    Ok(quads)
}

/// ABBA or BAAB, after Thue and Morse: no kind comes first more often, nor in
/// step with anything periodic.
fn order(number: u32) -> [Kind; 4] {
    if number.count_ones().is_multiple_of(2) {
        [Kind::Recorded, Kind::Bare, Kind::Bare, Kind::Recorded]
    } else {
        [Kind::Bare, Kind::Recorded, Kind::Recorded, Kind::Bare]
    }
}

impl Bench<'_> {
    fn block(&mut self, kind: Kind) -> Result<Cost> {
        // Whatever the block before queued is not this one's.
        self.attempt.flush()?;
        std::thread::sleep(SETTLE);
        let before_ns = process_cpu_ns()?;
        let started = Instant::now();
        let num_steps = match kind {
            Kind::Bare => self.bare()?,
            Kind::Recorded => self.recorded()?,
        };
        let wall = started.elapsed();
        std::thread::sleep(SETTLE);
        let cpu_ns = process_cpu_ns()?.checked_sub(before_ns).context("a thread ended within a block")?;
        Ok(Cost { cpu_ns, num_steps, wall_ns: u64::try_from(wall.as_nanos())? })
    }

    fn bare(&mut self) -> Result<u64> {
        for _ in 0..self.num_steps {
            let outcome = self.engine.step(self.interrupt.flag())?;
            ensure!(outcome.is_some(), "interrupted");
        }
        Ok(self.num_steps)
    }

    fn recorded(&mut self) -> Result<u64> {
        let mut num_steps = 0;
        let mut num_durable = self.attempt.num_durable();
        loop {
            if let Some(ending) = self.training.turn(self.attempt, self.engine)? {
                bail!("the loop ended: {ending:?}");
            }
            num_steps += 1;
            let num_durable_before = num_durable;
            num_durable = self.attempt.num_durable();
            if num_steps >= self.min_steps && num_durable > num_durable_before {
                self.num_steps = num_steps;
                return Ok(num_steps);
            }
        }
    }
}

/// CPU time of all threads of this process in nanoseconds (proc(5),
/// `schedstat`). None of them ends within a block.
fn process_cpu_ns() -> Result<u64> {
    let mut sum = 0;
    for thread in std::fs::read_dir("/proc/self/task")? {
        let path = thread?.path().join("schedstat");
        let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        let on_cpu = text.split_ascii_whitespace().next().context("an empty schedstat")?;
        sum += on_cpu.parse::<u64>()?;
    }
    Ok(sum)
}
