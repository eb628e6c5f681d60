//! A crash at every named point: only in builds with `failpoints`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::{Context, Result};
use rustix::process::Signal;
use schemas::contract::{Recovery, SaveMode, StoppingRule};
use schemas::entry::Entry;
use trainer::run::failpoint::{MARK, PERMISSION, RECOVERY_POINTS, RETIREMENT_POINTS, VARIABLE, points};

use crate::folder::{LONG, RunFolder, flip_last_byte};

/// The points of a save, all of which an asynchronous one passes in its thread.
const POINTS_OF_A_SAVE: [&str; 5] = [
    "checkpoint.requested",
    "shard.written",
    "checkpoint.staged",
    "checkpoint.renamed",
    "checkpoint.validated",
];

/// Milliseconds that a slow store takes longer at a point: many updates.
const SLOW_MS: u64 = 150;

/// Survives so many passes of a point and is killed at the next.
fn crash_at(point: &str, survived: usize) -> String {
    if survived == 0 { format!("{point}=return") } else { format!("{point}={survived}*off->return") }
}

/// Takes so much longer at every pass of a point.
fn slow_at(point: &str) -> String {
    format!("{point}=sleep({SLOW_MS})")
}

fn saved_in(mode: SaveMode) -> Result<RunFolder> {
    RunFolder::new(|contract| contract.checkpoints.mode = mode)
}

/// [`crate::folder::LONG`] steps, saved at every twentieth beside training.
fn long() -> Result<RunFolder> {
    RunFolder::new(|contract| {
        contract.budget.max_steps = LONG;
        contract.stopping = StoppingRule::AtStep { step: LONG };
        contract.checkpoints.every_steps = 20;
        contract.checkpoints.mode = SaveMode::Asynchronous;
        contract.evaluation.streams[0].every_steps = 10;
    })
}

/// Entries of a kind between the request of each save and its end, by save.
fn num_beside(folder: &RunFolder, kind: &str) -> Result<Vec<usize>> {
    let mut counts = Vec::new();
    let mut is_saving = false;
    for found in folder.kinds()? {
        match found {
            "checkpoint.requested" => {
                is_saving = true;
                counts.push(0);
            }
            "checkpoint.validated" | "checkpoint.failed" => is_saving = false,
            found if found == kind && is_saving => {
                *counts.last_mut().context("a save was requested")? += 1;
            }
            _ => {}
        }
    }
    Ok(counts)
}

#[test]
fn training_goes_on_beside_a_slow_store_and_waits_for_it_at_the_end() -> Result<()> {
    let fast = long()?;
    fast.train()?.expect(0);
    for point in POINTS_OF_A_SAVE {
        let folder = long()?;
        folder.train_under(VARIABLE, &slow_at(point))?.expect(0);
        assert_eq!(folder.bodies("checkpoint.validated")?.len(), 4, "{point}");
        assert_eq!(folder.model(LONG)?, fast.model(LONG)?, "{point}");
        let kinds = folder.kinds()?;
        assert!(kinds.ends_with(&["candidate.selected", "attempt.end", "run.end"]), "{kinds:?}");
        if point == "checkpoint.validated" {
            // The store is done by then, and only the loop's notice is late.
            continue;
        }
        let beside = num_beside(&folder, "step")?;
        assert_eq!((beside[0], beside[3]), (0, 0), "the first and the last are awaited: {beside:?}");
        assert!(beside[1] > 0 && beside[2] > 0, "{point} held the loop: {beside:?}");
        // The fourth was waited for, and the loop says for how long.
        let end = &folder.bodies("attempt.end")?[0]["obs"]["cost"];
        assert!(end["checkpoint_us"].as_u64() >= Some(SLOW_MS * 1000), "{point}: {end}");
    }
    // In the other mode the same store holds the loop.
    let folder = saved_in(SaveMode::Synchronous)?;
    folder.train_under(VARIABLE, &slow_at("checkpoint.staged"))?.expect(0);
    assert_eq!(num_beside(&folder, "step")?, [0, 0, 0]);
    Ok(())
}

