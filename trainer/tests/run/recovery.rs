//! Recovery policies: where the next attempt begins, what is given up, and what
//! that cost, as the entries say.
#![allow(clippy::float_cmp, reason = "amounts are made of integers, and equal bits are what is meant")]

use std::collections::BTreeMap;
use std::fs;

use anyhow::{Context, Result};
use rustix::process::Signal;
use schemas::body::{Body, CostDet, CostObs};
use schemas::contract::{PermittedRewrite, Recovery, StoppingRule};
use schemas::data::Split;
use schemas::ids::CheckpointId;
use schemas::state::StateClass;
use serde_json::Value;
use trainer::run::error::RunError;
use trainer::run::train::Training;
use trainer::run::{RunOptions, run_with};
use trainer::state::StateError;

use crate::folder::{LONG, RunFolder, flip_last_byte, shard};
use crate::probes::probe;

fn folder(recovery: Recovery) -> Result<RunFolder> {
    RunFolder::new(|contract| {
        contract.budget.max_steps = LONG;
        contract.stopping = StoppingRule::AtStep { step: LONG };
        contract.checkpoints.every_steps = 10;
        contract.evaluation.streams[0].every_steps = 10;
        contract.faults.recovery = recovery;
        // An attempt within this process takes its threads as they are.
        contract.topology.permitted_rewrites = vec![PermittedRewrite::ThreadCount];
    })
}

/// The model of a run that nothing happened to.
fn twin() -> Result<Vec<u8>> {
    let folder = RunFolder::long()?;
    folder.train()?.expect(0);
    folder.model(LONG)
}

fn killed(folder: &RunFolder, step: u64) -> Result<()> {
    let mut training = folder.start()?;
    training.wait_for_step(step)?.send(Signal::KILL)?;
    training.finish()?;
    Ok(())
}

/// A first attempt that computes with a changed parameter from step 25 on and
/// notices at step 45.
fn struck(folder: &RunFolder) -> Result<()> {
    let options = RunOptions { is_quiet: true, ledger: folder.ledger(), ..RunOptions::default() };
    let report = run_with(&options, &mut |attempt, engine, context, resume| {
        let mut training = Training::begin(attempt, context, resume)?;
        loop {
            if let Some(ending) = training.turn(attempt, engine)? {
                return Ok(training.finish(ending));
            }
            if engine.step_number() == 25 {
                let mut tensors = engine.capture_model()?;
                tensors[0].bytes[2] ^= 0x40;
                engine.restore_model(&tensors)?;
            }
            if engine.step_number() == 45 {
                let (class, reason) = (StateClass::Model, "noticed at last".to_owned());
                return Err(RunError::State(StateError::Shape { class, reason }));
            }
        }
    })?;
    assert_eq!((report.attempt, report.run_ended), (Some(1), false), "{report:?}");
    assert_eq!(folder.bodies("fault.observed")?[0]["det"]["fault"], "state_mismatch");
    Ok(())
}

