//! The same bits in another process and with any number of threads.

mod common;

use std::process::Command;
use std::sync::atomic::AtomicBool;

use anyhow::{Context, Result, ensure};
use common::Fixture;
use schemas::contract::{Dtype, LlamaDecoder, LossScaler};
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

/// Digests of [`fingerprint_in`] in every dtype.
fn fingerprint() -> Result<String> {
    let dtypes = [Dtype::F32, Dtype::Bf16, Dtype::F16];
    dtypes.into_iter().map(fingerprint_in).collect()
}

/// Digest of parameters and moments after three updates in a compute dtype and
/// an evaluation.
fn fingerprint_in(compute_dtype: Dtype) -> Result<String> {
    let folder = tempfile::tempdir()?;
    let mut fixture = Fixture::write(folder.path(), &wide(), 8, 2)?;
    fixture.contract.numerics.compute_dtype = compute_dtype;
    if compute_dtype == Dtype::F16 {
        let (backoff, growth, growth_interval, initial) = (0.5, 2.0, 2, 1024.0);
        fixture.contract.numerics.loss_scaler =
            Some(LossScaler { backoff, growth, growth_interval, initial });
    }
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
    assert_eq!(fingerprints[0].len(), 3 * 64);
    let (f32, half) = fingerprints[0].split_at(64);
    let (bf16, f16) = half.split_at(64);
    assert!(f32 != bf16 && bf16 != f16 && f32 != f16, "each dtype has bits of its own");
    fingerprints.dedup();
    assert_eq!(fingerprints.len(), 1, "{fingerprints:?}");
    Ok(())
}
