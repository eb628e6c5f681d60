//! Synchronous data parallelism over local processes (`docs/FORMAT.md`,
//! "Workers").
//!
//! The process that records keeps the loop, the ledger and the store, and is
//! worker 0. The others execute microbatches and updates on replicas of their
//! own and know nothing else: they open no ledger and write no file. What is
//! small (cursor, schedules, scale, place in a stream of masks) is held by worker
//! 0 alone and goes with every command; parameters, moments and a shuffle buffer
//! are replicated, and compared at the contract's cadence.
//!
//! Nothing is tried again here. A worker that is lost, late or wrong ends the
//! attempt, since what the others hold is only worth something together; the
//! next attempt goes on from a checkpoint.

mod clock;
mod collective;
mod error;
mod frames;
mod message;
mod odd;
mod peer;
pub mod process;
mod repeats;

use schemas::body::{ReplicaDigest, WorkerShare};

pub use collective::{Collective, Plan};
pub use error::WorkerError;
pub use message::{FaultPlace, WorkerFault};

/// Most workers of a run: far more than a host has processors for, and few
/// enough for one entry to tell of each.
pub const MAX_WORKERS: u32 = 64;

/// Name of the hidden subcommand that is a worker.
pub const SUBCOMMAND: &str = "worker";

/// What a step's entry says of its workers; nothing where there is one.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Exchange {
    /// Digest of every replica, where they were compared.
    pub replicas: Vec<ReplicaDigest>,
    /// Who executed what, in the order of workers.
    pub shares: Vec<WorkerShare>,
}

impl Exchange {
    /// Bytes that all workers sent.
    #[must_use]
    pub fn bytes_sent(&self) -> u64 {
        self.shares.iter().map(|share| share.bytes_sent).sum()
    }
}