/// What every recovery charged, in order, after a comparison with what the
/// entries before it give.
fn charged(folder: &RunFolder) -> Result<Vec<[f64; 3]>> {
    let entries = folder.entries()?;
    let mut durations: BTreeMap<(u32, u64), u64> = BTreeMap::new();
    let mut sizes: BTreeMap<CheckpointId, u64> = BTreeMap::new();
    let (mut steps, mut microseconds, mut bytes) = (0, 0, 0);
    let mut all = Vec::new();
    let mut open: Vec<(String, f64)> = Vec::new();
    for entry in &entries {
        let attempt = entry.header.attempt.map_or(0, |attempt| attempt.0);
        match &entry.body {
            Body::Step(halves) => {
                let step = entry.header.step.context("a step has one")?;
                durations.insert((attempt, step), halves.obs.duration_us);
            }
            Body::CheckpointDurablyCommitted(halves) => {
                sizes.insert(halves.obs.checkpoint.clone(), halves.obs.num_bytes);
            }
            Body::FaultRecovered(halves) => {
                let struck = halves.det.attempt.0;
                steps += halves.det.num_steps_lost;
                let lost = durations.range((struck, halves.det.from_step + 1)..(struck + 1, 0));
                microseconds += lost.map(|(_, duration)| duration).sum::<u64>();
                assert!(open.is_empty());
            }
            Body::CheckpointFailed(halves) | Body::CheckpointQuarantined(halves) => {
                bytes += sizes.get(&halves.obs.checkpoint).copied().unwrap_or(0);
            }
            Body::Cost(halves) if halves.det.charged_to == "recovery" => {
                let (CostDet { .. }, CostObs { amount, unit, .. }) = (&halves.det, &halves.obs);
                open.push((unit.clone(), amount.0));
                if open.len() == 3 {
                    let units: Vec<&str> = open.iter().map(|(unit, _)| unit.as_str()).collect();
                    assert_eq!(units, ["steps", "s", "bytes"]);
                    let expected = [steps as f64, microseconds as f64 / 1e6, bytes as f64];
                    let actual = [open[0].1, open[1].1, open[2].1];
                    assert_eq!(actual, expected);
                    all.push(actual);
                    (steps, microseconds, bytes) = (0, 0, 0);
                    open.clear();
                }
            }
            _ => {}
        }
    }
    assert!(open.is_empty());
    assert_eq!((steps, microseconds, bytes), (0, 0, 0), "everything is charged");
    Ok(all)
}

fn quarantined(folder: &RunFolder) -> Result<Vec<String>> {
    let bodies = folder.bodies("checkpoint.quarantined")?;
    Ok(bodies.iter().filter_map(|body| body["obs"]["checkpoint"].as_str().map(str::to_owned)).collect())
}

/// From which checkpoint the attempt of a number resumed.
fn resumed_from(folder: &RunFolder, attempt: usize) -> Result<Value> {
    let starts = folder.bodies("attempt.start")?;
    Ok(starts.get(attempt - 1).context("it started")?["det"]["resumed_from"]["checkpoint"].clone())
}

/// The stage that `trainer checkpoint list` gives of each checkpoint.
fn listed(folder: &RunFolder) -> Result<BTreeMap<String, String>> {
    let finished = folder.trainer(&["checkpoint", "list", "--ledger", "run.db", "--json"])?.expect(0);
    let listing: Value = serde_json::from_str(&finished.stdout)?;
    let rows = listing["checkpoints"].as_array().context("rows")?.clone();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    Ok(rows.iter().map(|row| (text(&row["checkpoint"]), text(&row["stage"]))).collect())
}

/// After a fault of state the newest validated checkpoint is a damaged one: the
/// usual policy goes on from it, and ends elsewhere than the twin.
#[test]
fn the_newest_validated_checkpoint_may_hold_what_a_fault_damaged() -> Result<()> {
    let folder = folder(Recovery::RestartFromLastValidated)?;
    struck(&folder)?;
    folder.train()?.expect(0).says("checkpoint s00000040-a1 (step 40)");
    assert_eq!(quarantined(&folder)?, [""; 0]);
    let charged = charged(&folder)?;
    assert_eq!(charged.len(), 1);
    assert_eq!((charged[0][0], charged[0][2]), (4.0, 0.0), "44 was recorded, and 40 is gone back to");
    assert!(charged[0][1] > 0.0);
    assert_ne!(folder.model(LONG)?, twin()?, "the damage is in the model");
    Ok(())
}

