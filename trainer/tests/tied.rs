//! A tied head is the embedding, by identity: in the manifest, in what is saved,
//! and after a resume.
#![allow(missing_docs, unreachable_pub, reason = "a test program")]

mod common;

use std::sync::atomic::AtomicBool;

use anyhow::{Context, Result};
use common::{Fixture, decoder};
use schemas::contract::LlamaDecoder;
use tempfile::TempDir;
use trainer::engine::{Engine, EngineError};
use trainer::export::NamedTensor;
use trainer::model::manifest::{EMBEDDING, HEAD, stored};

static GO: AtomicBool = AtomicBool::new(false);

struct Bench {
    fixture: Fixture,
    folder: TempDir,
}

impl Bench {
    fn new(tied_embeddings: bool) -> Result<Self> {
        let folder = TempDir::with_prefix("trainer-tied-")?;
        let decoder = LlamaDecoder { tied_embeddings, ..decoder() };
        Ok(Self { fixture: Fixture::write(folder.path(), &decoder, 2, 2)?, folder })
    }

    fn engine(&self) -> Result<Engine> {
        self.fixture.engine(self.folder.path())
    }
}

fn step(engine: &mut Engine, num_steps: usize) -> Result<Vec<f64>> {
    (0..num_steps).map(|_| Ok(engine.step(&GO)?.context("nothing interrupts")?.loss)).collect()
}

fn find<'a>(tensors: &'a [NamedTensor], name: &str) -> Result<&'a NamedTensor> {
    tensors.iter().find(|tensor| tensor.name == name).with_context(|| name.to_owned())
}

fn reason(error: &EngineError) -> String {
    error.to_string()
}

#[test]
fn the_manifest_says_what_the_head_is() -> Result<()> {
    let tied = Bench::new(true)?;
    let head = tied.fixture.parameters.parameters.iter().find(|p| p.path == HEAD).context("listed")?;
    assert_eq!(head.tied_to.as_deref(), Some(EMBEDDING));
    assert_eq!(head.group, None, "it is updated with the embedding, and in no group of its own");
    assert!(stored(&tied.fixture.parameters).parameters.iter().all(|p| p.path != HEAD));
    let untied = Bench::new(false)?;
    let head = untied.fixture.parameters.parameters.iter().find(|p| p.path == HEAD).context("listed")?;
    assert_eq!((head.tied_to.as_deref(), head.group.as_deref()), (None, Some("matrices")));
    Ok(())
}

/// A manifest of before tied heads were listed gives the same engine.
#[test]
fn a_manifest_without_the_line_gives_the_same_run() -> Result<()> {
    let mut bench = Bench::new(true)?;
    let mut listed = bench.engine()?;
    bench.fixture.parameters = stored(&bench.fixture.parameters);
    let mut unlisted = bench.engine()?;
    assert_eq!(step(&mut listed, 3)?, step(&mut unlisted, 3)?);
    assert_eq!(listed.capture()?, unlisted.capture()?);
    Ok(())
}

#[test]
fn a_tied_pair_is_one_after_a_resume() -> Result<()> {
    let bench = Bench::new(true)?;
    let mut whole = bench.engine()?;
    step(&mut whole, 4)?;
    let saved = whole.capture()?;
    let counters = whole.counters();
    let of_head = |tensors: &[NamedTensor]| tensors.iter().filter(|t| t.name.starts_with(HEAD)).count();
    assert_eq!((of_head(&saved.model), of_head(&saved.optimizer)), (0, 0), "one tensor, one pair of moments");
    let losses = step(&mut whole, 4)?;
    let end = whole.capture()?;

    let mut resumed = bench.engine()?;
    resumed.restore(4, counters, &saved.model, &saved.optimizer)?;
    assert_eq!(step(&mut resumed, 4)?, losses);
    assert_eq!(resumed.capture()?, end);
    assert_ne!(find(&end.model, EMBEDDING)?, find(&saved.model, EMBEDDING)?, "the pair moves");

    // The control has lost the identity: the same values, in two parameters.
    let control = Bench::new(false)?;
    let mut torn = control.engine()?;
    let with_head = |tensors: &[NamedTensor]| -> Result<Vec<NamedTensor>> {
        let mut all = tensors.to_vec();
        for tensor in tensors.iter().filter(|tensor| tensor.name.starts_with(EMBEDDING)) {
            all.push(NamedTensor { name: tensor.name.replace(EMBEDDING, HEAD), ..tensor.clone() });
        }
        all.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(all)
    };
    torn.restore(4, counters, &with_head(&saved.model)?, &with_head(&saved.optimizer)?)?;
    let drifted = step(&mut torn, 4)?;
    assert_eq!(drifted[0].to_bits(), losses[0].to_bits(), "at first they are equal");
    assert_ne!(drifted[1..], losses[1..], "and then they drift");
    let torn = torn.capture()?;
    assert_ne!(find(&torn.model, EMBEDDING)?.bytes, find(&torn.model, HEAD)?.bytes);
    assert_ne!(find(&torn.model, EMBEDDING)?, find(&end.model, EMBEDDING)?);
    Ok(())
}

#[test]
fn a_second_tensor_and_a_missing_one_are_refused_by_name() -> Result<()> {
    let (tied, untied) = (Bench::new(true)?, Bench::new(false)?);
    let two = untied.engine()?.capture()?;
    let one = tied.engine()?.capture()?;

    let mut engine = tied.engine()?;
    for error in [
        engine.restore_model(&two.model).expect_err("two tensors"),
        engine.restore_optimizer(&two.optimizer).expect_err("two pairs of moments"),
    ] {
        let reason = reason(&error);
        assert!(reason.contains(HEAD) && reason.contains("is tied to model.embed_tokens.weight"), "{reason}");
    }
    assert_eq!(engine.capture()?, one, "nothing changed");

    let mut engine = untied.engine()?;
    let missing = reason(&engine.restore_model(&one.model).expect_err("one tensor"));
    assert!(missing.contains(&format!("{HEAD:?} is missing")), "{missing}");
    let missing = reason(&engine.restore_optimizer(&one.optimizer).expect_err("one pair of moments"));
    assert!(missing.contains(&format!("{HEAD}.exp_avg\" is missing")), "{missing}");
    assert_eq!(engine.capture()?, two, "nothing changed");
    Ok(())
}
