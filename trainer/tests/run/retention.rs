//! What a run retires, what it never does, and what a crash in between leaves.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result};
use rustix::process::Signal;
use schemas::contract::{Contract, Direction, KeepPolicy, StoppingRule};
use serde_json::json;

use crate::folder::{LONG, RunFolder};

pub fn keep(best: u32, every_steps: Option<u64>, last: u32, pinned: &[u64]) -> KeepPolicy {
    KeepPolicy::Chosen { best, every_steps, last, pinned: pinned.to_vec() }
}

/// [`LONG`] steps, saved at every tenth and evaluated at every `evaluated`.
pub fn long_with(keep: KeepPolicy, evaluated: u64, edit: impl FnOnce(&mut Contract)) -> Result<RunFolder> {
    RunFolder::new(|contract| {
        contract.budget.max_steps = LONG;
        contract.stopping = StoppingRule::AtStep { step: LONG };
        contract.checkpoints.every_steps = 10;
        contract.checkpoints.keep = keep;
        contract.evaluation.streams[0].every_steps = evaluated;
        edit(contract);
    })
}

/// Names of the checkpoints that the ledger calls retired, in order.
fn retired(folder: &RunFolder) -> Result<Vec<String>> {
    let bodies = folder.bodies("checkpoint.retired")?;
    Ok(bodies.iter().filter_map(|body| body["obs"]["checkpoint"].as_str().map(str::to_owned)).collect())
}

fn files(folder: &RunFolder, checkpoint: &str) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for item in std::fs::read_dir(folder.path().join("checkpoints").join(checkpoint))? {
        names.push(item?.file_name().to_string_lossy().into_owned());
    }
    names.sort();
    Ok(names)
}

/// Content of every file below a folder.
fn contents(folder: &Path) -> Result<BTreeMap<std::path::PathBuf, Vec<u8>>> {
    let mut contents = BTreeMap::new();
    for item in std::fs::read_dir(folder)? {
        let path = item?.path();
        if path.is_dir() {
            contents.append(&mut self::contents(&path)?);
        } else {
            contents.insert(path.clone(), std::fs::read(&path)?);
        }
    }
    Ok(contents)
}

const WHOLE: usize = 7;

#[test]
fn the_policy_decides_what_is_left_and_every_retirement_is_an_entry() -> Result<()> {
    let uninterrupted = RunFolder::long()?;
    uninterrupted.train()?.expect(0);
    assert!(retired(&uninterrupted)?.is_empty(), "a contract that keeps all retires nothing");

    // Evaluated at every second checkpoint: the others are no candidates.
    let folder = long_with(keep(1, None, 1, &[30]), 20, |_| ())?;
    folder.train()?.expect(0);
    assert_eq!(retired(&folder)?, ["s00000010-a1", "s00000020-a1", "s00000040-a1", "s00000050-a1"]);
    // The manifest of every one is left, and a candidate's model with it.
    assert_eq!(files(&folder, "s00000010-a1")?, ["manifest.json"]);
    assert_eq!(files(&folder, "s00000020-a1")?, ["config.json", "manifest.json", "model.safetensors"]);
    for whole in ["s00000000-a1", "s00000030-a1", "s00000060-a1"] {
        assert!(files(&folder, whole)?.len() >= WHOLE, "{whole}: {:?}", files(&folder, whole)?);
    }
    let bodies = folder.bodies("checkpoint.retired")?;
    assert_eq!(bodies[0]["det"], json!({"kept": [], "reason": "not_chosen", "step": 10}));
    assert_eq!(bodies[1]["det"]["kept"], json!(["model"]));
    // What is kept changes nothing of what is trained.
    assert_eq!(folder.model(LONG)?, uninterrupted.model(LONG)?);
    // Each comes after something newer was validated, under a head of its own.
    let kinds = folder.kinds()?;
    let heads = std::fs::read_to_string(folder.path().join("run.db.head"))?;
    for (place, _) in kinds.iter().enumerate().filter(|(_, kind)| **kind == "checkpoint.retired") {
        assert!(heads.contains(&format!("\n{}\n", place + 1)), "entry {place} is an intent without a head");
    }
    Ok(())
}

