//! Why the workers of an attempt cannot go on together.

use std::io;

use schemas::body::ObservedFault;
use schemas::contract::FaultKind;

/// What a worker did, or what became of it. Workers count from 0, which is the
/// process that records.
#[derive(Debug, thiserror::Error)]
pub enum WorkerError {
    /// A worker could not be started.
    #[error("worker {worker} cannot be started")]
    Start {
        /// Which.
        worker: u32,
        /// What the system said.
        source: io::Error,
    },
    /// A worker is gone.
    #[error("worker {worker} is lost at step {step}: {how}")]
    Lost {
        /// Which.
        worker: u32,
        /// The update that was being made.
        step: u64,
        /// How it was seen.
        how: String,
    },
    /// A worker did not answer in time, or gave no sign of life.
    #[error("worker {worker} is late at step {step}: {how} within {timeout_ms} ms")]
    Late {
        /// Which.
        worker: u32,
        /// The update that was being made.
        step: u64,
        /// What was waited for.
        how: &'static str,
        /// The contract's bound.
        timeout_ms: u32,
    },
    /// A worker sent something else than its share of the update, or its replica
    /// is another one.
    #[error("worker {worker} disagrees at step {step}: {reason}")]
    Disagrees {
        /// Which.
        worker: u32,
        /// The update that was being made.
        step: u64,
        /// What it did.
        reason: String,
        /// Whether what it sent is that of an earlier update.
        is_stale: bool,
    },
    /// A worker says that it cannot go on.
    #[error("worker {worker} failed at step {step}: {message}")]
    Failed {
        /// Which.
        worker: u32,
        /// The update that was being made.
        step: u64,
        /// Whether text is not what was frozen.
        is_data: bool,
        /// What it said.
        message: String,
    },
}

impl WorkerError {
    /// Which worker.
    #[must_use]
    pub const fn worker(&self) -> u32 {
        match self {
            Self::Start { worker, .. }
            | Self::Lost { worker, .. }
            | Self::Late { worker, .. }
            | Self::Disagrees { worker, .. }
            | Self::Failed { worker, .. } => *worker,
        }
    }

    /// What `fault.observed` calls it; `None` where it is no fault of a kind.
    #[must_use]
    pub const fn fault(&self) -> Option<ObservedFault> {
        match self {
            Self::Lost { .. } => Some(ObservedFault::WorkerLost),
            Self::Late { .. } => Some(ObservedFault::WorkerTimeout),
            Self::Disagrees { .. } => Some(ObservedFault::WorkerDisagrees),
            Self::Failed { is_data: true, .. } => Some(ObservedFault::DataChanged),
            Self::Start { .. } | Self::Failed { .. } => None,
        }
    }

    /// The family that it is taken for; `None` where what was seen does not
    /// tell.
    #[must_use]
    pub const fn cause(&self) -> Option<FaultKind> {
        match self {
            Self::Lost { .. } => Some(FaultKind::WorkerLoss),
            Self::Late { .. } => Some(FaultKind::CollectiveTimeout),
            Self::Disagrees { is_stale: true, .. } => Some(FaultKind::StaleOrDelayedGradient),
            _ => None,
        }
    }

    /// What can be done about it.
    #[must_use]
    pub const fn hint(&self) -> &'static str {
        match self {
            Self::Start { .. } => "the system could start no process; `ulimit -u` and free memory say more",
            Self::Lost { .. } => {
                "the same command again resumes the run; where the system killed it for memory, run \
                                  fewer workers or a smaller microbatch"
            }
            Self::Late { .. } => {
                "the same command again resumes the run; a contract for a slower machine has a larger \
                                  /topology/collective/timeout_ms"
            }
            Self::Disagrees { .. } => {
                "the same command again resumes the run; where it comes back, the worker's \
                                       processor or memory is not to be trusted"
            }
            Self::Failed { .. } => "mend what it names, then run the same command again; the run resumes",
        }
    }
}
