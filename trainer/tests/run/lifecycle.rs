//! Start, end, interruption and resume, and the entries of each.

use anyhow::{Context, Result};
use rustix::process::Signal;
use schemas::body::Outcome;
use schemas::state::CheckpointManifest;
use trainer::engine::Engine;
use trainer::export::{self, FileKind, NamedTensor};
use trainer::run::train::{Ending, Training};
use trainer::run::{self, RunOptions};

use crate::common::{self, Fixture};
use crate::folder::{LONG, RunFolder};

#[test]
fn an_uninterrupted_run_leaves_the_entries_that_the_contract_determines() -> Result<()> {
    let folder = RunFolder::new(|_| ())?;
    let finished = folder.train()?.expect(0);
    finished.says("Starting run ").says("attempt 1");
    assert!(finished.stdout.contains("completed at step 8"), "{}", finished.stdout);

    let saved =
        ["checkpoint.requested", "checkpoint.staged", "checkpoint.durably_committed", "checkpoint.validated"];
    let mut expected = vec!["contract.frozen", "run.start", "attempt.start", "segment.start", "eval"];
    expected.extend(saved);
    for _ in 0..2 {
        expected.extend(["step", "step", "step", "step", "eval"]);
        expected.extend(saved);
        expected.push("candidate.admitted");
    }
    expected.extend(["candidate.selected", "attempt.end", "run.end"]);
    assert_eq!(folder.kinds()?, expected);

    let selected = folder.bodies("candidate.selected")?;
    let values: Vec<f64> =
        folder.bodies("eval")?.iter().filter_map(|body| body["det"]["value"].as_f64()).collect();
    assert_eq!(values.len(), 3);
    assert!(values[2] < values[0], "the model learns: {values:?}");
    assert_eq!(selected[0]["det"]["num_candidates"], 2);
    assert_eq!(selected[0]["det"]["value"].as_f64(), Some(values[1].min(values[2])));
    let end = &folder.bodies("run.end")?[0];
    assert_eq!(end["det"]["counters"]["examples"], 32);
    assert_eq!(end["obs"]["cost"]["num_steps_executed"], 8);
    Ok(())
}

/// What the bench of a step's cost relies on.
#[test]
fn turns_of_the_loop_number_their_own_steps_whatever_the_engine_does_between() -> Result<()> {
    let folder = RunFolder::new(|_| ())?;
    let keys = Some(folder.path().join("keys"));
    let options = RunOptions { is_quiet: true, keys, ledger: folder.ledger(), ..RunOptions::default() };
    let mut num_endings = 0;
    let report = run::run_with(&options, &mut |attempt, engine, context, resume| {
        let mut training = Training::begin(attempt, context, resume)?;
        for _ in 0..2 {
            for _ in 0..2 {
                num_endings += u32::from(training.turn(attempt, engine)?.is_some());
            }
            engine.step(context.interrupt.flag())?;
        }
        attempt.flush()?;
        Ok(training.finish(Ending::Interrupted(context.interrupt.received())))
    })?;
    assert_eq!((num_endings, report.outcome, report.run_ended), (0, Outcome::Interrupted, false));

    // Six updates were made. The third and the sixth were no turn's, and the
    // entry of the fifth was still to come.
    let entries = folder.entries()?;
    let steps: Vec<Option<u64>> = entries
        .iter()
        .filter(|entry| entry.body.kind().name() == "step")
        .map(|entry| entry.header.step)
        .collect();
    assert_eq!(steps, [Some(1), Some(2), Some(3)]);
    let examples: Vec<Option<u64>> =
        folder.bodies("step")?.iter().map(|body| body["det"]["counters"]["examples"].as_u64()).collect();
    assert_eq!(examples, [Some(4), Some(8), Some(16)]);
    Ok(())
}

#[test]
fn a_run_that_ended_is_left_alone() -> Result<()> {
    let folder = RunFolder::new(|_| ())?;
    folder.train()?.expect(0);
    let entries = folder.entries()?;
    let again = folder.train()?.expect(0);
    assert!(again.stdout.contains("the run had ended before"), "{}", again.stdout);
    assert_eq!(folder.entries()?, entries);
    Ok(())
}

#[test]
fn a_checkpoint_holds_every_class_at_one_step() -> Result<()> {
    let folder = RunFolder::new(|_| ())?;
    folder.train()?.expect(0);
    let path = folder.path().join("checkpoints/s00000004-a1");
    let manifest: CheckpointManifest = serde_json::from_slice(&std::fs::read(path.join("manifest.json"))?)?;
    let classes: Vec<_> = manifest.classes.iter().map(|captured| captured.class).collect();
    let mut sorted = classes.clone();
    sorted.sort();
    assert_eq!(classes, sorted);
    assert_eq!(classes.len(), 12);
    assert!(manifest.classes.iter().all(|captured| captured.step == 4));
    for captured in &manifest.classes {
        assert_eq!(captured.not_applicable.is_some(), captured.shards.is_empty(), "{}", captured.class);
        for shard in &captured.shards {
            let bytes = std::fs::read(path.join(&shard.path))?;
            assert_eq!(common::digest_of(&bytes), shard.digest);
            assert_eq!(bytes.len() as u64, shard.num_bytes);
        }
    }
    let cursor = std::fs::read_to_string(path.join("data_cursor.json"))?;
    assert!(cursor.contains("\"examples\":16") && cursor.contains("\"step\":4"), "{cursor}");
    Ok(())
}

