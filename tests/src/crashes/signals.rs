//! Signals at every crash point in turn: TERM, INT and HUP end an attempt
//! cleanly, and a process that stood still (STOP, CONT) goes on.
//!
//! Without crash points the moments are random.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::process::Signal;
use serde_json::Value;

use super::baseline::{Baseline, SAVE_EVERY, Variant, says_point};
use super::faults::{all_of, kill_at, stopped};
use super::power::survive;
use super::process::{Ended, FAILPOINTS, Process, code_of};
use super::trial::{Outcome, conclude};
use crate::dump;
use crate::random::Random;

/// What asks an attempt to end.
const SIGNALS: [(&str, Signal); 3] = [("TERM", Signal::TERM), ("INT", Signal::INT), ("HUP", Signal::HUP)];

/// The point that only an attempt behind one that vanished passes.
const RECOVERY_POINT: &str = "recovery.recorded";

/// Where the attempt before it is killed.
const STEP_POINT: &str = "step.recorded";

/// Signals, each at every one of so many points that a run passes and in a
/// recovery.
#[must_use]
pub const fn num_signals(num_points: u64) -> u64 {
    num_stops(num_points) * SIGNALS.len() as u64
}

/// Stops, at the same.
#[must_use]
pub const fn num_stops(num_points: u64) -> u64 {
    num_points + 1
}

/// What the trials of signals say happened where all of them were made, as they
/// name it in [`Outcome::points`].
#[must_use]
pub fn all_signals(points: &BTreeSet<String>) -> BTreeSet<String> {
    let at = |point: &String| SIGNALS.map(|(name, _)| signal_at(name, point));
    points.iter().flat_map(at).collect()
}

fn signal_at(name: &str, point: &str) -> String {
    format!("{name} at {point}")
}

/// Where a trial's trainer is to stand.
struct Stand<'a> {
    /// A crash point; any moment where the trainer has none.
    point: Option<String>,
    variant: &'a Variant,
}

/// Every point in turn, in a run that passes it.
fn turn<'a>(baseline: &'a Baseline, number: u64, random: &mut Random) -> Result<Stand<'a>> {
    let is_asynchronous = random.below(2) == 1;
    let variant = baseline.variant(is_asynchronous);
    if !baseline.is_instrumented {
        return Ok(Stand { point: None, variant });
    }
    let points = baseline.points();
    let at = usize::try_from(number % num_stops(points.len() as u64))?;
    let Some(point) = points.get(at) else {
        return Ok(Stand { point: Some(RECOVERY_POINT.to_owned()), variant });
    };
    let is_passed = variant.passes.iter().any(|pass| pass == point);
    let variant = if is_passed { variant } else { baseline.variant(!is_asynchronous) };
    Ok(Stand { point: Some((*point).to_owned()), variant })
}

impl Stand<'_> {
    /// Attempts of a run that nothing else happens to.
    fn num_attempts(&self) -> usize {
        if self.point.as_deref() == Some(RECOVERY_POINT) { 2 } else { 1 }
    }

    /// Some pass of a point.
    fn some_pass(&self, point: &str, random: &mut Random) -> Result<usize> {
        let num_passes = self.variant.passes.iter().filter(|pass| *pass == point).count() as u64;
        Ok(usize::try_from(random.below(num_passes.max(1)))?)
    }

    /// Starts a trainer that stands still there, with the place in words. `None`
    /// where it ended first.
    fn start(
        &self,
        baseline: &Baseline,
        folder: &Path,
        random: &mut Random,
    ) -> Result<Option<(Process, String)>> {
        let Some(point) = &self.point else { return stopped(baseline, self.variant, folder, random) };
        if point == RECOVERY_POINT {
            let survived = self.some_pass(STEP_POINT, random)?;
            if !kill_at(folder, STEP_POINT, survived)? {
                return Ok(None);
            }
        }
        let survived = self.some_pass(point, random)?;
        let setting = format!("{point}={}", survive(survived, "1*return(stop)"));
        let mut process = Process::start(folder, &[], &[(FAILPOINTS, &setting)])?;
        let is_there = process.wait_until_stopped()?;
        Ok(is_there.then_some((process, format!("{point} after {survived}"))))
    }

    /// Whether it was this point where the process stood.
    fn check(&self, what: &str, ended: &Ended) -> Result<()> {
        let is_there = self.point.as_ref().is_none_or(|point| says_point(&ended.said, point));
        ensure!(is_there, "{what}: it stood somewhere else: {}", ended.said);
        Ok(())
    }
}

