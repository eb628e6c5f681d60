//! How an attempt begins: from which state, and what it says of the attempts
//! before it (`docs/FORMAT.md`, "Order of entries" and "Recovery").

use std::collections::BTreeMap;

use ledger::FrozenContract;
use ledger::reader::Reader;
use ledger::recorder::{Record, Recorder};
use ledger::recovery::{self, NOT_VALIDATED, Struck};
use schemas::body::{
    AttemptReason, AttemptStartDet, AttemptStartObs, Body, ExecutedPlan, FaultRecoveredDet,
    FaultRecoveredObs, Halves, Nothing, ObservedFault, Outcome, ResumePoint, RunEndDet, RunStartDet,
    RunStartObs, SegmentStartDet,
};
use schemas::contract::FaultKind;
use schemas::ids::AttemptId;

use crate::attempt::{Attempt, SEGMENT};
use crate::checkpoint::{self, Resumed, Unusable};
use crate::code;
use crate::error::LoopError;
use crate::history::{History, PastAttempt, PastCheckpoint};
use crate::run::{Run, end_run};

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
    recovery::vanished(struck_by(past), is_saving)
}

const fn struck_by(past: &PastAttempt) -> Struck {
    Struck { attempt: past.attempt, last_step: past.last_step }
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
        let checkpoint = Some(known.checkpoint.clone());
        attempt.record(from_step, recovery::observed(struck_by(saver), fault, checkpoint, error.chain()))?;
        struck.insert(saver.attempt, saver);
    }
    let unfinished: Vec<&PastCheckpoint> = history.unfinished_checkpoints().collect();
    for known in &unfinished {
        let Some(saver) = history.attempt(known.attempt) else { continue };
        let fault = (ObservedFault::CheckpointIncomplete, Some(FaultKind::CheckpointWriteInterruption));
        let description = format!("it stopped after {:?}", known.progress);
        let checkpoint = Some(known.checkpoint.clone());
        attempt.record(from_step, recovery::observed(struck_by(saver), fault, checkpoint, description))?;
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
        charges.given_up(history.num_bytes(&known.checkpoint));
        let halves = recovery::given_up(&known.checkpoint, known.step, error.chain());
        attempt.record(known.step, Body::CheckpointQuarantined(halves))?;
    }
    for known in &unfinished {
        charges.given_up(history.num_bytes(&known.checkpoint));
        let halves = recovery::given_up(&known.checkpoint, known.step, NOT_VALIDATED.to_owned());
        attempt.record(known.step, Body::CheckpointFailed(halves))?;
    }
    if charges.is_open() {
        let reader = Reader::open(&attempt.run.options.ledger)?;
        for body in charges.entries(&reader)? {
            attempt.record(from_step, body)?;
        }
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
