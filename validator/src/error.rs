//! Why an audit could not look. What it saw and found wrong is a finding.

use std::io;
use std::path::{Path, PathBuf};

/// The audit could not run; exit code 2.
#[derive(Debug, thiserror::Error)]
pub enum AuditError {
    /// No such ledger.
    #[error("there is no ledger at {}; hint: name the file that `ledger freeze` wrote, by default run.db", path.display())]
    LedgerMissing {
        /// As named.
        path: PathBuf,
    },
    /// The ledger cannot be opened or read.
    #[error("the ledger {} cannot be read; hint: check its permissions", path.display())]
    Ledger {
        /// As named.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A writer commits faster than the file can be copied.
    #[error("the ledger {} changes while it is being copied; hint: audit it when the trainer has stopped", path.display())]
    Busy {
        /// As named.
        path: PathBuf,
    },
    /// The private copy cannot be written.
    #[error("the audit's private copy at {} cannot be written; hint: set TMPDIR to a folder with room for the ledger", path.display())]
    Temporary {
        /// Where.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A file that the reviewer named cannot be read.
    #[error("{what} {} cannot be read", path.display())]
    Named {
        /// What it was named as: `the head file`.
        what: &'static str,
        /// As named.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The report to go on from is none that this audit may rely on.
    #[error(
        "the audit cannot go on from the report {}: {reason}; hint: audit without --since, which looks at everything",
        path.display()
    )]
    Since {
        /// As named.
        path: PathBuf,
        /// Why not.
        reason: String,
    },
    /// The trust file does not have the form that is documented.
    #[error(
        "the trust file {} is not usable: {reason}; hint: it is a JSON object of roles and public keys, such as {{\"owner\":\"<64 hex digits>\",\"trainer\":\"<64 hex digits>\"}}",
        path.display()
    )]
    Trust {
        /// As named.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
}

impl AuditError {
    pub(crate) fn ledger(path: &Path, source: io::Error) -> Self {
        match source.kind() {
            io::ErrorKind::NotFound => Self::LedgerMissing { path: path.to_owned() },
            _ => Self::Ledger { path: path.to_owned(), source },
        }
    }
}
