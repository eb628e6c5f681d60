//! Runs that freeze parameters: what is stored once, what a resume, a
//! retirement, a crash and a damaged file make of it, and what happens when a
//! frozen parameter changes all the same.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use rustix::process::Signal;
use schemas::contract::{Contract, KeepPolicy, SaveMode, StoppingRule};
use schemas::model_index::{FROZEN_MODEL_NAME, MODEL_INDEX_NAME, ModelIndex, TRAINABLE_MODEL_NAME};
use serde_json::Value;
use trainer::run::train::Training;
use trainer::run::{RunOptions, run_with};

use crate::common::digest_of;
use crate::folder::{LONG, RunFolder, flip_last_byte};
use crate::retention::keep;

/// 4,864 of the fixture's 8,016 elements: 61 %.
const FROZEN: [&str; 2] = ["model.embed_tokens.weight", "model.layers.0.self_attn.*"];

/// [`LONG`] steps, saved and evaluated at every tenth.
fn long(frozen: &[&str], edit: impl FnOnce(&mut Contract)) -> Result<RunFolder> {
    RunFolder::with_frozen(frozen, |contract| {
        contract.budget.max_steps = LONG;
        contract.stopping = StoppingRule::AtStep { step: LONG };
        contract.checkpoints.every_steps = 10;
        contract.evaluation.streams[0].every_steps = 10;
        edit(contract);
    })
}

fn store(folder: &RunFolder) -> PathBuf {
    folder.path().join("checkpoints")
}

fn trainable(folder: &RunFolder, checkpoint: &str) -> Result<Vec<u8>> {
    Ok(std::fs::read(store(folder).join(checkpoint).join(TRAINABLE_MODEL_NAME))?)
}

/// What a store takes: bytes of files by their names, and bytes of blocks that
/// the file system gave, each file once.
fn sizes(folder: &RunFolder) -> Result<(u64, u64)> {
    let (mut logical, mut blocks) = (0, BTreeMap::new());
    for checkpoint in folder.store()? {
        for item in std::fs::read_dir(store(folder).join(checkpoint))? {
            let metadata = item?.metadata()?;
            logical += metadata.len();
            // stat(2): blocks of 512 bytes.
            blocks.insert(metadata.ino(), metadata.blocks() * 512);
        }
    }
    Ok((logical, blocks.into_values().sum()))
}

/// Every name of the frozen parameters, with the number of its file and of the
/// names that the file has.
fn frozen_files(folder: &RunFolder) -> Result<Vec<(String, u64, u64)>> {
    let mut files = Vec::new();
    for checkpoint in folder.store()? {
        let metadata = std::fs::metadata(store(folder).join(&checkpoint).join(FROZEN_MODEL_NAME))?;
        files.push((checkpoint, metadata.ino(), metadata.nlink()));
    }
    Ok(files)
}

fn json_of(folder: &RunFolder, arguments: &[&str], code: i32) -> Result<Value> {
    let arguments = [arguments, &["--ledger", "run.db", "--json"]].concat();
    let finished = folder.trainer(&arguments)?.expect(code);
    Ok(serde_json::from_str(&finished.stdout)?)
}

fn killed_at(folder: &RunFolder, step: u64) -> Result<()> {
    let mut training = folder.start()?;
    training.wait_for_step(step)?.send(Signal::KILL)?;
    ensure!(training.finish()?.code.is_none(), "killed at step {step}");
    Ok(())
}

#[test]
fn frozen_parameters_are_stored_once_in_either_mode() -> Result<()> {
    let whole = long(&[], |_| ())?;
    whole.train()?.expect(0);
    // Nothing is split where nothing is frozen.
    assert!(!store(&whole).join("s00000010-a1").join(MODEL_INDEX_NAME).exists());
    let (_, blocks_of_whole) = sizes(&whole)?;
    let mut models = Vec::new();
    for mode in [SaveMode::Synchronous, SaveMode::Asynchronous] {
        let folder = long(&FROZEN, |contract| contract.checkpoints.mode = mode)?;
        let finished = folder.train()?.expect(0);
        assert!(!finished.stderr.contains("has a copy"), "{}", finished.stderr);
        let files = frozen_files(&folder)?;
        assert_eq!(files.len(), 7);
        let (_, inode, _) = files[0];
        assert!(files.iter().all(|(_, other, names)| (*other, *names) == (inode, 7)), "{files:?}");
        let (logical, blocks) = sizes(&folder)?;
        // A file of 20 kB takes five blocks of 4 kB; six copies of it are not there.
        let shared =
            6 * std::fs::metadata(store(&folder).join("s00000000-a1").join(FROZEN_MODEL_NAME))?.len();
        assert!(blocks + shared <= blocks_of_whole, "{blocks} {shared} {blocks_of_whole}");
        // Entries speak of the whole checkpoint, shared or not.
        let committed = folder.bodies("checkpoint.durably_committed")?;
        let recorded: u64 = committed.iter().filter_map(|body| body["obs"]["num_bytes"].as_u64()).sum();
        assert_eq!(recorded, logical);
        // The index is what entries call the model, and names every file.
        let last = store(&folder).join("s00000060-a1");
        let index = std::fs::read(last.join(MODEL_INDEX_NAME))?;
        let model = committed.last().context("a checkpoint")?["det"]["model"].as_str().map(str::to_owned);
        assert_eq!(model, Some(digest_of(&index).to_string()));
        let index: ModelIndex = serde_json::from_slice(&index)?;
        for (name, digest) in &index.metadata.shards {
            assert_eq!(digest_of(&std::fs::read(last.join(name))?), *digest, "{name}");
        }
        assert_eq!(index.weight_map["model.embed_tokens.weight"], FROZEN_MODEL_NAME);
        let inspection = json_of(&folder, &["checkpoint", "inspect", "s00000020-a1"], 0)?;
        assert_eq!(inspection["shared"][0]["path"], FROZEN_MODEL_NAME);
        assert_eq!(inspection["shared"][0]["with"].as_array().map(Vec::len), Some(6));
        assert_eq!(inspection["num_shared_bytes"], std::fs::metadata(last.join(FROZEN_MODEL_NAME))?.len());
        models.push(trainable(&folder, "s00000060-a1")?);
    }
    assert_eq!(models[0], models[1]);
    Ok(())
}

