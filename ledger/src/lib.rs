//! The only writer of ledgers: canonical bytes, Merkle tree, signatures, the
//! SQLite store and the recorder that a training loop calls.
//!
//! This crate owns everything that puts bytes into a ledger, and a reader for
//! programs that show one. It gives no verdict: what a ledger is worth is the
//! validator's business, which shares no parsing, hashing or signature
//! code with this crate. There is no
//! verb that deletes or changes an entry.

pub mod bundle;
pub mod campaign;
pub mod canonical;
pub mod costs;
pub mod create;
pub mod dsse;
pub mod export;
pub mod failpoint;
pub mod freeze;
pub mod head_file;
pub mod import;
pub mod keys;
pub mod links;
pub mod note;
pub mod private_folder;
pub mod query;
pub mod reader;
pub mod recorder;
pub mod recovery;
pub mod strict;
pub mod time;
pub mod tree;
pub mod verify;

mod frozen;
mod lock;
mod snapshot;
mod store;

pub use frozen::{FrozenContract, FrozenError};
