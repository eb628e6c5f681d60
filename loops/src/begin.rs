//! How an attempt begins: from which state, and what it says of the attempts
//! before it (`docs/FORMAT.md`, "Order of entries" and "Recovery").

use std::collections::BTreeMap;

use ledger::FrozenContract;
use ledger::reader::Reader;
use ledger::recorder::{Record, Recorder};
use schemas::body::{
    AttemptReason, AttemptStartDet, AttemptStartObs, Body, CheckpointDet, CheckpointFailedObs, CostDet,
    CostObs, ExecutedPlan, FaultObservedDet, FaultObservedObs, FaultRecoveredDet, FaultRecoveredObs, Halves,
    Nothing, ObservedFault, Outcome, ResumePoint, RunEndDet, RunStartDet, RunStartObs, SegmentStartDet,
};
use schemas::contract::FaultKind;
use schemas::ids::{AttemptId, CheckpointId};
use schemas::number::Float;

use crate::attempt::{Attempt, SEGMENT};
use crate::checkpoint::{self, Resumed, Unusable};
use crate::code;
use crate::error::LoopError;
use crate::history::{Charges, History, PastAttempt, PastCheckpoint, RECOVERY};
use crate::run::{Run, end_run};

/// Microseconds of a second.
const MICROSECONDS: f64 = 1e6;

/// Ends a run whose last attempt had done so, or that may have no further
/// attempt. Returns how it ended, or nothing where it goes on.
///
/// # Errors
/// When the ledger cannot be written.
pub(crate) fn end_without_attempt(
    recorder: &Recorder,
    frozen: &FrozenContract,
    history: &History,
) -> Result<Option<String>, LoopError> {
    let Some(past) = history.attempts.last() else { return Ok(None) };
    let last_step = past.last_step;
    if let Some(outcome @ (Outcome::Completed | Outcome::BudgetExhausted)) = past.outcome {
        let target_met = history.selected.as_ref().and_then(|selected| {
            crate::attempt::meets_target(&frozen.contract, |stream| {
                history.evaluations.get(stream)?.get(&selected.det.step).copied()
            })
        });
        let (counters, reason) = (history.counters, past.reason.clone());
        let det = RunEndDet { counters, last_step, outcome, reason: reason.clone(), target_met };
        end_run(recorder, history, det, None)?;
        return Ok(Some(reason));
    }
    let max_attempts = frozen.contract.budget.max_attempts;
    if u32::try_from(history.attempts.len()).unwrap_or(u32::MAX) < max_attempts {
        return Ok(None);
    }
    for past in history.vanished() {
        recorder.append(Record::new(vanished(past, history)).step(past.last_step))?;
    }
    let reason = format!("all {max_attempts} attempts are used");
    let outcome = Outcome::BudgetExhausted;
    let counters = history.counters;
    let det = RunEndDet { counters, last_step, outcome, reason: reason.clone(), target_met: None };
    end_run(recorder, history, det, None)?;
    Ok(Some(reason))
}

/// Starts the next attempt.
///
/// # Errors
/// As [`Run::begin`].
pub(crate) fn begin(run: Run) -> Result<Attempt, LoopError> {
    let (resumed, unusable) = checkpoint::newest_usable(&run.history, &run.frozen, &run.folder);
    check_restart(&run, resumed.as_ref(), &unusable)?;
    let number = run.history.next_attempt();
    let from_step = resumed.as_ref().map_or(0, |resumed| resumed.step);
    if !run.history.has_started {
        let halves = Halves {
            det: RunStartDet { contract: run.frozen.digest },
            obs: RunStartObs { tool: code::tool() },
        };
        run.recorder.append(Record::new(Body::RunStart(Box::new(halves))))?;
    }
    let start = attempt_start(&run, number, from_step, resumed.as_ref());
    run.recorder.append_durable(Record::new(start).attempt(number).step(from_step))?;
    let has_segment = run.history.has_segment;
    let digest = run.frozen.digest;
    let store = run.folder.join(&run.frozen.contract.checkpoints.store);
    let mut attempt = Attempt::new(run, number, resumed, store);
    if !has_segment {
        let det = SegmentStartDet {
            adjudication: None,
            from_step: 0,
            identity: digest,
            parent: None,
            segment: SEGMENT,
        };
        attempt.record(0, Body::SegmentStart(Box::new(Halves { det, obs: Nothing {} })))?;
    }
    recover(&mut attempt, from_step, &unusable)?;
    attempt.admit_resumed()?;
    Ok(attempt)
}

