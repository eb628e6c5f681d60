//! What an update by several workers takes, against one process that executes
//! the same microbatches: two engines of one contract go on in turns, one alone
//! and one with workers, through the same updates to the same bits. Prints one
//! JSON object with the times of every quad of blocks.
//!
//! `bench_workers LEDGER QUADS STEPS WORKERS`, with the threads of
//! `RAYON_NUM_THREADS`, which workers share
//!
//! A block of one kind, two of the other and one of the first make a quad; all
//! four meet nearly the same machine. The contract is one of one worker whose
//! `accumulation` the workers divide.
#![allow(clippy::print_stdout, reason = "the result of this program is what it prints")]

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use ledger::reader::Reader;
use schemas::contract::{self, Contract};
use serde::Serialize;
use trainer::device;
use trainer::engine::{Engine, EngineConfig};
use trainer::run::inputs::{self, Inputs, Places};
use trainer::run::progress::Console;
use trainer::run::signals::Interrupt;
use trainer::workers::{Collective, Plan};

// That of the `trainer` program.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Signs of life and patience of the bench's workers; no digests within a block.
const COLLECTIVE: contract::Collective =
    contract::Collective { heartbeat_ms: 500, replica_digest_every_steps: u64::MAX, timeout_ms: 600_000 };

/// What two blocks of each kind took.
#[derive(Debug, Default, Clone, Copy, Serialize)]
struct Quad {
    alone_ns: u64,
    workers_ns: u64,
}

/// One process, and the same with workers beside it.
struct Bench {
    alone: Engine,
    collective: Collective,
    interrupt: Interrupt,
    num_steps: u32,
    /// All threads, and those of one of the workers.
    pools: [rayon::ThreadPool; 2],
    shared: Engine,
}

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let usage = "bench_workers LEDGER QUADS STEPS WORKERS";
    let path = PathBuf::from(arguments.next().context(usage)?);
    let [num_quads, num_steps, num_workers] = [(); 3].map(|()| arguments.next());
    let num_quads: u32 = num_quads.context(usage)?.parse().context(usage)?;
    let num_steps: u32 = num_steps.context(usage)?.parse().context(usage)?;
    let num_workers: u32 = num_workers.context(usage)?.parse().context(usage)?;
    ensure!(num_steps > 0 && num_workers > 1, "{usage}: at least one step and two workers");
    let mut bench = Bench::new(&path, num_steps, num_workers)?;

    // Neither kind is measured cold.
    bench.alone()?;
    bench.workers()?;
    let mut quads = Vec::new();
    for number in 0..num_quads {
        let mut quad = Quad::default();
        // ABBA or BAAB, after Thue and Morse.
        let is_first = number.count_ones().is_multiple_of(2);
        for is_alone in [is_first, !is_first, !is_first, is_first] {
            if is_alone {
                quad.alone_ns += bench.alone()?;
            } else {
                quad.workers_ns += bench.workers()?;
            }
        }
        quads.push(quad);
    }
    // What was measured is the same work.
    ensure!(bench.alone.replica_digest()? == bench.shared.replica_digest()?, "the bits differ");
    println!(
        "{}",
        serde_json::json!({
            "gradient_bytes": bench.shared.num_gradient_bytes(),
            "num_microbatches": bench.shared.num_microbatches(),
            "num_steps": num_steps,
            "num_threads": bench.pools.each_ref().map(rayon::ThreadPool::current_num_threads),
            "num_workers": num_workers,
            "quads": quads,
        })
    );
    Ok(())
}

impl Bench {
    fn new(path: &Path, num_steps: u32, num_workers: u32) -> Result<Self> {
        let reader = Reader::open(path)?;
        let contract = reader.contract()?.contract;
        let interrupt = Interrupt::never();
        let places = Places { data: None, ledger: path.parent().unwrap_or(Path::new(".")) };
        let loaded = inputs::load(&contract, &reader, places, &Console::new(true), &interrupt)?;
        let loaded = loaded.context("nothing interrupts")?;
        let num_threads = rayon::current_num_threads();
        let each = (num_threads / num_workers as usize).max(1);
        let pool = |num_threads| rayon::ThreadPoolBuilder::new().num_threads(num_threads).build();
        let pools = [pool(num_threads)?, pool(each)?];
        let alone = engine(&contract, &loaded)?;
        let shared = alone.clone();
        let plan = Plan {
            card: &loaded.card,
            collective: &COLLECTIVE,
            contract: &contract,
            data: &loaded.data,
            detects: true,
            folder: &loaded.folder,
            keeps_last: false,
            num_threads: u32::try_from(each)?,
            num_workers,
            parameters: &loaded.parameters,
            program: Some(trainer_program()?),
        };
        let collective = Collective::start(&plan, &shared, interrupt.flag())?;
        let collective = collective.context("nothing interrupts")?;
        Ok(Self { alone, collective, interrupt, num_steps, pools, shared })
    }

    /// Nanoseconds of a block of updates by one process.
    fn alone(&mut self) -> Result<u64> {
        let Self { alone, interrupt, num_steps, pools, .. } = self;
        let [pool, _] = pools;
        pool.install(|| {
            timed(*num_steps, || {
                alone.step(interrupt.flag())?.context("nothing interrupts")?;
                Ok(())
            })
        })
    }

    /// Nanoseconds of a block of updates by all workers.
    fn workers(&mut self) -> Result<u64> {
        let Self { collective, interrupt, num_steps, pools, shared, .. } = self;
        let [_, pool] = pools;
        pool.install(|| {
            timed(*num_steps, || {
                collective.update(shared, interrupt.flag())?.context("nothing interrupts")?;
                Ok(())
            })
        })
    }
}

fn timed(num_steps: u32, mut step: impl FnMut() -> Result<()>) -> Result<u64> {
    let started = Instant::now();
    for _ in 0..num_steps {
        step()?;
    }
    Ok(u64::try_from(started.elapsed().as_nanos())?)
}

fn engine(contract: &Contract, loaded: &Inputs) -> Result<Engine> {
    Ok(Engine::initial(EngineConfig {
        contract,
        card: &loaded.card,
        parameters: &loaded.parameters,
        train: loaded.train.clone(),
        val: loaded.val.clone(),
        device: device::open(contract.plan.device)?,
    })?)
}

/// The `trainer` that was built with this program, which lies in a folder beside
/// it.
fn trainer_program() -> Result<PathBuf> {
    let own = std::env::current_exe()?;
    let folder = own.parent().and_then(Path::parent).context("this program lies in a folder")?;
    let program = folder.join("trainer");
    ensure!(program.exists(), "{}: build it first, `cargo build --bins`", program.display());
    Ok(program)
}
