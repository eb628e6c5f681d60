//! The recovery policy `restart_from_last_qualified`: attempts go on from what
//! a probe has shown to continue the run, and from nothing else.

use anyhow::{Context, Result};
use rustix::process::Signal;
use schemas::contract::{Recovery, StoppingRule};

use crate::folder::{LONG, RunFolder, flip_last_byte};
use crate::probes::{checkpoint, probe};

fn folder() -> Result<RunFolder> {
    RunFolder::new(|contract| {
        contract.budget.max_steps = LONG;
        contract.stopping = StoppingRule::AtStep { step: LONG };
        contract.checkpoints.every_steps = 10;
        contract.evaluation.streams[0].every_steps = 10;
        contract.faults.recovery = Recovery::RestartFromLastQualified;
    })
}

/// Trains up to a step and is killed.
fn killed(folder: &RunFolder, step: u64) -> Result<()> {
    let mut training = folder.start()?;
    training.wait_for_step(step)?.send(Signal::KILL)?;
    training.finish()?;
    Ok(())
}

#[test]
fn a_killed_run_goes_on_from_the_qualified_checkpoint_and_records_what_it_lost() -> Result<()> {
    let uninterrupted = RunFolder::long()?;
    uninterrupted.train()?.expect(0);
    let folder = folder()?;
    killed(&folder, 35)?;
    let report = probe(&folder, 10, &[], 0)?;
    assert!(report["qualified"].is_u64(), "{report}");

    let explained = folder.trainer(&["resume", "--explain", "--ledger", "run.db"])?.expect(0);
    assert!(explained.stdout.contains("on from s00000010-a1 (step 10)"), "{explained:?}");
    assert!(
        explained.stdout.contains("s00000030-a1: it is validated, and not resume-qualified"),
        "{explained:?}"
    );
    let finished = folder.train()?.expect(0);
    finished
        .says("from checkpoint s00000010-a1 (step 10)")
        .says("s00000030-a1 is newer, and not resume-qualified");
    let attempts = folder.bodies("attempt.start")?;
    assert_eq!(attempts[1]["det"]["resumed_from"]["checkpoint"], "s00000010-a1");
    let recovered = &folder.bodies("fault.recovered")?[0];
    let lost = recovered["det"]["num_steps_lost"].as_u64().context("a count")?;
    // Of the steps behind the checkpoint, those that were durable.
    assert!((20..=25).contains(&lost), "{recovered}");
    assert_eq!(recovered["obs"]["fallback"], "s00000030-a1: it is validated, and not resume-qualified");
    assert_eq!(folder.model(LONG)?, uninterrupted.model(LONG)?);
    Ok(())
}

#[test]
fn without_a_qualified_checkpoint_nothing_is_thrown_away_unless_it_is_asked_for() -> Result<()> {
    let folder = folder()?;
    killed(&folder, 25)?;
    let entries = folder.entries()?;
    let refused = folder.train()?.expect(2);
    refused.says("none of the validated checkpoints is resume-qualified").says("s00000020-a1");
    refused.says("hint: probe one of them");
    assert_eq!(folder.entries()?, entries);
    // A probe of the newest leaves nothing to pass over.
    let report = probe(&folder, 20, &[], 0)?;
    assert!(report["qualified"].is_u64(), "{report}");
    let finished = folder.train()?.expect(0);
    finished.says("from checkpoint s00000020-a1");
    assert!(!finished.stderr.contains("passed over"), "{}", finished.stderr);
    Ok(())
}

#[test]
fn a_start_over_has_to_be_asked_for() -> Result<()> {
    let folder = folder()?;
    killed(&folder, 15)?;
    folder.train_with(&["--restart"])?.expect(0).says("RESTARTING run");
    let attempts = folder.bodies("attempt.start")?;
    assert_eq!(attempts[1]["det"]["reason"], "restart");
    assert_eq!(
        checkpoint(LONG).replace("a1", "a2"),
        folder.bodies("checkpoint.validated")?.last().context("one")?["obs"]["checkpoint"]
    );
    Ok(())
}

