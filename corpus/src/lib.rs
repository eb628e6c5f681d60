//! Text in, shards out: what a run may read, cut into examples.
//!
//! This crate owns the text that comes with the project, the split of a text
//! into train, val and qualification, the build manifest, the example tables
//! and the baseline that a quality target is taken from; and what a contract
//! says of a loop without saying how tensors are computed: the order of its
//! examples, their bytes, rates by step, weights as files and the configuration
//! beside them. It
//! decides none of that (the contract does) and it never opens a sealed set
//! (that is the evaluator's). It refuses to replace a file that holds
//! something else, because a contract may already have bound it.
//!
//! Layouts are those of `docs/FORMAT.md`, "Examples", and [`schemas::data`].

pub mod build;
pub mod configuration;
pub mod examples;
pub mod ngram;
pub mod order;
pub mod schedule;
#[cfg(feature = "seal")]
pub mod seal;
pub mod source;
pub mod tensors;
pub mod texts;
mod write;

pub use write::WriteError;
