//! The trainer: one run under a frozen contract, on burn.
//!
//! The numeric core is here: model, randomness, data order, schedule,
//! optimizer and the engine that ties them together. It writes no entry and
//! no file; the run command does.

pub mod batch;
pub mod data;
pub mod device;
pub mod engine;
pub mod evaluate;
pub mod export;
pub mod model;
pub mod optimizer;
pub mod order;
pub mod randomness;
pub mod schedule;
