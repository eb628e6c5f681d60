//! Saves that training goes on beside: the same bytes, the same order of what is
//! decided, and no failure, signal or crash that loses one.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use rustix::process::Signal;
use schemas::contract::{Contract, PermittedRewrite, SaveMode, StoppingRule};
use serde_json::Value;
use trainer::run::{self, RunOptions, train};

use crate::folder::RunFolder;
use crate::retention::keep;

/// Steps of [`often_saved`].
const NUM_STEPS: u64 = 200;

/// Steps that an attempt makes before its stages are looked at.
const NUM_STEPS_BEFORE_STAGE: u64 = 3;

fn often_saved(mode: SaveMode, edit: impl FnOnce(&mut Contract)) -> Result<RunFolder> {
    RunFolder::new(|contract| {
        contract.budget.max_steps = NUM_STEPS;
        contract.stopping = StoppingRule::AtStep { step: NUM_STEPS };
        contract.checkpoints.every_steps = 2;
        contract.checkpoints.mode = mode;
        contract.evaluation.streams[0].every_steps = 10;
        contract.topology.permitted_rewrites = vec![PermittedRewrite::ThreadCount];
        edit(contract);
    })
}

/// Every file of every checkpoint but the manifests, which name the contract.
fn shards(folder: &RunFolder) -> Result<BTreeMap<String, Vec<u8>>> {
    let mut files = BTreeMap::new();
    for name in folder.store()? {
        for item in std::fs::read_dir(folder.path().join("checkpoints").join(&name))? {
            let path = item?.path();
            let file = path.file_name().context("a file")?.to_string_lossy().into_owned();
            if file != "manifest.json" {
                files.insert(format!("{name}/{file}"), std::fs::read(path)?);
            }
        }
    }
    Ok(files)
}

/// The determined half of everything that a run records, of some kinds.
fn determined(folder: &RunFolder, is_chosen: impl Fn(&str) -> bool) -> Result<Vec<(String, Value)>> {
    let entries = folder.entries()?;
    let chosen = entries.iter().filter(|entry| is_chosen(entry.body.kind().name()));
    chosen
        .map(|entry| {
            let body = serde_json::to_value(&entry.body)?;
            Ok((entry.body.kind().name().to_owned(), body["det"].clone()))
        })
        .collect()
}

fn is_of_saves(kind: &str) -> bool {
    kind.starts_with("checkpoint.") || kind.starts_with("candidate.")
}

/// Fails unless every save that was requested came to an end, and nothing else
/// than whole checkpoints lies in the store.
#[track_caller]
fn check_settled(folder: &RunFolder) -> Result<()> {
    let names = folder.store()?;
    assert!(names.iter().all(|name| name.starts_with('s')), "it left {names:?}");
    let count = |kind: &str| folder.bodies(kind).map(|bodies| bodies.len());
    let num_ended = count("checkpoint.validated")? + count("checkpoint.failed")?;
    assert_eq!(num_ended, count("checkpoint.requested")?);
    Ok(())
}

#[test]
fn an_asynchronous_run_saves_and_decides_what_a_synchronous_one_does() -> Result<()> {
    let policy = |contract: &mut Contract| contract.checkpoints.keep = keep(2, Some(50), 1, &[]);
    let synchronous = often_saved(SaveMode::Synchronous, policy)?;
    synchronous.train()?.expect(0);
    let asynchronous = often_saved(SaveMode::Asynchronous, policy)?;
    asynchronous.train()?.expect(0);
    check_settled(&asynchronous)?;
    // Each copy is of its step, although the next updates were made meanwhile.
    let shards_of_both = (shards(&asynchronous)?, shards(&synchronous)?);
    assert!(shards_of_both.0.len() > 20, "{}", shards_of_both.0.len());
    assert!(shards_of_both.0 == shards_of_both.1, "another state was saved");
    let of_saves = determined(&asynchronous, is_of_saves)?;
    assert_eq!(of_saves, determined(&synchronous, is_of_saves)?, "in this order");
    assert!(of_saves.iter().any(|(kind, _)| kind == "checkpoint.retired"));
    let is_of_loop = |kind: &str| matches!(kind, "step" | "eval" | "attempt.end" | "run.end");
    assert_eq!(determined(&asynchronous, is_of_loop)?, determined(&synchronous, is_of_loop)?);
    // The time that the loop was held is accounted for.
    let end = asynchronous.bodies("attempt.end")?.pop().context("it ended")?;
    assert!(end["obs"]["cost"]["checkpoint_us"].as_u64() > Some(0));
    Ok(())
}

