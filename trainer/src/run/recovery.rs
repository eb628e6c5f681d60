//! What a new attempt says of its predecessors before it goes on: which
//! vanished, which checkpoints they left half-written, which bytes changed, and
//! what is executed again.
//!
//! Leftovers are removed only after the entry that names them is durable, and
//! only where name and process id, or the manifest, show that they are this
//! run's own.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use ledger::FrozenContract;
use ledger::reader::Reader;
use ledger::recovery::{self, NOT_VALIDATED, Struck};
use schemas::body::{Body, FaultRecoveredDet, FaultRecoveredObs, Halves, ObservedFault};
use schemas::contract::{FaultKind, SaveMode};
use schemas::ids::{AttemptId, CheckpointId, RunId};
use schemas::state::CheckpointManifest;

use crate::checkpoint::{MANIFEST_NAME, staging_name};

use super::attempt::Attempt;
use super::error::{self, RunError};
use super::failpoint;
use super::history::{History, PastAttempt, PastCheckpoint};
use super::resume::ResumeState;

/// `fault.observed` of an attempt that vanished.
#[must_use]
pub fn vanished(past: &PastAttempt, history: &History) -> Body {
    let is_saving = history.unfinished_checkpoints().any(|known| known.attempt == past.attempt);
    recovery::vanished(struck_by(past), is_saving)
}

const fn struck_by(past: &PastAttempt) -> Struck {
    Struck { attempt: past.attempt, last_step: past.last_step }
}

/// Records what happened to earlier attempts and cleans up after them.
///
/// # Errors
/// When the ledger cannot be written. A leftover that cannot be removed is only
/// reported: it harms nothing but room.
pub fn record(
    attempt: &mut Attempt,
    history: &History,
    resume: &ResumeState,
    frozen: &FrozenContract,
    store: &Path,
    reader: &Reader,
) -> Result<(), RunError> {
    // What was seen.
    let mut struck: BTreeMap<AttemptId, &PastAttempt> =
        history.attempts.iter().filter(|past| past.has_open_fault).map(|past| (past.attempt, past)).collect();
    for past in history.vanished() {
        attempt.record(resume.step, vanished(past, history))?;
        struck.insert(past.attempt, past);
    }
    let past = |wanted: AttemptId| history.attempts.iter().find(|past| past.attempt == wanted);
    for unusable in &resume.unusable {
        let Some(saver) = past(unusable.record.attempt) else { continue };
        let checkpoint = Some(unusable.record.checkpoint.clone());
        let description = error::chain(&unusable.error);
        let cause = unusable.error.is_other_content().then_some(FaultKind::SingleShardCorruption);
        let fault = (ObservedFault::CheckpointCorrupt, cause);
        attempt.record(resume.step, recovery::observed(struck_by(saver), fault, checkpoint, description))?;
        struck.insert(saver.attempt, saver);
    }
    let unfinished: Vec<&PastCheckpoint> = history.unfinished_checkpoints().collect();
    // A save beside training is interrupted by whatever ends the process.
    let is_beside = frozen.contract.checkpoints.mode == SaveMode::Asynchronous;
    let cause = (!is_beside).then_some(FaultKind::CheckpointWriteInterruption);
    for known in &unfinished {
        let Some(saver) = past(known.attempt) else { continue };
        let description = format!("it stopped after {:?}", known.progress);
        let checkpoint = Some(known.checkpoint.clone());
        let fault = (ObservedFault::CheckpointIncomplete, cause);
        attempt.record(resume.step, recovery::observed(struck_by(saver), fault, checkpoint, description))?;
        struck.insert(saver.attempt, saver);
    }

    // What is done about it.
    let mut charges = history.charges.clone();
    for past in struck.values() {
        let det = FaultRecoveredDet {
            attempt: past.attempt,
            from_step: resume.step,
            num_steps_lost: past.last_step.saturating_sub(resume.step),
        };
        charges.recovered(&det);
        let checkpoint = resume.checkpoint.as_ref().map(|located| located.record.checkpoint.clone());
        let obs = FaultRecoveredObs { checkpoint, fallback: resume.fallback() };
        attempt.record(resume.step, Body::FaultRecovered(Box::new(Halves { det, obs })))?;
    }
    let corrupt = resume.unusable.iter().map(|unusable| (&unusable.record, error::chain(&unusable.error)));
    let doubtful = resume.doubtful.iter().map(|known| (&known.record, known.reason()));
    for (record, reason) in corrupt.chain(doubtful) {
        charges.given_up(record.num_bytes);
        let halves = recovery::given_up(&record.checkpoint, record.step, reason);
        attempt.record(record.step, Body::CheckpointQuarantined(halves))?;
    }
    for known in &unfinished {
        charges.given_up(history.num_bytes(&known.checkpoint));
        let halves = recovery::given_up(&known.checkpoint, known.step, NOT_VALIDATED.to_owned());
        attempt.record(known.step, Body::CheckpointFailed(halves))?;
    }
    // Also where an attempt recovered and ended before it had charged.
    if !charges.is_open() {
        return Ok(());
    }
    for body in charges.entries(reader)? {
        attempt.record(resume.step, body)?;
    }
    attempt.flush()?;
    failpoint::pass("recovery.recorded");

    // Leftovers, now that they are on record, and those that an earlier recovery
    // put on record and did not come to remove.
    for known in unfinished.into_iter().chain(history.abandoned_checkpoints()) {
        if let Some(saver) = past(known.attempt) {
            remove_leftovers(attempt, known, saver, &frozen.run, store);
        }
    }
    Ok(())
}

/// Removes the staging folder of a checkpoint, and a folder of its final name
/// that the ledger does not know as committed.
fn remove_leftovers(
    attempt: &Attempt,
    known: &PastCheckpoint,
    saver: &PastAttempt,
    run: &RunId,
    store: &Path,
) {
    let mut folders = vec![store.join(staging_name(&known.checkpoint, saver.process))];
    let renamed = store.join(known.checkpoint.as_str());
    if known.committed.is_none() && is_of_run(&renamed, run, &known.checkpoint) {
        folders.push(renamed);
    }
    for folder in folders {
        if !folder.is_dir() {
            continue;
        }
        match fs::remove_dir_all(&folder) {
            Ok(()) => attempt.console.say(&format!("Removed incomplete {}", folder.display())),
            Err(error) => {
                attempt.console.say(&format!("warning: could not remove {}: {error}", folder.display()));
            }
        }
    }
}

/// Whether a folder holds the checkpoint of this run that its name says.
fn is_of_run(folder: &Path, run: &RunId, checkpoint: &CheckpointId) -> bool {
    fs::read(folder.join(MANIFEST_NAME))
        .ok()
        .and_then(|bytes| serde_json::from_slice::<CheckpointManifest>(&bytes).ok())
        .is_some_and(|manifest| manifest.run == *run && manifest.checkpoint == *checkpoint)
}