/// The cold control, each class left out, is `state_closure`'s.
#[test]
fn a_resume_goes_on_bit_for_bit_and_shares_what_was_there() -> Result<()> {
    let uninterrupted = long(&FROZEN, |_| ())?;
    uninterrupted.train()?.expect(0);
    let folder = long(&FROZEN, |_| ())?;
    for step in [7, 25] {
        killed_at(&folder, step)?;
    }
    folder.train()?.expect(0).says("RESUMING run ");
    assert_eq!(trainable(&folder, "s00000060-a3")?, trainable(&uninterrupted, "s00000060-a1")?);
    assert_eq!(folder.bodies("run.end")?[0]["det"], uninterrupted.bodies("run.end")?[0]["det"]);
    let files = frozen_files(&folder)?;
    assert!(files.iter().all(|(_, inode, _)| *inode == files[0].1), "{files:?}");
    Ok(())
}

#[test]
fn a_retirement_takes_a_name_and_not_the_file() -> Result<()> {
    let folder = long(&FROZEN, |contract| {
        contract.checkpoints.keep = keep(1, None, 1, &[]);
        // Evaluated at the beginning and the end: the others are no candidates.
        contract.evaluation.streams[0].every_steps = LONG;
    })?;
    folder.train()?.expect(0);
    let retired = folder.bodies("checkpoint.retired")?;
    assert!(retired.len() >= 4, "{retired:#?}");
    for body in &retired {
        let name = body["obs"]["checkpoint"].as_str().context("a name")?;
        assert!(!store(&folder).join(name).join(FROZEN_MODEL_NAME).exists(), "{name}");
    }
    // Of the first as of the last, which have two names for one file.
    let verification = json_of(&folder, &["checkpoint", "verify", "--all"], 0)?;
    assert_eq!(verification["num_differences"], 0);
    let file = std::fs::metadata(store(&folder).join("s00000060-a1").join(FROZEN_MODEL_NAME))?;
    assert_eq!(file.nlink(), 2, "the initial state and the last");
    Ok(())
}

#[test]
fn a_copied_folder_goes_on_whether_it_keeps_second_names_or_not() -> Result<()> {
    let folder = long(&FROZEN, |_| ())?;
    killed_at(&folder, 35)?;
    let source = folder.path().display().to_string();
    // `cp -a` and `tar` keep second names, `cp -r` makes files of their own.
    let keeps = "cp -a \"$0/.\" \"$1\"";
    let packs = "tar -C \"$0\" -cf - . | tar -C \"$1\" -xf -";
    for (script, num_files) in [(keeps, 1), (packs, 1), ("cp -r \"$0/.\" \"$1\"", 4)] {
        let target = tempfile::tempdir()?;
        let status = Command::new("sh").args(["-c", script, &source]).arg(target.path()).status()?;
        ensure!(status.success(), "{script}");
        let mut files = BTreeMap::new();
        for name in ["s00000000-a1", "s00000010-a1", "s00000020-a1", "s00000030-a1"] {
            let file = target.path().join("checkpoints").join(name).join(FROZEN_MODEL_NAME);
            files.insert(std::fs::metadata(file)?.ino(), name);
        }
        assert_eq!(files.len(), num_files, "{script}");
        let ledger = target.path().join("run.db").display().to_string();
        folder.trainer(&["checkpoint", "verify", "--all", "--ledger", &ledger])?.expect(0);
        folder.trainer(&["run", "--ledger", &ledger, "--quiet"])?.expect(0);
        let last = target.path().join("checkpoints/s00000060-a2").join(FROZEN_MODEL_NAME);
        assert!(std::fs::metadata(last)?.nlink() > 1, "{script}");
    }
    Ok(())
}

