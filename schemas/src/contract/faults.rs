//! Faults that a run injects into itself, and what is done about any fault.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::number::DecimalU64;

/// Injected faults, and what to do about any fault.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct FaultPolicy {
    /// Who looks for damage; left out: `trainer_and_validator`.
    #[serde(default, skip_serializing_if = "Detection::is_everywhere")]
    pub detection: Detection,
    /// Faults that the run injects into itself; empty: none.
    pub plan: Vec<PlannedFault>,
    /// What happens after a fault.
    pub recovery: Recovery,
}

/// Who looks for the damage that faults do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Detection {
    /// The trainer compares its state with what the record gives before each
    /// update, and the validator does afterwards.
    #[default]
    TrainerAndValidator,
    /// The validator alone: the trainer's own detectors of damaged state are
    /// off, so that damage goes into the record. For runs that show what an
    /// audit finds by itself; only beside a plan of faults.
    ValidatorAlone,
}

impl Detection {
    /// Whether the trainer looks as well.
    #[must_use]
    pub fn is_everywhere(&self) -> bool {
        *self == Self::TrainerAndValidator
    }
}

/// One injected fault. It acts once in a run, however often its step is executed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct PlannedFault {
    /// Which of the thirteen families.
    pub fault: FaultKind,
    /// Where it acts; one of the family's phases.
    pub phase: FaultPhase,
    /// Randomness of the fault itself: how far a cursor moves, which byte flips.
    pub seed: DecimalU64,
    /// At which step: the number of completed updates once the update that it
    /// strikes is made; of a checkpoint, an evaluation or a resume, its step.
    pub step: u64,
    /// At which worker; null: at the process that records.
    pub worker: Option<u32>,
}

/// The fault families of the campaign protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum FaultKind {
    /// A worker is killed.
    WorkerLoss,
    /// A worker answers later than the contract allows.
    CollectiveTimeout,
    /// The process is killed inside of a save.
    CheckpointWriteInterruption,
    /// A byte of one file of a checkpoint changes.
    SingleShardCorruption,
    /// The data cursor moves back.
    DataCursorRewind,
    /// The data cursor moves on.
    DataCursorSkip,
    /// The stream of random numbers starts again.
    RngStateLoss,
    /// The schedule's state is what it was at step 0.
    SchedulerStateLoss,
    /// The loss scale and its count are what they were at step 0.
    LossScalerLoss,
    /// Numbers have another precision than the contract's.
    PrecisionPolicyChange,
    /// Another number of workers executes.
    TopologyChange,
    /// A worker's gradient is that of an earlier update.
    StaleOrDelayedGradient,
    /// Something else than the val split decides which candidate is selected.
    ValidationLeakageInSelection,
}

impl FaultKind {
    /// Every family, in the order of the campaign protocol.
    pub const ALL: [Self; 13] = [
        Self::WorkerLoss,
        Self::CollectiveTimeout,
        Self::CheckpointWriteInterruption,
        Self::SingleShardCorruption,
        Self::DataCursorRewind,
        Self::DataCursorSkip,
        Self::RngStateLoss,
        Self::SchedulerStateLoss,
        Self::LossScalerLoss,
        Self::PrecisionPolicyChange,
        Self::TopologyChange,
        Self::StaleOrDelayedGradient,
        Self::ValidationLeakageInSelection,
    ];

    /// Where faults of this family can act (`docs/FORMAT.md`, "Injected faults").
    #[must_use]
    pub const fn phases(self) -> &'static [FaultPhase] {
        use FaultPhase as P;
        match self {
            Self::WorkerLoss | Self::CollectiveTimeout => &[P::BeforeForward, P::AfterBackward],
            Self::CheckpointWriteInterruption => &[P::ShardWritten, P::Staged, P::Renamed],
            Self::SingleShardCorruption => &[P::Staged, P::Validated],
            Self::DataCursorRewind
            | Self::DataCursorSkip
            | Self::RngStateLoss
            | Self::SchedulerStateLoss
            | Self::LossScalerLoss
            | Self::TopologyChange => &[P::BeforeForward, P::Restore],
            Self::PrecisionPolicyChange => &[P::BeforeForward, P::AfterUpdate, P::Restore],
            Self::StaleOrDelayedGradient => &[P::BeforeExchange, P::InExchange],
            Self::ValidationLeakageInSelection => &[P::Evaluation, P::Selection],
        }
    }

    /// The name in JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::WorkerLoss => "worker_loss",
            Self::CollectiveTimeout => "collective_timeout",
            Self::CheckpointWriteInterruption => "checkpoint_write_interruption",
            Self::SingleShardCorruption => "single_shard_corruption",
            Self::DataCursorRewind => "data_cursor_rewind",
            Self::DataCursorSkip => "data_cursor_skip",
            Self::RngStateLoss => "rng_state_loss",
            Self::SchedulerStateLoss => "scheduler_state_loss",
            Self::LossScalerLoss => "loss_scaler_loss",
            Self::PrecisionPolicyChange => "precision_policy_change",
            Self::TopologyChange => "topology_change",
            Self::StaleOrDelayedGradient => "stale_or_delayed_gradient",
            Self::ValidationLeakageInSelection => "validation_leakage_in_selection",
        }
    }
}

/// Where in a step, a save or a resume a fault acts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum FaultPhase {
    /// Before the first microbatch of the update.
    BeforeForward,
    /// Behind the last microbatch, before gradients are exchanged and applied.
    AfterBackward,
    /// Before a worker sends: what it sends carries the update's own number.
    BeforeExchange,
    /// While a worker sends: what it sends carries the number of its own update.
    InExchange,
    /// Behind the update, before it is recorded.
    AfterUpdate,
    /// In a resume, behind the restore of a checkpoint of the fault's step.
    Restore,
    /// In a save, behind the first shard.
    ShardWritten,
    /// In a save, when every file lies in the temporary folder.
    Staged,
    /// In a save, when the folder has its final name and no entry says so.
    Renamed,
    /// Behind `checkpoint.validated`.
    Validated,
    /// In an evaluation of the selection stream.
    Evaluation,
    /// When the selection rule chooses; the run's last step.
    Selection,
}

impl FaultPhase {
    /// The name in JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::BeforeForward => "before_forward",
            Self::AfterBackward => "after_backward",
            Self::BeforeExchange => "before_exchange",
            Self::InExchange => "in_exchange",
            Self::AfterUpdate => "after_update",
            Self::Restore => "restore",
            Self::ShardWritten => "shard_written",
            Self::Staged => "staged",
            Self::Renamed => "renamed",
            Self::Validated => "validated",
            Self::Evaluation => "evaluation",
            Self::Selection => "selection",
        }
    }
}

impl fmt::Display for FaultKind {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

impl fmt::Display for FaultPhase {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

/// What happens after a fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Recovery {
    /// A new attempt from the newest validated checkpoint.
    RestartFromLastValidated,
    /// A new attempt from the newest resume-qualified checkpoint.
    RestartFromLastQualified,
    /// A new attempt from the newest validated checkpoint at or before the last
    /// step at which the struck attempt was found in order; those that it saved
    /// later are quarantined.
    RollBack,
    /// The run ends.
    Refuse,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn json(value: impl Serialize) -> String {
        serde_json::to_string(&value).expect("a name serialises")
    }

    #[test]
    fn names_are_those_of_the_json_form() {
        for fault in FaultKind::ALL {
            assert_eq!(json(fault), format!("{:?}", fault.name()));
            assert!(!fault.phases().is_empty());
            for phase in fault.phases() {
                assert_eq!(json(phase), format!("{:?}", phase.name()));
            }
        }
    }
}
