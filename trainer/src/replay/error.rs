//! Why segments could not be executed again. That one of them could not be, or
//! came to something else than the record, is no error.

use std::io;
use std::path::PathBuf;

use crate::probe::error::ProbeError;
use crate::run::error::RunError;
use crate::run::refusal::Refusal;
use crate::run::signals::ReceivedSignal;

/// Why there is no replay.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// What also keeps a run from going on.
    #[error(transparent)]
    Probe(Box<ProbeError>),
    /// It is no challenge, or one of another run.
    #[error("{}: the challenge cannot be used: {reason}", path.display())]
    Challenge {
        /// The file.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// A file is where the replay would go.
    #[error("{} exists and is not overwritten", path.display())]
    Exists {
        /// The file.
        path: PathBuf,
    },
    /// The replay would be larger than anything that compares it reads.
    #[error(
        "the replay would have more than {limit} bytes, and none is compared beyond that; nothing was written"
    )]
    TooLarge {
        /// The most that it may have.
        limit: u64,
    },
    /// What came out cannot be written down.
    #[error("the replay could not be written as JSON")]
    Encode(#[from] ledger::canonical::CanonicalError),
    /// The replay cannot be written.
    #[error("could not write {}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A signal asked it to end.
    #[error("{} ended the replay; nothing was written", signal.name())]
    Interrupted {
        /// Which one.
        signal: ReceivedSignal,
    },
}

impl ReplayError {
    /// What can be done about it, where it is known.
    #[must_use]
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::Probe(error) => error.hint(),
            Self::Challenge { .. } => Some(
                "make one of this ledger: `ledger challenge run.db --segments N`, with the head that you kept",
            ),
            Self::Exists { .. } => Some("name another file with `--output`, or move it away"),
            Self::Write { .. } => Some("make room, or name another file with `--output`"),
            Self::TooLarge { .. } => Some(
                "draw fewer segments with `ledger challenge --segments N`, or shorter ones with `--between adjacent`, \
                 and replay each challenge by itself",
            ),
            Self::Encode(_) => Some("this is a fault of the trainer; report it with the challenge"),
            Self::Interrupted { .. } => None,
        }
    }

    /// Exit code of a process that ends with it.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Interrupted { signal } => signal.exit_code(),
            _ => 2,
        }
    }
}

macro_rules! through_probe_error {
    ($($source:ty),*) => {
        $(impl From<$source> for ReplayError {
            fn from(error: $source) -> Self {
                Self::Probe(Box::new(error.into()))
            }
        })*
    };
}

through_probe_error!(
    ProbeError,
    RunError,
    Refusal,
    crate::engine::EngineError,
    crate::device::DeviceError,
    crate::run::inputs::InputError,
    ledger::reader::ReadError
);
