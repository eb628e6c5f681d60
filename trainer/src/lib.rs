//! The trainer: one run under a frozen contract, on burn.
//!
//! The numeric core (model, randomness, data order, schedule, optimizer, and the
//! engine that ties them together) writes no entry and no file. `run` does: it
//! executes a contract step by step, saves and restores state through
//! `checkpoint` and `state`, and records everything in the run's ledger.

pub mod averages;
pub mod batch;
pub mod checkpoint;
pub mod cli;
mod commands;
pub mod detect;
pub mod device;
pub mod distance;
pub mod engine;
pub mod evaluate;
pub mod faults;
pub mod identity;
pub mod model;
pub mod optimizer;
pub mod plateau;
pub mod probe;
pub mod randomness;
pub mod replay;
pub mod run;
pub mod scaling;
pub mod shuffle;
pub mod state;
pub mod store;
pub mod workers;

// Where other loops find them too, without burn.
pub use corpus::{order, schedule, source as data, tensors as export};