/// Entries of a kind.
fn count(entries: &[Value], kind: &str) -> usize {
    entries.iter().filter(|entry| entry["kind"] == kind).count()
}

/// SIGTERM, SIGINT or SIGHUP to a process that stands at some point: each signal
/// at each in turn.
pub(super) fn signal(baseline: &Baseline, number: u64, random: &mut Random) -> Result<Outcome> {
    let num_places = if baseline.is_instrumented { num_stops(baseline.points().len() as u64) } else { 1 };
    let (name, signal) = SIGNALS[usize::try_from(number / num_places % SIGNALS.len() as u64)?];
    let stand = turn(baseline, number, random)?;
    let run = stand.variant.frozen.copy();
    let Some((process, place)) = stand.start(baseline, run.path(), random)? else {
        return Ok(Outcome::default());
    };
    let before = dump::entries(&run.ledger())?;
    process.send(signal)?;
    process.send(Signal::CONT)?;
    let ended = process.finish()?;
    let what = format!("{name} at {place}");
    stand.check(&what, &ended)?;
    ensure!(
        ended.code == code_of(signal) || ended.code == 0,
        "{what} ended with {}: {}",
        ended.code,
        ended.said
    );
    let entries = run.entries();
    if ended.code == 0 {
        ensure!(count(&entries, "run.end") == 1, "{what}: it ended with 0 and the run is not over");
        let (stood_at, last) = (count(&before, "step"), count(&entries, "step"));
        // The record lags behind the process, by less than two saves: each waits
        // until all before it is durable.
        ensure!(
            stood_at + 2 * SAVE_EVERY >= last,
            "{what}: the signal came at step {stood_at}, and was swallowed: the run went on to step {last}"
        );
        if stood_at < last {
            // It may have stood in the last update, or before it.
            return Ok(Outcome { what, ..Outcome::default() });
        }
        // A run whose last step was over ends as it would have.
    } else {
        let last = entries.last().context("a ledger has entries")?;
        ensure!(last["kind"] == "attempt.end", "{what} left {} as its last entry", last["kind"]);
        ensure!(last["body"]["det"]["outcome"] == "interrupted", "{what}: {}", last["body"]);
        let is_open = count(&entries, "run.end") == 0;
        ensure!(is_open && entries.len() > before.len(), "{what} ended the run");
    }
    let points = stand.point.iter().map(|point| signal_at(name, point)).collect();
    let outcome = Outcome { what, has_fired: true, points, ..Outcome::default() };
    let outcome = conclude(run.path(), stand.variant, &all_of(run.path())?, outcome)?;
    // Of the attempt that was killed before, the signalled one has told already.
    let num_faults = |entries: &[Value]| count(entries, "fault.observed");
    ensure!(
        num_faults(&run.entries()) == num_faults(&before),
        "{}: a clean end was taken for a fault",
        outcome.what
    );
    Ok(outcome)
}

/// SIGSTOP, some time, SIGCONT, at each point in turn.
pub(super) fn stop_continue(baseline: &Baseline, number: u64, random: &mut Random) -> Result<Outcome> {
    let stand = turn(baseline, number, random)?;
    let run = stand.variant.frozen.copy();
    let Some((process, place)) = stand.start(baseline, run.path(), random)? else {
        return Ok(Outcome::default());
    };
    let pause = Duration::from_millis(50 + random.below(400));
    std::thread::sleep(pause);
    process.send(Signal::CONT)?;
    let ended = process.finish()?;
    let what = format!("{pause:?} at {place}");
    stand.check(&what, &ended)?;
    ensure!(ended.code == 0, "{what} ended with {}: {}", ended.code, ended.said);
    let points = stand.point.iter().cloned().collect();
    let outcome = Outcome { what, has_fired: true, points, ..Outcome::default() };
    let outcome = conclude(run.path(), stand.variant, &all_of(run.path())?, outcome)?;
    let starts = count(&run.entries(), "attempt.start");
    let expected = stand.num_attempts();
    ensure!(starts == expected, "{}: {starts} attempts in place of {expected}", outcome.what);
    Ok(outcome)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_signal_is_named_at_every_point() {
        let points: BTreeSet<String> = ["head.write", RECOVERY_POINT].map(str::to_owned).into();
        let all = all_signals(&points);
        // One point that a run passes, and the one of a recovery.
        assert_eq!(all.len() as u64, num_signals(1));
        for name in ["TERM", "INT", "HUP"] {
            assert!(all.contains(&format!("{name} at head.write")), "{all:?}");
        }
    }
}
