//! Asynchronous saves: the loop takes a copy and goes on, and a thread writes,
//! hashes, commits, re-reads and validates it.
//!
//! One save is in flight at a time, so that there is one copy more than the run
//! itself holds and never a queue of them; a second one that comes due waits
//! for the first. The thread appends the entries of its stages itself, at once:
//! an effect is on record when it has happened, and a failure when it is met,
//! not when the loop next looks. The loop learns of both when it awaits the
//! save ([`InFlight::wait`]), and nothing ends before it did: a save that is
//! dropped is waited for too.
//!
//! The request is appended by the loop, since it belongs behind the evaluations
//! of its step, and made durable by the thread before it writes anything.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ledger::FrozenContract;
use schemas::body::Body;
use schemas::ids::CheckpointId;

use crate::checkpoint::share::Base;
use crate::checkpoint::{CheckpointError, checkpoint_id};
use crate::state::anomaly::SinceLast;
use crate::state::registry::CapturedState;
use crate::store::working_folder;

use super::attempt::{Attempt, Scribe};
use super::error::RunError;
use super::save::{self, Saved, Snapshot};

/// Starts saves.
#[derive(Debug)]
pub struct Saver {
    /// Shared with the thread, which outlives no borrow of the loop's.
    frozen: Arc<FrozenContract>,
    store: PathBuf,
}

/// A save that a thread is at.
#[derive(Debug)]
pub struct InFlight {
    checkpoint: CheckpointId,
    /// None once it was waited for.
    thread: Option<JoinHandle<Finished>>,
}

/// What a thread hands back.
#[derive(Debug)]
struct Finished {
    appended: Vec<(u64, Body)>,
    result: Result<Saved, RunError>,
}

impl Saver {
    /// For a run whose contract saves asynchronously.
    #[must_use]
    pub fn new(frozen: &FrozenContract, ledger_folder: &Path) -> Self {
        let store = ledger_folder.join(working_folder(&frozen.contract.checkpoints.store));
        Self { frozen: Arc::new(frozen.clone()), store }
    }

    /// Announces a save and hands its copy to a thread, with what lies between
    /// it and the checkpoint before it. The copy is moved, not
    /// copied again. `held` is how long the loop was held by taking it.
    ///
    /// # Errors
    /// When the ledger cannot be written or no thread can be had, which is
    /// recorded as the save's failure.
    pub fn begin(
        &self,
        attempt: &mut Attempt,
        (state, since): (CapturedState, SinceLast),
        held: Duration,
    ) -> Result<InFlight, RunError> {
        let (step, started) = (state.step, Instant::now());
        let checkpoint = checkpoint_id(step, attempt.attempt);
        attempt.record(step, save::requested(step, &checkpoint))?;
        let (frozen, store, scribe) = (Arc::clone(&self.frozen), self.store.clone(), attempt.scribe());
        let own = checkpoint.clone();
        let base = save::base(attempt, &Snapshot { frozen: &frozen, since, state: &state }, &store);
        let work = move || write(scribe, &frozen, (&state, since), &store, base.as_ref(), &own, started);
        let thread = std::thread::Builder::new().name("saver".to_owned()).spawn(work);
        let thread = match thread {
            Ok(thread) => thread,
            Err(error) => {
                let failure = CheckpointError::io("start a thread that writes", &self.store)(error).into();
                attempt.record_durably(step, save::failed(step, &checkpoint, &failure))?;
                return Err(failure);
            }
        };
        attempt.costs.checkpoint(held + started.elapsed(), 0);
        Ok(InFlight { checkpoint, thread: Some(thread) })
    }
}

/// Everything behind the request; the entries are in the ledger when it
/// returns.
fn write(
    mut scribe: Scribe,
    frozen: &FrozenContract,
    (state, since): (&CapturedState, SinceLast),
    store: &Path,
    base: Option<&Base>,
    checkpoint: &CheckpointId,
    requested: Instant,
) -> Finished {
    let snapshot = Snapshot { frozen, since, state };
    // The intent is durable before the effect.
    let announced = scribe.flush();
    let result =
        announced.and_then(|()| save::finish(&mut scribe, &snapshot, store, base, checkpoint, requested));
    Finished { appended: scribe.into_appended(), result }
}

impl InFlight {
    /// Name of the checkpoint, by which it is awaited.
    #[must_use]
    pub const fn checkpoint(&self) -> &CheckpointId {
        &self.checkpoint
    }

    /// Whether waiting would take no time.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Waits until the save is validated or has failed, and takes note of its
    /// entries. The time counts as spent on checkpoints.
    ///
    /// # Errors
    /// What made the save fail; it is on record already.
    pub fn wait(mut self, attempt: &mut Attempt) -> Result<Saved, RunError> {
        attempt.enter("checkpoint");
        let started = Instant::now();
        let finished = self.join();
        attempt.enter("train");
        let Some(Finished { appended, result }) = finished else {
            // Only a second wait would get here, and `self` is gone by then.
            return Err(RunError::Process(std::io::Error::other("a save was awaited twice")));
        };
        attempt.adopt(appended);
        let num_bytes = result.as_ref().map_or(0, |saved| saved.num_bytes);
        attempt.costs.checkpoint(started.elapsed(), num_bytes);
        result
    }

    fn join(&mut self) -> Option<Finished> {
        let joined = self.thread.take()?.join();
        Some(joined.unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        // Whatever ends the loop, the thread is not left behind: its entries
        // come before the attempt's end, and it leaves no half a folder.
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
