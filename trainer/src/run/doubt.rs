//! Which checkpoints a fault puts in doubt: under the recovery policy
//! `roll_back` nothing goes on from them (`docs/FORMAT.md`, "State in doubt").
//!
//! It follows from the entries alone, so that the validator finds the same. That
//! an attempt's detectors were silent until the fault counts for nothing: what
//! they can see is not all that can be wrong.

use schemas::body::ObservedFault;
use schemas::ids::CheckpointId;

use super::history::{History, PastAttempt, PastCheckpoint, Progress};
use crate::checkpoint::locate::RecordedCheckpoint;

/// Whether a fault says that something else was computed than the contract
/// says, and not only that computing stopped.
#[must_use]
pub const fn is_of_state(fault: ObservedFault) -> bool {
    match fault {
        ObservedFault::DataChanged
        | ObservedFault::NotFinite
        | ObservedFault::StateMismatch
        | ObservedFault::PlanMismatch
        | ObservedFault::WorkerDisagrees
        | ObservedFault::SelectionMismatch => true,
        ObservedFault::AttemptVanished
        | ObservedFault::CheckpointCorrupt
        | ObservedFault::CheckpointIncomplete
        | ObservedFault::WorkerLost
        | ObservedFault::WorkerTimeout
        | ObservedFault::StorageFailed => false,
    }
}

/// A checkpoint that the ledger calls validated and that a fault puts in doubt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DoubtfulCheckpoint {
    /// Last step at which its attempt was found in order.
    pub in_order_step: u64,
    /// What the ledger says of it.
    pub record: RecordedCheckpoint,
}

impl DoubtfulCheckpoint {
    /// Why it is, in words.
    #[must_use]
    pub fn reason(&self) -> String {
        let (attempt, step) = (self.record.attempt, self.in_order_step);
        format!("attempt {attempt} saved it, and was last found in order at step {step}")
    }
}

/// Usable checkpoints that are in doubt, newest first.
#[must_use]
pub fn doubtful(history: &History) -> Vec<DoubtfulCheckpoint> {
    let mut all: Vec<DoubtfulCheckpoint> =
        history.attempts.iter().filter(|past| past.is_in_doubt).flat_map(|past| of(past, history)).collect();
    all.sort_by_key(|doubtful| std::cmp::Reverse((doubtful.record.step, doubtful.record.attempt)));
    all
}

/// Usable checkpoints that are not in doubt.
#[must_use]
pub fn undoubted(history: &History) -> Vec<RecordedCheckpoint> {
    let doubtful = doubtful(history);
    let is_doubtful = |id: &CheckpointId| doubtful.iter().any(|known| known.record.checkpoint == *id);
    let mut usable = history.usable_checkpoints();
    usable.retain(|record| !is_doubtful(&record.checkpoint));
    usable
}

fn of<'a>(past: &'a PastAttempt, history: &'a History) -> impl Iterator<Item = DoubtfulCheckpoint> + 'a {
    let own = || history.checkpoints.values().filter(|known| known.attempt == past.attempt);
    let qualified = own().filter(|known| known.was_qualified).map(|known| known.step);
    let in_order_step = qualified.chain([past.from_step]).max().unwrap_or(past.from_step);
    let is_doubtful = move |known: &&PastCheckpoint| {
        // What is saved again at the step that was resumed at holds a part of
        // the next update.
        let is_within = past.is_resumed && known.step == past.from_step && known.step == in_order_step;
        let is_usable = (Progress::Validated..Progress::Retired).contains(&known.progress);
        is_usable && !known.was_qualified && (known.step > in_order_step || is_within)
    };
    let records = own().filter(is_doubtful).filter_map(|known| known.committed.clone());
    records.map(move |record| DoubtfulCheckpoint { in_order_step, record })
}
