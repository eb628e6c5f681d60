//! Faults: injected, observed, recovered from.

use serde::{Deserialize, Serialize};

use crate::contract::{FaultKind, FaultPhase};
use crate::ids::{AttemptId, CheckpointId};
use crate::present::present;

/// `fault.injected`, determined half: durable before the fault acts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct FaultInjectedDet {
    /// The family.
    pub fault: FaultKind,
    /// Where it acts.
    pub phase: FaultPhase,
    /// Index into the contract's plan.
    pub plan_index: u32,
}

/// What kind of fault was observed, planned or not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum ObservedFault {
    /// An attempt left no terminal entry: killed, crashed, or power lost.
    AttemptVanished,
    /// A checkpoint's bytes do not match its manifest.
    CheckpointCorrupt,
    /// A checkpoint was never completed.
    CheckpointIncomplete,
    /// A worker stopped.
    WorkerLost,
    /// A worker answered too late.
    WorkerTimeout,
    /// Data differ from the contract.
    DataChanged,
    /// Loss or gradient is not finite.
    NotFinite,
    /// State differs from what was recorded.
    StateMismatch,
    /// Storage refused a write.
    StorageFailed,
    /// Something else executes than the contract's plan: precision or workers.
    PlanMismatch,
    /// A worker sent something else than its share of this update, or its
    /// parameters differ from the others'.
    WorkerDisagrees,
    /// Evaluation or selection is not what the record gives.
    SelectionMismatch,
}

/// `fault.observed`, determined half.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct FaultObservedDet {
    /// The attempt that it struck.
    pub attempt: AttemptId,
    /// The family that it is taken for; left out where what was seen does not
    /// tell.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "present")]
    #[cfg_attr(feature = "json-schema", schemars(with = "FaultKind"))]
    pub cause: Option<FaultKind>,
    /// What was seen.
    pub fault: ObservedFault,
    /// Last step that the ledger holds of that attempt.
    pub last_step: u64,
}

/// `fault.observed`, observed half.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct FaultObservedObs {
    /// Checkpoint concerned, if any.
    pub checkpoint: Option<CheckpointId>,
    /// In words.
    pub description: String,
}

/// `fault.recovered`, determined half.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct FaultRecoveredDet {
    /// The attempt that was struck.
    pub attempt: AttemptId,
    /// Step that the run goes on from.
    pub from_step: u64,
    /// Steps of the struck attempt that are executed again.
    pub num_steps_lost: u64,
}

/// `fault.recovered`, observed half.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct FaultRecoveredObs {
    /// Checkpoint that it goes on from; null: the initial state.
    pub checkpoint: Option<CheckpointId>,
    /// Why not a newer one, in words; null where it is the newest.
    pub fallback: Option<String>,
}
