//! Why an export was not made.

use std::path::PathBuf;

use ledger::canonical::CanonicalError;
use ledger::reader::ReadError;
use schemas::digest::Digest;

/// An export that was not made. Nothing is left behind but files that were
/// complete before.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    /// The ledger cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The ledger is not what was audited.
    #[error("{path} is not what was audited: it has {actual}, the audit saw {expected}")]
    NotAudited {
        /// The ledger.
        path: PathBuf,
        /// What the report says.
        expected: String,
        /// What is there.
        actual: String,
    },
    /// The report says nothing of what the format needs.
    #[error("{path}: the audit found no {what}")]
    Lacks {
        /// The ledger.
        path: PathBuf,
        /// What is missing.
        what: &'static str,
    },
    /// The format states that a run is in order, and this one is not.
    #[error("{path} is {verdict}: {format} is only written of an accepted run")]
    NotAccepted {
        /// The ledger.
        path: PathBuf,
        /// The report's verdict, with the profile where that is not `native`.
        verdict: String,
        /// Name of the format.
        format: &'static str,
    },
    /// A file has other bytes than the audit saw.
    #[error("{path} changed after the audit: it has {actual}, the audit saw {expected}")]
    Changed {
        /// The file.
        path: PathBuf,
        /// What the record says.
        expected: Digest,
        /// What it has.
        actual: Digest,
    },
    /// A file does not say what it must.
    #[error("{path}: {what}")]
    Content {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        what: String,
    },
    /// A file exists.
    #[error("{path} exists and is not overwritten; name another folder with --output, or move it away")]
    Exists {
        /// The file.
        path: PathBuf,
    },
    /// A file cannot be read or written.
    #[error("cannot access {path}")]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// A document has no canonical form.
    #[error("a document has no canonical form")]
    Canonical(#[from] CanonicalError),
    /// A document cannot be written as JSON.
    #[error("a document cannot be written as JSON")]
    Json(#[from] serde_json::Error),
}
