//! Scores the baseline that a quality target is frozen from, as one line of
//! JSON: `cargo run -p corpus --example ngram -- --manifest data/manifest.json
//! --context 128`.

use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::Parser;
use corpus::examples::{self, ShardBytes};
use corpus::ngram::Trigram;
use schemas::data::{DataManifest, Split};
use serde::Serialize;

/// An interpolated byte 3-gram model, fitted on train and scored on val.
#[derive(Parser)]
struct Arguments {
    /// The build manifest; shards lie relative to its folder.
    #[arg(long)]
    manifest: PathBuf,
    /// Context length of the examples, in bytes.
    #[arg(long)]
    context: u32,
    /// The first so many val examples; all of them when left out.
    #[arg(long)]
    num_examples: Option<usize>,
}

#[derive(Serialize)]
struct Output {
    bits_per_byte: f64,
    manifest: String,
    method: &'static str,
    num_tokens: u64,
    num_train_bytes: u64,
    order: u32,
    total_nats: f64,
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let bytes = std::fs::read(&arguments.manifest)
        .with_context(|| format!("cannot read {}", arguments.manifest.display()))?;
    let manifest: DataManifest = serde_json::from_slice(&bytes)
        .with_context(|| format!("{} is not a data manifest", arguments.manifest.display()))?;
    let folder = arguments.manifest.parent().unwrap_or(Path::new("."));
    let train = ShardBytes::load(&manifest, folder, Split::Train)?;
    let shards = 0..u32::try_from(manifest.shards.len())?;
    let model = Trigram::fit(shards.filter_map(|index| train.shard(index)));
    let val = ShardBytes::load(&manifest, folder, Split::Val)?;
    let table = examples::build(&manifest, folder, Split::Val, arguments.context)?;
    let count = arguments.num_examples.unwrap_or(usize::MAX).min(table.num_examples());
    let score =
        model.score(&table.records[..count], |index| val.shard(index)).context("val has no target")?;
    let output = Output {
        bits_per_byte: score.bits_per_byte,
        manifest: format!("blake3:{}", blake3::hash(&bytes).to_hex()),
        method: "interpolated Witten-Bell",
        num_tokens: score.num_tokens,
        num_train_bytes: model.num_bytes(),
        order: 3,
        total_nats: score.total_nats,
    };
    let mut line = serde_json::to_vec(&output)?;
    line.push(b'\n');
    std::io::stdout().lock().write_all(&line)?;
    Ok(())
}
