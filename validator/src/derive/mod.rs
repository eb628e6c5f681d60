//! What a contract determines, computed again from `docs/FORMAT.md` alone.
//!
//! Nothing here shares code with the programs that are being checked: an error
//! that both sides made by sharing a function would be invisible. Every module
//! is a pure function of its arguments; files are read by the rules.

pub mod adamw;
pub mod averages;
pub mod batch;
pub mod calendar;
pub mod clip;
pub mod configuration;
pub mod continuation;
pub mod examples;
pub mod initial;
mod lines;
pub mod llama;
pub mod loss_scale;
pub mod mantissas;
pub mod metrics;
pub mod order;
pub mod philox;
pub mod plateau;
pub mod projection;
pub mod replay;
pub mod retention;
pub mod safetensors;
pub mod schedule;
pub mod selection;
pub mod shares;
pub mod shift;
pub mod shuffle;
pub mod split;
pub mod state_json;
pub mod state_tree;
pub mod steps;
pub mod streams;
pub mod student;