/// What an attempt passes over may have rotted all the same: an audit reads it, and no
/// probe could qualify it any more.
#[test]
fn a_changed_checkpoint_that_is_passed_over_is_told_and_given_up() -> Result<()> {
    let uninterrupted = RunFolder::long()?;
    uninterrupted.train()?.expect(0);
    // The newest, where what is told is the reason not to go on from it, and an older one.
    for (changed, fallback) in [
        ("s00000030-a1", "s00000030-a1: "),
        ("s00000020-a1", "s00000030-a1: it is validated, and not resume-qualified"),
    ] {
        let folder = folder()?;
        killed(&folder, 35)?;
        let report = probe(&folder, 10, &[], 0)?;
        assert!(report["qualified"].is_u64(), "{report}");
        flip_last_byte(&folder.path().join("checkpoints").join(changed).join("optimizer.safetensors"))?;

        let explained = folder.trainer(&["resume", "--explain", "--ledger", "run.db"])?.expect(0);
        assert!(explained.stdout.contains("on from s00000010-a1 (step 10)"), "{explained:?}");
        let passed_over: Vec<&str> =
            explained.stdout.lines().filter(|line| line.contains(&format!("{changed}: "))).collect();
        assert!(passed_over.len() == 1 && passed_over[0].contains("optimizer.safetensors"), "{explained:?}");
        let finished = folder.train()?.expect(0);
        finished
            .says(&format!("WARNING: checkpoint {changed} cannot be used"))
            .says("from checkpoint s00000010-a1 (step 10)");

        let observed = folder.bodies("fault.observed")?;
        let faults: Vec<_> = observed.iter().map(|body| &body["det"]["fault"]).collect();
        assert_eq!(faults, ["attempt_vanished", "checkpoint_corrupt"]);
        assert_eq!(observed[1]["obs"]["checkpoint"], changed);
        assert_eq!(observed[1]["det"]["cause"], "single_shard_corruption");
        let recovered = folder.bodies("fault.recovered")?;
        assert_eq!(recovered.len(), 1, "one attempt was struck: {recovered:?}");
        let said = recovered[0]["obs"]["fallback"].as_str().context("a reason")?;
        assert!(said.starts_with(fallback), "{said}");
        let given_up = folder.bodies("checkpoint.quarantined")?;
        assert_eq!(given_up.len(), 1, "{given_up:?}");
        assert_eq!(given_up[0]["obs"]["checkpoint"], changed);
        assert_eq!(folder.model(LONG)?, uninterrupted.model(LONG)?);
    }
    Ok(())
}

#[test]
fn a_changed_checkpoint_is_not_among_those_that_could_be_probed() -> Result<()> {
    let folder = folder()?;
    killed(&folder, 25)?;
    flip_last_byte(&folder.path().join("checkpoints/s00000020-a1/optimizer.safetensors"))?;
    let entries = folder.entries()?;
    let refused = folder.train()?.expect(2);
    refused.says("is resume-qualified: s00000000-a1, s00000010-a1;").says("hint: probe one of them");
    assert_eq!(folder.entries()?, entries);
    // Where none is left there is nothing to probe.
    for name in ["s00000000-a1", "s00000010-a1"] {
        flip_last_byte(&folder.path().join("checkpoints").join(name).join("model.safetensors"))?;
    }
    let refused = folder.train()?.expect(2);
    refused.says("no checkpoint can be resumed from: s00000020-a1 (").says("hint: restore");
    folder.train_with(&["--restart"])?.expect(0).says("RESTARTING run");
    let given_up = folder.bodies("checkpoint.quarantined")?;
    let names: Vec<_> = given_up.iter().map(|body| &body["obs"]["checkpoint"]).collect();
    assert_eq!(names, ["s00000020-a1", "s00000010-a1", "s00000000-a1"]);
    Ok(())
}
