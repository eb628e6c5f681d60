//! What keeps a loop from being recorded, and what to do about it.

use std::io;
use std::path::PathBuf;

use corpus::examples::ExamplesError;
use corpus::source::DataError;
use corpus::tensors::ExportError;
use ledger::canonical::CanonicalError;
use ledger::keys::KeyError;
use ledger::links::Linked;
use ledger::reader::ReadError;
use ledger::recorder::RecorderError;
use schemas::digest::Digest;
use schemas::ids::RunId;

/// Why a loop is not recorded, or a call of it is refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoopError {
    /// The ledger cannot be written.
    #[error("the ledger cannot be recorded to")]
    Record(#[from] RecorderError),
    /// The ledger cannot be read.
    #[error("the ledger cannot be read")]
    Read(#[from] ReadError),
    /// The trainer's key is missing.
    #[error("the trainer's key is needed to record")]
    Key(#[from] KeyError),
    /// The ledger is not that of a run.
    #[error("{} holds no contract", path.display())]
    NoContract {
        /// The ledger.
        path: PathBuf,
    },
    /// The contract is one of the project's own trainer.
    #[error(
        "{} was frozen with the evidence profile native, whose promise is that the project's own trainer ran; \
         a loop of your own cannot record it",
        path.display()
    )]
    Native {
        /// The ledger.
        path: PathBuf,
    },
    /// The contract asks for something that this crate does not keep.
    #[error("the contract asks for {what} at {pointer}, which no loop can record")]
    Unsupported {
        /// Where.
        pointer: &'static str,
        /// What.
        what: String,
    },
    /// A file of the loop is not the one that was frozen.
    #[error("{} is not the file that was frozen: expected {expected}, found {actual}", path.display())]
    Code {
        /// The file.
        path: PathBuf,
        /// What the contract binds.
        expected: String,
        /// What is there.
        actual: Digest,
    },
    /// The program that runs is none of the loop's files.
    #[error("{} is none of the files that the contract names as the loop", path.display())]
    Program {
        /// The program.
        path: PathBuf,
    },
    /// Environment or plan differ from the contract's.
    #[error("{what} is {actual}; the contract froze {expected}")]
    Differs {
        /// What.
        what: &'static str,
        /// In the contract.
        expected: String,
        /// Here.
        actual: String,
    },
    /// A frozen document cannot be used.
    #[error("the document at {pointer} cannot be used: {reason}")]
    Document {
        /// Where the contract binds it.
        pointer: &'static str,
        /// Why.
        reason: String,
    },
    /// An example table cannot be used.
    #[error("an example table cannot be used")]
    Table(#[from] ExamplesError),
    /// A data shard is not what was frozen.
    #[error("the data cannot be used")]
    Data(#[from] DataError),
    /// Tensors cannot be written or read.
    #[error("tensors cannot be written or read")]
    Tensors(#[from] ExportError),
    /// A manifest cannot be written.
    #[error("a manifest cannot be written")]
    Canonical(#[from] CanonicalError),
    /// The file system refused.
    #[error("could not {action} {}", path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A checkpoint's bytes are not what was recorded.
    #[error("{}: {reason}", path.display())]
    Checkpoint {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
        /// Whether it is there, with other bytes.
        is_other_content: bool,
    },
    /// A symbolic link where a checkpoint lies, or would.
    #[error(transparent)]
    Linked(#[from] Linked),
    /// The run has ended before.
    #[error("run {run} is over: {reason}")]
    Over {
        /// The run.
        run: RunId,
        /// How it ended.
        reason: String,
    },
    /// Steps were recorded and no checkpoint can be resumed from.
    #[error("{num_steps} steps are recorded and nothing can be resumed from: {reasons}")]
    NothingResumable {
        /// Steps on record.
        num_steps: u64,
        /// What each checkpoint lacks.
        reasons: String,
    },
    /// A call does not fit where the loop is.
    #[error("{what}")]
    Order {
        /// What was called, and what is due.
        what: String,
        /// What to call instead.
        hint: &'static str,
    },
    /// A value cannot be recorded.
    #[error("{field}: {reason}")]
    Value {
        /// Which.
        field: String,
        /// Why not.
        reason: String,
    },
    /// A number is not finite; the attempt ended as failed, on record.
    #[error("{what} of step {step} is {value}; the step is on record and the attempt ended as failed")]
    NotFinite {
        /// Which number.
        what: &'static str,
        /// Of which step.
        step: u64,
        /// Its value.
        value: f64,
    },
}

impl LoopError {
    /// What can be done about it, for a line of its own below the message.
    #[must_use]
    pub fn hint(&self) -> &str {
        match self {
            Self::Record(error) => error.hint(),
            Self::Read(_) | Self::NoContract { .. } => "name the run.db that `ledger freeze` made",
            Self::Key(_) => "name the folder with the trainer's key: keys=..., or $LEDGER_KEYS",
            Self::Native { .. } => {
                "freeze a contract for your loop: `ledger init --profile external-loop`; or train it with `trainer run`"
            }
            Self::Unsupported { .. } => "change the contract and freeze it again",
            Self::Code { .. } | Self::Program { .. } => {
                "restore the frozen file; or freeze a contract for the changed loop, as another run"
            }
            Self::Differs { .. } => {
                "run it where it was frozen for; or freeze a contract for this environment"
            }
            Self::Document { .. } | Self::Table(_) | Self::Data(_) => {
                "restore the file that the contract froze beside the ledger"
            }
            Self::Tensors(_) | Self::Value { .. } => "correct what the loop hands over; nothing was recorded",
            Self::Canonical(_) => "this is a defect of the recorder; report it",
            Self::Io { .. } => "make room, or make the folder writable, and run the same command again",
            Self::Checkpoint { .. } => "restore the checkpoint's files, or let the next attempt fall back",
            Self::Linked(_) => Linked::HINT,
            Self::Over { .. } => "`ledger audit` judges it; freeze a new contract for another run",
            Self::NothingResumable { .. } => {
                "restore the checkpoints' files; or start again from the initial state with restart=True"
            }
            Self::Order { hint, .. } => hint,
            Self::NotFinite { .. } => {
                "the next attempt resumes from the last checkpoint; lower the rate in a new contract"
            }
        }
    }

    /// The message with its causes, one after the other.
    #[must_use]
    pub fn chain(&self) -> String {
        let mut text = self.to_string();
        let mut source = std::error::Error::source(self);
        while let Some(error) = source {
            let message = error.to_string();
            // Transparent variants repeat their source.
            if !text.ends_with(&message) {
                text.push_str(": ");
                text.push_str(&message);
            }
            source = error.source();
        }
        text
    }

    /// An I/O error with its place.
    pub(crate) fn io(action: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io { action, path, source }
    }

    pub(crate) fn order(what: impl Into<String>) -> Self {
        Self::Order { what: what.into(), hint: "follow `due()`: evaluate, save, then go on" }
    }

    /// A call behind a save that failed.
    pub(crate) fn failed_save(step: u64) -> Self {
        Self::Order {
            what: format!("the save of step {step} failed, and the attempt takes nothing but its end"),
            hint: "end the attempt with `fail` or `interrupt`, or leave it; the next one resumes from the last \
                   checkpoint and saves this step under a name of its own",
        }
    }

    pub(crate) fn value(field: impl Into<String>, reason: impl Into<String>) -> Self {
        Self::Value { field: field.into(), reason: reason.into() }
    }
}