#[test]
fn a_damaged_shared_file_is_found_in_every_checkpoint_that_has_it() -> Result<()> {
    let folder = long(&FROZEN, |_| ())?;
    killed_at(&folder, 25)?;
    let whole = json_of(&folder, &["checkpoint", "verify", "--all"], 0)?;
    let num_checkpoints = whole["checkpoints"].as_array().context("a list")?.len();
    assert_eq!(num_checkpoints, 3);
    flip_last_byte(&store(&folder).join("s00000010-a1").join(FROZEN_MODEL_NAME))?;
    let verification = json_of(&folder, &["checkpoint", "verify", "--all"], 1)?;
    for verified in verification["checkpoints"].as_array().context("a list")? {
        let differences = verified["differences"].as_array().context("a list")?;
        assert_eq!(differences.len(), 1, "{verified:#}");
        assert!(differences[0]["file"].as_str().is_some_and(|file| file.ends_with(FROZEN_MODEL_NAME)));
    }
    // Nothing can be gone on from; nothing is begun again unasked.
    folder.train()?.expect(2).says(FROZEN_MODEL_NAME).says("--restart");
    // What is saved then is written from memory and not linked to the damage.
    folder.train_with(&["--restart"])?.expect(0);
    let file = |name: &str| std::fs::read(store(&folder).join(name).join(FROZEN_MODEL_NAME));
    assert_ne!(file("s00000010-a1")?, file("s00000060-a2")?);
    let fresh = json_of(&folder, &["checkpoint", "verify", "s00000060-a2"], 0)?;
    assert_eq!(fresh["num_differences"], 0);
    Ok(())
}

#[test]
fn a_kill_within_a_save_leaves_no_half_shared_checkpoint() -> Result<()> {
    let uninterrupted = long(&FROZEN, |_| ())?;
    uninterrupted.train()?.expect(0);
    let folder = long(&FROZEN, |contract| contract.checkpoints.every_steps = 2)?;
    for _ in 0..4 {
        let mut training = folder.start()?;
        training.send_while_staging(&folder, Signal::KILL)?;
        ensure!(training.finish()?.code.is_none(), "it was killed");
        for name in folder.store()?.iter().filter(|name| !name.starts_with('.')) {
            json_of(&folder, &["checkpoint", "verify", name], 0)?;
        }
    }
    folder.train()?.expect(0);
    let last = folder.store()?.pop().context("checkpoints")?;
    assert_eq!(trainable(&folder, &last)?, trainable(&uninterrupted, "s00000060-a1")?);
    json_of(&folder, &["checkpoint", "verify", "--all"], 0)?;
    Ok(())
}

/// A bit that flips in memory is neither saved nor trained on from.
#[test]
fn a_frozen_parameter_that_changes_in_memory_ends_the_attempt_on_record() -> Result<()> {
    let uninterrupted = long(&FROZEN, |contract| contract.checkpoints.keep = KeepPolicy::All)?;
    uninterrupted.train()?.expect(0);
    let folder = long(&FROZEN, |_| ())?;
    let options = RunOptions {
        data: None,
        device: None,
        is_quiet: true,
        keys: None,
        ledger: folder.ledger(),
        may_restart: false,
        num_threads: None,
        num_workers: None,
        worker_program: None,
    };
    let mut has_fired = false;
    let report = run_with(&options, &mut |attempt, engine, context, resume| {
        let mut training = Training::begin(attempt, context, resume)?;
        loop {
            if let Some(ending) = training.turn(attempt, engine)? {
                return Ok(training.finish(ending));
            }
            if engine.step_number() == 15 && !has_fired {
                has_fired = true;
                let mut tensors = engine.capture_model()?;
                for tensor in tensors.iter_mut().filter(|tensor| tensor.name == FROZEN[0]) {
                    tensor.bytes[0] ^= 1;
                }
                engine.restore_model(&tensors)?;
            }
        }
    })?;
    assert!(has_fired, "the fault fired");
    assert_eq!(report.exit_code, 1, "{report:?}");
    let failed = folder.bodies("checkpoint.failed")?;
    assert_eq!(failed.len(), 1);
    assert_eq!(failed[0]["obs"]["checkpoint"], "s00000020-a1");
    let reason = failed[0]["obs"]["reason"].as_str().context("a reason")?;
    assert!(reason.contains(FROZEN[0]) && reason.contains("changed in memory"), "{reason}");
    assert!(folder.kinds()?.ends_with(&["attempt.end"]));
    assert_eq!(folder.store()?, ["s00000000-a1", "s00000010-a1"], "nothing of it is left");
    // The next attempt goes on from before the fault, to the same end.
    folder.train()?.expect(0).says("checkpoint s00000010-a1 (step 10)");
    assert_eq!(trainable(&folder, "s00000060-a2")?, trainable(&uninterrupted, "s00000060-a1")?);
    Ok(())
}