#[test]
fn a_save_that_comes_due_waits_for_the_one_in_flight() -> Result<()> {
    let folder = saved_in(SaveMode::Asynchronous)?;
    folder.train_under(VARIABLE, &slow_at("checkpoint.staged"))?.expect(0);
    // Four tiny steps take less time than the store: the loop waited for it.
    assert_eq!(num_beside(&folder, "step")?, [0, 4, 0]);
    assert_eq!(num_beside(&folder, "checkpoint.requested")?, [0, 0, 0]);
    let end = &folder.bodies("attempt.end")?[0]["obs"]["cost"];
    assert!(end["checkpoint_us"].as_u64() >= Some(2 * SLOW_MS * 1000), "{end}");
    Ok(())
}

#[test]
fn a_signal_in_every_phase_of_an_asynchronous_save_ends_the_attempt_behind_it() -> Result<()> {
    let uninterrupted = long()?;
    uninterrupted.train()?.expect(0);
    for point in POINTS_OF_A_SAVE {
        let folder = long()?;
        let mut training = folder.start_under(VARIABLE, &slow_at(point))?;
        // Beside the save of step 20, which takes many steps' time.
        training.wait_for_step(22)?.send(Signal::TERM)?;
        training.finish()?.expect(143);
        let kinds = folder.kinds()?;
        assert_eq!(kinds.last(), Some(&"attempt.end"), "{point}: {kinds:?}");
        let validated = folder.bodies("checkpoint.validated")?;
        assert_eq!(validated.len(), folder.bodies("checkpoint.requested")?.len(), "{point}");
        let last = &validated.last().context("saves")?["det"]["step"];
        assert!(last.as_u64() >= Some(20), "{point}: the save of step 20 was lost");
        let admitted = folder.bodies("candidate.admitted")?;
        assert_eq!(admitted.last().context("a candidate")?["det"]["step"], *last, "{point}");
        folder.train()?.expect(0).says("RESUMING run ");
        assert!(folder.bodies("fault.observed")?.is_empty(), "{point}");
        assert_eq!(folder.model(LONG)?, uninterrupted.model(LONG)?, "{point}");
    }
    Ok(())
}

/// A run that passes every point: few of its checkpoints are kept.
fn everything(mode: SaveMode) -> Result<RunFolder> {
    RunFolder::new(|contract| {
        contract.checkpoints.mode = mode;
        contract.checkpoints.every_steps = 2;
        contract.checkpoints.keep = crate::retention::keep(1, None, 1, &[]);
    })
}

/// An uninterrupted run, and how often it passes each point.
fn uninterrupted(mode: SaveMode) -> Result<(RunFolder, BTreeMap<&'static str, usize>)> {
    let folder = everything(mode)?;
    let all: Vec<&str> = points().into_iter().chain(RETIREMENT_POINTS).collect();
    let logged: Vec<String> = all.iter().map(|point| format!("{point}=return(log)")).collect();
    let finished = folder.train_under(VARIABLE, &logged.join(";"))?.expect(0);
    let passed: Vec<&str> = finished.stderr.lines().filter_map(|line| line.strip_prefix(MARK)).collect();
    let count = |point: &str| passed.iter().filter(|passed| **passed == point).count();
    let counts: BTreeMap<&str, usize> = all.iter().map(|point| (*point, count(point))).collect();
    assert!(counts.values().all(|count| *count > 0), "a point was not passed: {counts:?}");
    Ok((folder, counts))
}

/// What a crashed process had acknowledged: its heads and its entries. A killed
/// process takes no written page with it, so all that can be read counts.
fn acknowledged(folder: &RunFolder) -> Result<(Vec<String>, Vec<Entry>)> {
    let path = ledger::head_file::path_for(&folder.ledger());
    Ok((ledger::head_file::read_all(&path, 1 << 20)?, folder.entries()?))
}

/// Fails unless every acknowledged head and entry is still there, as it was.
#[track_caller]
fn check_kept(folder: &RunFolder, (heads, entries): &(Vec<String>, Vec<Entry>), place: &str) -> Result<()> {
    let (heads_now, entries_now) = acknowledged(folder)?;
    assert!(heads_now.starts_with(heads), "{place}: a head is gone");
    assert!(entries_now.starts_with(entries), "{place}: an entry is gone");
    let size = heads.last().and_then(|note| note.lines().nth(1)?.parse::<usize>().ok());
    assert!(size.context("a size")? <= entries.len(), "{place}: a head was written before its entries");
    Ok(())
}

