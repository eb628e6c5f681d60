//! The `trainer run` command as a whole program: tiny contracts in temporary
//! folders, the real binary, and the ledger that it leaves.
#![allow(missing_docs, unreachable_pub, reason = "a test program")]

#[path = "../common/mod.rs"]
mod common;

mod anomalies;
mod asynchronous;
mod commands;
#[cfg(feature = "failpoints")]
mod crash_points;
mod endings;
mod faults;
mod folder;
mod frozen;
mod frozen_inputs;
mod injected;
mod interruptions;
mod lifecycle;
mod probes;
mod qualified_recovery;
mod recovery;
mod refusals;
mod retention;
mod stateful;
mod statistical;
mod warm_start;
mod windows;
mod worker_faults;
mod workers;
