//! Planned faults in runs of several workers: each is on record before it acts,
//! found by the trainer with its cause and the worker, and recovered from to the
//! bits of a run without it; and with the detectors off it is in the record.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustix::process::Signal;
use schemas::contract::*;
use schemas::number::DecimalU64;
use serde_json::{Value, json};

use crate::folder::RunFolder;
use crate::injected::plain;
use crate::workers::with_another_count;

/// Last step of these runs.
const LAST: u64 = 24;
/// The update that is struck: behind a checkpoint, and no checkpoint itself.
const STRUCK: u64 = 9;
/// Milliseconds that a worker has; those of a stalled one are over soon.
const TIMEOUT_MS: u32 = 4_000;
/// Longest that a test waits for a fault to be on record.
const MAX_WAIT: Duration = Duration::from_secs(120);

fn planned(fault: FaultKind, phase: FaultPhase, step: u64, worker: Option<u32>) -> PlannedFault {
    PlannedFault { fault, phase, seed: DecimalU64(5), step, worker }
}

/// Three workers share six microbatches.
fn frozen(detection: Detection, plan: &[PlannedFault]) -> Result<RunFolder> {
    RunFolder::with_workers((3, 6), |contract| {
        plain(contract);
        if let Some(collective) = &mut contract.topology.collective {
            collective.timeout_ms = TIMEOUT_MS;
        }
        contract.faults.detection = detection;
        contract.faults.plan = plan.to_vec();
    })
}

/// Family, phase, step and worker of a fault that acted.
type Fired = (Value, Value, Option<u64>, Option<u32>);

/// Every fault that acted, in order.
fn fired(folder: &RunFolder) -> Result<Vec<Fired>> {
    let entries = folder.entries()?;
    let injected = entries.iter().filter(|entry| entry.body.kind().name() == "fault.injected");
    injected
        .map(|entry| {
            let det = serde_json::to_value(&entry.body)?["det"].clone();
            let worker = entry.header.worker.map(|worker| worker.0);
            Ok((det["fault"].clone(), det["phase"].clone(), entry.header.step, worker))
        })
        .collect()
}

fn expected(plan: &[PlannedFault]) -> Vec<Fired> {
    let fault =
        |of: &PlannedFault| (json!(of.fault), json!(of.phase), Some(of.step), Some(of.worker.unwrap_or(0)));
    plan.iter().map(fault).collect()
}

/// Kind, cause and worker of the newest `fault.observed`.
fn seen(folder: &RunFolder) -> Result<(Value, Value, Option<u32>)> {
    let entries = folder.entries()?;
    let newest = entries.iter().rev().find(|entry| entry.body.kind().name() == "fault.observed");
    let newest = newest.context("a fault is observed")?;
    let det = serde_json::to_value(&newest.body)?["det"].clone();
    Ok((det["fault"].clone(), det["cause"].clone(), newest.header.worker.map(|worker| worker.0)))
}

/// The plan acts, is found as said, and the run recovers to the twin's bits.
fn check(whole: &RunFolder, plan: &[PlannedFault], code: Option<i32>, observed: (&str, u32)) -> Result<()> {
    let folder = frozen(Detection::TrainerAndValidator, plan)?;
    let finished = folder.train()?;
    assert_eq!(finished.code, code, "{plan:?}\n{}", finished.stderr);
    if code.is_none() {
        // The process that records was killed; what it left, the next one says.
        folder.train()?;
    }
    let (fault, cause) = (json!(observed.0), json!(plan[0].fault));
    assert_eq!(fired(&folder)?[..1], expected(plan)[..1]);
    let worker = if code.is_none() { None } else { Some(observed.1) };
    assert_eq!(seen(&folder)?, (fault, cause, worker), "{plan:?}");
    folder.train()?.expect(0);
    assert_eq!(fired(&folder)?, expected(plan), "it acts once");
    assert_eq!(folder.model(LAST)?, whole.model(LAST)?, "{plan:?}: recovered to other bits");
    Ok(())
}

fn twin() -> Result<RunFolder> {
    let folder = frozen(Detection::TrainerAndValidator, &[])?;
    folder.train()?.expect(0);
    for kind in ["fault.injected", "fault.observed", "anomaly"] {
        assert!(folder.bodies(kind)?.is_empty(), "a run without faults has {kind}");
    }
    Ok(folder)
}

