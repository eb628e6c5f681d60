//! What the project writes and freezes: entry, contract, policy card,
//! manifests, finding and report.
//!
//! This crate owns the *shape* of every record and nothing else. It does no
//! I/O, computes no hash and writes no canonical bytes: the writer (`ledger`)
//! and the reader (`validator`) do that twice, independently, following
//! `docs/FORMAT.md`, and agree through `schemas/golden/`.
//!
//! Two conventions hold everywhere:
//! - fields are declared in ascending byte order of their JSON names, because
//!   that is the order of the canonical bytes;
//! - unknown fields are refused. Room to grow is in `extensions`.

pub mod body;
pub mod bundle;
pub mod campaign;
pub mod challenge;
pub mod contract;
pub mod data;
pub mod digest;
pub mod dsse;
pub mod entry;
pub mod finding;
pub mod ids;
pub mod model_index;
pub mod number;
pub mod parameters;
pub mod policy_card;
mod present;
pub mod report;
pub mod state;
pub mod trust;

#[cfg(feature = "json-schema")]
pub mod json_schema;

/// Format tag of an entry; inside every entry's bytes.
pub const ENTRY_FORMAT: &str = "entry/1";
/// Format tag of a contract.
pub const CONTRACT_FORMAT: &str = "contract/1";
/// Format tag of an optimizer policy card.
pub const POLICY_CARD_FORMAT: &str = "policy-card/1";
/// Format tag of a data build manifest.
pub const DATA_MANIFEST_FORMAT: &str = "data-manifest/1";
/// Format tag of a parameter manifest.
pub const PARAMETER_MANIFEST_FORMAT: &str = "parameter-manifest/1";
/// Format tag of a checkpoint manifest.
pub const CHECKPOINT_MANIFEST_FORMAT: &str = "checkpoint-manifest/1";
/// Format tag of a campaign's preregistration.
pub const PREREGISTRATION_FORMAT: &str = "governed-ledger/preregistration/1";
/// Format tag of a bundle's manifest.
pub const BUNDLE_FORMAT: &str = "governed-ledger/bundle/1";
/// Format tag of an audit report.
pub const REPORT_FORMAT: &str = "report/1";

/// Largest entry in bytes. Larger things are artifacts, named by digest.
/// C2SP tlog-tiles stores an entry with a 16-bit length, hence the bound.
pub const MAX_ENTRY_BYTES: usize = 65_535;

/// Largest integer that is written as a JSON number: 2^53. Above it, readers
/// that hold numbers as doubles would merge neighbours.
pub const MAX_JSON_INTEGER: u64 = 1 << 53;

/// `PRAGMA application_id` of a ledger file: the ASCII bytes `GTRL`.
pub const SQLITE_APPLICATION_ID: i32 = 0x4754_524c;

/// `PRAGMA user_version` of the ledger layout that this version writes.
pub const SQLITE_LAYOUT_VERSION: i32 = 1;
