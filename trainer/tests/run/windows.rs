//! Saves inside of accumulation windows: where a signal ends an attempt, where
//! the contract says so, and what a probe makes of them; with losses that are
//! scaled.

use std::path::Path;
use std::sync::atomic::Ordering;

use anyhow::{Context, Result};
use rustix::process::Signal;
use schemas::body::Outcome;
use schemas::contract::*;
use schemas::state::{StateClass, StateClassDeclaration};
use serde_json::Value;
use trainer::run::train::Training;
use trainer::run::{self, RunOptions};

use crate::folder::RunFolder;
use crate::probes::{outcomes, probe, trained};

fn capture(contract: &mut Contract, class: StateClass) {
    contract.state_classes.retain(|declared| declared.class != class);
    let at = contract.state_classes.iter().position(|other| other.class > class).unwrap_or(0);
    contract.state_classes.insert(at, StateClassDeclaration { class, not_applicable: None });
}

/// Five microbatches an update, in binary16 with a scale that overflows at
/// first, and masks from a stream; saved at every fourth step.
fn windows(contract: &mut Contract) {
    contract.batch = Batch { accumulation: 5, data_parallel: 1, global_examples: 10, microbatch_examples: 2 };
    contract.checkpoints.mid_accumulation = MidAccumulation::SaveGradients;
    capture(contract, StateClass::AccumulatedGradients);
    contract.numerics.compute_dtype = Dtype::F16;
    contract.numerics.loss_scaler =
        Some(LossScaler { backoff: 0.125, growth: 2.0, growth_interval: 2, initial: 16_777_216.0 });
    capture(contract, StateClass::LossScaler);
    contract.dropout_draws = DropoutDraws::PhiloxStream;
    capture(contract, StateClass::RngCpu);
}

/// Microbatches whose gradients a checkpoint holds.
fn summed(folder: &Path, checkpoint: &str) -> Result<u64> {
    let path = folder.join("checkpoints").join(checkpoint).join("accumulated_gradients.json");
    let state: Value = serde_json::from_slice(&std::fs::read(path)?)?;
    state["microbatches"].as_u64().context("a count")
}

/// `det` of every step.
fn steps(folder: &RunFolder) -> Result<Vec<Value>> {
    Ok(folder.bodies("step")?.into_iter().map(|body| body["det"].clone()).collect())
}

#[test]
fn a_signal_inside_of_a_window_loses_no_microbatch() -> Result<()> {
    let whole = RunFolder::new(windows)?;
    whole.train()?.expect(0);
    let overflows = steps(&whole)?;
    let is_skipped = |step: &Value| step["overflow"]["skipped"] == true;
    assert!(overflows.iter().any(is_skipped) && !overflows.iter().all(is_skipped));

    let folder = RunFolder::new(windows)?;
    let keys = Some(folder.path().join("keys"));
    let options = RunOptions { is_quiet: true, keys, ledger: folder.ledger(), ..RunOptions::default() };
    let report = run::run_with(&options, &mut |attempt, engine, context, resume| {
        let mut training = Training::begin(attempt, context, resume)?;
        for _ in 0..5 {
            assert!(training.turn(attempt, engine)?.is_none());
        }
        // A signal behind the third microbatch of the sixth update.
        assert!(engine.accumulate(3, context.interrupt.flag())?);
        context.interrupt.flag().store(true, Ordering::Relaxed);
        let ending = training.turn(attempt, engine)?.expect("a signal ends the attempt");
        Ok(training.finish(ending))
    })?;
    assert_eq!(report.outcome, Outcome::Interrupted);
    assert_eq!(summed(folder.path(), "s00000005-a1")?, 3);
    let kinds = folder.kinds()?;
    assert_eq!(kinds[kinds.len() - 2..], ["checkpoint.validated", "attempt.end"]);

    folder.train()?.expect(0).says("from checkpoint s00000005-a1 (step 5)");
    assert_eq!(steps(&folder)?, steps(&whole)?, "every step once, and the same");
    assert_eq!(folder.model(8)?, whole.model(8)?);
    // It is no candidate, and the family is that of an uninterrupted run.
    let admitted = |folder: &RunFolder| -> Result<Vec<Value>> {
        Ok(folder.bodies("candidate.admitted")?.into_iter().map(|body| body["det"].clone()).collect())
    };
    assert_eq!(admitted(&folder)?, admitted(&whole)?);
    Ok(())
}

