//! What the evaluator refuses, and what stopped it from looking.
//!
//! A refusal is an answer (exit code 1): something that was looked at is not
//! what it should be. Everything else means that it could not look (2).

use std::borrow::Cow;
use std::io;
use std::path::{Path, PathBuf};

use schemas::digest::Digest;

use crate::forward::ModelError;

/// Something that was looked at and is not what it should be.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    /// The ledger does not hold what its heads were signed over.
    #[error("the ledger does not match its signed heads: {reason}")]
    Ledger {
        /// What does not match.
        reason: String,
    },
    /// The handoff is not a valid one of this run.
    #[error("the handoff is not valid: {reason}")]
    Handoff {
        /// What is wrong.
        reason: String,
    },
    /// The key at hand is not the one that the contract names.
    #[error("{what} is {found}, the contract names {expected}")]
    Key {
        /// Which key.
        what: &'static str,
        /// What is at hand.
        found: String,
        /// What the contract names.
        expected: String,
    },
    /// A file's bytes are not those that were frozen or recorded.
    #[error("{} has digest {found}, expected {expected} ({authority})", path.display())]
    Digest {
        /// The file.
        path: PathBuf,
        /// Its digest.
        found: Digest,
        /// What it should be.
        expected: Digest,
        /// Who says so.
        authority: &'static str,
    },
    /// The ledger or the contract says something that cannot be followed.
    #[error("{place}: {reason}")]
    Record {
        /// Entry or JSON pointer.
        place: String,
        /// What is wrong.
        reason: String,
    },
    /// A candidate's files cannot be evaluated.
    #[error("{}", folder.display())]
    Candidate {
        /// Its folder.
        folder: PathBuf,
        /// Why.
        source: ModelError,
    },
    /// The sealed file does not open with the qualifier's identity.
    #[error(
        "the sealed set does not open with the qualifier's identity: {reason}; the opening stays recorded"
    )]
    Unsealable {
        /// What age says.
        reason: String,
    },
    /// What was opened is not the set that was frozen.
    #[error(
        "the opened set has digest {found}, the contract says {expected}; the opening stays recorded, and there is no result"
    )]
    Plaintext {
        /// Digest of what was opened.
        found: Digest,
        /// What the contract says.
        expected: Digest,
    },
    /// A file that must not be replaced exists.
    #[error("{} exists; a signed result is never replaced", path.display())]
    Occupied {
        /// The file.
        path: PathBuf,
    },
}

impl Refusal {
    /// What can be done about it.
    #[must_use]
    pub const fn hint(&self) -> &'static str {
        match self {
            Self::Ledger { .. } => "run `ledger audit`",
            Self::Handoff { .. } => "take the file that `ledger handoff` wrote, unchanged",
            Self::Key { .. } => "name the qualifier's folder with --keys",
            Self::Digest { .. } => "put the unchanged file back",
            Self::Record { .. } => {
                "`ledger audit` says more; a run is evaluated once it has admitted a candidate"
            }
            Self::Candidate { .. } => "restore the candidate's folder from a copy",
            Self::Unsealable { .. } => "name the folder of the identity that it was sealed to with --keys",
            Self::Plaintext { .. } => "ask the owner of the contract for the file that was sealed",
            Self::Occupied { .. } => "name another file with --output",
        }
    }
}

/// Why an evaluation gave no result.
#[derive(Debug, thiserror::Error)]
pub enum EvaluateError {
    /// An answer: no.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// A file could not be read or written.
    #[error("cannot {action} {}", path.display())]
    Io {
        /// What was attempted.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Nothing was handed off, or the handoff is somewhere else.
    #[error("there is no handoff at {}", handoff.display())]
    NoHandoff {
        /// Where it was looked for.
        handoff: PathBuf,
        /// The run's ledger.
        ledger: PathBuf,
    },
    /// A file is larger than anything that is expected of it.
    #[error("{} has {found} bytes, more than the {limit} that are read", path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// Its size.
        found: u64,
        /// The limit.
        limit: u64,
    },
    /// The qualifier's identity file is not one.
    #[error("{} is not an identity file: {reason}", path.display())]
    Identity {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The run's ledger could not be read.
    #[error("cannot read the run's ledger")]
    Read(#[from] ledger::reader::ReadError),
    /// The qualification ledger could not be written.
    #[error("cannot write the qualification ledger")]
    Record(#[from] ledger::recorder::RecorderError),
    /// The qualification ledger could not be made.
    #[error("cannot make the qualification ledger")]
    Create(#[from] ledger::create::CreateError),
    /// The qualifier's key could not be read.
    #[error("cannot use the qualifier's key")]
    Key(#[from] ledger::keys::KeyError),
    /// A statement could not be spelled.
    #[error("cannot spell the statement")]
    Canonical(#[from] ledger::canonical::CanonicalError),
}

impl EvaluateError {
    /// 1 for a refusal, 2 where it could not look.
    #[must_use]
    pub const fn exit_code(&self) -> u8 {
        match self {
            Self::Refused(_) => 1,
            _ => 2,
        }
    }

    /// What can be done about it.
    #[must_use]
    pub fn hint(&self) -> Cow<'static, str> {
        let hint = match self {
            Self::NoHandoff { ledger, .. } => {
                let ledger = ledger.display();
                return format!("run `ledger handoff {ledger}`, or name its file with --handoff").into();
            }
            Self::Refused(refusal) => refusal.hint(),
            Self::Io { .. } => {
                "put the file in its place, readable, or make room, then run the same command again"
            }
            Self::TooLarge { .. } => "name the file that was meant",
            Self::Identity { .. } => "`ledger keygen --role qualifier` makes one",
            Self::Read(_) => "name the run's ledger; `ledger audit` says what is wrong with it",
            Self::Record(error) => error.hint(),
            Self::Create(_) => {
                "make room, or name a new file in a folder that can be written with --qualification"
            }
            Self::Key(_) => "name the qualifier's folder with --keys",
            Self::Canonical(_) => "a number is not finite; the candidate cannot be evaluated",
        };
        hint.into()
    }

    pub(crate) fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io { action, path, source }
    }
}
