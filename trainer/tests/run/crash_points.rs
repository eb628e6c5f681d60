//! A crash at every named point: only in builds with `failpoints`.

use anyhow::{Context, Result};
use trainer::run::failpoint::{PERMISSION, POINTS, RETIREMENT_POINTS, VARIABLE};

use crate::folder::RunFolder;

#[test]
fn a_crash_at_every_point_is_recovered_from_to_the_same_bytes() -> Result<()> {
    let uninterrupted = RunFolder::new(|_| ())?;
    uninterrupted.train()?.expect(0);
    let mut num_fired = 0;
    for point in POINTS {
        for survived in 0..3 {
            let folder = RunFolder::new(|_| ())?;
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
    // 7 points; all but the selection are passed at least twice.
    assert!(num_fired >= 2 * POINTS.len() - 1, "{num_fired} crashes");
    Ok(())
}

#[test]
fn a_selection_whose_checkpoint_is_lost_behind_it_is_made_again() -> Result<()> {
    let folder = RunFolder::new(|_| ())?;
    let crashed = folder.train_under(VARIABLE, "candidate.selected:0")?;
    assert_eq!(crashed.code, None, "{}", crashed.stderr);
    let path = folder.path().join("checkpoints/s00000008-a1/optimizer.safetensors");
    let mut bytes = std::fs::read(&path)?;
    *bytes.last_mut().context("the shard is not empty")? ^= 1;
    std::fs::write(path, bytes)?;
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