#[test]
fn a_store_that_refuses_is_on_record_at_once_and_ends_the_attempt() -> Result<()> {
    let folder = RunFolder::new(|contract| contract.checkpoints.mode = SaveMode::Asynchronous)?;
    let in_the_way = folder.path().join("checkpoints");
    std::fs::write(&in_the_way, "in the way")?;
    folder.train()?.expect(1).says("checkpoints").says("hint: ");
    // No update is made before there is a state to go on from.
    let kinds = folder.kinds()?;
    let end = ["checkpoint.requested", "checkpoint.failed", "fault.observed", "attempt.end"];
    assert!(kinds.ends_with(&end), "{kinds:?}");
    assert!(!kinds.contains(&"step"), "{kinds:?}");
    std::fs::remove_file(in_the_way)?;
    folder.train()?.expect(0);
    check_settled(&folder)
}

#[test]
fn a_save_that_fails_beside_training_ends_the_attempt_at_a_step_boundary() -> Result<()> {
    let folder = often_saved(SaveMode::Asynchronous, |_| ())?;
    let foreign = folder.path().join("checkpoints/s00000100-a1");
    std::fs::create_dir_all(&foreign)?;
    folder.train()?.expect(1).says("exists already and this attempt did not write it");
    let failed = folder.bodies("checkpoint.failed")?;
    assert_eq!((failed.len(), &failed[0]["det"]["step"]), (1, &100.into()));
    let fault = &folder.bodies("fault.observed")?[0]["det"];
    assert_eq!(fault["fault"], "storage_failed");
    // What was recorded beside the save is what the attempt says that it did,
    // and the next save waited for this one.
    let end = &folder.bodies("attempt.end")?[0]["det"];
    let num_steps = folder.bodies("step")?.len();
    assert_eq!((&end["outcome"], &end["last_step"]), (&"failed".into(), &num_steps.into()));
    assert!((100..=102).contains(&num_steps), "{num_steps}");
    let uninterrupted = often_saved(SaveMode::Asynchronous, |_| ())?;
    uninterrupted.train()?.expect(0);
    folder.train()?.expect(0).says("(step 98)");
    assert_eq!(folder.model(NUM_STEPS)?, uninterrupted.model(NUM_STEPS)?);
    check_settled(&folder)
}

#[test]
fn the_last_save_is_awaited_and_its_failure_is_the_runs() -> Result<()> {
    let folder = RunFolder::new(|contract| contract.checkpoints.mode = SaveMode::Asynchronous)?;
    let foreign = folder.path().join("checkpoints/s00000008-a1");
    std::fs::create_dir_all(&foreign)?;
    folder.train()?.expect(1).says("exists already and this attempt did not write it");
    let kinds = folder.kinds()?;
    let end = ["checkpoint.requested", "checkpoint.failed", "fault.observed", "attempt.end"];
    assert!(kinds.ends_with(&end), "{kinds:?}");
    assert!(!kinds.contains(&"candidate.selected"), "{kinds:?}");
    folder.train()?.expect(0).says("RESUMING run ");
    assert_eq!(folder.bodies("candidate.selected")?.len(), 1);
    check_settled(&folder)
}

