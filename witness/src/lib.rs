//! Witnesses of ledgers: somebody who keeps the newest head of every ledger that
//! is shown, and cosigns a head only where it follows from the last one.
//!
//! This crate owns cosignatures (`c2sp.org/tlog-cosignature`), both sides of the
//! witness protocol (`c2sp.org/tlog-witness`), the state of a witness, the file
//! `<ledger>.cosigned`, and proofs and tiles as files (`c2sp.org/tlog-proof`,
//! `c2sp.org/tlog-tiles`). It writes no ledger and gives no verdict: what a
//! cosignature is worth is the validator's business, which verifies it with code
//! of its own.

pub mod client;
mod connections;
pub mod cosignature;
pub mod cosigned_file;
pub mod leaves;
pub mod policy;
pub mod proof;
pub mod request;
pub mod server;
pub mod state;
pub mod submission;
pub mod tiles;
pub mod verifier_key;
