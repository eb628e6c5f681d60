//! What is not the contract's is refused, with both sides named.

use std::fs;
use std::os::unix::fs::symlink;

use anyhow::Result;
use rustix::process::Signal;
use schemas::contract::{Device, Recovery};
use schemas::data::Split;
use schemas::digest::Digest;
use tempfile::TempDir;

use crate::folder::{self, LONG, RunFolder};

#[test]
fn another_build_is_refused_and_writes_nothing() -> Result<()> {
    let folder = RunFolder::new(|contract| contract.code.digest = Digest::sha256([7; 32]))?;
    let finished = folder.train()?.expect(2);
    let here = folder::identity()?["code"]["digest"].as_str().unwrap_or_default().to_owned();
    finished.says(&Digest::sha256([7; 32]).to_string()).says(&here).says("hint: ");
    assert_eq!(folder.kinds()?, ["contract.frozen"]);
    Ok(())
}

#[test]
fn another_environment_or_plan_is_refused() -> Result<()> {
    let folder = RunFolder::new(|contract| contract.environment.rustc = "rustc 1.0.0".to_owned())?;
    folder.train()?.expect(2).says("environment differs").says("rustc 1.0.0");
    let folder = RunFolder::new(|contract| contract.plan.cpu_features = vec!["mmx".to_owned()])?;
    folder.train()?.expect(2).says("plan differs").says("mmx");
    let folder = RunFolder::new(|_| ())?;
    folder
        .train_with(&["--device", "wgpu"])?
        .expect(2)
        .says("\"wgpu\" was not compiled into this trainer, which has cpu");
    assert_eq!(folder.kinds()?, ["contract.frozen"]);
    Ok(())
}

#[test]
fn another_device_than_the_frozen_one_is_refused_and_writes_nothing() -> Result<()> {
    // The device that is asked for is there, so that only the contract is against it.
    let folder = RunFolder::new(|contract| contract.plan.device = Device::Wgpu)?;
    let finished = folder.train_with(&["--device", "cpu"])?.expect(2);
    finished
        .says("the contract froze device Wgpu, the command line asks for Cpu")
        .says("hint: leave out `--device`");
    assert_eq!(folder.kinds()?, ["contract.frozen"]);
    Ok(())
}

#[test]
fn what_this_trainer_does_not_execute_is_refused_by_its_pointer() -> Result<()> {
    let folder = RunFolder::new(|contract| {
        contract.state_classes.retain(|declared| declared.class != schemas::state::StateClass::Optimizer);
    })?;
    folder.train()?.expect(2).says("state class `optimizer`");
    Ok(())
}

#[test]
fn data_that_changed_after_the_freeze_is_refused_and_the_run_goes_on_once_it_is_back() -> Result<()> {
    let uninterrupted = RunFolder::long()?;
    uninterrupted.train()?.expect(0);
    let folder = RunFolder::long()?;
    let mut training = folder.start()?;
    training.wait_for_step(15)?.send(Signal::TERM)?;
    training.finish()?.expect(143);

    let path = folder::shard(&folder, Split::Train);
    let frozen = fs::read(&path)?;
    let mut changed = frozen.clone();
    changed[0] ^= 1;
    fs::write(&path, &changed)?;
    let finished = folder.train()?.expect(2);
    finished
        .says("changed after the freeze")
        .says(&crate::common::digest_of(&frozen).to_string())
        .says(&crate::common::digest_of(&changed).to_string());
    let fault = folder.bodies("fault.observed")?;
    assert_eq!(fault[0]["det"]["fault"], "data_changed");
    assert_eq!(folder.bodies("attempt.end")?[1]["det"]["outcome"], "failed");

    fs::write(&path, &frozen)?;
    folder.train()?.expect(0);
    assert_eq!(folder.model(LONG)?, uninterrupted.model(LONG)?);
    Ok(())
}

#[test]
fn a_frozen_document_that_changed_on_disk_is_refused() -> Result<()> {
    let folder = RunFolder::new(|_| ())?;
    let path = folder.path().join("card.json");
    let mut bytes = fs::read(&path)?;
    bytes.push(b' ');
    fs::write(&path, bytes)?;
    folder.train()?.expect(2).says("/update/card").says("changed after the freeze");
    // The ledger holds it, so a missing copy is no loss.
    fs::remove_file(&path)?;
    folder.train()?.expect(0);
    Ok(())
}

#[test]
fn a_missing_or_wrong_key_is_refused() -> Result<()> {
    let folder = RunFolder::new(|_| ())?;
    let other = folder.path().join("other-keys");
    ledger::keys::KeyRing::generate(&other, ledger::keys::Role::Trainer)?;
    folder.train_with(&["--keys", &other.to_string_lossy()])?.expect(2).says("--keys");
    fs::remove_file(folder.path().join("keys/trainer.key"))?;
    folder.train()?.expect(2).says("trainer.key").says("hint: ");
    assert_eq!(folder.kinds()?, ["contract.frozen"]);
    Ok(())
}

#[test]
fn a_second_trainer_is_refused_while_the_first_goes_on() -> Result<()> {
    let folder = RunFolder::long()?;
    let mut first = folder.start()?;
    first.wait_for_step(3)?;
    let second = folder.train()?.expect(2);
    second.says("is being written by process");
    first.finish()?.expect(0);
    assert_eq!(folder.bodies("attempt.start")?.len(), 1);
    Ok(())
}

