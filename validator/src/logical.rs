//! The order in which rules follow a run.
//!
//! Where the contract saves asynchronously, updates and evaluations lie between
//! the request of a save and its end, and how many is up to the disk. Rules that
//! follow a run step by step are therefore given the entries in logical order
//! (`docs/FORMAT.md`, "Order of entries"): the stages of a save, its
//! anomalies, the admission of its checkpoint and the retirements that follow it directly behind its
//! request, and what was recorded meanwhile behind those, in the order in which
//! it was recorded. A rule then sees what it would see of a synchronous run,
//! with the indices and times that the entries have. Which recorded orders are
//! allowed is a rule of its own (`GL612`), and rules over rows see the rows.
//!
//! What lies between two requests is held in memory, up to a limit.

use std::collections::VecDeque;

use schemas::body::Body;
use schemas::contract::{Contract, SaveMode};
use schemas::entry::Entry;
use schemas::ids::CheckpointId;

/// Entries that are held for one save: more than there can be beside it. Where
/// more follow its end, none of them is of it any more.
const MAX_HELD_ENTRIES: usize = 1 << 18;

/// Puts entries into logical order.
#[derive(Debug, Default)]
pub(crate) struct Logical {
    held: VecDeque<Entry>,
    is_asynchronous: bool,
    /// The save that was requested last, until something ends its time.
    saving: Option<CheckpointId>,
}

impl Logical {
    /// For a run under a contract.
    #[must_use]
    pub(crate) fn new(contract: Option<&Contract>) -> Self {
        let mode = contract.map(|contract| contract.checkpoints.mode);
        Self { is_asynchronous: mode == Some(SaveMode::Asynchronous), ..Self::default() }
    }

    /// Takes the next recorded entry, and gives those whose place is known.
    pub(crate) fn take(&mut self, entry: &Entry, give: &mut dyn FnMut(&Entry)) {
        if !self.is_asynchronous || self.is_of_save(entry) {
            give(entry);
            return;
        }
        if ends_time(&entry.body) {
            self.end(give);
            give(entry);
            if let Body::CheckpointRequested(halves) = &entry.body {
                self.saving = Some(halves.obs.checkpoint.clone());
            }
            return;
        }
        if self.saving.is_none() {
            give(entry);
            return;
        }
        self.held.push_back(entry.clone());
        if self.held.len() >= MAX_HELD_ENTRIES {
            self.end(give);
        }
    }

    /// Gives what is held, after the last entry or where a save's time is over.
    pub(crate) fn end(&mut self, give: &mut dyn FnMut(&Entry)) {
        self.saving = None;
        self.held.drain(..).for_each(|entry| give(&entry));
    }

    /// Whether an entry belongs to the save.
    fn is_of_save(&self, entry: &Entry) -> bool {
        let Some(saving) = &self.saving else { return false };
        match &entry.body {
            Body::CheckpointStaged(halves) | Body::CheckpointValidated(halves) => {
                halves.obs.checkpoint == *saving
            }
            Body::CheckpointDurablyCommitted(halves) => halves.obs.checkpoint == *saving,
            Body::CheckpointFailed(halves) => halves.obs.checkpoint == *saving,
            Body::CandidateAdmitted(halves) => halves.obs.checkpoint == *saving,
            // One save is in flight at a time, and what is odd is said within it.
            Body::Anomaly(halves) => halves.det.state.is_some(),
            // Decided when the save is kept, before the next is requested; pruning
            // is of no attempt.
            Body::CheckpointRetired(_) => entry.header.attempt.is_some(),
            _ => false,
        }
    }
}

/// Whether no entry of a save that was requested before may follow.
const fn ends_time(body: &Body) -> bool {
    matches!(
        body,
        Body::AttemptEnd(_)
            | Body::AttemptStart(_)
            | Body::CandidateSelected(_)
            | Body::CheckpointRequested(_)
            | Body::FaultObserved(_)
            | Body::ProbeStart(_)
            | Body::RunEnd(_)
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{asynchronous, honest_run};

    fn order(entries: &[Entry], contract: &Contract) -> Vec<u64> {
        let (mut logical, mut order) = (Logical::new(Some(contract)), Vec::new());
        for entry in entries {
            logical.take(entry, &mut |entry| order.push(entry.index));
        }
        logical.end(&mut |entry| order.push(entry.index));
        order
    }

    #[test]
    fn an_overlapped_run_is_followed_as_a_synchronous_one() {
        let kinds = |fixture: &crate::fixture::Fixture| -> Vec<(&'static str, Option<u64>)> {
            let order = order(&fixture.entries, &fixture.frozen.contract);
            let entry = |index: &u64| &fixture.entries[usize::try_from(*index).expect("small")];
            order.iter().map(entry).map(|entry| (entry.body.kind().name(), entry.header.step)).collect()
        };
        let synchronous = honest_run();
        let overlapped = asynchronous(honest_run());
        assert_eq!(kinds(&overlapped), kinds(&synchronous));
        let recorded = |fixture: &crate::fixture::Fixture| -> Vec<&'static str> {
            fixture.entries.iter().map(|entry| entry.body.kind().name()).collect()
        };
        assert_ne!(recorded(&overlapped), recorded(&synchronous), "the fixture overlaps");
    }

    #[test]
    fn nothing_is_lost_and_a_synchronous_run_stays_as_it_is() {
        let fixture = honest_run();
        let indices: Vec<u64> = fixture.entries.iter().map(|entry| entry.index).collect();
        assert_eq!(order(&fixture.entries, &fixture.frozen.contract), indices);
        let fixture = asynchronous(honest_run());
        for end in 0..fixture.entries.len() {
            let mut order = order(&fixture.entries[..end], &fixture.frozen.contract);
            order.sort_unstable();
            assert_eq!(order, indices[..end]);
        }
    }
}
