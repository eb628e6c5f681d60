//! Runs in the formats of other tools.
//!
//! Every format gets the same [`Evidence`]: what the ledger records and what
//! an audit of exactly these entries said. Nothing here computes a verdict, and
//! nothing says more than the report does: only a run that was accepted becomes
//! a provenance or a signed model, and `PASSED` is written in one place
//! (`in_toto`), from the verdict. No file is overwritten and none is written but
//! through [`Document`]s, which whoever asked for them puts into a folder.
//!
//! One module a format. A format is a function from evidence to documents; what
//! several of them need is here: times, files of a candidate with both digests,
//! statements and keys.

mod document;
mod error;
mod evidence;
mod files;
#[cfg(test)]
mod fixture;
pub mod in_toto;
pub mod mlflow;
pub mod mlperf;
pub mod model_signing;
pub mod openmetrics;
pub mod ro_crate;
pub mod slsa;
mod statement;
mod text;
pub mod time;

pub use document::{Document, write_documents};
pub use error::ExportError;
pub use evidence::{Attempt, Candidate, Checkpoint, Ended, Evidence};
pub use files::{HashedFile, candidate_files, hash_file};
pub use statement::file_subject;