#[test]
fn roll_back_goes_behind_everything_that_a_struck_attempt_saved() -> Result<()> {
    let folder = folder(Recovery::RollBack)?;
    struck(&folder)?;
    let explained = folder.trainer(&["resume", "--explain", "--ledger", "run.db"])?.expect(0);
    assert!(explained.stdout.contains("on from s00000000-a1 (step 0)"), "{explained:?}");
    assert!(explained.stdout.contains("s00000040-a1: it is in doubt"), "{explained:?}");
    let finished = folder.train()?.expect(0);
    finished.says("checkpoint s00000000-a1 (step 0)").says("s00000010-a1 is in doubt");
    let given_up = ["s00000040-a1", "s00000030-a1", "s00000020-a1", "s00000010-a1"];
    assert_eq!(quarantined(&folder)?, given_up);
    let charged = charged(&folder)?;
    assert_eq!(charged[0][0], 44.0);
    assert!(charged[0][2] > 0.0, "{charged:?}");
    let recovered = &folder.bodies("fault.recovered")?[0];
    let fallback = recovered["obs"]["fallback"].as_str().context("a reason")?;
    assert_eq!(fallback, "s00000040-a1: attempt 1 saved it, and was last found in order at step 0");
    assert_eq!(folder.model(LONG)?, twin()?);
    // Nothing of it is a candidate any more.
    let selected = &folder.bodies("candidate.selected")?[0];
    assert_eq!(selected["det"]["num_candidates"], 6);
    assert!(given_up.iter().all(|name| selected["obs"]["checkpoint"] != **name));
    let kinds = folder.kinds()?;
    let position = |kind: &str| kinds.iter().position(|known| *known == kind);
    assert!(position("fault.recovered") < position("checkpoint.quarantined"));
    let costs = position("cost").context("it was charged")?;
    assert_eq!(kinds[costs - 1], "checkpoint.quarantined");
    assert_eq!(kinds[costs..costs + 4], ["cost", "cost", "cost", "step"]);
    Ok(())
}

/// A probe compares with a trajectory that nothing happened to.
#[test]
fn what_a_probe_qualified_is_gone_on_from() -> Result<()> {
    let folder = folder(Recovery::RollBack)?;
    struck(&folder)?;
    let report = probe(&folder, 20, &[], 0)?;
    assert!(report["qualified"].is_u64(), "{report}");
    folder.train()?.expect(0).says("checkpoint s00000020-a1 (step 20)");
    assert_eq!(quarantined(&folder)?, ["s00000040-a1", "s00000030-a1"]);
    assert_eq!(charged(&folder)?[0][0], 24.0);
    assert_eq!(folder.model(LONG)?, twin()?);
    Ok(())
}

/// An attempt that resumes and cannot put the state back.
fn refused(folder: &RunFolder) -> Result<()> {
    let options = RunOptions { is_quiet: true, ledger: folder.ledger(), ..RunOptions::default() };
    let report = run_with(&options, &mut |_, _, _, _| {
        let (class, reason) = (StateClass::DataCursor, "it is another run's".to_owned());
        Err(RunError::State(StateError::Shape { class, reason }))
    })?;
    assert_eq!((report.attempt, report.run_ended), (Some(2), false), "{report:?}");
    Ok(())
}

/// Under `roll_back` a checkpoint whose state is refused is not tried again and
/// again; under the usual policy it is.
#[test]
fn a_checkpoint_that_a_resume_refuses_is_left_behind() -> Result<()> {
    for recovery in [Recovery::RollBack, Recovery::RestartFromLastValidated] {
        let folder = folder(recovery)?;
        killed(&folder, 25)?;
        refused(&folder)?;
        assert_eq!(resumed_from(&folder, 2)?, "s00000020-a1");
        let finished = folder.train()?.expect(0);
        let is_left = recovery == Recovery::RollBack;
        let given_up: &[&str] = if is_left { &["s00000020-a1"] } else { &[] };
        assert_eq!(quarantined(&folder)?, given_up);
        assert_eq!(resumed_from(&folder, 3)?, if is_left { "s00000010-a1" } else { "s00000020-a1" });
        if is_left {
            let reason = "attempt 2 resumed from it, and its state was not what the record gives";
            finished.says(&format!("s00000020-a1 is in doubt and is quarantined: {reason}"));
            charged(&folder)?;
        }
        assert_eq!(folder.model(LONG)?, twin()?);
    }
    // A probe went on from it to the bits of another process.
    let folder = folder(Recovery::RollBack)?;
    killed(&folder, 25)?;
    probe(&folder, 20, &[], 0)?;
    refused(&folder)?;
    folder.train()?.expect(0);
    assert_eq!(resumed_from(&folder, 3)?, "s00000020-a1");
    assert_eq!(quarantined(&folder)?, [""; 0]);
    Ok(())
}

