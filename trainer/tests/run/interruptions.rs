//! Signals at moments that last: within an evaluation, and while a checkpoint
//! is staged. The attempt ends cleanly, and the run goes on to the same bytes.

use std::time::Duration;

use anyhow::{Context, Result};
use ledger::reader::Reader;
use rustix::process::Signal;
use schemas::body::Body;
use schemas::contract::StoppingRule;
use schemas::data::Split;
use schemas::entry::Header;
use serde_json::Value;
use trainer::probe::trajectory::{history, history_below};

use crate::folder::RunFolder;

/// What asks an attempt to end, and the exit code of each.
const SIGNALS: [(Signal, i32); 3] = [(Signal::TERM, 143), (Signal::INT, 130), (Signal::HUP, 129)];

/// Streams beside the usual one, so that an evaluation lasts many times longer
/// than it takes a test to meet it.
const NUM_SLOW_STREAMS: usize = 40;

/// The first step that is evaluated behind step 0: the fixture's interval.
const EVALUATED_STEP: u64 = 4;

/// Runs that may miss the evaluations: how fast this machine is changes with
/// what else it does.
const MAX_TRIES: usize = 10;

/// Least time that is spent in the evaluation before the signal, in microseconds.
const LEAST_EVALUATED_US: u64 = 1000;

fn slow_to_evaluate() -> Result<RunFolder> {
    RunFolder::new(|contract| {
        let streams = &mut contract.evaluation.streams;
        let mut slow = streams[0].clone();
        slow.split = Split::Train;
        for number in 0..NUM_SLOW_STREAMS {
            slow.name = format!("train-{number}");
            streams.push(slow.clone());
        }
    })
}

/// The body of the attempt's last entry, which ends it for a signal.
fn interrupted_end(folder: &RunFolder) -> Result<Value> {
    let kinds = folder.kinds()?;
    assert_eq!(kinds.last(), Some(&"attempt.end"), "{kinds:?}");
    let end = folder.bodies("attempt.end")?.pop().context("it is the last entry")?;
    assert_eq!(end["det"]["outcome"], "interrupted");
    Ok(end)
}

/// Time of each evaluation on record that is chosen, in microseconds.
fn evaluations_us(folder: &RunFolder, is_chosen: impl Fn(&Header) -> bool) -> Result<Vec<u64>> {
    let entries = folder.entries()?;
    let chosen = entries.iter().filter(|entry| is_chosen(&entry.header));
    let durations = chosen.filter_map(|entry| match &entry.body {
        Body::Eval(halves) => Some(halves.obs.duration_us),
        _ => None,
    });
    Ok(durations.collect())
}

/// A run that each signal met within the evaluations of a step, `into` after
/// their beginning; `None` when one of them came before or behind these.
fn interrupted_in_evaluations(into: Duration) -> Result<Option<RunFolder>> {
    let folder = slow_to_evaluate()?;
    for (attempt, (signal, code)) in (1..).zip(SIGNALS) {
        let mut training = folder.start()?;
        // The evaluations follow the step's line at once.
        training.wait_for_step(EVALUATED_STEP)?;
        std::thread::sleep(into);
        training.send(signal)?;
        let finished = training.finish()?;
        if finished.code == Some(0) {
            return Ok(None);
        }
        finished.expect(code);
        let end = interrupted_end(&folder)?;
        // All of a step's evaluations are on record, or none is.
        let evaluated = evaluations_us(&folder, |header| header.step == Some(EVALUATED_STEP))?;
        if evaluated.len() == NUM_SLOW_STREAMS + 1 {
            return Ok(None);
        }
        assert!(evaluated.is_empty(), "{} evaluations of an interrupted step", evaluated.len());
        assert_eq!(end["det"]["last_step"], EVALUATED_STEP);
        let kinds = folder.kinds()?;
        assert!(kinds.ends_with(&["step", "attempt.end"]), "{kinds:?}");
        // Time that is not on record shows that they were begun.
        let evaluated_us = end["obs"]["cost"]["eval_us"].as_u64().context("a cost")?;
        let own = evaluations_us(&folder, |header| header.attempt.is_some_and(|id| id.0 == attempt))?;
        if evaluated_us < own.iter().sum::<u64>() + LEAST_EVALUATED_US {
            return Ok(None);
        }
    }
    Ok(Some(folder))
}

/// After clean ends the run goes on to the bytes of an uninterrupted one.
fn check_goes_on(folder: &RunFolder, uninterrupted: &RunFolder, last_step: u64) -> Result<()> {
    folder.train()?.expect(0).says("RESUMING run ");
    let starts = folder.bodies("attempt.start")?;
    assert_eq!(starts.len(), SIGNALS.len() + 1);
    assert!(folder.bodies("fault.observed")?.is_empty(), "a clean end is no fault");
    assert_eq!(folder.model(last_step)?, uninterrupted.model(last_step)?);
    assert_eq!(folder.bodies("run.end")?[0]["det"], uninterrupted.bodies("run.end")?[0]["det"]);
    Ok(())
}

