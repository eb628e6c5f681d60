//! Files that whoever made a bundle left out of it.
//!
//! That they are not there says nothing of the run, so no rule may hold it
//! against the run, and none may pass without them: a rule that asks for one is
//! not evaluated, whatever it makes of the answer.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

use crate::rule::Outcome;

/// Longest list of names in a reason.
const MAX_NAMES: usize = 5;

/// What was left out, and what of it the rule at work has asked for.
#[derive(Debug, Clone, Default)]
pub(crate) struct LeftOut {
    names: Arc<BTreeSet<String>>,
    asked: Arc<Mutex<BTreeSet<String>>>,
}

impl LeftOut {
    /// Files by their names below the run's folder.
    pub(crate) fn new(names: BTreeSet<String>) -> Self {
        Self { names: Arc::new(names), asked: Arc::default() }
    }

    /// Whether the rule at work has asked for a file that was left out.
    pub(crate) fn was_asked_for(&self, relative: &str) -> bool {
        !self.names.is_empty() && self.asked.lock().unwrap_or_else(PoisonError::into_inner).contains(relative)
    }

    /// Whether a file was left out; it is then remembered that it was asked for.
    pub(crate) fn has(&self, relative: &str) -> bool {
        let is_left_out = self.names.contains(relative);
        if is_left_out {
            let mut asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
            asked.insert(relative.to_owned());
        }
        is_left_out
    }

    /// What becomes of a rule that has ended so; what it asked for is forgotten.
    pub(crate) fn outcome(&self, outcome: Outcome) -> Outcome {
        if self.names.is_empty() {
            return outcome;
        }
        let asked = std::mem::take(&mut *self.asked.lock().unwrap_or_else(PoisonError::into_inner));
        if asked.is_empty() {
            return outcome;
        }
        let mut names = asked.iter().take(MAX_NAMES).cloned().collect::<Vec<_>>().join(", ");
        if asked.len() > MAX_NAMES {
            names = format!("{names} and {} more", asked.len() - MAX_NAMES);
        }
        Outcome::NotEvaluated(format!("left out of the bundle: {names}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_that_asks_for_what_was_left_out_is_not_evaluated() {
        let left_out = LeftOut::new(["a".to_owned(), "b".to_owned()].into());
        assert!(!left_out.has("c"));
        assert_eq!(left_out.outcome(Outcome::Checked(1)), Outcome::Checked(1));
        assert!(left_out.has("b"));
        assert!(left_out.was_asked_for("b") && !left_out.was_asked_for("a"));
        let reason = "left out of the bundle: b".to_owned();
        assert_eq!(left_out.outcome(Outcome::Checked(1)), Outcome::NotEvaluated(reason));
        // The next rule has asked for nothing yet.
        assert!(!left_out.was_asked_for("b"));
        assert_eq!(left_out.outcome(Outcome::Checked(1)), Outcome::Checked(1));
    }
}
