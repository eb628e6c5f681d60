//! What the trainer compares, in every run, so that damaged state does not go
//! into the record: where the run stands with what contract, step and recorded
//! entries give (`docs/FORMAT.md`, "Injected faults").
//!
//! A detector knows of no plan. It looks at a few numbers before and behind an
//! update, never at all parameters, so that a step takes no longer for it; what
//! only a second execution could show is for a probe.

mod choices;
mod shares;
mod updates;

use schemas::body::ObservedFault;
use schemas::contract::FaultKind;

pub use choices::{evaluation, selection};
pub use shares::shares;
pub use updates::Detectors;

/// Something that is not as the record gives it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what}; nothing of it is recorded, and a next attempt goes on from a checkpoint before it")]
pub struct Mismatch {
    /// The family that it is taken for.
    pub cause: FaultKind,
    /// What kind of fault it is.
    pub fault: ObservedFault,
    /// What differs: found and expected.
    pub what: String,
    /// Which worker's state it is; 0 is the process that records.
    pub worker: u32,
}

impl Mismatch {
    /// Of the process that records.
    fn own(fault: ObservedFault, cause: FaultKind, what: String) -> Self {
        Self { cause, fault, what, worker: 0 }
    }
}
