//! Step time of the engine alone, with nothing recorded: the null recorder of
//! `scripts/bench`. Prints one JSON object.
//!
//! `bench_step HIDDEN LAYERS HEADS CONTEXT MICROBATCH ACCUMULATION STEPS`
#![allow(clippy::print_stdout, reason = "the result of this program is what it prints")]

#[path = "../tests/common/mod.rs"]
mod common;

use std::sync::atomic::AtomicBool;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use common::Fixture;
use schemas::contract::LlamaDecoder;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> Result<()> {
    let arguments = std::env::args().skip(1).map(|text| text.parse::<u32>());
    let arguments = arguments.collect::<Result<Vec<_>, _>>().context("arguments are whole numbers")?;
    ensure!(arguments.len() == 7, "HIDDEN LAYERS HEADS CONTEXT MICROBATCH ACCUMULATION STEPS");
    let [hidden_size, num_layers, num_heads, context_length, microbatch_examples, accumulation, steps] =
        arguments[..]
    else {
        anyhow::bail!("seven arguments were checked above");
    };
    ensure!(num_heads > 0 && hidden_size.is_multiple_of(num_heads), "heads must divide the hidden size");
    let decoder = LlamaDecoder {
        context_length,
        dropout: 0.0,
        head_dim: hidden_size / num_heads,
        hidden_size,
        initializer_std: 0.02,
        // Eight thirds of the width, as Llama has it, in multiples of eight.
        intermediate_size: (hidden_size * 8 / 3).next_multiple_of(8),
        num_heads,
        num_kv_heads: num_heads,
        num_layers,
        rms_norm_eps: 1e-5,
        rope_theta: 10_000.0,
        tied_embeddings: true,
        vocab_size: 256,
    };
    let folder = tempfile::tempdir()?;
    let fixture = Fixture::write(folder.path(), &decoder, microbatch_examples, accumulation)?;
    let mut engine = fixture.engine(folder.path())?;
    let go = AtomicBool::new(false);
    let mut loss = engine.step(&go)?.context("nothing interrupts")?.loss;
    let mut durations_us = Vec::new();
    for _ in 0..steps {
        let start = Instant::now();
        loss = engine.step(&go)?.context("nothing interrupts")?.loss;
        durations_us.push(start.elapsed().as_micros());
    }
    durations_us.sort_unstable();
    let median_us = durations_us.get(durations_us.len() / 2).context("at least one step")?;
    println!(
        "{}",
        serde_json::json!({
            "accumulation": accumulation,
            "context_length": context_length,
            "hidden_size": hidden_size,
            "loss": loss,
            "median_step_us": u64::try_from(*median_us)?,
            "microbatch_examples": microbatch_examples,
            "min_step_us": u64::try_from(durations_us[0])?,
            "num_heads": num_heads,
            "num_layers": num_layers,
            "num_steps": steps,
            "num_threads": rayon::current_num_threads(),
        })
    );
    Ok(())
}
