//! Whether the clock can have ended a run at a step.
//!
//! Under a budget of wall time an attempt may take any step for the last one.
//! The time of an attempt that vanished is known from the system's clock only,
//! so that the answer is generous: half of the budget is enough.

use schemas::body::Body;
use schemas::contract::Contract;
use schemas::entry::Entry;

/// Follows the wall time of all attempts, in microseconds.
#[derive(Debug)]
pub(super) struct Clock {
    limit_us: Option<u64>,
    /// First and last entry of the running attempt.
    running: Option<(u64, u64)>,
    wall_us: u64,
}

impl Clock {
    pub(super) fn new(contract: &Contract) -> Self {
        let limit_us = contract.budget.max_wall_s.map(|seconds| seconds.saturating_mul(1_000_000));
        Self { limit_us, running: None, wall_us: 0 }
    }

    fn elapsed_us(&self) -> u64 {
        self.running.map_or(0, |(first, last)| last.saturating_sub(first))
    }

    pub(super) fn entry(&mut self, entry: &Entry) {
        match &entry.body {
            Body::AttemptStart(_) => {
                self.wall_us = self.wall_us.saturating_add(self.elapsed_us());
                self.running = Some((entry.time_us, entry.time_us));
            }
            Body::AttemptEnd(halves) => {
                self.wall_us = self.wall_us.saturating_add(halves.obs.cost.wall_us);
                self.running = None;
            }
            _ => {
                if let Some((_, last)) = self.running.as_mut().filter(|_| entry.header.attempt.is_some()) {
                    *last = (*last).max(entry.time_us);
                }
            }
        }
    }

    /// Whether the run can have been out of time at the entry before.
    pub(super) fn may_have_ended(&self) -> bool {
        self.limit_us.is_some_and(|limit| self.wall_us.saturating_add(self.elapsed_us()) >= limit / 2)
    }
}
