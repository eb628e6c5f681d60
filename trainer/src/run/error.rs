//! Everything that can end an attempt early, and what it says about the run.

use std::error::Error;
use std::fmt::Write as _;
use std::io;

use schemas::body::ObservedFault;
use schemas::contract::FaultKind;
use schemas::ids::WorkerId;
use schemas::state::StateClass;

use crate::checkpoint::CheckpointError;
use crate::detect::Mismatch;
use crate::device::DeviceError;
use crate::engine::EngineError;
use crate::faults::PlanError;
use crate::state::StateError;
use crate::workers::WorkerError;

use super::floors::FloorError;
use super::inputs::InputError;
use super::refusal::Refusal;

/// Longest reason that an entry holds, in bytes: far below the bound of an
/// entry, so that a long path never keeps a terminal entry from being written.
const MAX_REASON_BYTES: usize = 2048;

/// Why an attempt could not start or go on.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// This binary, here, may not execute the contract.
    #[error(transparent)]
    Refused(Box<Refusal>),
    /// The trainer's key cannot be had.
    #[error("the trainer key cannot be used")]
    Key(#[from] ledger::keys::KeyError),
    /// The ledger cannot be read.
    #[error("the ledger cannot be read")]
    Read(#[from] ledger::reader::ReadError),
    /// The ledger cannot be written.
    #[error("the ledger cannot be written")]
    Record(#[from] ledger::recorder::RecorderError),
    /// A frozen input is not what was frozen.
    #[error("the frozen inputs cannot be used")]
    Input(#[from] InputError),
    /// The device is not there.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The numeric core failed.
    #[error("training failed")]
    Engine(#[from] EngineError),
    /// A checkpoint cannot be written.
    #[error("the checkpoint cannot be written")]
    Checkpoint(#[from] CheckpointError),
    /// State cannot be taken from the run, or does not fit it.
    #[error("the training state cannot be saved or restored")]
    State(#[from] StateError),
    /// What is free cannot be found out.
    #[error("the contract's floors cannot be checked")]
    Floor(#[from] FloorError),
    /// State is not what the record of the run gives.
    #[error(transparent)]
    Damaged(Box<Mismatch>),
    /// A withheld plan of faults cannot be used.
    #[error("the plan of faults cannot be used")]
    Plan(#[from] PlanError),
    /// The system refused signal handlers or threads.
    #[error("the process cannot be set up")]
    Process(#[source] io::Error),
    /// The workers cannot go on together.
    #[error(transparent)]
    Worker(#[from] WorkerError),
    /// Loss or gradient is not finite, and no contract allows to go on.
    #[error("{what} of step {step} is {value}, and the contract has no permission to go on")]
    NotFinite {
        /// `the loss` or `the gradient norm`.
        what: &'static str,
        /// The step.
        step: u64,
        /// What it is.
        value: f64,
    },
}

impl From<Refusal> for RunError {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(Box::new(refusal))
    }
}

impl From<Mismatch> for RunError {
    fn from(mismatch: Mismatch) -> Self {
        Self::Damaged(Box::new(mismatch))
    }
}

impl RunError {
    /// The fault that the error shows, for `fault.observed`; `None` where the
    /// error is no fault of storage, data or state.
    #[must_use]
    pub const fn fault(&self) -> Option<ObservedFault> {
        match self {
            Self::Input(_) | Self::Engine(EngineError::Data(_)) => Some(ObservedFault::DataChanged),
            Self::Damaged(mismatch) => Some(mismatch.fault),
            Self::Checkpoint(error) if error.is_other_content() => Some(ObservedFault::CheckpointCorrupt),
            Self::Checkpoint(_) => Some(ObservedFault::StorageFailed),
            Self::Worker(error) => error.fault(),
            // The device, and not what was saved.
            Self::State(StateError::Engine { source, .. })
                if matches!(**source, EngineError::Device { .. }) =>
            {
                None
            }
            Self::State(_) | Self::Engine(EngineError::State { .. }) => Some(ObservedFault::StateMismatch),
            _ => None,
        }
    }

    /// The family that the fault is taken for; `None` where the error does not
    /// tell.
    #[must_use]
    pub const fn cause(&self) -> Option<FaultKind> {
        match self {
            Self::Damaged(mismatch) => Some(mismatch.cause),
            Self::Worker(error) => error.cause(),
            Self::Checkpoint(error) if error.is_other_content() => Some(FaultKind::SingleShardCorruption),
            // A restored class that does not fit the run is what its loss looks like.
            Self::State(StateError::Mismatch { class, .. } | StateError::Engine { class, .. }) => match class
            {
                StateClass::LossScaler => Some(FaultKind::LossScalerLoss),
                StateClass::RngCpu => Some(FaultKind::RngStateLoss),
                StateClass::Scheduler => Some(FaultKind::SchedulerStateLoss),
                StateClass::Topology => Some(FaultKind::TopologyChange),
                _ => None,
            },
            _ => None,
        }
    }

    /// The worker that it is about, where it is about one's state.
    #[must_use]
    pub const fn worker(&self) -> Option<WorkerId> {
        match self {
            Self::Damaged(mismatch) => Some(WorkerId(mismatch.worker)),
            Self::Worker(error) if error.fault().is_some() => Some(WorkerId(error.worker())),
            _ => None,
        }
    }

    /// Stable name of the error's kind, for `anomaly`.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::NotFinite { what, .. } if matches!(what.as_bytes(), b"the loss") => "loss_not_finite",
            Self::NotFinite { .. } => "gradient_not_finite",
            Self::Engine(_) | Self::Device(_) => "engine_failed",
            Self::Floor(_) => "floor_not_readable",
            Self::Worker(_) => "worker_failed",
            _ => "attempt_failed",
        }
    }

    /// Whether the run was refused, rather than having failed on the way.
    #[must_use]
    pub const fn is_refusal(&self) -> bool {
        !matches!(
            self,
            Self::Checkpoint(_)
                | Self::Damaged(_)
                | Self::Floor(_)
                | Self::NotFinite { .. }
                | Self::Worker(_)
                | Self::Engine(EngineError::Device { .. })
        )
    }

    /// Whether the run is over with it, because every attempt would meet it
    /// again.
    #[must_use]
    pub const fn ends_run(&self) -> bool {
        matches!(self, Self::NotFinite { .. })
    }

    /// What can be done about it, where it is known.
    #[must_use]
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::Refused(refusal) => Some(refusal.hint()),
            Self::Device(_) => Some(
                "build it with `cargo build -p trainer --features wgpu` (or cuda), or name another device",
            ),
            Self::Read(_) => {
                Some("name a ledger that `ledger freeze` made; `ledger audit` says what is wrong with it")
            }
            Self::Record(error) => Some(error.hint()),
            Self::Key(_) => Some("`--keys DIR` names the folder of the trainer key"),
            Self::Input(_) => {
                Some("restore the frozen file, then run the same command again; the run resumes")
            }
            Self::Worker(error) => Some(error.hint()),
            Self::Damaged(_) => Some(
                "the same command again resumes the run from a checkpoint before the damage, where its contract \
                 recovers; if it comes back, look for what changes the state",
            ),
            Self::Plan(_) => Some("correct the file, or unset LEDGER_FAULT_PLAN"),
            Self::Checkpoint(CheckpointError::Store(error)) => Some(error.hint()),
            Self::Checkpoint(_) => Some("make room or repair the store, then run the same command again"),
            Self::State(_) => Some("the checkpoint was not written by this run; `ledger audit` says more"),
            _ => None,
        }
    }
}

/// An error with its causes, as one line, cut where an entry would grow too
/// long.
#[must_use]
pub fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        // Writing to a String cannot fail.
        let _ = write!(text, ": {cause}");
        source = cause.source();
    }
    if text.len() > MAX_REASON_BYTES {
        let end = (0..=MAX_REASON_BYTES).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
        text.truncate(end);
        text.push_str(" ...");
    }
    text
}

#[cfg(test)]
mod tests {
    use schemas::digest::Digest;

    use super::*;

    #[test]
    fn a_reason_is_one_bounded_line_with_its_causes() {
        let error = RunError::Process(io::Error::other("x".repeat(5000)));
        let text = chain(&error);
        assert!(text.starts_with("the process cannot be set up: xxx"), "{text}");
        assert!(text.len() <= MAX_REASON_BYTES + 4);
    }

    #[test]
    fn a_shard_of_another_size_is_as_corrupt_as_one_of_other_bytes() {
        let path = std::path::PathBuf::from("model.safetensors");
        let (expected, actual) = (Digest::blake3([0; 32]), Digest::blake3([1; 32]));
        let other_bytes = CheckpointError::Digest { path: path.clone(), expected, actual };
        let cut_off = CheckpointError::Size { path: path.clone(), expected: 8, actual: 7 };
        for error in [other_bytes, cut_off] {
            let error = RunError::from(error);
            assert_eq!(error.fault(), Some(ObservedFault::CheckpointCorrupt), "{error:?}");
            assert_eq!(error.cause(), Some(FaultKind::SingleShardCorruption), "{error:?}");
        }
        let gone =
            RunError::from(CheckpointError::io("read", path)(io::Error::from(io::ErrorKind::NotFound)));
        assert_eq!((gone.fault(), gone.cause()), (Some(ObservedFault::StorageFailed), None));
    }

    #[test]
    fn anomalies_have_stable_names() {
        let not_finite = |what| RunError::NotFinite { what, step: 1, value: f64::NAN };
        assert_eq!(not_finite("the loss").name(), "loss_not_finite");
        assert_eq!(not_finite("the gradient norm").name(), "gradient_not_finite");
    }
}
