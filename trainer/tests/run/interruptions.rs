//! Signals at moments that last: within an evaluation, and while a checkpoint
//! is staged. The attempt ends cleanly, and the run goes on to the same bytes.

use std::time::Duration;

use anyhow::{Context, Result};
use rustix::process::Signal;
use schemas::body::Body;
use schemas::contract::StoppingRule;
use schemas::data::Split;
use serde_json::Value;

use crate::folder::{LONG, RunFolder};

/// What asks an attempt to end, and the exit code of each.
const SIGNALS: [(Signal, i32); 3] = [(Signal::TERM, 143), (Signal::INT, 130), (Signal::HUP, 129)];

/// Streams beside the usual one, so that an evaluation lasts many times longer
/// than it takes a test to meet it.
const NUM_SLOW_STREAMS: usize = 40;

/// From the line of a step, which an evaluation follows at once, to the signal.
const INTO_EVALUATION: Duration = Duration::from_millis(50);

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

/// Time of the evaluations that an attempt recorded, in microseconds.
fn recorded_us(folder: &RunFolder, attempt: u32) -> Result<u64> {
    let entries = folder.entries()?;
    let own = entries.iter().filter(|entry| entry.header.attempt.is_some_and(|id| id.0 == attempt));
    let durations = own.map(|entry| match &entry.body {
        Body::Eval(halves) => halves.obs.duration_us,
        _ => 0,
    });
    Ok(durations.sum())
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
    let folder = slow_to_evaluate()?;
    for (attempt, (signal, code)) in (1..).zip(SIGNALS) {
        let mut training = folder.start()?;
        training.wait_for_step(4)?;
        std::thread::sleep(INTO_EVALUATION);
        training.send(signal)?;
        training.finish()?.expect(code);
        let end = interrupted_end(&folder)?;
        assert_eq!(end["det"]["last_step"], 4);
        // The evaluation of the step was begun, and is not on record.
        let kinds = folder.kinds()?;
        assert!(kinds.ends_with(&["step", "attempt.end"]), "{kinds:?}");
        let evaluated_us = end["obs"]["cost"]["eval_us"].as_u64().context("a cost")?;
        let recorded_us = recorded_us(&folder, attempt)?;
        assert!(evaluated_us >= recorded_us + LEAST_EVALUATED_US, "{evaluated_us} and {recorded_us}");
    }
    check_goes_on(&folder, &uninterrupted, 8)
}

/// Saved at every second step, so that there is another chance where a stage
/// was over before the process stood still.
fn often_saved() -> Result<RunFolder> {
    RunFolder::new(|contract| {
        contract.budget.max_steps = LONG;
        contract.stopping = StoppingRule::AtStep { step: LONG };
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
    for ((signal, code), step) in SIGNALS.into_iter().zip([9, 23, 37]) {
        let mut training = folder.start()?;
        let checkpoint = training.wait_for_step(step)?.send_while_staging(&folder, signal)?;
        training.finish()?.expect(code);
        // That checkpoint was finished, and no step follows it.
        let end = interrupted_end(&folder)?;
        let validated = folder.bodies("checkpoint.validated")?.pop().context("it was finished")?;
        assert_eq!(validated["obs"]["checkpoint"], checkpoint);
        assert_eq!(validated["det"]["step"], end["det"]["last_step"]);
        let names = folder.store()?;
        assert!(names.iter().all(|name| name.starts_with('s')), "it left {names:?}");
        staged.push(checkpoint);
    }
    check_goes_on(&folder, &uninterrupted, LONG)?;
    let starts = folder.bodies("attempt.start")?;
    for (start, checkpoint) in starts[1..].iter().zip(&staged) {
        assert_eq!(start["det"]["resumed_from"]["checkpoint"], *checkpoint);
    }
    Ok(())
}
