//! How rules judge the contract's own terms: a claim that nothing could fail, a
//! limit that nothing reaches, a value that the trainer does not execute.
//!
//! `ledger freeze` refuses the same, but a contract need not have been frozen by
//! it: whoever holds the owner's key can sign any bytes. Each rule brings its
//! own checks; this holds only the counting and the form of the findings.

use std::fmt::Display;
use std::ops::RangeInclusive;

use crate::rule::{At, Outcome, Sink};

/// Checks of one rule over the terms of a contract.
pub(super) struct Terms<'a> {
    num_checked: u64,
    sink: &'a mut Sink,
}

impl<'a> Terms<'a> {
    pub(super) fn new(sink: &'a mut Sink) -> Self {
        Self { num_checked: 0, sink }
    }

    /// Rejects where a condition does not hold; `pointer` is into the contract.
    pub(super) fn require(
        &mut self,
        holds: bool,
        pointer: &str,
        message: &str,
        expected: impl Display,
        actual: impl Display,
    ) {
        self.num_checked += 1;
        if !holds {
            self.sink.rejected(At::place(format!("contract {pointer}")), message, expected, actual);
        }
    }

    /// A count of at least 1.
    pub(super) fn count(&mut self, count: u64, pointer: &str) {
        self.require(count > 0, pointer, "a count is 0", "at least 1", count);
    }

    /// An integer within bounds.
    pub(super) fn within(&mut self, value: u64, bounds: RangeInclusive<u64>, pointer: &str) {
        let expected = format!("{} to {}", bounds.start(), bounds.end());
        self.require(bounds.contains(&value), pointer, "a value is out of its range", expected, value);
    }

    /// A finite number above 0.
    pub(super) fn positive(&mut self, value: f64, pointer: &str) {
        let holds = value.is_finite() && value > 0.0;
        self.require(holds, pointer, "a constant is out of its range", "finite, above 0", value);
    }

    /// A text that says something.
    pub(super) fn text(&mut self, text: &str, pointer: &str) {
        self.require(!text.trim().is_empty(), pointer, "a text is missing", "a text", format!("{text:?}"));
    }

    /// How many conditions were looked at.
    pub(super) fn outcome(self) -> Outcome {
        Outcome::Checked(self.num_checked)
    }
}
