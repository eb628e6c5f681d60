//! A recorder for training loops that are not this project's.
//!
//! [`ledger::recorder`] takes any entry; what a run's entries have to be, and in
//! which order, a loop would have to know from `docs/FORMAT.md`. This crate knows
//! it: it opens the ledger of a contract that was frozen with the evidence
//! profile `external-loop`, decides from the record where an attempt begins,
//! says what became of the attempts before, and writes what the loop did: steps,
//! evaluations, checkpoints from the request to the validation, candidates, the
//! selection, and every end.
//!
//! ```no_run
//! # fn evaluate(_: &[Vec<u8>]) -> (f64, u64) { (0.0, 0) }
//! # struct Model;
//! # impl Model {
//! #     fn restored(_: Option<&loops::Resumed>) -> Self { Self }
//! #     fn tensors(&self) -> (Vec<loops::NamedTensor>, Vec<loops::NamedTensor>) { Default::default() }
//! #     fn update(&mut self, _: &[Vec<u8>], _: f64) -> (f64, f64) { (0.0, 0.0) }
//! # }
//! # fn main() -> Result<(), loops::LoopError> {
//! use loops::{Evaluation, GroupStep, LoopOptions, Resumed, Run, Step};
//!
//! let options = LoopOptions {
//!     backend: "burn-flex 0.22.1".to_owned(), // as the contract froze it
//!     ledger: "my-loop/run.db".into(),
//!     num_threads: 1,
//!     runtime: "Rust".to_owned(),
//!     ..LoopOptions::default()
//! };
//! let mut attempt = Run::open(options)?.begin()?;
//! let mut model = Model::restored(attempt.resumed());
//! let mut position = attempt.resumed().map_or(Ok(0), Resumed::position)?;
//! loop {
//!     let due = attempt.due();
//!     for stream in &due.evaluations {
//!         let examples = attempt.stream_examples(stream)?;
//!         let (total_nats, num_tokens) = evaluate(&examples);
//!         let num_examples = examples.len() as u64;
//!         attempt.evaluation(&Evaluation { num_examples, num_tokens, stream, total_nats })?;
//!     }
//!     if due.checkpoint {
//!         let (parameters, moments) = model.tensors();
//!         attempt.save(parameters, moments, position)?;
//!     }
//!     if due.is_last {
//!         break;
//!     }
//!     let fed = attempt.batch(position, 8)?;
//!     let learning_rate = attempt.learning_rate("matrices", attempt.last_step() + 1)?;
//!     let (loss, gradient_norm) = model.update(&fed, learning_rate);
//!     let clip_coefficient = attempt.clip_coefficient(gradient_norm);
//!     let group = GroupStep {
//!         clip_coefficient,
//!         group: "matrices".to_owned(),
//!         learning_rate,
//!         parameter_norm: None,
//!         update_norm: None,
//!         weight_decay: 0.1,
//!     };
//!     let groups = vec![group]; // one of each group of the policy card
//!     attempt.step(&Step { fed: &fed, gradient_norm, groups, loss, num_microbatches: 2, position })?;
//!     position += fed.len() as u64;
//! }
//! attempt.finish()?;
//! # Ok(())
//! # }
//! ```
//!
//! `examples/burn_loop` is this as a program: a language model of burn's layers,
//! trained by burn's AdamW, with moments that come out of the optimizer's record
//! and go back into it. `cargo run -p loops --example burn_loop -- --help` says how a
//! run of it is made, killed, resumed and audited.
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