/// The best is a function of the entries and not of what a process remembers.
#[test]
fn the_best_is_remembered_over_a_resume_and_worse_evaluations() -> Result<()> {
    // The values fall, so that where larger is better the first stays the best.
    for (direction, is_kept) in [(Direction::Maximize, true), (Direction::Minimize, false)] {
        let folder = long_with(keep(1, None, 1, &[]), 10, |contract| {
            contract.evaluation.streams[0].direction = direction;
        })?;
        let mut training = folder.start()?;
        training.wait_for_step(25)?.send(Signal::KILL)?;
        training.finish()?;
        folder.train()?.expect(0).says("RESUMING run ");
        let values: Vec<f64> =
            folder.bodies("eval")?.iter().filter_map(|body| body["det"]["value"].as_f64()).collect();
        let first = *values.get(1).context("step 10 was evaluated")?;
        assert!(values[2..].iter().all(|value| *value < first), "it is worst or best: {values:?}");
        assert_eq!(!retired(&folder)?.contains(&"s00000010-a1".to_owned()), is_kept, "{direction:?}");
        assert_eq!(files(&folder, "s00000010-a1")?.len() >= WHOLE, is_kept);
    }
    Ok(())
}

#[test]
fn what_a_fault_left_behind_and_what_was_resumed_from_stays() -> Result<()> {
    let folder = long_with(keep(1, None, 1, &[]), 10, |_| ())?;
    let mut training = folder.start()?;
    training.wait_for_step(25)?.send(Signal::KILL)?;
    training.finish()?;
    folder.train()?.expect(0);
    // Before the fault and resumed from: 20; the first after it: 30.
    assert_eq!(retired(&folder)?, ["s00000010-a1", "s00000040-a2", "s00000050-a2"]);
    Ok(())
}

#[test]
fn a_run_never_goes_on_from_a_retired_checkpoint_and_says_why_it_fell_back() -> Result<()> {
    let uninterrupted = RunFolder::long()?;
    uninterrupted.train()?.expect(0);
    // With two kept there is an older one; with one there is only the initial.
    for (last, fallback) in [(2, "s00000010-a1"), (1, "s00000000-a1")] {
        let folder = long_with(keep(1, None, last, &[]), 10, |_| ())?;
        let mut training = folder.start()?;
        training.wait_for_step(25)?.send(Signal::KILL)?;
        training.finish()?;
        assert_eq!(retired(&folder)?.contains(&"s00000010-a1".to_owned()), last == 1);
        std::fs::remove_file(folder.path().join("checkpoints/s00000020-a1/optimizer.safetensors"))?;
        let finished = folder.train()?.expect(0);
        finished
            .says("WARNING: checkpoint s00000020-a1 cannot be used")
            .says("optimizer.safetensors")
            .says(&format!("checkpoint {fallback}"));
        // What was retired stays a candidate, unless it was made again.
        let selected = &folder.bodies("candidate.selected")?[0];
        assert_eq!(selected["det"]["num_candidates"], 6);
        assert_eq!(folder.model(LONG)?, uninterrupted.model(LONG)?);
    }
    Ok(())
}

#[test]
fn two_runs_in_one_store_leave_each_other_alone() -> Result<()> {
    let first = long_with(keep(1, None, 1, &[]), 10, |_| ())?;
    first.train()?.expect(0);
    // The second one finds the first one's checkpoints in its own store.
    let second = long_with(keep(1, None, 1, &[]), 10, |contract| contract.name = "second".to_owned())?;
    let store = second.path().join("checkpoints");
    std::fs::rename(first.path().join("checkpoints"), &store)?;
    let before = contents(&store)?;
    second.train()?.expect(1).says("exists already and this attempt did not write it");
    let mut training = second.start()?;
    training.wait_for_step(35)?.send(Signal::KILL)?;
    training.finish()?;
    second.train()?.expect(0).says("RESUMING run ");
    assert!(!retired(&second)?.is_empty(), "it retires its own");
    let after = contents(&store)?;
    assert!(after.len() > before.len());
    for (path, bytes) in &before {
        assert_eq!(after.get(path), Some(bytes), "{}", path.display());
    }
    Ok(())
}

