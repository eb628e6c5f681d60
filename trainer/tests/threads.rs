//! The same bits in another process and with any number of threads.

mod common;

use std::process::Command;
use std::sync::atomic::AtomicBool;

use anyhow::{Context, Result, ensure};
use common::Fixture;
use schemas::contract::LlamaDecoder;
use trainer::export::{self, FileKind};

/// Tells a copy of this test program to train and print, not to test.
const CHILD: &str = "TRAINER_TEST_CHILD";

/// Wide enough that matrix products and reductions are split among threads.
fn wide() -> LlamaDecoder {
    LlamaDecoder {
        context_length: 64,
        dropout: 0.1,
        head_dim: 32,
        hidden_size: 128,
        initializer_std: 0.02,
        intermediate_size: 344,
        num_heads: 4,
        num_kv_heads: 2,
        num_layers: 1,
        rms_norm_eps: 1e-5,
        rope_theta: 10_000.0,
        tied_embeddings: true,
        vocab_size: 256,
    }
}

/// Digest of parameters and moments after three updates and an evaluation.
fn fingerprint() -> Result<String> {
    let folder = tempfile::tempdir()?;
    let fixture = Fixture::write(folder.path(), &wide(), 8, 2)?;
    let mut engine = fixture.engine(folder.path())?;
    let go = AtomicBool::new(false);
    let mut hasher = blake3::Hasher::new();
    for _ in 0..3 {
        let outcome = engine.step(&go)?.context("nothing interrupts")?;
        hasher.update(&outcome.loss.to_bits().to_le_bytes());
    }
    let value = engine.evaluate(&fixture.contract.evaluation.streams[0], &go)?;
    hasher.update(&value.context("nothing interrupts")?.total_nats.to_bits().to_le_bytes());
    let state = engine.capture()?;
    for tensors in [&state.model, &state.optimizer] {
        hasher.update(&export::safetensors_bytes(FileKind::State, tensors)?);
    }
    Ok(hasher.finalize().to_hex().to_string())
}

/// Not a test of its own: what a child process runs.
#[test]
fn child() -> Result<()> {
    if let Some(path) = std::env::var_os(CHILD) {
        std::fs::write(path, fingerprint()?)?;
    }
    Ok(())
}

#[test]
fn any_number_of_threads_gives_the_same_bits() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let mut fingerprints = vec![fingerprint()?];
    for num_threads in [1, 2, 7] {
        let out = folder.path().join(num_threads.to_string());
        let output = Command::new(std::env::current_exe()?)
            .args(["--exact", "child"])
            .env(CHILD, &out)
            .env("RAYON_NUM_THREADS", num_threads.to_string())
            .output()?;
        ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        fingerprints.push(std::fs::read_to_string(out)?);
    }
    assert_eq!(fingerprints[0].len(), 64);
    fingerprints.dedup();
    assert_eq!(fingerprints.len(), 1, "{fingerprints:?}");
    Ok(())
}
