//! Text in, shards out: what a run may read, cut into examples.
//!
//! This crate owns the text that comes with the project, the split of a text
//! into train, val and qualification, the build manifest, the example tables
//! and the baseline that a quality target is taken from. It chooses no order
//! (that is the trainer's, from the contract) and it never opens a sealed set
//! (that is the evaluator's). It refuses to replace a file that holds
//! something else, because a contract may already have bound it.
//!
//! Layouts are those of `docs/FORMAT.md`, "Examples", and [`schemas::data`].

pub mod build;
pub mod examples;
pub mod ngram;
#[cfg(feature = "seal")]
pub mod seal;
pub mod texts;
mod write;

pub use write::WriteError;