/// Runs with a crash at a pass of a point; whether it was there.
fn crash(folder: &RunFolder, point: &str, survived: usize) -> Result<bool> {
    let crashed = folder.train_under(VARIABLE, &crash_at(point, survived))?;
    if crashed.code.is_some() {
        assert_eq!(crashed.code, Some(0), "{point}:{survived}: {}", crashed.stderr);
        return Ok(false);
    }
    assert_eq!(crashed.stderr.lines().last(), Some(format!("{MARK}{point}").as_str()));
    Ok(true)
}

/// Errors of the `ledger` program's audit, by code and place. Those of a run that
/// nothing happened to are what the fixture leaves out (keys of roles that have no
/// part here) and that the build has crash points.
fn audit_errors(folder: &RunFolder) -> Result<BTreeSet<String>> {
    let program = Path::new(env!("CARGO_BIN_EXE_trainer")).with_file_name("ledger");
    let mut command = std::process::Command::new(&program);
    command.args(["audit", "--output-format", "json"]).arg(folder.ledger());
    let missing = || format!("{} is not built: cargo build --workspace --bins", program.display());
    let output = command.output().with_context(missing)?;
    let report: serde_json::Value = serde_json::from_slice(&output.stdout)
        .with_context(|| String::from_utf8_lossy(&output.stderr).into_owned())?;
    let findings = report["findings"].as_array().context("findings")?;
    assert!(report["projection"].is_string(), "the audit went through: {findings:#?}");
    let errors = findings.iter().filter(|finding| finding["severity"] == "error");
    let place = |finding: &serde_json::Value| format!("{} at {}", finding["code"], finding["location"]);
    Ok(errors.map(place).collect())
}

#[test]
fn a_crash_at_every_point_is_recovered_from_to_the_same_bytes() -> Result<()> {
    crash_everywhere(SaveMode::Synchronous)
}

#[test]
fn a_crash_at_every_point_of_an_asynchronous_run_is_recovered_from_too() -> Result<()> {
    crash_everywhere(SaveMode::Asynchronous)
}

fn crash_everywhere(mode: SaveMode) -> Result<()> {
    let (uninterrupted, counts) = uninterrupted(mode)?;
    let mut num_fired = BTreeMap::new();
    for (point, num_passes) in counts {
        // The first pass, one in the middle and the last. Groups of entries are
        // committed by time too, so that a run may have some less of them.
        let places = BTreeSet::from([0, num_passes / 2, num_passes - 1]);
        for survived in places {
            let folder = everything(mode)?;
            let near = (0..=survived).rev().find_map(|survived| match crash(&folder, point, survived) {
                Ok(false) => None,
                crashed => Some(crashed.map(|_| survived)),
            });
            let place = format!("{point}:{}", near.context("the first pass is always there")??);
            *num_fired.entry(point).or_insert(0) += 1;
            let before = acknowledged(&folder)?;
            folder.train()?.expect(0);
            check_kept(&folder, &before, &place)?;
            check_goes_on(&folder, &uninterrupted, &place)?;
        }
    }
    for point in points().into_iter().chain(RETIREMENT_POINTS) {
        assert!(num_fired.get(point).is_some_and(|fired| *fired > 0), "{point} never fired");
    }
    Ok(())
}

/// The run is over with the uninterrupted one's bytes, and its record is whole.
fn check_goes_on(folder: &RunFolder, uninterrupted: &RunFolder, place: &str) -> Result<()> {
    assert_eq!(folder.model(8)?, uninterrupted.model(8)?, "{place}");
    let names = folder.store()?;
    assert!(names.iter().all(|name| name.starts_with('s')), "{place} left {names:?}");
    let validated = folder.bodies("checkpoint.validated")?;
    let failed = folder.bodies("checkpoint.failed")?;
    let requested = folder.bodies("checkpoint.requested")?;
    assert_eq!(validated.len() + failed.len(), requested.len(), "{place}");
    assert_eq!(folder.bodies("candidate.selected")?.len(), 1, "{place}");
    let end = folder.bodies("run.end")?.pop().context("the run ended")?;
    assert_eq!(end["det"]["last_step"], 8, "{place}");
    assert_eq!(audit_errors(folder)?, audit_errors(uninterrupted)?, "{place}");
    Ok(())
}