/// A removal that fails ends no attempt, is recorded, and is tried again.
#[test]
fn a_removal_that_fails_is_recorded_and_finished_later() -> Result<()> {
    let folder = long_with(keep(1, None, 2, &[]), 10, |_| ())?;
    let mut training = folder.start()?;
    training.wait_for_step(25)?.send(Signal::TERM)?;
    training.finish()?.expect(143);
    assert!(retired(&folder)?.is_empty(), "two are kept");
    let shard = folder.path().join("checkpoints/s00000010-a1/optimizer.safetensors");
    std::fs::remove_file(&shard)?;
    std::fs::create_dir(&shard)?;
    folder.train()?.expect(0).says("s00000010-a1 is retired and could not be removed");
    let anomalies = folder.bodies("anomaly")?;
    assert_eq!(anomalies[0]["det"]["name"], "retirement_incomplete");
    assert!(anomalies[0]["obs"]["description"].as_str().is_some_and(|text| text.contains("optimizer")));

    // After the run's end an amendment says so.
    let pruned = folder.trainer(&["checkpoint", "prune", "--ledger", "run.db", "--json"])?.expect(1);
    pruned.says("s00000010-a1 could not be removed").says("hint: ");
    let amendment = &folder.bodies("amendment")?[0]["det"];
    assert!(amendment["statement"].as_str().is_some_and(|text| text.contains("retirement_incomplete")));
    let entries = folder.entries()?;
    let amended = entries.iter().find(|entry| amendment["amends"] == entry.index).context("it names one")?;
    assert_eq!(amended.body.kind().name(), "checkpoint.retired");

    std::fs::remove_dir(&shard)?;
    std::fs::write(&shard, "left")?;
    folder.trainer(&["checkpoint", "prune", "--ledger", "run.db"])?.expect(0);
    assert_eq!(files(&folder, "s00000010-a1")?, ["config.json", "manifest.json", "model.safetensors"]);
    Ok(())
}

/// Through a link a removal would take files from a folder that is no part of the run.
#[test]
fn a_pruning_through_a_link_is_refused_and_removes_nothing() -> Result<()> {
    let folder = long_with(keep(1, None, 1, &[]), 10, |_| ())?;
    folder.train()?.expect(0);
    // A shard that a retirement took is there again, so that there is one to remove.
    let retired = retired(&folder)?.first().context("one was retired")?.clone();
    let shard = folder.path().join("checkpoints").join(&retired).join("optimizer.safetensors");
    std::fs::write(&shard, "left")?;
    let entries = folder.entries()?;
    let prune = ["checkpoint", "prune", "--ledger", "run.db", "--dry-run"];
    let initial = "checkpoints/s00000000-a1/optimizer.safetensors";
    for place in ["checkpoints", &format!("checkpoints/{retired}"), initial] {
        let (path, moved) = (folder.path().join(place), folder.path().join("moved"));
        std::fs::rename(&path, &moved)?;
        std::os::unix::fs::symlink(&moved, &path)?;
        for arguments in [&prune[..4], &prune[..]] {
            let refused = folder.trainer(arguments)?.expect(2);
            refused.says(&format!("{place} is a symbolic link")).says("hint: put what it leads to");
        }
        assert_eq!(std::fs::read(&shard)?, b"left", "{place}");
        assert_eq!(folder.entries()?, entries, "{place}");
        std::fs::remove_file(&path)?;
        std::fs::rename(&moved, &path)?;
    }
    folder.trainer(&prune[..4])?.expect(0);
    assert!(!shard.exists(), "without links it goes");
    Ok(())
}

/// A folder that is not the recorded checkpoint is not touched.
#[test]
fn a_changed_manifest_keeps_every_file() -> Result<()> {
    let folder = long_with(keep(1, None, 2, &[]), 10, |_| ())?;
    let mut training = folder.start()?;
    training.wait_for_step(25)?.send(Signal::TERM)?;
    training.finish()?.expect(143);
    let checkpoint = folder.path().join("checkpoints/s00000010-a1");
    let manifest = std::fs::read_to_string(checkpoint.join("manifest.json"))?;
    std::fs::write(checkpoint.join("manifest.json"), manifest.replace("\"attempt\":1", "\"attempt\":2"))?;
    let before = contents(&checkpoint)?;
    folder.train()?.expect(0).says("could not be removed").says("manifest.json");
    assert_eq!(contents(&checkpoint)?, before);
    Ok(())
}

#[test]
fn nothing_resumable_is_an_error_unless_a_restart_is_asked_for() -> Result<()> {
    let uninterrupted = RunFolder::long()?;
    uninterrupted.train()?.expect(0);
    let folder = RunFolder::long()?;
    let mut training = folder.start()?;
    training.wait_for_step(25)?.send(Signal::KILL)?;
    training.finish()?;
    for name in folder.store()? {
        std::fs::remove_file(folder.path().join("checkpoints").join(name).join("manifest.json"))?;
    }
    let before = folder.entries()?;
    let refused = folder.train()?.expect(2);
    refused.says("no checkpoint can be resumed from").says("s00000020-a1").says("--restart");
    assert_eq!(folder.entries()?, before, "a refusal leaves no entry");
    let explained = folder.trainer(&["resume", "--explain", "--ledger", "run.db"])?.expect(1);
    assert!(explained.stdout.contains("would be refused"), "{}", explained.stdout);
    folder.train_with(&["--restart"])?.expect(0).says("RESTARTING run ");
    assert_eq!(folder.model(LONG)?, uninterrupted.model(LONG)?);
    Ok(())
}
