//! Why a record was not taken.

use std::path::PathBuf;
use std::sync::Arc;

use schemas::MAX_ENTRY_BYTES;
use schemas::ids::KeyId;

use crate::canonical::CanonicalError;
use crate::frozen::FrozenError;
use crate::head_file::HeadFileError;
use crate::lock::LockError;
use crate::note::NoteError;
use crate::store::{STORAGE_HINT, StoreError};

/// A ledger that cannot be recorded to, or a record that was refused.
#[derive(Debug, thiserror::Error)]
pub enum RecorderError {
    /// The file is not a ledger that this version writes.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Another writer has it.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// The head file is missing or cannot be used.
    #[error(transparent)]
    HeadFile(#[from] HeadFileError),
    /// The ledger holds fewer entries than a head that was published.
    #[error(
        "{path} is behind its external head: {num_entries} entries are stored, {head_path} was signed over \
         {head_size}; restore the ledger (with its -wal file) from a copy, since rows were lost"
    )]
    Behind {
        /// The ledger.
        path: PathBuf,
        /// The head file.
        head_path: PathBuf,
        /// Entries that are stored.
        num_entries: u64,
        /// Entries that the head covers.
        head_size: u64,
    },
    /// The stored entries do not give a signed root.
    #[error("{path}: the entries do not give the root that was signed at size {size}; run `ledger audit`")]
    Root {
        /// The ledger.
        path: PathBuf,
        /// Size of the head.
        size: u64,
    },
    /// A head is malformed or not signed by the key that must have signed it.
    #[error("{path}: a signed head does not verify; run `ledger audit`")]
    Head {
        /// Database or head file.
        path: PathBuf,
        /// Why.
        #[source]
        source: NoteError,
    },
    /// A head belongs to another ledger.
    #[error("{path}: a head says {actual:?}, this ledger is {expected:?}")]
    Origin {
        /// Database or head file.
        path: PathBuf,
        /// Origin of this ledger.
        expected: String,
        /// Origin of the head.
        actual: String,
    },
    /// The database holds no head, so not even its kind is known.
    #[error("{path} holds no signed head; it was not created by `ledger`")]
    NoHead {
        /// The ledger.
        path: PathBuf,
    },
    /// Entry 0 is not a frozen contract.
    #[error("{path}: entry 0 is not a usable contract")]
    Contract {
        /// The ledger.
        path: PathBuf,
        /// Why.
        #[source]
        source: FrozenError,
    },
    /// Stored bytes are not an entry.
    #[error("{path}: entry {index} cannot be read; run `ledger audit`")]
    Entry {
        /// The ledger.
        path: PathBuf,
        /// Which entry.
        index: u64,
        /// Why.
        #[source]
        source: serde_json::Error,
    },
    /// The key is not the one that this ledger's heads are signed with.
    #[error(
        "{path} is written with key {expected}, not {given}; name the folder that holds it with `--keys`"
    )]
    WrongKey {
        /// The ledger.
        path: PathBuf,
        /// What is needed.
        expected: String,
        /// What was given.
        given: KeyId,
    },
    /// The record is larger than an entry may be. Nothing was written.
    #[error(
        "a {kind} entry would have {num_bytes} bytes, the limit is {MAX_ENTRY_BYTES}; store the rest as a file and name its digest"
    )]
    TooLarge {
        /// Kind of the record.
        kind: &'static str,
        /// Size it would have.
        num_bytes: usize,
    },
    /// The record has no canonical form. Nothing was written.
    #[error("a {kind} entry cannot be written")]
    Canonical {
        /// Kind of the record.
        kind: &'static str,
        /// Why.
        #[source]
        source: CanonicalError,
    },
    /// The idempotency key is not one. Nothing was written.
    #[error("{idem:?} is not an idempotency key of 32 lower-case hex digits")]
    Idempotency {
        /// What was given.
        idem: String,
    },
    /// The idempotency key belongs to an entry that says something else.
    #[error(
        "idempotency key {idem} belongs to entry {index}, which says something else; nothing was written"
    )]
    Conflict {
        /// The key.
        idem: String,
        /// The entry that has it.
        index: u64,
    },
    /// Writing failed; nothing that was not durable yet is certain, and the
    /// recorder takes nothing more.
    #[error("recording to {path} failed; nothing more is recorded")]
    Failed {
        /// The ledger.
        path: PathBuf,
        /// What failed first.
        #[source]
        source: Arc<WriteError>,
    },
    /// The recorder was closed.
    #[error("the recorder of {path} is closed")]
    Closed {
        /// The ledger.
        path: PathBuf,
    },
    /// The writer thread could not be started.
    #[error("cannot start the writer of {path}")]
    Thread {
        /// The ledger.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// The database could not be read to compare an idempotency key.
    #[error("{path}: reading failed")]
    Read {
        /// The ledger.
        path: PathBuf,
        /// Why.
        #[source]
        source: rusqlite::Error,
    },
}

/// What stopped a writer.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// The database refused.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The head file refused.
    #[error(transparent)]
    HeadFile(#[from] HeadFileError),
    /// The writer thread ended without saying why.
    #[error("the writer thread ended unexpectedly")]
    Vanished,
}

impl RecorderError {
    /// What can be done about it, for a line of its own below the message.
    #[must_use]
    pub fn hint(&self) -> &'static str {
        match self {
            Self::Store(error) => error.hint(),
            Self::Lock(LockError::Held { .. }) => "wait for the other writer to end, or stop it",
            Self::Lock(LockError::Io { .. }) => "a ledger is written only where its folder is writable",
            Self::HeadFile(HeadFileError::Io { .. }) => STORAGE_HINT,
            Self::HeadFile(_) => "the head file lies beside its ledger; restore both from the same copy",
            Self::Behind { .. } => "restore the ledger, with its -wal file, from a copy; rows were lost",
            Self::Root { .. }
            | Self::Head { .. }
            | Self::Origin { .. }
            | Self::NoHead { .. }
            | Self::Contract { .. }
            | Self::Entry { .. } => "`ledger audit` says what is wrong with it; restore it from a copy",
            Self::WrongKey { .. } => "`--keys DIR` names the folder of the key that the message asks for",
            Self::TooLarge { .. }
            | Self::Canonical { .. }
            | Self::Idempotency { .. }
            | Self::Conflict { .. } => "correct the record; nothing was written",
            Self::Failed { source, .. } => match &**source {
                WriteError::Store(error) => error.hint(),
                WriteError::HeadFile(_) => STORAGE_HINT,
                WriteError::Vanished => "run the same command again; what was acknowledged is stored",
            },
            Self::Closed { .. } | Self::Thread { .. } | Self::Read { .. } => "open the ledger again",
        }
    }
}