#[test]
fn what_is_no_ledger_is_refused() -> Result<()> {
    let folder = RunFolder::new(|_| ())?;
    fs::write(folder.ledger(), "not a database")?;
    folder.train()?.expect(2).says("run.db");
    Ok(())
}

#[test]
fn a_recovery_policy_that_refuses_ends_the_run_after_a_crash() -> Result<()> {
    let folder = RunFolder::new(|contract| {
        contract.faults.recovery = Recovery::Refuse;
        contract.budget.max_steps = LONG;
        contract.stopping = schemas::contract::StoppingRule::AtStep { step: LONG };
    })?;
    let mut training = folder.start()?;
    training.wait_for_step(5)?.send(Signal::KILL)?;
    training.finish()?;
    folder.train()?.expect(2).says("recovery policy is to refuse");
    let kinds = folder.kinds()?;
    assert!(kinds.ends_with(&["fault.observed", "run.end"]), "{kinds:?}");
    assert_eq!(folder.bodies("run.end")?[0]["det"]["outcome"], "refused");
    folder.train()?.expect(0);
    assert_eq!(folder.kinds()?, kinds);
    Ok(())
}

#[test]
fn the_number_of_threads_stays_unless_the_contract_permits_another() -> Result<()> {
    for permits in [false, true] {
        let folder = RunFolder::new(|contract| {
            contract.budget.max_steps = LONG;
            contract.stopping = schemas::contract::StoppingRule::AtStep { step: LONG };
            if permits {
                contract.topology.permitted_rewrites = vec![schemas::contract::PermittedRewrite::ThreadCount];
            }
        })?;
        let mut training = folder.start()?;
        training.wait_for_step(5)?.send(Signal::TERM)?;
        training.finish()?.expect(143);
        let plan = |attempt: usize| -> Result<serde_json::Value> {
            Ok(folder.bodies("attempt.start")?[attempt]["obs"]["plan"]["num_threads"].clone())
        };
        let first = plan(0)?.as_u64().unwrap_or_default();
        let another = (first + 1).to_string();
        if permits {
            folder.train_with(&["--threads", &another])?.expect(0);
            assert_eq!(plan(1)?.as_u64(), Some(first + 1));
        } else {
            folder.train_with(&["--threads", &another])?.expect(2).says("earlier attempts ran");
            folder.train()?.expect(0);
            assert_eq!(plan(1)?.as_u64(), Some(first));
        }
    }
    Ok(())
}

#[test]
fn a_signal_under_a_policy_that_refuses_says_that_no_attempt_follows() -> Result<()> {
    let refusing = |contract: &mut schemas::contract::Contract| {
        contract.faults.recovery = Recovery::Refuse;
        contract.budget.max_steps = LONG;
        contract.stopping = schemas::contract::StoppingRule::AtStep { step: LONG };
    };
    let folder = RunFolder::new(refusing)?;
    let mut training = folder.start()?;
    training.wait_for_step(5)?.send(Signal::TERM)?;
    training.finish()?.expect(143).says("hint: the contract allows no further attempt");
    folder.train()?.expect(2).says("recovery policy is to refuse");
    Ok(())
}

/// An audit reads no checkpoint through a link, so that a run which saved or resumed
/// through one could never be accepted.
#[test]
fn checkpoints_behind_a_link_are_refused_and_nothing_is_written() -> Result<()> {
    let folder = RunFolder::long()?;
    let elsewhere = TempDir::new()?;
    let store = folder.path().join("checkpoints");
    // Before the first save, wherever it leads.
    for target in [elsewhere.path().to_owned(), elsewhere.path().join("nothing")] {
        symlink(&target, &store)?;
        let refused = folder.train()?.expect(2);
        refused.says("checkpoints is a symbolic link").says("hint: put what it leads to in its place");
        fs::remove_file(&store)?;
    }
    assert_eq!(folder.kinds()?, ["contract.frozen"]);
    assert_eq!(fs::read_dir(elsewhere.path())?.count(), 0, "nothing was saved through it");

    // Before a resume: the store, a checkpoint, one of the files.
    let mut training = folder.start()?;
    training.wait_for_step(25)?.send(Signal::TERM)?;
    training.finish()?.expect(143);
    let entries = folder.entries()?;
    for place in ["checkpoints", "checkpoints/s00000010-a1", "checkpoints/s00000020-a1/model.safetensors"] {
        let (path, moved) = (folder.path().join(place), folder.path().join("moved"));
        fs::rename(&path, &moved)?;
        symlink(&moved, &path)?;
        folder.train()?.expect(2).says(&format!("{place} is a symbolic link")).says("hint: put what");
        let explained = folder.trainer(&["resume", "--explain", "--ledger", "run.db"])?.expect(2);
        explained.says(&format!("{place} is a symbolic link"));
        assert_eq!(folder.entries()?, entries, "{place}");
        fs::remove_file(&path)?;
        fs::rename(&moved, &path)?;
    }

    // The folder of the ledger may be reached by one.
    let linked = elsewhere.path().join("linked");
    symlink(folder.path(), &linked)?;
    let ledger = linked.join("run.db").to_string_lossy().into_owned();
    folder.trainer(&["run", "--ledger", &ledger])?.expect(0).says("RESUMING run ");
    // What is over is told as ever, wherever its files lie.
    fs::rename(&store, folder.path().join("moved"))?;
    symlink(folder.path().join("moved"), &store)?;
    folder.train()?.expect(0);
    Ok(())
}