/// The last attempt had reached the end, and nothing is left to be executed:
/// whatever the policy, the run ends as that attempt did.
#[test]
fn a_crash_between_the_ends_of_attempt_and_run_starts_no_other_attempt() -> Result<()> {
    for recovery in [
        Recovery::RestartFromLastValidated,
        Recovery::RestartFromLastQualified,
        Recovery::RollBack,
        Recovery::Refuse,
    ] {
        let frozen = || RunFolder::new(|contract| contract.faults.recovery = recovery);
        let (uninterrupted, folder) = (frozen()?, frozen()?);
        uninterrupted.train()?.expect(0);
        assert!(crash(&folder, "attempt.ended", 0)?, "attempt.ended never fired");
        assert!(folder.bodies("run.end")?.is_empty());
        let before = acknowledged(&folder)?;
        folder.train()?.expect(0);
        check_kept(&folder, &before, "attempt.ended")?;
        check_goes_on(&folder, &uninterrupted, "attempt.ended")?;
        assert_eq!(folder.bodies("attempt.start")?.len(), 1, "{recovery:?}");
        let end = |folder: &RunFolder| -> Result<_> { Ok(folder.bodies("run.end")?.remove(0)) };
        let (found, expected) = (end(&folder)?, end(&uninterrupted)?);
        assert_eq!(found["det"], expected["det"], "{recovery:?}");
        for field in ["num_attempts", "num_attempts_incomplete"] {
            assert_eq!(found["obs"][field], expected["obs"][field], "{recovery:?}: {field}");
        }
        folder.train()?.expect(0);
        assert_eq!(folder.bodies("run.end")?.len(), 1, "it is over");
    }
    Ok(())
}

/// What the next attempt does about a crash is interrupted by another one.
#[test]
fn a_crash_in_the_recovery_is_recovered_from_too() -> Result<()> {
    let (uninterrupted, _) = uninterrupted(SaveMode::Synchronous)?;
    for point in RECOVERY_POINTS {
        for first in ["shard.written", "checkpoint.moved", "step.recorded", "checkpoint.committed"] {
            let folder = everything(SaveMode::Synchronous)?;
            assert!(crash(&folder, first, 3)?, "{first} never fired");
            let before = acknowledged(&folder)?;
            assert!(crash(&folder, point, 0)?, "{point} never fired behind {first}");
            let place = format!("{first}, then {point}");
            check_kept(&folder, &before, &place)?;
            let before = acknowledged(&folder)?;
            folder.train()?.expect(0);
            check_kept(&folder, &before, &place)?;
            check_goes_on(&folder, &uninterrupted, &place)?;
            assert_eq!(folder.bodies("attempt.start")?.len(), 3, "{place}");
        }
    }
    Ok(())
}

/// Candidates that a run admits before its first retirement, without the last.
fn admissions_before_first_retirement() -> Result<usize> {
    let folder = everything(SaveMode::Synchronous)?;
    folder.train()?.expect(0);
    let kinds = folder.kinds()?;
    let before = kinds.iter().take_while(|kind| **kind != "checkpoint.retired");
    let num_admitted = before.filter(|kind| **kind == "candidate.admitted").count();
    num_admitted.checked_sub(1).context("a retirement follows an admission")
}

/// `trainer checkpoint prune` is as safe as the loop that retires by itself.
#[test]
fn a_crash_in_a_prune_is_finished_by_the_next() -> Result<()> {
    // Behind the admission that lets the first checkpoint go: the run's first
    // retirement says which.
    let at = admissions_before_first_retirement()?;
    for point in RETIREMENT_POINTS {
        // A run that was killed between an admission and what it would have retired.
        let folder = everything(SaveMode::Synchronous)?;
        assert!(crash(&folder, "candidate.admitted", at)?);
        let prune = ["checkpoint", "prune", "--ledger", "run.db"];
        let pruned = folder.trainer_under(&prune, &crash_at(point, 0))?;
        assert_eq!(pruned.code, None, "{point} never fired: {}{}", pruned.stdout, pruned.stderr);
        let before = acknowledged(&folder)?;
        folder.trainer_under(&prune, "")?.expect(0);
        check_kept(&folder, &before, point)?;
        let retired = folder.bodies("checkpoint.retired")?;
        let last = retired.last().context("one was announced")?;
        let name = last["obs"]["checkpoint"].as_str().context("a name")?;
        let num_left = std::fs::read_dir(folder.path().join("checkpoints").join(name))?.count();
        assert!(num_left <= 3, "{point}: {num_left} files of {name} are left");
        folder.train()?.expect(0);
    }
    Ok(())
}