#[test]
fn workers_that_are_lost_or_late_are_recovered_from() -> Result<()> {
    let whole = twin()?;
    for phase in [FaultPhase::BeforeForward, FaultPhase::AfterBackward] {
        let lost = planned(FaultKind::WorkerLoss, phase, STRUCK, Some(2));
        check(&whole, &[lost], Some(1), ("worker_lost", 2))?;
        let late = planned(FaultKind::CollectiveTimeout, phase, STRUCK, Some(1));
        check(&whole, &[late], Some(1), ("worker_timeout", 1))?;
    }
    let recording = planned(FaultKind::WorkerLoss, FaultPhase::BeforeForward, STRUCK, None);
    check(&whole, &[recording], None, ("attempt_vanished", 0))?;
    Ok(())
}

#[test]
fn stale_gradients_are_found_and_in_the_record_where_nobody_looks() -> Result<()> {
    let whole = twin()?;
    let family = FaultKind::StaleOrDelayedGradient;
    for (phase, worker) in [
        (FaultPhase::BeforeExchange, Some(1)),
        (FaultPhase::BeforeExchange, None),
        (FaultPhase::InExchange, Some(2)),
    ] {
        let plan = [planned(family, phase, STRUCK, worker)];
        check(&whole, &plan, Some(1), ("worker_disagrees", worker.unwrap_or(0)))?;
    }
    // The detectors are off: the share of one worker has the digest that it had
    // before, and nobody else's.
    let plan = [planned(family, FaultPhase::BeforeExchange, STRUCK, Some(1))];
    let folder = frozen(Detection::ValidatorAlone, &plan)?;
    folder.train()?.expect(0);
    assert_eq!(fired(&folder)?, expected(&plan));
    let steps = folder.bodies("step")?;
    let gradients = |step: u64, worker: usize| {
        steps[usize::try_from(step).unwrap_or(0) - 1]["obs"]["shares"][worker]["gradients"].clone()
    };
    for worker in 0..3 {
        let is_repeated = gradients(STRUCK, worker) == gradients(STRUCK - 1, worker);
        assert_eq!(is_repeated, worker == 1, "worker {worker}");
    }
    assert_ne!(folder.model(LAST)?, whole.model(LAST)?);
    Ok(())
}

#[test]
fn another_number_of_workers_than_the_record_says_is_found() -> Result<()> {
    let whole = twin()?;
    let family = FaultKind::TopologyChange;
    let now = planned(family, FaultPhase::BeforeForward, STRUCK, None);
    check(&whole, &[now], Some(1), ("plan_mismatch", 0))?;
    let plan = [planned(family, FaultPhase::BeforeForward, STRUCK, None)];
    let folder = frozen(Detection::ValidatorAlone, &plan)?;
    folder.train()?.expect(0);
    let counts: Vec<usize> = folder
        .bodies("step")?
        .iter()
        .map(|body| body["obs"]["shares"].as_array().map_or(0, Vec::len))
        .collect();
    let struck = usize::try_from(STRUCK)? - 1;
    let is_struck = |(index, count): (usize, &usize)| (*count < 3) == (index == struck);
    assert!(counts.iter().enumerate().all(is_struck), "{counts:?}");
    // The bits are those of the tree, so that nothing but the shares shows it.
    assert_eq!(folder.model(LAST)?, whole.model(LAST)?);

    // Behind a restore.
    let plan = [
        planned(family, FaultPhase::Restore, 6, None),
        planned(FaultKind::WorkerLoss, FaultPhase::BeforeForward, STRUCK, Some(1)),
    ];
    let folder = frozen(Detection::TrainerAndValidator, &plan)?;
    folder.train()?.expect(1).says("worker 1 is lost");
    folder.train()?.expect(1).says("was executed in shares");
    assert_eq!(seen(&folder)?, (json!("plan_mismatch"), json!(family), Some(0)));
    folder.train()?.expect(0);
    assert_eq!(fired(&folder)?.len(), 2);
    assert_eq!(folder.model(LAST)?, whole.model(LAST)?);
    Ok(())
}

