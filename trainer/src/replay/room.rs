//! How much a replay may still grow.
//!
//! Whoever compares a replay reads no more than so many bytes of it. That is found
//! out while updates are executed, and not when hours of them are to be written.

use schemas::challenge::{ReplayedState, ReplayedStep};
use serde::Serialize;

use super::ReplayError;

/// Bytes that are left.
#[derive(Debug)]
pub(super) struct Room {
    left: u64,
    limit: u64,
}

impl Room {
    /// Room for a replay of so many bytes.
    pub(super) const fn new(limit: u64) -> Self {
        Self { left: limit, limit }
    }

    /// Makes room for an update.
    pub(super) fn step(&mut self, step: &ReplayedStep) -> Result<(), ReplayError> {
        self.part(step)
    }

    /// Makes room for the state behind a segment.
    pub(super) fn state(&mut self, state: &ReplayedState) -> Result<(), ReplayError> {
        self.part(state)
    }

    fn part<T: Serialize>(&mut self, part: &T) -> Result<(), ReplayError> {
        // A comma stands between two of them.
        let num_bytes = ledger::canonical::entry_json(part)?.len() as u64 + 1;
        let left = self.left.checked_sub(num_bytes);
        self.left = left.ok_or(ReplayError::TooLarge { limit: self.limit })?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_replay_that_nobody_would_read_is_refused_while_it_grows() {
        let mut room = Room::new(16);
        // Seven bytes and a comma.
        for _ in 0..2 {
            room.part(&[1, 2, 3]).expect("there is room");
        }
        let error = room.part(&[1, 2, 3]).expect_err("there is none");
        assert!(matches!(error, ReplayError::TooLarge { limit: 16 }), "{error}");
        assert!(error.hint().is_some_and(|hint| hint.contains("fewer segments")), "{error}");
    }
}