#[test]
fn a_point_that_does_not_exist_is_refused() -> Result<()> {
    let folder = RunFolder::new(|_| ())?;
    folder.train_under(VARIABLE, "shard.lost=return")?.expect(2).says("there is no point \"shard.lost\"");
    folder.train_under(VARIABLE, "shard.written")?.expect(2).says("is no POINT=ACTIONS");
    Ok(())
}

#[test]
fn a_selection_whose_checkpoint_is_lost_behind_it_is_made_again() -> Result<()> {
    let folder = RunFolder::new(|_| ())?;
    let crashed = folder.train_under(VARIABLE, &crash_at("candidate.selected", 0))?;
    assert_eq!(crashed.code, None, "{}", crashed.stderr);
    flip_last_byte(&folder.path().join("checkpoints/s00000008-a1/optimizer.safetensors"))?;
    folder.train()?.expect(0).says("checkpoint s00000008-a1 cannot be used");
    let selections = folder.bodies("candidate.selected")?;
    assert_eq!(selections.len(), 2);
    // The same weights, by bitwise determinism; a copy that can be used.
    assert_eq!(selections[0]["det"], selections[1]["det"]);
    let admitted = folder.bodies("candidate.admitted")?;
    let of_winner = admitted.iter().rfind(|body| body["det"]["step"] == selections[1]["det"]["step"]);
    assert_eq!(selections[1]["obs"], of_winner.context("it was admitted")?["obs"]);
    Ok(())
}

#[test]
fn an_instrumented_build_runs_only_with_permission_and_says_so() -> Result<()> {
    let folder = RunFolder::new(|_| ())?;
    let refused = folder.train_under(PERMISSION, "0")?.expect(2);
    refused.says("failpoints");
    folder.train()?.expect(0);
    let plan = &folder.bodies("attempt.start")?[0]["obs"]["plan"];
    assert_eq!(plan["instrumentation"], serde_json::json!(["failpoints"]));
    Ok(())
}

#[test]
fn a_crash_between_a_retirement_and_its_removal_is_finished_by_the_next_attempt() -> Result<()> {
    let short = || {
        RunFolder::new(|contract| {
            contract.checkpoints.every_steps = 2;
            contract.checkpoints.keep = crate::retention::keep(1, None, 1, &[]);
        })
    };
    let uninterrupted = short()?;
    uninterrupted.train()?.expect(0);
    let num_retired = uninterrupted.bodies("checkpoint.retired")?.len();
    assert!(num_retired >= 3, "{num_retired}");
    let mut num_fired = 0;
    for point in ["checkpoint.retired", "shard.removed"] {
        for survived in 0..num_retired {
            let folder = short()?;
            let crashed = folder.train_under(VARIABLE, &crash_at(point, survived))?;
            assert_eq!(crashed.code, None, "{point}:{survived} never fired: {}", crashed.stderr);
            num_fired += 1;
            let announced = folder.bodies("checkpoint.retired")?.pop().context("the intent is durable")?;
            let name = announced["obs"]["checkpoint"].as_str().context("a name")?.to_owned();
            let store = folder.path().join("checkpoints");
            let num_files = || std::fs::read_dir(store.join(&name)).map(Iterator::count);
            let num_before = num_files()?;
            folder.train()?.expect(0).says(&format!("Finished retiring {name}"));
            assert!(num_files()? < num_before, "{point}:{survived}: the crash came too late");
            assert_eq!(std::fs::read_dir(store.join(&name))?.count(), {
                let is_candidate = announced["det"]["kept"] == serde_json::json!(["model"]);
                if is_candidate { 3 } else { 1 }
            });
            assert_eq!(folder.model(8)?, uninterrupted.model(8)?, "{point}:{survived}");
            let again = folder.bodies("checkpoint.retired")?;
            let same = again.iter().filter(|body| body["obs"]["checkpoint"] == name.as_str());
            assert_eq!(same.count(), 1, "announced once: {point}:{survived}");
        }
    }
    assert_eq!(num_fired, 2 * num_retired);
    Ok(())
}
