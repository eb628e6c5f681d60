//! Re-derives a run from its ledger's raw bytes and says whether the claim
//! holds.
//!
//! The validator believes nothing that it can compute: it has its own parser,
//! canonical form, hash tree, note and signature checks, and shares none of
//! them with the writer. It opens nothing for writing. Wrong input is a
//! finding; an error means that it could not look.

pub mod canonical;
pub mod derive;
pub mod evidence;
pub mod frozen;
mod number;
pub mod rule;
pub mod rules;