#[test]
fn a_signal_beside_a_save_ends_the_attempt_behind_it() -> Result<()> {
    let uninterrupted = often_saved(SaveMode::Synchronous, |_| ())?;
    uninterrupted.train()?.expect(0);
    let folder = often_saved(SaveMode::Asynchronous, |_| ())?;
    let mut last_step = 0;
    for (signal, code) in [(Signal::TERM, 143), (Signal::INT, 130), (Signal::HUP, 129)] {
        let mut training = folder.start()?;
        training.wait_for_step(last_step + NUM_STEPS_BEFORE_STAGE)?;
        let checkpoint = training.send_while_staging(&folder, signal)?;
        training.finish()?.expect(code);
        let kinds = folder.kinds()?;
        assert_eq!(kinds.last(), Some(&"attempt.end"), "{kinds:?}");
        let end = folder.bodies("attempt.end")?.pop().context("it ended")?;
        assert_eq!(end["det"]["outcome"], "interrupted");
        let validated = folder.bodies("checkpoint.validated")?;
        assert!(validated.iter().any(|body| body["obs"]["checkpoint"] == checkpoint.as_str()));
        check_settled(&folder)?;
        last_step = end["det"]["last_step"].as_u64().context("a step")?;
    }
    folder.train()?.expect(0).says("RESUMING run ");
    assert!(folder.bodies("fault.observed")?.is_empty(), "a clean end is no fault");
    assert_eq!(folder.model(NUM_STEPS)?, uninterrupted.model(NUM_STEPS)?);
    assert_eq!(folder.bodies("run.end")?[0]["det"], uninterrupted.bodies("run.end")?[0]["det"]);
    Ok(())
}

/// Kills a run while a save is staged; the name of the torn checkpoint.
fn killed_while_staging(folder: &RunFolder) -> Result<String> {
    let mut training = folder.start()?;
    // There is a save behind and one before the one that is met.
    training.wait_for_step(7)?;
    let checkpoint = training.send_while_staging(folder, Signal::KILL)?;
    assert_eq!(training.finish()?.code, None, "it was killed");
    Ok(checkpoint)
}

#[test]
fn a_kill_beside_a_save_goes_on_from_the_one_before() -> Result<()> {
    let uninterrupted = often_saved(SaveMode::Asynchronous, |_| ())?;
    uninterrupted.train()?.expect(0);
    let folder = often_saved(SaveMode::Asynchronous, |_| ())?;
    let torn = killed_while_staging(&folder)?;
    let names = folder.store()?;
    assert!(names.iter().any(|name| name.starts_with(".staging-")), "the kill came too late: {names:?}");
    folder.train()?.expect(0).says("RESUMING run ").says("Removed incomplete");

    let start = folder.bodies("attempt.start")?.pop().context("a second attempt")?;
    let from = start["det"]["resumed_from"]["step"].as_u64().context("a checkpoint")?;
    let torn_step: u64 = torn.get(1..9).context("a name")?.parse()?;
    assert_eq!(from, torn_step - 2, "the newest that was whole");
    let of_torn = |kind: &str| -> Result<usize> {
        let bodies = folder.bodies(kind)?;
        Ok(bodies.iter().filter(|body| body["obs"]["checkpoint"] == torn.as_str()).count())
    };
    assert_eq!((of_torn("checkpoint.validated")?, of_torn("checkpoint.failed")?), (0, 1));
    assert!(!folder.store()?.contains(&torn), "{:?}", folder.store()?);
    check_settled(&folder)?;
    assert_eq!(folder.model(NUM_STEPS)?, uninterrupted.model(NUM_STEPS)?);
    Ok(())
}

/// The cold control: the same kill and the same checkpoint, with the moments
/// left at zero. A resume that restored nothing would end here too.
#[test]
fn a_resume_without_its_moments_ends_elsewhere() -> Result<()> {
    let uninterrupted = often_saved(SaveMode::Asynchronous, |_| ())?;
    uninterrupted.train()?.expect(0);
    let folder = often_saved(SaveMode::Asynchronous, |_| ())?;
    killed_while_staging(&folder)?;
    let keys = Some(folder.path().join("keys"));
    let options = RunOptions { is_quiet: true, keys, ledger: folder.ledger(), ..RunOptions::default() };
    run::run_with(&options, &mut |attempt, engine, context, resume| {
        let mut moments = engine.capture_optimizer();
        assert!(moments.iter().any(|tensor| tensor.bytes.iter().any(|byte| *byte != 0)), "it resumed");
        moments.iter_mut().for_each(|tensor| tensor.bytes.fill(0));
        engine.restore_optimizer(&moments)?;
        train::train(attempt, engine, context, resume)
    })?;
    assert_ne!(folder.model(NUM_STEPS)?, uninterrupted.model(NUM_STEPS)?);
    Ok(())
}
