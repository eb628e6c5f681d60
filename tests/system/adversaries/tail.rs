//! The newest entries are cut, changed or made a second time.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use system_tests::forgery::Forgery;
use system_tests::programs::{self, TRAINER};
use system_tests::run_folder::RunFolder;

use super::{Attacked, Kept, at, handed_off, keys};

/// Index of the first entry of a kind.
fn index_of(forgery: &Forgery, kind: &str) -> Result<usize> {
    forgery.entries.iter().position(|entry| entry["kind"] == kind).with_context(|| format!("no {kind}"))
}

pub(super) fn cut_before_the_end() -> Result<Attacked> {
    let run = RunFolder::trained();
    let kept = Kept::of(&run)?;
    let mut forgery = Forgery::open(&run.ledger())?;
    let size = forgery.signed_size(index_of(&forgery, "candidate.selected")?)?;
    forgery.entries.truncate(size);
    forgery.seal(None)?;
    Ok(Attacked::new(run, kept))
}

pub(super) fn cut_after_the_end() -> Result<Attacked> {
    let run = handed_off()?;
    let kept = Kept::of(&run)?;
    let mut forgery = Forgery::open(&run.ledger())?;
    let (whole, size) = (forgery.entries.len(), index_of(&forgery, "run.end")? + 1);
    ensure!(forgery.signed_size(size)? == size && size < whole, "run.end has no head of its own");
    forgery.entries.truncate(size);
    forgery.seal(None)?;
    for name in ["run.db.handoff.dsse.json", "run.db.report.dsse.json"] {
        std::fs::remove_file(run.path().join(name)).with_context(|| name.to_owned())?;
    }
    Ok(Attacked::new(run, kept))
}

/// Changes one entry of a trained run and signs everything behind it again.
fn edited(edit: impl FnOnce(&mut Forgery) -> Result<()>) -> Result<Attacked> {
    let run = RunFolder::trained();
    let kept = Kept::of(&run)?;
    let mut forgery = Forgery::open(&run.ledger())?;
    let before = forgery.entries.clone();
    edit(&mut forgery)?;
    ensure!(before != forgery.entries, "nothing was changed");
    forgery.seal(Some(&keys(&run)?))?;
    Ok(Attacked::new(run, kept))
}

pub(super) fn value_edited() -> Result<Attacked> {
    edited(|forgery| {
        let rate = at(forgery.last("step")?, "/body/det/updates/0/learning_rate")?;
        *rate = json!(rate.as_f64().context("a rate")? * 1.5 + 1e-6);
        Ok(())
    })
}

pub(super) fn time_edited() -> Result<Attacked> {
    edited(|forgery| {
        let duration = at(forgery.last("checkpoint.validated")?, "/body/obs/duration_us")?;
        *duration = json!(duration.as_u64().context("a duration")? + 1);
        Ok(())
    })
}

pub(super) fn times_fall() -> Result<Attacked> {
    edited(|forgery| {
        let time = at(forgery.last("eval")?, "/time_us")?;
        *time = json!(time.as_u64().context("a time")? - 3_000_000);
        Ok(())
    })
}

/// Updates of a run that is killed on its way.
const NUM_STEPS: u64 = 400;

/// Trains until `wanted` checkpoints were validated by this process, and kills
/// it.
fn killed_after(run: &RunFolder, wanted: usize) -> Result<()> {
    let count = |run: &RunFolder| -> usize {
        let is_wanted = |entry: &&Value| entry["kind"] == "checkpoint.validated";
        system_tests::dump::entries(&run.ledger())
            .map_or(0, |entries| entries.iter().filter(is_wanted).count())
    };
    let before = count(run);
    let mut child = programs::start(TRAINER, run.path(), &["run", "--ledger", "run.db"]);
    let mut has_ended = Ok(false);
    while matches!(has_ended, Ok(false)) && count(run) < before + wanted {
        has_ended = child.try_wait().map(|status| status.is_some());
        std::thread::sleep(Duration::from_millis(5));
    }
    let killed = child.kill();
    child.wait()?;
    killed?;
    ensure!(!has_ended?, "it ended too early");
    Ok(())
}

/// A run is killed twice, and then put back to where it was killed once.
pub(super) fn executed_again() -> Result<Attacked> {
    let run = RunFolder::long(NUM_STEPS);
    let _ = run.freeze().expect_code(0);
    killed_after(&run, 2)?;
    let earlier = run.copy();
    killed_after(&run, 2)?;
    // What vanished is on record as soon as anything is written again.
    let _ = run.train().expect_code(0);
    ensure!(num_attempts(&run) == 3, "three attempts were made");
    let kept = Kept::of(&run)?;
    let _ = earlier.train().expect_code(0);
    ensure!(num_attempts(&earlier) == 2, "one attempt was made away with");
    Ok(Attacked::new(earlier, kept))
}

fn num_attempts(run: &RunFolder) -> usize {
    run.entries().iter().filter(|entry| entry["kind"] == "attempt.start").count()
}
