//! Why a probe could not be made. That a probe was made and found a difference
//! is a result and no error.

use std::io;
use std::path::{Path, PathBuf};

use schemas::ids::CheckpointId;
use schemas::state::StateClass;

use crate::checkpoint::CheckpointError;
use crate::engine::EngineError;
use crate::run::error::RunError;
use crate::run::refusal::Refusal;
use crate::run::signals::ReceivedSignal;

/// Why a probe could not be made.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    /// What also keeps a run from going on.
    #[error(transparent)]
    Run(Box<RunError>),
    /// The ledger knows no such checkpoint.
    #[error("the ledger has no checkpoint {checkpoint}; it has {known}")]
    Unknown {
        /// What was asked for.
        checkpoint: CheckpointId,
        /// Those that can be probed.
        known: String,
    },
    /// The checkpoint is not one that a run could go on from.
    #[error("checkpoint {checkpoint} is {stage}, and only a validated one can be probed")]
    NotValidated {
        /// The checkpoint.
        checkpoint: CheckpointId,
        /// How far it came.
        stage: String,
    },
    /// Its bytes are not those that were recorded. Nothing was started.
    #[error("checkpoint {checkpoint} is not what the ledger recorded; nothing was started")]
    Bytes {
        /// The checkpoint.
        checkpoint: CheckpointId,
        /// What differs.
        source: Box<CheckpointError>,
    },
    /// The contract's class is judged by a test, and it names none.
    #[error("/resume/class is \"statistical\", and /resume/test is missing")]
    NoTest,
    /// Another number of updates than the frozen test's.
    #[error(
        "{asked} updates: the contract's equivalence test runs {frozen}, and a frozen test is not changed"
    )]
    FrozenSteps {
        /// What was asked for.
        asked: u64,
        /// `/resume/test/num_steps`.
        frozen: u64,
    },
    /// The scratch folder's file system is too small. Nothing was started.
    #[error(
        "{}: the probe may need {needed} bytes for states while they are compared, and {available} are free; nothing \
         was started",
        path.display()
    )]
    NoRoom {
        /// Bytes free to this user.
        available: u64,
        /// Bytes that the states of two trajectories take.
        needed: u64,
        /// The scratch folder.
        path: PathBuf,
    },
    /// A class that is not in the contract's checkpoints.
    #[error(
        "state class `{class}` cannot be withheld: the contract does not capture it; it captures {captured}"
    )]
    NotCaptured {
        /// What was asked for.
        class: StateClass,
        /// What it captures.
        captured: String,
    },
    /// Too few or too many updates.
    #[error("{num_steps} updates: a probe runs {min} to {max}")]
    NumSteps {
        /// What was asked for.
        num_steps: u64,
        /// The fewest.
        min: u64,
        /// The most.
        max: u64,
    },
    /// An ordinary resume would have accepted a checkpoint without the class.
    #[error(
        "a resume without state class `{class}` is not refused with its name ({found}), so that its loss would go \
         unnoticed"
    )]
    NotRefused {
        /// The class that was left out.
        class: StateClass,
        /// What the resume said instead.
        found: String,
    },
    /// A child process failed.
    #[error("the {what} trajectory ended with {status} before it was complete; what it said is above")]
    Trajectory {
        /// `reference` or `resumed`.
        what: &'static str,
        /// How it ended.
        status: String,
    },
    /// What a child process wrote is not what the parent expects.
    #[error("{}: {reason}", path.display())]
    Transcript {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// A file of the scratch folder.
    #[error("could not {action} {}", path.display())]
    Io {
        /// What was attempted.
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A signal asked it to end.
    #[error("{} ended the probe; its start is on record, and no result", signal.name())]
    Interrupted {
        /// Which one.
        signal: ReceivedSignal,
    },
}

impl ProbeError {
    pub(super) fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io { action, path, source }
    }

    /// What can be done about it, where it is known.
    #[must_use]
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::Run(error) => error.hint(),
            Self::Unknown { .. } | Self::NotValidated { .. } => {
                Some("`ledger show run.db` lists the checkpoints of a run and their stages")
            }
            Self::Bytes { .. } => Some("restore the folder from a copy, or probe another checkpoint"),
            Self::NoTest => Some("freeze a contract that names its test in advance"),
            Self::FrozenSteps { .. } => Some("leave out `--steps`"),
            Self::NoRoom { .. } => {
                Some("`--scratch DIR` names a folder with room; fewer `--steps` need less of it")
            }
            Self::NotCaptured { .. } => Some("leave out `--withhold` to withhold everything but the model"),
            Self::NumSteps { .. } => Some("choose `--steps` within these bounds"),
            Self::NotRefused { .. } => Some("this is a fault of the trainer; report it with the contract"),
            Self::Trajectory { .. } => {
                Some("repair what it names and probe again; the ledger keeps the start")
            }
            Self::Io { .. } | Self::Transcript { .. } => {
                Some("`--scratch DIR` names a folder with room for as many states as steps are compared")
            }
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

impl From<RunError> for ProbeError {
    fn from(error: RunError) -> Self {
        Self::Run(Box::new(error))
    }
}

macro_rules! through_run_error {
    ($($source:ty),*) => {
        $(impl From<$source> for ProbeError {
            fn from(error: $source) -> Self {
                RunError::from(error).into()
            }
        })*
    };
}

through_run_error!(
    Refusal,
    EngineError,
    crate::state::StateError,
    crate::device::DeviceError,
    crate::run::inputs::InputError,
    ledger::keys::KeyError,
    ledger::reader::ReadError,
    ledger::recorder::RecorderError
);
