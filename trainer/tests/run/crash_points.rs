//! A crash at every named point: only in builds with `failpoints`.

use anyhow::{Context, Result};
use rustix::process::Signal;
use schemas::contract::{SaveMode, StoppingRule};
use trainer::run::failpoint::{PAUSE_VARIABLE, PERMISSION, POINTS, RETIREMENT_POINTS, VARIABLE};

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
        folder.train_under(PAUSE_VARIABLE, &format!("{point}:{SLOW_MS}"))?.expect(0);
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
    folder.train_under(PAUSE_VARIABLE, &format!("checkpoint.staged:{SLOW_MS}"))?.expect(0);
    assert_eq!(num_beside(&folder, "step")?, [0, 0, 0]);
    Ok(())
}

#[test]
fn a_save_that_comes_due_waits_for_the_one_in_flight() -> Result<()> {
    let folder = saved_in(SaveMode::Asynchronous)?;
    folder.train_under(PAUSE_VARIABLE, &format!("checkpoint.staged:{SLOW_MS}"))?.expect(0);
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
        let mut training = folder.start_under(PAUSE_VARIABLE, &format!("{point}:{SLOW_MS}"))?;
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

#[test]
fn a_crash_at_every_point_is_recovered_from_to_the_same_bytes() -> Result<()> {
    crash_everywhere(SaveMode::Synchronous)
}

#[test]
fn a_crash_at_every_point_of_an_asynchronous_run_is_recovered_from_too() -> Result<()> {
    crash_everywhere(SaveMode::Asynchronous)
}

fn crash_everywhere(mode: SaveMode) -> Result<()> {
    let uninterrupted = saved_in(mode)?;
    uninterrupted.train()?.expect(0);
    let mut num_fired = 0;
    for point in POINTS {
        for survived in 0..3 {
            let folder = saved_in(mode)?;
            let crashed = folder.train_under(VARIABLE, &format!("{point}:{survived}"))?;
            if crashed.code.is_some() {
                // The point is passed less often than that.
                assert!(survived > 0, "{point} never fired: {}", crashed.stderr);
                continue;
            }
            num_fired += 1;
            folder.train()?.expect(0);
            assert_eq!(folder.model(8)?, uninterrupted.model(8)?, "{point}:{survived}");
            let names = folder.store()?;
            assert!(names.iter().all(|name| name.starts_with('s')), "{point}:{survived} left {names:?}");
            let validated = folder.bodies("checkpoint.validated")?;
            let failed = folder.bodies("checkpoint.failed")?;
            let requested = folder.bodies("checkpoint.requested")?;
            assert_eq!(validated.len() + failed.len(), requested.len(), "{point}:{survived}");
            assert_eq!(folder.bodies("candidate.selected")?.len(), 1, "{point}:{survived}");
            let steps = folder.bodies("run.end")?.pop().context("the run ended")?;
            assert_eq!(steps["det"]["last_step"], 8);
        }
    }
    // 8 points; all but the selection are passed at least twice.
    assert!(num_fired >= 2 * POINTS.len() - 1, "{num_fired} crashes");
    Ok(())
}

#[test]
fn a_selection_whose_checkpoint_is_lost_behind_it_is_made_again() -> Result<()> {
    let folder = RunFolder::new(|_| ())?;
    let crashed = folder.train_under(VARIABLE, "candidate.selected:0")?;
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
    for point in RETIREMENT_POINTS {
        for survived in 0..num_retired {
            let folder = short()?;
            let crashed = folder.train_under(VARIABLE, &format!("{point}:{survived}"))?;
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
    assert_eq!(num_fired, RETIREMENT_POINTS.len() * num_retired);
    Ok(())
}