#[test]
fn what_is_in_doubt_is_passed_over_by_every_later_attempt() -> Result<()> {
    let folder = folder(Recovery::RollBack)?;
    // An attempt that vanished says nothing against what it saved.
    killed(&folder, 15)?;
    let mut training = folder.start()?;
    training.wait_for_step(35)?.send(Signal::STOP)?;
    let path = shard(&folder, Split::Train);
    let text = fs::read(&path)?;
    let changed: Vec<u8> = text.iter().map(|byte| byte ^ 1).collect();
    fs::write(&path, &changed)?;
    training.send(Signal::CONT)?;
    training.finish()?.expect(2).says("restore the frozen file");
    fs::write(&path, &text)?;
    let observed = folder.bodies("fault.observed")?.pop().context("it is on record")?;
    assert_eq!((&observed["det"]["fault"], &observed["det"]["attempt"]), (&"data_changed".into(), &2.into()));

    let mut training = folder.start()?;
    training.wait_for("RESUMING run ")?.send(Signal::TERM)?;
    training.finish()?.expect(143);
    assert_eq!(resumed_from(&folder, 3)?, "s00000010-a1");
    folder.train()?.expect(0);
    assert!(!resumed_from(&folder, 4)?.as_str().context("a checkpoint")?.ends_with("-a2"));
    let given_up = quarantined(&folder)?;
    assert!(given_up.len() >= 2 && given_up.iter().all(|name| name.ends_with("-a2")), "{given_up:?}");
    let stages = listed(&folder)?;
    for (name, stage) in &stages {
        assert_eq!(stage == "quarantined", given_up.contains(name), "{name}: {stage}");
    }
    let unique: std::collections::BTreeSet<&String> = given_up.iter().collect();
    assert_eq!(unique.len(), given_up.len(), "each once");
    // The attempt that was killed, the one that was struck; the signal took nothing.
    let charged = charged(&folder)?;
    assert_eq!(charged.len(), 2, "{charged:?}");
    assert_eq!(charged[0][2], 0.0);
    assert!(charged[1][0] >= 24.0 && charged[1][2] > 0.0, "{charged:?}");
    assert_eq!(folder.model(LONG)?, twin()?);
    Ok(())
}

#[test]
fn a_vanished_attempt_puts_nothing_in_doubt() -> Result<()> {
    for recovery in [Recovery::RestartFromLastValidated, Recovery::RollBack] {
        let folder = folder(recovery)?;
        killed(&folder, 25)?;
        killed(&folder, 45)?;
        folder.train()?.expect(0);
        assert_eq!(resumed_from(&folder, 2)?, "s00000020-a1", "{recovery:?}");
        assert_eq!(resumed_from(&folder, 3)?, "s00000040-a2", "{recovery:?}");
        let charged = charged(&folder)?;
        assert_eq!(charged.len(), 2, "each recovery charges its own: {charged:?}");
        assert!(charged.iter().all(|[steps, s, bytes]| *steps < 20.0 && *s >= 0.0 && *bytes == 0.0));
        assert_eq!(quarantined(&folder)?, [""; 0]);
        assert_eq!(folder.model(LONG)?, twin()?);
    }
    Ok(())
}

