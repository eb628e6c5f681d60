//! Runs that start from given weights: nothing but the weights is taken over,
//! an interrupted one goes on as any run does, and other bytes are refused.

use anyhow::{Context, Result};
use rustix::process::Signal;
use schemas::contract::*;
use schemas::digest::Digest;
use schemas::ids::{CheckpointId, RunId};
use tempfile::TempDir;
use trainer::export::{self, FileKind};

use crate::common::{self, Fixture};
use crate::folder::{LONG, RunFolder};

const WEIGHTS: &str = "initial.safetensors";

/// Weights of the fixture's shape, as a training in bfloat16 would leave them:
/// the initial ones, scaled and cut.
fn weights() -> Result<Vec<u8>> {
    let folder = TempDir::with_prefix("trainer-warm-")?;
    let fixture = Fixture::write(folder.path(), &common::decoder(), 2, 2)?;
    let mut tensors = fixture.engine(folder.path())?.capture_model()?;
    for tensor in &mut tensors {
        for word in tensor.bytes.chunks_exact_mut(4) {
            let value = f32::from_le_bytes(word.try_into()?) * 1.5;
            word.copy_from_slice(&(value.to_bits() & 0xffff_0000).to_le_bytes());
        }
    }
    Ok(export::safetensors_bytes(FileKind::Model, &tensors)?)
}

fn warm_start(bytes: &[u8]) -> Initialization {
    let model = common::digest_of(bytes);
    let contract = Digest::sha256([5; 32]);
    Initialization::WarmStart(WarmStart {
        lineage: Lineage {
            checkpoint: CheckpointId::from("s00000200-a1"),
            contract,
            head: SourceHead { root: Digest::sha256([6; 32]), size: 900 },
            model,
            run: RunId(format!("{}-0123456789abcdef", &contract.hex()[..16])),
            step: 200,
        },
        weights: FileBinding {
            digest: Some(model),
            num_bytes: Some(bytes.len() as u64),
            path: WEIGHTS.to_owned(),
        },
    })
}

fn folder(bytes: &[u8], edit: impl FnOnce(&mut Contract)) -> Result<RunFolder> {
    let folder = RunFolder::new(|contract| {
        contract.initialization = Some(warm_start(bytes));
        edit(contract);
    })?;
    std::fs::write(folder.path().join(WEIGHTS), bytes)?;
    Ok(folder)
}

fn long(contract: &mut Contract) {
    contract.budget.max_steps = LONG;
    contract.stopping = StoppingRule::AtStep { step: LONG };
    contract.checkpoints.every_steps = 10;
    contract.evaluation.streams[0].every_steps = 10;
}

fn optimizer(folder: &RunFolder, name: &str) -> Result<Vec<u8>> {
    Ok(std::fs::read(folder.path().join("checkpoints").join(name).join("optimizer.safetensors"))?)
}

#[test]
fn a_run_starts_from_the_weights_and_from_nothing_else() -> Result<()> {
    let bytes = weights()?;
    let warm = folder(&bytes, |_| {})?;
    warm.train()?.expect(0).says("from weights of checkpoint s00000200-a1 (step 200) of run 0505");
    assert!(warm.model(0)? == bytes, "step 0 is the file");
    let start = &warm.bodies("attempt.start")?[0]["det"];
    assert_eq!((&start["reason"], &start["from_step"]), (&"start".into(), &0.into()));
    assert!(start["resumed_from"].is_null());

    // The cold control differs in the weights, and in nothing beside them.
    let cold = RunFolder::new(|_| {})?;
    cold.train()?.expect(0);
    assert!(cold.model(0)? != bytes, "the weights make a difference");
    assert!(cold.model(8)? != warm.model(8)?);
    assert!(optimizer(&cold, "s00000000-a1")? == optimizer(&warm, "s00000000-a1")?, "both are empty");

    // What bfloat16 left of the weights is on record, until updates filled it.
    let odd = warm.bodies("anomaly")?;
    assert_eq!(odd.len(), 1, "{odd:#?}");
    assert_eq!(odd[0]["det"]["name"], "bf16_only_mantissas");
    assert_eq!(odd[0]["det"]["state"]["class"], "model");
    // Norms of one value are not counted: two layers of seven matrices, and the embedding.
    assert_eq!(odd[0]["det"]["state"]["num_tensors"], 15, "{odd:#?}");
    assert!(cold.bodies("anomaly")?.is_empty());
    Ok(())
}

#[test]
fn averages_begin_at_the_weights_too() -> Result<()> {
    let bytes = weights()?;
    let warm = folder(&bytes, |contract| {
        contract.averages = Some(Averages { decay: 0.9, first_step: 1, order: AverageOrder::AfterUpdate });
        let class = schemas::state::StateClass::Averages;
        let at = contract.state_classes.iter().position(|other| other.class > class).unwrap_or(0);
        let declared = schemas::state::StateClassDeclaration { class, not_applicable: None };
        contract.state_classes.insert(at, declared);
    })?;
    warm.train()?.expect(0);
    let read = |name: &str| -> Result<Vec<u8>> {
        Ok(std::fs::read(warm.path().join("checkpoints").join(name).join("averages.safetensors"))?)
    };
    assert!(read("s00000000-a1")? == bytes);
    assert!(read("s00000008-a1")? != bytes);
    Ok(())
}

#[test]
fn an_interrupted_warm_start_ends_as_an_uninterrupted_one() -> Result<()> {
    let bytes = weights()?;
    let whole = folder(&bytes, long)?;
    whole.train()?.expect(0);
    let struck = folder(&bytes, long)?;
    let mut training = struck.start()?;
    training.wait_for_step(13)?.send(Signal::TERM)?;
    training.finish()?.expect(143);
    struck.train()?.expect(0).says("RESUMING run ");
    assert!(struck.model(LONG)? == whole.model(LONG)?);
    let reasons: Vec<_> = struck.bodies("attempt.start")?;
    assert_eq!(
        (&reasons[0]["det"]["reason"], &reasons[1]["det"]["reason"]),
        (&"start".into(), &"resume".into())
    );
    Ok(())
}

#[test]
fn a_probe_begins_its_reference_at_the_weights() -> Result<()> {
    let warm = folder(&weights()?, |_| {})?;
    warm.train()?.expect(0);
    warm.probe(&["--quiet", "--steps", "2", "--checkpoint", "s00000004-a1"])?.expect(0);
    assert_eq!(warm.bodies("checkpoint.resume_qualified")?.len(), 1);
    Ok(())
}

#[test]
fn weights_that_changed_or_do_not_fit_are_refused() -> Result<()> {
    let bytes = weights()?;
    let changed = folder(&bytes, |_| {})?;
    let path = changed.path().join(WEIGHTS);
    let mut other = bytes.clone();
    *other.last_mut().context("not empty")? ^= 1;
    std::fs::write(&path, &other)?;
    changed.train()?.expect(2).says("/initialization/weights").says("changed after the freeze");
    std::fs::remove_file(&path)?;
    changed.train()?.expect(2).says("/initialization/weights").says(WEIGHTS);
    // A run that is refused has no step; with the file back it begins.
    std::fs::write(&path, &bytes)?;
    changed.train()?.expect(0);
    assert!(changed.model(0)? == bytes);

    // The same bytes under an architecture that has a head of its own.
    let tensors = export::read(FileKind::Model, &mut bytes.as_slice(), bytes.len() as u64)?.0;
    let fewer = export::safetensors_bytes(FileKind::Model, &tensors[1..])?;
    folder(&fewer, |_| {})?.train()?.expect(2).says("model.embed_tokens.weight").says("is missing");
    Ok(())
}
