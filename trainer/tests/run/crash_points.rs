//! A crash at every named point: only in builds with `failpoints`.

use anyhow::{Context, Result};
use trainer::run::failpoint::{PERMISSION, POINTS, VARIABLE};

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