#[test]
fn a_signal_during_an_evaluation_ends_the_attempt_and_the_run_resumes_to_the_same_bytes() -> Result<()> {
    let uninterrupted = slow_to_evaluate()?;
    uninterrupted.train()?.expect(0);
    let evaluated = evaluations_us(&uninterrupted, |header| header.step == Some(EVALUATED_STEP))?;
    assert_eq!(evaluated.len(), NUM_SLOW_STREAMS + 1);
    // Half of the time that they took, as far as can be from both ends.
    let into = Duration::from_micros(evaluated.iter().sum::<u64>() / 2);
    let met = (0..MAX_TRIES).find_map(|_| interrupted_in_evaluations(into).transpose());
    let folder = met.transpose()?.with_context(|| format!("{into:?} missed the evaluations each time"))?;
    check_goes_on(&folder, &uninterrupted, 8)
}

/// Steps of [`often_saved`]: so many stages that a busy machine, which is late
/// for most of them, meets one for each signal long before the last.
const NUM_OFTEN_SAVED_STEPS: u64 = 200;

/// Steps that an attempt makes before its stages are looked at.
const NUM_STEPS_BEFORE_STAGE: u64 = 3;

/// Saved at every second step, so that there is another chance where a stage
/// was over before the process stood still.
fn often_saved() -> Result<RunFolder> {
    RunFolder::new(|contract| {
        contract.budget.max_steps = NUM_OFTEN_SAVED_STEPS;
        contract.stopping = StoppingRule::AtStep { step: NUM_OFTEN_SAVED_STEPS };
        contract.checkpoints.every_steps = 2;
        contract.evaluation.streams[0].every_steps = 10;
    })
}

#[test]
fn a_signal_during_staging_ends_the_attempt_and_the_run_resumes_to_the_same_bytes() -> Result<()> {
    let uninterrupted = often_saved()?;
    uninterrupted.train()?.expect(0);
    let folder = often_saved()?;
    let mut staged = Vec::new();
    // Where an attempt is met is up to the machine; the next goes on from there.
    let mut last_step = 0;
    for (signal, code) in SIGNALS {
        let mut training = folder.start()?;
        training.wait_for_step(last_step + NUM_STEPS_BEFORE_STAGE)?;
        let checkpoint = training.send_while_staging(&folder, signal)?;
        training.finish()?.expect(code);
        // That checkpoint was finished, and no step follows it.
        let end = interrupted_end(&folder)?;
        let validated = folder.bodies("checkpoint.validated")?.pop().context("it was finished")?;
        assert_eq!(validated["obs"]["checkpoint"], checkpoint);
        last_step = end["det"]["last_step"].as_u64().context("a step")?;
        assert_eq!(validated["det"]["step"], last_step);
        let names = folder.store()?;
        assert!(names.iter().all(|name| name.starts_with('s')), "it left {names:?}");
        staged.push(checkpoint);
    }
    check_goes_on(&folder, &uninterrupted, NUM_OFTEN_SAVED_STEPS)?;
    let starts = folder.bodies("attempt.start")?;
    for (start, checkpoint) in starts[1..].iter().zip(&staged) {
        assert_eq!(start["det"]["resumed_from"]["checkpoint"], *checkpoint);
    }
    Ok(())
}

/// Whoever kept a head sees the run as it stood there, whatever was done since.
#[test]
fn a_history_below_a_head_knows_nothing_of_later_attempts() -> Result<()> {
    let folder = RunFolder::long()?;
    let mut training = folder.start()?;
    training.wait_for_step(25)?.send(Signal::TERM)?;
    training.finish()?.expect(143);
    let size = u64::try_from(folder.entries()?.len())?;
    let reader = Reader::open(&folder.ledger())?;
    let then = history(&reader)?;
    drop(reader);
    folder.train()?.expect(0);

    let reader = Reader::open(&folder.ledger())?;
    let (below, whole) = (history_below(&reader, size)?, history(&reader)?);
    assert_eq!(below.attempts, then.attempts);
    assert_eq!((below.attempts.len(), whole.attempts.len()), (1, 2));
    assert_eq!(below.evaluations, then.evaluations);
    assert_ne!(below.evaluations, whole.evaluations);
    assert!(below.checkpoints.keys().eq(then.checkpoints.keys()));
    assert!(below.checkpoints.len() < whole.checkpoints.len());
    assert!(below.end.is_none() && whole.end.is_some());
    assert!(history_below(&reader, 0)?.attempts.is_empty());
    Ok(())
}