/// What is damaged in the process that records is damaged for all workers: they
/// execute what it says, and the run goes on to other bits.
#[test]
fn damaged_state_reaches_every_worker_where_nobody_looks() -> Result<()> {
    let whole = twin()?;
    for (family, phase) in [
        (FaultKind::DataCursorSkip, FaultPhase::BeforeForward),
        (FaultKind::PrecisionPolicyChange, FaultPhase::BeforeForward),
        (FaultKind::PrecisionPolicyChange, FaultPhase::AfterUpdate),
    ] {
        let plan = [planned(family, phase, STRUCK, None)];
        let folder = frozen(Detection::ValidatorAlone, &plan)?;
        folder.train()?.expect(0);
        assert_eq!(fired(&folder)?, expected(&plan));
        assert!(folder.bodies("fault.observed")?.is_empty(), "{family} {phase}: a worker did not follow");
        assert_ne!(folder.model(LAST)?, whole.model(LAST)?, "{family} {phase} changed nothing");
    }
    Ok(())
}

/// Processes that an attempt does not have cannot be struck: the fault waits,
/// and no entry says that it acted.
#[test]
fn what_strikes_a_worker_waits_for_an_attempt_that_has_it() -> Result<()> {
    let whole = twin()?;
    for (num_workers, plan) in [
        (
            1,
            vec![
                planned(FaultKind::CollectiveTimeout, FaultPhase::BeforeForward, STRUCK, Some(1)),
                planned(FaultKind::WorkerLoss, FaultPhase::AfterBackward, STRUCK, Some(2)),
                planned(FaultKind::TopologyChange, FaultPhase::BeforeForward, STRUCK, None),
                planned(FaultKind::StaleOrDelayedGradient, FaultPhase::BeforeExchange, STRUCK, None),
                planned(FaultKind::StaleOrDelayedGradient, FaultPhase::InExchange, STRUCK, Some(1)),
            ],
        ),
        (
            2,
            vec![
                planned(FaultKind::WorkerLoss, FaultPhase::BeforeForward, STRUCK, Some(2)),
                planned(FaultKind::CollectiveTimeout, FaultPhase::AfterBackward, STRUCK, Some(2)),
                planned(FaultKind::StaleOrDelayedGradient, FaultPhase::BeforeExchange, STRUCK + 1, Some(2)),
            ],
        ),
    ] {
        let folder = RunFolder::with_workers((3, 6), |contract| {
            plain(contract);
            with_another_count(contract);
            contract.faults.plan = plan;
        })?;
        folder.train_with(&["--workers", &num_workers.to_string()])?.expect(0);
        assert_eq!(fired(&folder)?, [], "{num_workers} workers");
        assert_eq!(folder.model(LAST)?, whole.model(LAST)?);
    }
    // One that is there is struck.
    let plan = [planned(FaultKind::WorkerLoss, FaultPhase::BeforeForward, STRUCK, Some(1))];
    let folder = RunFolder::with_workers((3, 6), |contract| {
        plain(contract);
        with_another_count(contract);
        contract.faults.plan = plan.to_vec();
    })?;
    folder.train_with(&["--workers", "2"])?.expect(1).says("worker 1 is lost");
    assert_eq!(fired(&folder)?, expected(&plan));
    Ok(())
}

/// What is on record acts, although a signal asks the attempt to end meanwhile.
#[test]
fn a_signal_does_not_keep_an_ordered_fault_from_acting() -> Result<()> {
    let plan = [planned(FaultKind::CollectiveTimeout, FaultPhase::AfterBackward, STRUCK, Some(1))];
    let folder = frozen(Detection::TrainerAndValidator, &plan)?;
    let mut training = folder.start()?;
    let started = Instant::now();
    while folder.bodies("fault.injected")?.is_empty() {
        ensure!(started.elapsed() < MAX_WAIT, "nothing was injected");
        std::thread::sleep(Duration::from_millis(20));
    }
    training.send(Signal::TERM)?;
    training.finish()?.expect(1);
    let cause = FaultKind::CollectiveTimeout;
    assert_eq!(seen(&folder)?, (json!("worker_timeout"), json!(cause), Some(1)));
    folder.train()?.expect(0);
    assert_eq!(fired(&folder)?, expected(&plan));
    Ok(())
}
