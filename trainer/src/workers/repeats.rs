//! Sums of gradients that were given before, by whoever (`docs/FORMAT.md`,
//! "Exchange").
//!
//! It compares digests and keeps no gradients, so that it costs nothing beside
//! an update; a worker that changes one bit of what it repeats is for a probe.

use std::collections::{BTreeMap, BTreeSet};

use schemas::body::Credit;
use schemas::digest::Digest;

use super::Exchange;
use super::error::WorkerError;
use crate::engine::StepOutcome;
use crate::engine::share::Share;

/// Updates whose sums are remembered: megabytes for every number of workers.
const MAX_UPDATES: u64 = 4096;

/// Digests of the sums that any worker gave since parameters last stood still.
/// What one gave is no more another's than its own.
#[derive(Debug, Default)]
pub(super) struct Repeats {
    num_updates: u64,
    sums: BTreeSet<[u8; 32]>,
}

impl Repeats {
    /// Whether a worker gave sums that were given before. That parameters changed
    /// in between and that the sums are numbers makes it impossible for an honest
    /// one. So it is for two workers that were fed other text in one update:
    /// `copied`, as [`copied`] finds them.
    ///
    /// # Errors
    /// [`WorkerError::Disagrees`] of the worker that gave them again.
    pub(super) fn look(
        &mut self,
        step: u64,
        exchange: &Exchange,
        copied: Option<(u32, u32)>,
        outcome: &StepOutcome,
    ) -> Result<(), WorkerError> {
        let Credit::Backpropagation { gradient_norm, .. } = outcome.credit else { return Ok(()) };
        let is_skipped = outcome.overflow.as_ref().is_some_and(|overflow| overflow.skipped);
        let moves = !is_skipped && outcome.updates.iter().any(|update| update.learning_rate.0 > 0.0);
        let is_number = gradient_norm.0.is_finite() && gradient_norm.0 > 0.0;
        let sums: Vec<(u32, Digest)> =
            exchange.shares.iter().map(|share| (share.worker.0, share.gradients)).collect();
        if is_number {
            if let Some((worker, sums)) = self.known(&sums) {
                let reason = format!("its sums are those of an earlier step, {sums}");
                return Err(WorkerError::Disagrees { worker, step, reason, is_stale: true });
            }
            if let Some((first, worker)) = copied {
                let reason = format!("its sums are those of worker {first}, which was fed other text");
                return Err(WorkerError::Disagrees { worker, step, reason, is_stale: false });
            }
        }
        self.take(&sums, moves, is_number);
        Ok(())
    }

    /// The first worker whose sums are known, and these.
    fn known(&self, sums: &[(u32, Digest)]) -> Option<(u32, Digest)> {
        sums.iter().copied().find(|(_, sums)| self.sums.contains(&sums.bytes))
    }

    /// Where parameters stand still the same sums may honestly come again; and
    /// memory is bounded.
    fn take(&mut self, sums: &[(u32, Digest)], moves: bool, is_number: bool) {
        if !moves || self.num_updates >= MAX_UPDATES {
            *self = Self::default();
        }
        if moves && is_number {
            self.num_updates += 1;
            self.sums.extend(sums.iter().map(|(_, sums)| sums.bytes));
        }
    }
}

/// Two workers whose sums are the same bytes, although they were fed other text:
/// the first, and the one that is taken to repeat it.
pub(super) fn copied<'a>(shares: impl Iterator<Item = (u32, Digest, &'a Share)>) -> Option<(u32, u32)> {
    let mut seen: BTreeMap<[u8; 32], (u32, &Share)> = BTreeMap::new();
    for (worker, sums, share) in shares {
        let Some((first, other)) = seen.insert(sums.bytes, (worker, share)) else { continue };
        let fed = |share: &'a Share| share.examples.iter().map(|example| &example.fed);
        if !fed(other).eq(fed(share)) {
            return Some((first, worker));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::share::Example;

    fn sums(byte: u8) -> Digest {
        Digest::blake3([byte; 32])
    }

    #[test]
    fn sums_that_any_worker_gave_before_are_known() {
        let mut repeats = Repeats::default();
        repeats.take(&[(0, sums(1)), (1, sums(2))], true, true);
        assert_eq!(repeats.known(&[(0, sums(3)), (1, sums(4))]), None);
        assert_eq!(repeats.known(&[(0, sums(3)), (1, sums(2))]), Some((1, sums(2))), "its own");
        assert_eq!(repeats.known(&[(0, sums(2)), (1, sums(4))]), Some((0, sums(2))), "another's");
        // Where parameters stood still they may come again.
        repeats.take(&[(0, sums(5)), (1, sums(6))], false, true);
        assert_eq!(repeats.known(&[(0, sums(2)), (1, sums(5))]), None);
    }

    #[test]
    fn two_workers_have_the_same_sums_only_of_the_same_text() {
        let share = |text: &[u8]| Share {
            blocks: Vec::new(),
            drawn_blocks: 0,
            examples: vec![Example { fed: text.to_vec(), id: [0; 32], losses: Vec::new() }],
            microbatches: 0..1,
        };
        let (one, same, other) = (share(b"one"), share(b"one"), share(b"other"));
        let found = |given: [(u32, Digest, &Share); 3]| copied(given.into_iter());
        assert_eq!(found([(0, sums(1), &one), (1, sums(2), &other), (2, sums(3), &same)]), None);
        assert_eq!(found([(0, sums(1), &one), (1, sums(2), &other), (2, sums(1), &same)]), None);
        assert_eq!(found([(0, sums(1), &one), (1, sums(2), &same), (2, sums(2), &other)]), Some((1, 2)));
    }
}
