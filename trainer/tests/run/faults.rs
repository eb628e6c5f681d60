//! Crashes, corrupted checkpoints and storage that refuses.

use anyhow::{Context, Result};
use rustix::process::Signal;

use crate::folder::{LONG, RunFolder, flip_last_byte};

#[test]
fn a_killed_run_resumes_to_the_bytes_of_an_uninterrupted_one() -> Result<()> {
    let uninterrupted = RunFolder::long()?;
    uninterrupted.train()?.expect(0);
    let folder = RunFolder::long()?;
    for step in [7, 12, 31, 50] {
        let mut training = folder.start()?;
        training.wait_for_step(step)?.send(Signal::KILL)?;
        assert_eq!(training.finish()?.code, None, "killed at step {step}");
    }
    folder.train()?.expect(0).says("RESUMING run ");
    assert_eq!(folder.model(LONG)?, uninterrupted.model(LONG)?);
    assert_eq!(folder.bodies("run.end")?[0]["det"], uninterrupted.bodies("run.end")?[0]["det"]);

    let attempts = |kind: &str, fault: &str| -> Result<Vec<u64>> {
        let bodies = folder.bodies(kind)?;
        let of_fault = bodies.iter().filter(|body| fault.is_empty() || body["det"]["fault"] == fault);
        Ok(of_fault.filter_map(|body| body["det"]["attempt"].as_u64()).collect())
    };
    assert_eq!(attempts("fault.observed", "attempt_vanished")?, [1, 2, 3, 4]);
    assert_eq!(attempts("fault.recovered", "")?, [1, 2, 3, 4]);
    let end = &folder.bodies("run.end")?[0]["obs"];
    assert_eq!(end["num_attempts"], 5);
    assert_eq!(end["num_attempts_incomplete"], 4);
    assert_eq!(end["cost"]["num_steps_executed"], folder.bodies("step")?.len());
    // No leftovers, and no checkpoint of a step but the schedule's.
    assert!(folder.store()?.iter().all(|name| name.starts_with('s')), "{:?}", folder.store()?);
    Ok(())
}

#[test]
fn a_run_that_is_killed_before_its_first_checkpoint_starts_again() -> Result<()> {
    let folder = RunFolder::long()?;
    let mut training = folder.start()?;
    training.wait_for("Starting run ")?.send(Signal::KILL)?;
    assert_eq!(training.finish()?.code, None);
    let finished = folder.train()?.expect(0);
    if folder.bodies("attempt.start")?.len() == 2 {
        // The first process came as far as its `attempt.start`.
        assert!(finished.stderr.contains("RESTARTING run ") || finished.stderr.contains("RESUMING run "));
    }
    Ok(())
}

#[test]
fn a_corrupted_newest_checkpoint_is_quarantined_and_an_older_one_taken() -> Result<()> {
    let uninterrupted = RunFolder::long()?;
    uninterrupted.train()?.expect(0);
    let folder = RunFolder::long()?;
    let mut training = folder.start()?;
    training.wait_for_step(25)?.send(Signal::KILL)?;
    training.finish()?;
    flip_last_byte(&folder.path().join("checkpoints/s00000020-a1/optimizer.safetensors"))?;
    let finished = folder.train()?.expect(0);
    finished
        .says("WARNING: checkpoint s00000020-a1 cannot be used")
        .says("checkpoint s00000010-a1 (step 10)");

    let faults = folder.bodies("fault.observed")?;
    let corrupt = faults.iter().find(|body| body["det"]["fault"] == "checkpoint_corrupt");
    assert_eq!(corrupt.context("it is recorded")?["obs"]["checkpoint"], "s00000020-a1");
    let recovered = &folder.bodies("fault.recovered")?[0];
    assert_eq!(recovered["det"]["from_step"], 10);
    assert!(recovered["obs"]["fallback"].as_str().is_some_and(|text| text.contains("s00000020-a1")));
    assert_eq!(folder.bodies("checkpoint.quarantined")?[0]["obs"]["checkpoint"], "s00000020-a1");
    // Step 20 was executed, saved and admitted again, by the second attempt.
    assert!(folder.store()?.contains(&"s00000020-a2".to_owned()));
    assert_eq!(folder.bodies("candidate.selected")?[0]["det"]["num_candidates"], 6);
    assert_eq!(folder.model(LONG)?, uninterrupted.model(LONG)?);
    Ok(())
}

