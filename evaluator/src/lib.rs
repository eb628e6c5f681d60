//! Independent qualification of one candidate.
//!
//! This crate computes the numbers that a claim rests on with a forward pass
//! of its own, and opens the sealed set, once, after it has recorded that it
//! will. It depends on no tensor library and on nothing of the trainer. It
//! refuses to open the set for a candidate that was not handed off, and it
//! says nothing beyond the set that it measured on.

mod data;
mod error;
mod files;
pub mod forward;
mod handoff;
mod identity;
mod model_files;
pub mod overlap;
mod own_ledger;
mod qualify;
mod run;
mod statement;
mod val;

pub use data::windows;
pub use error::{EvaluateError, Refusal};
pub use identity::{IDENTITY_NAME, key_folder};
pub use own_ledger::qualification_run_id;
pub use qualify::{QualifyOutcome, QualifyRequest, qualify};
pub use statement::{QualificationPredicate, independence};
pub use val::{ValOutcome, ValRequest, ValResult, val};

/// How far a phase has come.
#[derive(Debug, Clone, Copy)]
pub struct Progress<'a> {
    /// What is being done.
    pub phase: &'a str,
    /// Target tokens, or files, that are done.
    pub done: u64,
    /// Of how many.
    pub total: u64,
}

/// Called as work proceeds, from any thread.
pub type Watch<'a> = dyn Fn(Progress<'_>) + Sync + 'a;
