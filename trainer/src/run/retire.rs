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
use schemas::state::StateClass;

use crate::checkpoint::retention::{Fact, Retirement, Stage};
use crate::checkpoint::retire::{self, Removed};
use crate::checkpoint::validate::Expected;
use crate::checkpoint::{CheckpointError, MANIFEST_NAME, MODEL_NAME};
use crate::state::split::SPLIT_NAMES;
use crate::store::retire::Files;
use crate::store::{self, WRITER_NAME, working_folder};

use super::attempt::Attempt;
use super::error::{self, RunError};
use super::failpoint;
use super::progress::Console;

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
        let fact = attempt.roster().fact(&retirement.checkpoint);
        let removed = remove(&attempt.console, fact, frozen, ledger_folder);
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
    let stored = stored_files(attempt, frozen, &retired);
    for fact in retired {
        let removed = match &stored {
            Ok(Some(files)) if !is_stored(files, &fact) => remove_local(&fact, frozen, ledger_folder),
            _ => remove(&attempt.console, Some(&fact), frozen, ledger_folder),
        };
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

/// Removes the shards of a checkpoint that the record calls retired, here and
/// in a store by URL; for any other there is nothing to do.
///
/// # Errors
/// [`CheckpointError`] for the first file that stays.
pub fn remove(
    console: &Console,
    fact: Option<&Fact>,
    frozen: &FrozenContract,
    ledger_folder: &Path,
) -> Result<Removed, CheckpointError> {
    let Some(fact) = fact.filter(|fact| fact.stage == Stage::Retired) else { return Ok(Removed::default()) };
    let mut removed = remove_local(fact, frozen, ledger_folder)?;
    if let Some(remote) = store::remote(&frozen.contract.checkpoints.store)?
        && let Some(expected) = expected(fact, frozen)
    {
        let stored = store::retire::remove(&remote, console, &expected, &fact.kept)?;
        removed.num_bytes += stored.num_bytes;
        removed.paths.extend(stored.paths);
    }
    Ok(removed)
}

/// Removes them from the folder beside the ledger.
fn remove_local(
    fact: &Fact,
    frozen: &FrozenContract,
    ledger_folder: &Path,
) -> Result<Removed, CheckpointError> {
    let Some(expected) = expected(fact, frozen) else { return Ok(Removed::default()) };
    // The folder is where the contract has it and not where an entry says, so
    // that a run's folder can be moved and no other can be named.
    let store = &frozen.contract.checkpoints.store;
    let folder = ledger_folder.join(working_folder(store)).join(fact.checkpoint.as_str());
    if store::is_url(store) && folder.symlink_metadata().is_err() {
        // A copy that was never fetched to this machine, or thrown away.
        return Ok(Removed::default());
    }
    retire::remove(&folder, &expected, &fact.kept, || failpoint::pass("shard.removed"))
}

/// None for a checkpoint that was never committed.
pub(crate) fn expected<'a>(fact: &'a Fact, frozen: &'a FrozenContract) -> Option<Expected<'a>> {
    Some(Expected {
        checkpoint: &fact.checkpoint,
        contract: frozen.digest,
        manifest: fact.manifest?,
        run: &frozen.run,
        step: fact.step,
    })
}

/// What a store by URL holds of the run, asked once; none without such a store,
/// or where nothing was retired.
fn stored_files(
    attempt: &Attempt,
    frozen: &FrozenContract,
    retired: &[Fact],
) -> Result<Option<Files>, CheckpointError> {
    match store::remote(&frozen.contract.checkpoints.store)? {
        Some(remote) if !retired.is_empty() => {
            store::retire::files(&remote, &attempt.console, &frozen.run).map(Some)
        }
        _ => Ok(None),
    }
}

/// Whether the store holds more of a checkpoint than its manifest and who wrote
/// it, so that a removal may have to be finished.
pub(crate) fn is_stored(files: &Files, fact: &Fact) -> bool {
    let found = files.get(fact.checkpoint.as_str());
    let mut kept = vec![MANIFEST_NAME, WRITER_NAME];
    if fact.kept.contains(&StateClass::Model) {
        kept.push(MODEL_NAME);
        kept.extend(SPLIT_NAMES);
    }
    found.is_some_and(|found| found.iter().any(|name| !kept.contains(&name.as_str())))
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