#[test]
fn term_and_int_end_an_attempt_cleanly_and_the_run_resumes_to_the_same_bytes() -> Result<()> {
    let uninterrupted = RunFolder::long()?;
    uninterrupted.train()?.expect(0);
    let folder = RunFolder::long()?;
    let mut training = folder.start()?;
    training.wait_for_step(13)?.send(Signal::TERM)?;
    let finished = training.finish()?.expect(143);
    assert!(finished.stdout.contains("interrupted at step"), "{}", finished.stdout);
    let mut training = folder.start()?;
    training.wait_for("RESUMING run ")?.wait_for_step(25)?.send(Signal::INT)?;
    training.finish()?.expect(130);
    let last = folder.train()?.expect(0);
    last.says("RESUMING run ");

    let ends = folder.bodies("attempt.end")?;
    let outcomes: Vec<&str> = ends.iter().filter_map(|end| end["det"]["outcome"].as_str()).collect();
    assert_eq!(outcomes, ["interrupted", "interrupted", "completed"]);
    let starts = folder.bodies("attempt.start")?;
    assert_eq!(starts[1]["det"]["reason"], "resume");
    assert_eq!(starts[1]["det"]["resumed_from"]["step"], starts[1]["det"]["from_step"]);
    // A clean end is no fault.
    assert!(folder.bodies("fault.observed")?.is_empty());
    assert_eq!(folder.bodies("run.start")?.len(), 1);
    assert_eq!(folder.bodies("segment.start")?.len(), 1);
    assert_eq!(folder.model(LONG)?, uninterrupted.model(LONG)?);
    assert_eq!(folder.bodies("run.end")?[0]["det"], uninterrupted.bodies("run.end")?[0]["det"]);
    Ok(())
}

#[test]
fn steps_that_are_executed_again_have_the_same_determined_half() -> Result<()> {
    let folder = RunFolder::long()?;
    let mut training = folder.start()?;
    training.wait_for_step(18)?.send(Signal::TERM)?;
    training.finish()?.expect(143);
    folder.train()?.expect(0);
    let entries = folder.entries()?;
    let of_attempt = |attempt: u32| {
        let steps = entries.iter().filter(move |entry| {
            entry.body.kind().name() == "step" && entry.header.attempt.is_some_and(|id| id.0 == attempt)
        });
        steps.map(|entry| (entry.header.step, entry.body.det_json())).collect::<Vec<_>>()
    };
    let (first, second) = (of_attempt(1), of_attempt(2));
    let mut num_repeated = 0;
    for (step, det) in &first {
        for (again, det_again) in second.iter().filter(|(again, _)| again == step) {
            assert_eq!(det.as_ref().ok(), det_again.as_ref().ok(), "step {again:?}");
            num_repeated += 1;
        }
    }
    assert!(num_repeated >= 8, "{num_repeated} steps were repeated");
    Ok(())
}

/// Executes the steps from 4 to 8 from a checkpoint, with or without its
/// optimizer state.
fn continued(folder: &RunFolder, with_optimizer: bool) -> Result<Vec<u8>> {
    let data = folder.path().join("data");
    let fixture = Fixture::write(&data, &common::decoder(), 2, 2)?;
    let mut engine: Engine = fixture.engine(&data)?;
    let zero = engine.capture()?.optimizer;
    let never = std::sync::atomic::AtomicBool::new(false);
    for _ in 0..4 {
        engine.step(&never)?.context("no signal comes")?;
    }
    let counters = engine.counters();
    let checkpoint = folder.path().join("checkpoints/s00000004-a1");
    let read = |name: &str, kind| -> Result<Vec<NamedTensor>> {
        let bytes = std::fs::read(checkpoint.join(name))?;
        Ok(export::read(kind, &mut bytes.as_slice(), bytes.len() as u64)?.0)
    };
    let model = read("model.safetensors", FileKind::Model)?;
    let optimizer = read("optimizer.safetensors", FileKind::State)?;
    let optimizer = if with_optimizer { optimizer } else { zero };
    engine.restore(4, counters, &model, &optimizer)?;
    for _ in 0..4 {
        engine.step(&never)?.context("no signal comes")?;
    }
    Ok(export::safetensors_bytes(FileKind::Model, &engine.capture()?.model)?)
}

#[test]
fn the_cold_control_without_optimizer_state_differs() -> Result<()> {
    let folder = RunFolder::new(|_| ())?;
    folder.train()?.expect(0);
    let last = folder.model(8)?;
    assert_eq!(continued(&folder, true)?, last);
    assert_ne!(continued(&folder, false)?, last);
    Ok(())
}

#[test]
fn a_signal_before_the_first_step_ends_the_attempt_cleanly_too() -> Result<()> {
    let folder = RunFolder::long()?;
    let mut training = folder.start()?;
    training.wait_for("Starting run ")?.send(Signal::TERM)?;
    training.finish()?.expect(143);
    let kinds = folder.kinds()?;
    assert_eq!(kinds.last(), Some(&"attempt.end"), "{kinds:?}");
    folder.train()?.expect(0);
    Ok(())
}
