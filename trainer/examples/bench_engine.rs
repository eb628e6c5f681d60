//! Step time of a frozen run's engine alone: the contract, data and engine of
//! `trainer run`, and nothing is written, checked or printed between steps.
//! `scripts/bench` sets it beside PyTorch. Prints one JSON object.
//!
//! `bench_engine LEDGER STEPS`, with the threads of `RAYON_NUM_THREADS`
#![allow(clippy::print_stdout, reason = "the result of this program is what it prints")]

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result};
use ledger::reader::Reader;
use trainer::device;
use trainer::engine::{Engine, EngineConfig};
use trainer::run::inputs::{self, Places};
use trainer::run::progress::Console;
use trainer::run::signals::Interrupt;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> Result<()> {
    // On one of the pool's own threads, as the trainer does it.
    rayon::scope(|_| measure())
}

fn measure() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let usage = "bench_engine LEDGER STEPS";
    let path = PathBuf::from(arguments.next().context(usage)?);
    let steps: u32 = arguments.next().context(usage)?.parse().context(usage)?;
    let reader = Reader::open(&path)?;
    let contract = reader.contract()?.contract;
    let interrupt = Interrupt::never();
    let places = Places { data: None, ledger: path.parent().unwrap_or(Path::new(".")) };
    let loaded = inputs::load(&contract, &reader, places, &Console::new(true), &interrupt)?;
    let loaded = loaded.context("nothing interrupts")?;
    let mut engine = Engine::initial(EngineConfig {
        contract: &contract,
        card: &loaded.card,
        parameters: &loaded.parameters,
        train: loaded.train,
        val: loaded.val,
        device: device::open(contract.plan.device)?,
    })?;
    let mut loss = f64::NAN;
    let mut durations_us = Vec::new();
    for _ in 0..steps {
        let start = Instant::now();
        loss = engine.step(interrupt.flag())?.context("nothing interrupts")?.loss;
        durations_us.push(start.elapsed().as_micros());
    }
    durations_us.sort_unstable();
    let median_us = durations_us.get(durations_us.len() / 2).context("at least one step")?;
    println!(
        "{}",
        serde_json::json!({
            "loss": loss,
            "median_step_us": u64::try_from(*median_us)?,
            "min_step_us": u64::try_from(durations_us[0])?,
            "num_steps": steps,
            "num_threads": rayon::current_num_threads(),
        })
    );
    Ok(())
}
