//! Which checkpoints a fault puts in doubt: under the recovery policy
//! `roll_back` nothing goes on from them (`docs/FORMAT.md`, "State in doubt").
//!
//! It follows from the entries alone, so that the validator finds the same. That
//! an attempt's detectors were silent until the fault counts for nothing: what
//! they can see is not all that can be wrong.

use schemas::body::ObservedFault;
use schemas::ids::{AttemptId, CheckpointId};

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

/// What puts a checkpoint in doubt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Why {
    /// This attempt resumed from it and found before its first step that the
    /// state is not what the record gives.
    Refused(AttemptId),
    /// It lies behind the last step at which its attempt was found in order.
    Saved {
        /// That step.
        in_order_step: u64,
    },
}

/// A checkpoint that the ledger calls validated and that a fault puts in doubt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DoubtfulCheckpoint {
    /// What puts it in doubt.
    pub why: Why,
    /// What the ledger says of it.
    pub record: RecordedCheckpoint,
}

impl DoubtfulCheckpoint {
    /// Why it is, in words.
    #[must_use]
    pub fn reason(&self) -> String {
        match self.why {
            Why::Refused(attempt) => {
                format!("attempt {attempt} resumed from it, and its state was not what the record gives")
            }
            Why::Saved { in_order_step } => {
                let attempt = self.record.attempt;
                format!("attempt {attempt} saved it, and was last found in order at step {in_order_step}")
            }
        }
    }
}

/// Usable checkpoints that are in doubt, newest first.
#[must_use]
pub fn doubtful(history: &History) -> Vec<DoubtfulCheckpoint> {
    let in_doubt = || history.attempts.iter().filter(|past| past.is_in_doubt);
    let mut all: Vec<DoubtfulCheckpoint> = in_doubt().flat_map(|past| of(past, history)).collect();
    for past in in_doubt().filter(|past| past.is_refused) {
        let known = past.resumed_from.as_ref().and_then(|id| history.checkpoints.get(id));
        let Some(known) = known.filter(|known| is_open(known)) else { continue };
        // Once, whoever else says it.
        if all.iter().any(|other| other.record.checkpoint == known.checkpoint) {
            continue;
        }
        let why = Why::Refused(past.attempt);
        all.extend(known.committed.clone().map(|record| DoubtfulCheckpoint { record, why }));
    }
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

/// Whether a checkpoint may be used and no probe has qualified it.
fn is_open(known: &PastCheckpoint) -> bool {
    (Progress::Validated..Progress::Retired).contains(&known.progress) && !known.was_qualified
}

/// What an attempt in doubt saved itself behind the step at which it was found
/// in order.
fn of<'a>(past: &'a PastAttempt, history: &'a History) -> impl Iterator<Item = DoubtfulCheckpoint> + 'a {
    let own = || history.checkpoints.values().filter(|known| known.attempt == past.attempt);
    let qualified = own().filter(|known| known.was_qualified).map(|known| known.step);
    let in_order_step = qualified.chain([past.from_step]).max().unwrap_or(past.from_step);
    let is_doubtful = move |known: &&PastCheckpoint| {
        // What is saved again at the step that was resumed at holds a part of
        // the next update.
        let is_resumed = past.resumed_from.is_some();
        let is_within = is_resumed && known.step == past.from_step && known.step == in_order_step;
        is_open(known) && (known.step > in_order_step || is_within)
    };
    let records = own().filter(is_doubtful).filter_map(|known| known.committed.clone());
    records.map(move |record| DoubtfulCheckpoint { record, why: Why::Saved { in_order_step } })
}
