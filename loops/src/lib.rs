//! A recorder for training loops that are not this project's.
//!
//! [`ledger::recorder`] takes any entry; what a run's entries have to be, and in
//! which order, a loop would have to know from `docs/FORMAT.md`. This crate knows
//! it: it opens the ledger of a contract that was frozen with the evidence
//! profile `external-loop`, decides from the record where an attempt begins,
//! says what became of the attempts before, and writes what the loop did: steps,
//! evaluations, checkpoints from the request to the validation, candidates, the
//! selection, and every end. See `examples/plain_loop.rs`.
//!
//! It executes nothing and judges nothing. What a loop hands over (positions,
//! bytes, losses, rates) is recorded as it is, right or wrong: an audit compares
//! it with the contract. It refuses calls that would leave the contract's
//! calendar, since those are mistakes of the loop and not facts about the run;
//! and it refuses every contract of the profile `native`, whose promise rests on
//! code that this crate does not run.

mod attempt;
mod begin;
mod checkpoint;
mod code;
mod error;
mod history;
mod inputs;
mod run;

pub use attempt::{Attempt, Evaluation};
pub use attempt::{Due, GroupStep, Step};
pub use checkpoint::Resumed;
pub use code::RUNTIME_FIELD;
pub use corpus::tensors::NamedTensor;
pub use error::LoopError;
pub use run::{Finished, LoopOptions, Run};
