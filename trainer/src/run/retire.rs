//! Retires what the contract's policy lets go: `checkpoint.retired` is durable
//! before the first file goes, and what a crash left between the two is
//! finished by the next attempt.
//!
//! A file that cannot be removed costs room and no truth, so it ends no
//! attempt; it is recorded as the anomaly `retirement_incomplete` and tried
//! again by the next one.

use std::path::Path;

use ledger::FrozenContract;
use schemas::body::{AnomalyDet, AnomalyObs, Body, CheckpointObs, CheckpointRetiredDet, Halves};
use schemas::ids::CheckpointId;

use crate::checkpoint::CheckpointError;
use crate::checkpoint::retention::{Fact, Retirement, Stage};
use crate::checkpoint::retire::{self, Removed};
use crate::checkpoint::validate::Expected;

use super::attempt::Attempt;
use super::error::{self, RunError};
use super::failpoint;

/// Name of the anomaly that a failed removal leaves.
pub const INCOMPLETE: &str = "retirement_incomplete";

/// Retires everything that the policy lets go now.
///
/// # Errors
/// When the ledger cannot be written.
pub fn apply(attempt: &mut Attempt, frozen: &FrozenContract, ledger_folder: &Path) -> Result<(), RunError> {
    for retirement in attempt.roster().decide().retire {
        attempt.record_durably(retirement.step, retired(&retirement))?;
        failpoint::pass("checkpoint.retired");
        let removed = remove(attempt.roster().fact(&retirement.checkpoint), frozen, ledger_folder);
        report(attempt, &retirement.checkpoint, removed, "Retired")?;
    }
    Ok(())
}

/// Removes what earlier attempts announced and did not finish.
///
/// # Errors
/// When the ledger cannot be written.
pub fn finish(attempt: &mut Attempt, frozen: &FrozenContract, ledger_folder: &Path) -> Result<(), RunError> {
    let retired = attempt.roster().facts().into_iter().filter(|fact| fact.stage == Stage::Retired);
    let retired: Vec<Fact> = retired.cloned().collect();
    for fact in retired {
        let removed = remove(Some(&fact), frozen, ledger_folder);
        if removed.as_ref().is_ok_and(|removed| removed.paths.is_empty()) {
            continue;
        }
        report(attempt, &fact.checkpoint, removed, "Finished retiring")?;
    }
    Ok(())
}

/// The entry that announces a retirement.
#[must_use]
pub fn retired(retirement: &Retirement) -> Body {
    let det = CheckpointRetiredDet {
        kept: retirement.kept.clone(),
        reason: retirement.reason,
        step: retirement.step,
    };
    let obs = CheckpointObs { checkpoint: retirement.checkpoint.clone(), duration_us: 0 };
    Body::CheckpointRetired(Box::new(Halves { det, obs }))
}

/// The entry that says that a retirement left files behind.
#[must_use]
pub fn incomplete(checkpoint: &CheckpointId, error: &CheckpointError) -> Body {
    let det = AnomalyDet::named(INCOMPLETE);
    let obs = AnomalyObs { description: format!("{checkpoint}: {}", error::chain(error)) };
    Body::Anomaly(Box::new(Halves { det, obs }))
}

/// Removes the shards of a checkpoint that the record calls retired; for any
/// other there is nothing to do.
///
/// # Errors
/// [`CheckpointError`] for the first file that stays.
pub fn remove(
    fact: Option<&Fact>,
    frozen: &FrozenContract,
    ledger_folder: &Path,
) -> Result<Removed, CheckpointError> {
    let retired = fact.filter(|fact| fact.stage == Stage::Retired);
    let Some((fact, manifest)) = retired.and_then(|fact| fact.manifest.map(|manifest| (fact, manifest)))
    else {
        return Ok(Removed::default());
    };
    // The folder is where the contract has it and not where an entry says, so
    // that a run's folder can be moved and no other can be named.
    let folder = ledger_folder.join(&frozen.contract.checkpoints.store).join(fact.checkpoint.as_str());
    let expected = Expected {
        checkpoint: &fact.checkpoint,
        contract: frozen.digest,
        manifest,
        run: &frozen.run,
        step: fact.step,
    };
    retire::remove(&folder, &expected, &fact.kept, || failpoint::pass("shard.removed"))
}

fn report(
    attempt: &mut Attempt,
    checkpoint: &CheckpointId,
    removed: Result<Removed, CheckpointError>,
    verb: &str,
) -> Result<(), RunError> {
    match removed {
        Ok(removed) => {
            let Removed { num_bytes, paths } = removed;
            attempt.console.note(&format!("{verb} {checkpoint}: {} files, {num_bytes} bytes", paths.len()));
            Ok(())
        }
        Err(failure) => {
            let reason = error::chain(&failure);
            attempt
                .console
                .say(&format!("warning: {checkpoint} is retired and could not be removed: {reason}"));
            let step = attempt.last_step();
            attempt.record(step, incomplete(checkpoint, &failure))
        }
    }
}