#[test]
fn a_shard_that_is_cut_off_is_a_corrupt_one_and_one_that_is_gone_tells_nothing() -> Result<()> {
    let folder = RunFolder::long()?;
    let mut training = folder.start()?;
    training.wait_for_step(25)?.send(Signal::KILL)?;
    training.finish()?;
    let store = folder.path().join("checkpoints");
    let cut_off =
        std::fs::OpenOptions::new().write(true).open(store.join("s00000020-a1/model.safetensors"))?;
    cut_off.set_len(cut_off.metadata()?.len() - 1)?;
    std::fs::remove_file(store.join("s00000010-a1/model.safetensors"))?;
    folder.train()?.expect(0).says("checkpoint s00000000-a1 (step 0)");
    let cause = |checkpoint: &str| -> Result<serde_json::Value> {
        let faults = folder.bodies("fault.observed")?;
        let of_it = faults.iter().find(|body| body["obs"]["checkpoint"] == checkpoint);
        let det = &of_it.context("it is recorded")?["det"];
        assert_eq!(det["fault"], "checkpoint_corrupt");
        Ok(det["cause"].clone())
    };
    assert_eq!(cause("s00000020-a1")?, "single_shard_corruption");
    assert_eq!(cause("s00000010-a1")?, serde_json::Value::Null);
    Ok(())
}

#[test]
fn a_store_that_refuses_ends_the_attempt_on_record() -> Result<()> {
    let folder = RunFolder::new(|_| ())?;
    std::fs::write(folder.path().join("checkpoints"), "in the way")?;
    let finished = folder.train()?.expect(1);
    finished.says("checkpoints").says("hint: ");
    let kinds = folder.kinds()?;
    assert!(kinds.ends_with(&["checkpoint.requested", "checkpoint.failed", "fault.observed", "attempt.end"]));
    std::fs::remove_file(folder.path().join("checkpoints"))?;
    folder.train()?.expect(0).says("RESTARTING run ");
    let recovered = &folder.bodies("fault.recovered")?[0];
    assert_eq!(recovered["det"]["attempt"], 1);
    Ok(())
}

#[test]
fn a_folder_of_another_run_is_never_touched() -> Result<()> {
    let folder = RunFolder::new(|_| ())?;
    let foreign = folder.path().join("checkpoints/s00000000-a1");
    std::fs::create_dir_all(&foreign)?;
    std::fs::write(foreign.join("model.safetensors"), "another run's")?;
    folder.train()?.expect(1).says("exists already and this attempt did not write it");
    assert_eq!(std::fs::read(foreign.join("model.safetensors"))?, b"another run's");
    // The next attempt's names are free.
    folder.train()?.expect(0);
    assert_eq!(std::fs::read(foreign.join("model.safetensors"))?, b"another run's");
    Ok(())
}

#[test]
fn intents_and_stages_are_under_a_signed_head_as_soon_as_they_are_made() -> Result<()> {
    let folder = RunFolder::new(|_| ())?;
    folder.train()?.expect(0);
    let kinds = folder.kinds()?;
    let heads = std::fs::read_to_string(folder.path().join("run.db.head"))?;
    for kind in
        ["attempt.start", "checkpoint.requested", "checkpoint.validated", "candidate.selected", "run.end"]
    {
        let size = kinds.iter().position(|found| *found == kind).context("it is there")? + 1;
        assert!(heads.contains(&format!("\n{size}\n")), "no head was signed at size {size}, after {kind}");
    }
    Ok(())
}

#[test]
fn a_ledger_that_cannot_grow_ends_the_process_and_loses_nothing_that_was_durable() -> Result<()> {
    let uninterrupted = RunFolder::long()?;
    uninterrupted.train()?.expect(0);
    let folder = RunFolder::long()?;
    // 128 KiB: more than a shard, less than the ledger's log of sixty steps.
    let finished = folder.train_with_small_files(256)?.expect(2);
    finished.says("error: the ledger cannot be written").says("Starting run ");
    let num_entries = folder.entries()?.len();
    assert!(num_entries > 10, "{num_entries}");
    folder.train()?.expect(0).says("RESUMING run ");
    assert_eq!(folder.model(LONG)?, uninterrupted.model(LONG)?);
    Ok(())
}