#[test]
fn a_qualified_checkpoint_is_what_the_policy_goes_back_to_and_the_way_is_charged() -> Result<()> {
    let folder = folder(Recovery::RestartFromLastQualified)?;
    killed(&folder, 35)?;
    probe(&folder, 10, &[], 0)?;
    folder.train()?.expect(0);
    let charged = charged(&folder)?;
    let recovered = &folder.bodies("fault.recovered")?[0]["det"];
    assert_eq!(recovered["num_steps_lost"].as_u64().map(|lost| lost as f64), Some(charged[0][0]));
    assert!((20.0..=25.0).contains(&charged[0][0]), "{charged:?}");
    Ok(())
}

#[test]
fn the_bytes_of_a_corrupted_checkpoint_are_charged() -> Result<()> {
    for recovery in [Recovery::RestartFromLastValidated, Recovery::RollBack] {
        let folder = folder(recovery)?;
        killed(&folder, 25)?;
        flip_last_byte(&folder.path().join("checkpoints/s00000020-a1/optimizer.safetensors"))?;
        folder.train()?.expect(0);
        assert_eq!(resumed_from(&folder, 2)?, "s00000010-a1");
        assert_eq!(quarantined(&folder)?, ["s00000020-a1"]);
        let committed = folder.bodies("checkpoint.durably_committed")?;
        let of_it = committed.iter().find(|body| body["obs"]["checkpoint"] == "s00000020-a1");
        let num_bytes = of_it.context("it was committed")?["obs"]["num_bytes"].as_u64();
        let charged = charged(&folder)?;
        assert_eq!(Some(charged[0][2]), num_bytes.map(|bytes| bytes as f64), "{recovery:?}");
        assert!((10.0..20.0).contains(&charged[0][0]), "{charged:?}");
    }
    Ok(())
}

#[test]
fn a_policy_that_refuses_ends_the_run_and_charges_nothing() -> Result<()> {
    let folder = folder(Recovery::Refuse)?;
    killed(&folder, 15)?;
    let refused = folder.train_with(&["--intervention", "looked at it"])?.expect(2);
    refused.says("the intervention is not recorded");
    let kinds = folder.kinds()?;
    assert!(kinds.ends_with(&["fault.observed", "run.end"]), "{kinds:?}");
    assert!(!kinds.contains(&"cost") && !kinds.contains(&"fault.recovered"));
    assert_eq!(folder.bodies("run.end")?[0]["det"]["outcome"], "refused");
    Ok(())
}

#[test]
fn an_intervention_is_on_record_with_the_minutes_that_it_took() -> Result<()> {
    let folder = folder(Recovery::RestartFromLastValidated)?;
    killed(&folder, 15)?;
    for (arguments, expected) in [
        (vec!["--intervention", " "], "it says nothing"),
        (vec!["--operator-minutes", "5"], "--intervention"),
    ] {
        folder.train_with(&arguments)?.expect(2).says(expected);
    }
    let said = ["--intervention", "put the disk back", "--operator-minutes", "25"];
    folder.train_with(&said)?.expect(0);
    let kinds = folder.kinds()?;
    let at = kinds.iter().position(|kind| *kind == "intervention").context("it is on record")?;
    assert_eq!(kinds[at - 1..=at + 2], ["attempt.start", "intervention", "cost", "fault.observed"]);
    let intervention = &folder.bodies("intervention")?[0];
    assert_eq!(intervention["det"]["action"], "put the disk back");
    assert_eq!(intervention["obs"]["operator_minutes"], 25);
    let cost = &folder.bodies("cost")?[0];
    assert_eq!(cost["det"]["charged_to"], "operator");
    assert_eq!((&cost["obs"]["unit"], cost["obs"]["amount"].as_f64()), (&"minutes".into(), Some(25.0)));
    assert_eq!(charged(&folder)?.len(), 1);
    folder.train_with(&said)?.expect(2).says("has ended, so that no intervention can be recorded");
    folder.train()?.expect(0);
    Ok(())
}