fn check_restart(run: &Run, resumed: Option<&Resumed>, unusable: &[Unusable]) -> Result<(), LoopError> {
    let num_steps = run.history.cost().num_steps_executed;
    if resumed.is_some() || num_steps == 0 || run.options.may_restart {
        return Ok(());
    }
    let mut reasons: Vec<String> =
        unusable.iter().map(|of| format!("{} ({})", of.known.checkpoint, of.error.chain())).collect();
    let unfinished = run.history.unfinished_checkpoints();
    reasons
        .extend(unfinished.map(|known| format!("{} (stopped after {:?})", known.checkpoint, known.progress)));
    if reasons.is_empty() {
        reasons.push("there is no checkpoint".to_owned());
    }
    Err(LoopError::NothingResumable { num_steps, reasons: reasons.join(", ") })
}

fn attempt_start(run: &Run, number: AttemptId, from_step: u64, resumed: Option<&Resumed>) -> Body {
    let reason = match resumed {
        Some(_) => AttemptReason::Resume,
        None if run.history.attempts.is_empty() => AttemptReason::Start,
        None => AttemptReason::Restart,
    };
    let det = AttemptStartDet {
        attempt: number,
        code: run.identity.code.clone(),
        contract: run.frozen.digest,
        from_step,
        reason,
        resumed_from: resumed.map(|resumed| ResumePoint {
            checkpoint: resumed.checkpoint.clone(),
            manifest: resumed.manifest_digest,
            step: resumed.step,
        }),
    };
    let obs = AttemptStartObs {
        cpu: code::cpu_model(),
        environment: run.identity.environment.clone(),
        host: ledger::keys::host_identity(),
        plan: ExecutedPlan {
            compiler: run.identity.plan.clone(),
            compute_dtype: run.frozen.contract.numerics.compute_dtype,
            instrumentation: Vec::new(),
            num_threads: run.options.num_threads.max(1),
            num_workers: 1,
        },
        process: std::process::id(),
        total_memory_bytes: ledger::costs::total_memory_bytes(),
    };
    Body::AttemptStart(Box::new(Halves { det, obs }))
}

fn vanished(past: &PastAttempt, history: &History) -> Body {
    let is_saving = history.unfinished_checkpoints().any(|known| known.attempt == past.attempt);
    let cause = (!is_saving).then_some(FaultKind::WorkerLoss);
    let description = "the attempt left no terminal entry".to_owned();
    observed(past, (ObservedFault::AttemptVanished, cause), None, description)
}

fn observed(
    past: &PastAttempt,
    (fault, cause): (ObservedFault, Option<FaultKind>),
    checkpoint: Option<CheckpointId>,
    description: String,
) -> Body {
    let det = FaultObservedDet { attempt: past.attempt, cause, fault, last_step: past.last_step };
    Body::FaultObserved(Box::new(Halves { det, obs: FaultObservedObs { checkpoint, description } }))
}

fn given_up(known: &PastCheckpoint, reason: String) -> Box<Halves<CheckpointDet, CheckpointFailedObs>> {
    let obs = CheckpointFailedObs { checkpoint: known.checkpoint.clone(), reason };
    Box::new(Halves { det: CheckpointDet { step: known.step }, obs })
}

/// Records what happened to earlier attempts and cleans up after them.
fn recover(attempt: &mut Attempt, from_step: u64, unusable: &[Unusable]) -> Result<(), LoopError> {
    let history = std::mem::take(&mut attempt.run.history);
    let recorded = record_recovery(attempt, &history, from_step, unusable);
    attempt.run.history = history;
    recorded
}