/// In this process: an attempt that a signal meets after so many turns, since a
/// process can have one attempt.
fn interrupted_after(folder: &RunFolder, turns: u32) -> Result<()> {
    let keys = Some(folder.path().join("keys"));
    let options = RunOptions { is_quiet: true, keys, ledger: folder.ledger(), ..RunOptions::default() };
    let report = run::run_with(&options, &mut |attempt, engine, context, resume| {
        let mut training = Training::begin(attempt, context, resume)?;
        for _ in 0..turns {
            assert!(training.turn(attempt, engine)?.is_none());
        }
        context.interrupt.flag().store(true, Ordering::Relaxed);
        let ending = training.turn(attempt, engine)?.expect("a signal ends the attempt");
        Ok(training.finish(ending))
    })?;
    assert_eq!(report.outcome, Outcome::Interrupted);
    Ok(())
}

#[test]
fn a_signal_that_meets_nothing_new_saves_nothing() -> Result<()> {
    let folder = RunFolder::new(|contract| {
        windows(contract);
        contract.budget.max_steps = 200;
        contract.stopping = StoppingRule::AtStep { step: 200 };
        contract.checkpoints.every_steps = 100;
        contract.evaluation.streams[0].every_steps = 100;
    })?;
    let mut training = folder.start()?;
    training.wait_for_step(10)?.send(Signal::TERM)?;
    training.finish()?.expect(143);
    let saved = folder.store()?;
    assert_eq!(saved.len(), 2, "step 0, and where the signal came: {saved:?}");
    interrupted_after(&folder, 0)?;
    assert_eq!(folder.store()?, saved);
    Ok(())
}

#[test]
fn a_signal_saves_nothing_where_the_contract_rounds_to_the_boundary() -> Result<()> {
    let folder = RunFolder::new(|_| ())?;
    interrupted_after(&folder, 6)?;
    assert_eq!(folder.store()?, ["s00000000-a1", "s00000004-a1"]);
    folder.train()?.expect(0).says("(step 4)");
    Ok(())
}

/// C18 and C05 as a probe finds them: sums that were lost, a scaler that was.
#[test]
fn a_probe_from_inside_of_a_window_matches_and_its_controls_do_not() -> Result<()> {
    let folder = trained(|contract| {
        windows(contract);
        contract.checkpoints.after_microbatches = Some(2);
    })?;
    assert_eq!(summed(folder.path(), "s00000007-a1")?, 2);
    assert_eq!(summed(folder.path(), "s00000000-a1")?, 0);
    assert_eq!(summed(folder.path(), "s00000016-a1")?, 0);
    let scales: Vec<f64> =
        steps(&folder)?[7..11].iter().filter_map(|step| step["overflow"]["scale"].as_f64()).collect();
    assert!(
        scales.len() == 4 && scales.windows(2).any(|pair| pair[0] < pair[1] || pair[1] < pair[0]),
        "{scales:?}"
    );

    let report = probe(&folder, 7, &["--controls", "--steps", "4"], 0)?;
    assert!(report["qualified"].is_u64(), "{report}");
    let outcomes = outcomes(&report);
    assert_eq!(outcomes[""].0, "matches");
    for class in ["accumulated_gradients", "data_cursor", "loss_scaler", "model", "optimizer", "rng_cpu"] {
        assert_eq!(outcomes[class], ("differs".to_owned(), None), "{class}: {report}");
    }
    // The reference is the run itself, its open window included.
    let reference = &report["probes"][0]["result"]["reference"]["classes"];
    let committed = folder.bodies("checkpoint.durably_committed")?;
    let committed = committed.iter().find(|body| body["det"]["step"] == 7).context("saved")?;
    assert_eq!(*reference, committed["det"]["classes"]);
    // At the last step there is no window to lose.
    let report = probe(&folder, 16, &["--withhold", "accumulated_gradients"], 0)?;
    assert_eq!(self::outcomes(&report)["accumulated_gradients"].1.as_deref(), Some("equals_initial"));
    Ok(())
}
