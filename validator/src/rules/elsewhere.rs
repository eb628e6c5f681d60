//! Checkpoints that lie in a store by URL and were not fetched beside the ledger.
//!
//! Under such a store a folder that is not there lost nothing yet: whoever
//! audits has to fetch it. Nothing is said of its files then, which is not the
//! same as that they are right. A folder that is there is judged like any other,
//! so one file that is gone from it is gone.

use crate::evidence::{Evidence, FileError};
use crate::frozen::Frozen;
use crate::rule::Outcome;

/// Longest list of names in a reason.
const MAX_NAMES: usize = 5;

/// Which checkpoints a rule could not look at.
pub(crate) struct Elsewhere<'a> {
    frozen: &'a Frozen,
    names: Vec<String>,
}

impl<'a> Elsewhere<'a> {
    /// None yet.
    pub(crate) const fn new(frozen: &'a Frozen) -> Self {
        Self { frozen, names: Vec::new() }
    }

    /// Whether a checkpoint was not fetched; it is then remembered.
    pub(crate) fn has(&mut self, checkpoint: &str, evidence: &Evidence) -> bool {
        if !self.frozen.is_stored_by_url() {
            return false;
        }
        let folder = format!("{}/{checkpoint}", self.frozen.checkpoint_folder());
        let is_elsewhere = matches!(evidence.list(&folder), Err(FileError::Missing { .. }));
        if is_elsewhere && !self.names.iter().any(|name| name == checkpoint) {
            self.names.push(checkpoint.to_owned());
        }
        is_elsewhere
    }

    /// The rule's outcome: not evaluated where a checkpoint was not fetched.
    pub(crate) fn outcome(&self, num_checked: u64) -> Outcome {
        if self.names.is_empty() {
            return Outcome::Checked(num_checked);
        }
        let mut names = self.names.iter().take(MAX_NAMES).cloned().collect::<Vec<_>>().join(", ");
        if self.names.len() > MAX_NAMES {
            names = format!("{names} and {} more", self.names.len() - MAX_NAMES);
        }
        Outcome::NotEvaluated(format!(
            "{names}: not in `{}` beside the ledger; the contract's store is {}, and `trainer checkpoint fetch \
             --all` brings them here",
            self.frozen.checkpoint_folder(),
            self.frozen.contract.checkpoints.store
        ))
    }
}
