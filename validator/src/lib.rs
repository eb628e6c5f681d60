//! Re-derives a run from its ledger's raw bytes and says whether the claim
//! holds.
//!
//! The validator believes nothing that it can compute: it has its own parser,
//! canonical form, hash tree, note and signature checks, and shares none of
//! them with the writer. It opens nothing for writing. Wrong input is a
//! finding; an error means that it could not look.

mod assemble;
mod audit;
pub mod bundle;
pub mod campaign;
pub mod canonical;
pub mod challenge;
mod contract;
pub mod cosignature;
mod cosigned;
pub mod coverage;
pub mod derive;
pub mod diff;
mod documents;
pub mod dsse;
pub mod ed25519;
mod error;
pub mod evidence;
mod form;
pub mod frozen;
#[doc(hidden)]
pub mod fuzzing;
mod heads;
mod left_out;
mod logical;
pub mod note;
mod number;
mod parallel;
mod pass;
mod profile;
mod reading;
pub mod render;
mod request;
mod roots;
mod row;
mod rows;
pub mod rule;
pub mod rules;
mod said;
pub mod since;
mod store;
mod stored_report;
mod summary;
pub mod tree;
pub mod trust;
pub mod val_numbers;
#[cfg(test)]
mod ways;

pub use audit::{Progress, audit};
pub use error::AuditError;
pub use request::AuditRequest;

#[cfg(feature = "fixture")]
pub mod bench_support;
#[cfg(test)]
mod corruption;
#[cfg(any(test, feature = "fixture"))]
#[cfg_attr(
    not(test),
    allow(dead_code, unused_imports, reason = "the bench uses a part of what the tests use")
)]
mod fixture;
