//! What an attempt does about a store by URL besides saving: it fetches the
//! checkpoint that it goes on from, and removes what an upload left that was
//! killed or failed.
//!
//! Under a folder store there is nothing to do.

use std::path::Path;
use std::time::Duration;

use ledger::FrozenContract;
use schemas::ids::CheckpointId;

use crate::checkpoint::CheckpointError;
use crate::run::progress::Console;
use crate::store::leftovers::{self, Leftover};
use crate::store::{self, StoreError, Stored, fetch};

use super::attempt::Attempt;
use super::error::RunError;
use super::history::History;
use super::refusal::Refusal;
use super::resume;

/// Longest time that an attempt spends on what others left; the next one can
/// go on with it.
const CLEAN_LIMIT: Duration = Duration::from_secs(60);

/// Reads the environment, and brings the newest checkpoint that can be had into
/// the working folder.
///
/// # Errors
/// [`Refusal::Store`] where the environment lacks something, or a store that
/// may hold the checkpoint cannot be asked: nothing is decided then.
pub(crate) fn make_available(
    console: &Console,
    frozen: &FrozenContract,
    history: &History,
    ledger_folder: &Path,
) -> Result<(), RunError> {
    store::remote(&frozen.contract.checkpoints.store).map_err(Refusal::from)?;
    // Those that the attempt may go on from: of others nothing is decided.
    let usable = resume::eligible(&frozen.contract, history);
    fetch::newest(console, frozen, ledger_folder, usable).map_err(|error| match error {
        CheckpointError::Store(error) => Refusal::from(*error).into(),
        other => RunError::from(other),
    })
}

/// Gives up and removes what uploads left that nobody relies on, and says what
/// it was. What cannot be removed harms nothing but room, and is told.
pub(super) fn clean(attempt: &Attempt, history: &History, frozen: &FrozenContract) {
    if history.attempts.is_empty() {
        return;
    }
    if let Err(error) = try_clean(attempt, history, frozen) {
        let reason = super::error::chain(&error);
        attempt.console.say(&format!("warning: what earlier attempts left in the store stays: {reason}"));
    }
}

fn try_clean(attempt: &Attempt, history: &History, frozen: &FrozenContract) -> Result<(), StoreError> {
    let Some(remote) = store::remote(&frozen.contract.checkpoints.store)? else { return Ok(()) };
    let session = remote.short_session(&attempt.console, CLEAN_LIMIT);
    remote.wait(async {
        for (checkpoint, leftover) in leftovers::by_checkpoint(&session, &frozen.run).await? {
            let stored = Stored { checkpoint: &checkpoint, run: &frozen.run };
            let Some(known) = history.checkpoints.get(&checkpoint) else {
                session.say(&stays(&checkpoint, "which this ledger does not know", &leftover));
                continue;
            };
            if known.committed.is_some() {
                // Its upload was acknowledged; what was begun besides is nothing.
                for upload in &leftover.uploads {
                    session.abort_parts(&upload.key, &upload.id).await?;
                }
                continue;
            }
            let saver = history.attempts.iter().find(|past| past.attempt == known.attempt);
            let process = saver.map(|past| past.process);
            if leftovers::is_of_process(&session, stored, &leftover, process).await? {
                leftovers::remove(&session, &leftover).await?;
                session.say(&format!("Removed incomplete {checkpoint} from the store: {}", leftover.text()));
            } else {
                session.say(&stays(&checkpoint, "and some of it is somebody else's", &leftover));
            }
        }
        Ok(())
    })
}

fn stays(checkpoint: &CheckpointId, why: &str, leftover: &Leftover) -> String {
    format!("warning: the store holds {checkpoint} of this run, {why}; it stays: {}", leftover.text())
}