fn record_recovery(
    attempt: &mut Attempt,
    history: &History,
    from_step: u64,
    unusable: &[Unusable],
) -> Result<(), LoopError> {
    // What was seen.
    let open = history.attempts.iter().filter(|past| past.has_open_fault);
    let mut struck: BTreeMap<AttemptId, &PastAttempt> = open.map(|past| (past.attempt, past)).collect();
    for past in history.vanished() {
        attempt.record(from_step, vanished(past, history))?;
        struck.insert(past.attempt, past);
    }
    for Unusable { known, error } in unusable {
        let Some(saver) = history.attempt(known.attempt) else { continue };
        let is_other = matches!(error, LoopError::Checkpoint { is_other_content: true, .. });
        let cause = is_other.then_some(FaultKind::SingleShardCorruption);
        let fault = (ObservedFault::CheckpointCorrupt, cause);
        let body = observed(saver, fault, Some(known.checkpoint.clone()), error.chain());
        attempt.record(from_step, body)?;
        struck.insert(saver.attempt, saver);
    }
    let unfinished: Vec<&PastCheckpoint> = history.unfinished_checkpoints().collect();
    for known in &unfinished {
        let Some(saver) = history.attempt(known.attempt) else { continue };
        let fault = (ObservedFault::CheckpointIncomplete, Some(FaultKind::CheckpointWriteInterruption));
        let description = format!("it stopped after {:?}", known.progress);
        attempt.record(from_step, observed(saver, fault, Some(known.checkpoint.clone()), description))?;
        struck.insert(saver.attempt, saver);
    }

    // What is done about it.
    let mut charges = history.charges.clone();
    let newer = unusable.first().map(|of| format!("{}: {}", of.known.checkpoint, of.error.chain()));
    let checkpoint = attempt.resumed().map(|resumed| resumed.checkpoint.clone());
    for past in struck.values() {
        let det = FaultRecoveredDet {
            attempt: past.attempt,
            from_step,
            num_steps_lost: past.last_step.saturating_sub(from_step),
        };
        charges.recovered(&det);
        let obs = FaultRecoveredObs { checkpoint: checkpoint.clone(), fallback: newer.clone() };
        attempt.record(from_step, Body::FaultRecovered(Box::new(Halves { det, obs })))?;
    }
    for Unusable { known, error } in unusable {
        charges.num_bytes += history.num_bytes(&known.checkpoint);
        attempt.record(known.step, Body::CheckpointQuarantined(given_up(known, error.chain())))?;
    }
    for known in &unfinished {
        charges.num_bytes += history.num_bytes(&known.checkpoint);
        let reason = "the attempt that wrote it ended before it was validated".to_owned();
        attempt.record(known.step, Body::CheckpointFailed(given_up(known, reason)))?;
    }
    if !charges.spans.is_empty() {
        charge(attempt, &charges, from_step)?;
    }
    attempt.flush()?;

    // Leftovers, now that what they are is on record, and those that an earlier
    // recovery put on record and did not come to remove.
    for known in unfinished.into_iter().chain(history.abandoned_checkpoints()) {
        let Some(saver) = history.attempt(known.attempt) else { continue };
        let left = checkpoint::remove_leftovers(known, saver.process, &attempt.run.frozen, &attempt.store);
        attempt.warnings.extend(left.iter().map(LoopError::chain));
    }
    Ok(())
}

/// Writes what recoveries cost, in three entries.
fn charge(attempt: &mut Attempt, charges: &Charges, step: u64) -> Result<(), LoopError> {
    let mut lost_us = 0u64;
    // What was lost was committed by earlier attempts.
    let reader = Reader::open(&attempt.run.options.ledger)?;
    for entry in reader.entries(0) {
        let entry = entry?;
        let (Body::Step(halves), Some(of), Some(at)) = (&entry.body, entry.header.attempt, entry.header.step)
        else {
            continue;
        };
        let times = charges.spans.iter().filter(|(struck, from)| *struck == of && at > *from).count() as u64;
        lost_us += times * halves.obs.duration_us;
    }
    let entries = [
        ("steps", charges.num_steps as f64, "updates that are executed again"),
        ("s", lost_us as f64 / MICROSECONDS, "time of the updates that are executed again"),
        ("bytes", charges.num_bytes as f64, "checkpoints that were given up"),
    ];
    for (unit, amount, description) in entries {
        let obs =
            CostObs { amount: Float(amount), description: description.to_owned(), unit: unit.to_owned() };
        let det = CostDet { charged_to: RECOVERY.to_owned() };
        attempt.record(step, Body::Cost(Box::new(Halves { det, obs })))?;
    }
    Ok(())
}
