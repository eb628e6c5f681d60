//! Freeze, run, attempt, segment, heartbeat, intervention, amendment, cost.

use serde::{Deserialize, Serialize};

use super::Counters;
use crate::contract::{Code, CompilerPlan, Dtype, Environment};
use crate::digest::Digest;
use crate::dsse::EnvelopeSignature;
use crate::ids::{AttemptId, CheckpointId, SegmentId};
use crate::number::Float;

/// A file that was read and digested at the freeze and is stored in the
/// ledger's `artifacts` table, so that an audit needs no other copy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct StoredArtifact {
    /// BLAKE3 of the bytes.
    pub digest: Digest,
    /// Size in bytes.
    pub num_bytes: u64,
    /// JSON pointer of the binding in the contract: `/update/card`.
    pub pointer: String,
}

/// `contract.frozen`, determined half.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ContractFrozenDet {
    /// Named files whose bytes are in the `artifacts` table.
    pub artifacts: Vec<StoredArtifact>,
    /// The canonical bytes (RFC 8785) as text.
    pub contract: String,
    /// SHA-256 of those bytes.
    pub digest: Digest,
    /// The owner's signature over the DSSE pre-authentication encoding with
    /// type [`crate::dsse::CONTRACT_PAYLOAD_TYPE`].
    pub signature: EnvelopeSignature,
}

/// `contract.frozen`, observed half.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ContractFrozenObs {
    /// 16 hex digits, drawn at the freeze; part of the run's identifier.
    pub nonce: String,
    /// Program and version that froze it.
    pub tool: String,
}

/// `run.start`, determined half.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct RunStartDet {
    /// SHA-256 of the contract.
    pub contract: Digest,
}

/// `run.start`, observed half.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct RunStartObs {
    /// Program and version.
    pub tool: String,
}

/// How an attempt or a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// The stopping rule was reached.
    Completed,
    /// A signal ended the attempt; the run may go on.
    Interrupted,
    /// The budget was reached before the stopping rule.
    BudgetExhausted,
    /// A floor (memory, disk) was reached.
    FloorReached,
    /// An error ended it.
    Failed,
    /// The recovery policy forbids going on.
    Refused,
}

/// `run.end`, determined half.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct RunEndDet {
    /// Cumulative counters of the run's logical length.
    pub counters: Counters,
    /// The last step.
    pub last_step: u64,
    /// How it ended.
    pub outcome: Outcome,
    /// What reached it, in words.
    pub reason: String,
    /// Whether the contract's quality target was met; null where it has none
    /// or no candidate was selected.
    pub target_met: Option<bool>,
}

/// `run.end`, observed half. The counts are derived again by the validator.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct RunEndObs {
    /// Costs over all attempts.
    pub cost: CostTotals,
    /// Process starts.
    pub num_attempts: u32,
    /// Of these, without a terminal entry.
    pub num_attempts_incomplete: u32,
}

/// Why a process started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum AttemptReason {
    /// The run's first process.
    Start,
    /// From a checkpoint, after an attempt that ended or vanished.
    Resume,
    /// From the initial state, because no checkpoint was validated yet.
    Restart,
}

/// Where an attempt takes its state from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ResumePoint {
    /// The checkpoint.
    pub checkpoint: CheckpointId,
    /// BLAKE3 of its manifest.
    pub manifest: Digest,
    /// Its step.
    pub step: u64,
}

/// `attempt.start`, determined half.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct AttemptStartDet {
    /// Its number, from 1.
    pub attempt: AttemptId,
    /// The code that runs.
    pub code: Code,
    /// SHA-256 of the contract.
    pub contract: Digest,
    /// Step whose state it starts from; 0 for the initial state.
    pub from_step: u64,
    /// Why it started.
    pub reason: AttemptReason,
    /// Null for the initial state.
    pub resumed_from: Option<ResumePoint>,
}

/// The plan that ran.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ExecutedPlan {
    /// What was compiled and where it ran.
    pub compiler: CompilerPlan,
    /// dtype of forward and backward.
    pub compute_dtype: Dtype,
    /// Cargo features of diagnosis that change what runs, such as
    /// `failpoints`; empty in an ordinary run.
    pub instrumentation: Vec<String>,
    /// Threads that tensor kernels may use.
    pub num_threads: u32,
    /// Worker processes.
    pub num_workers: u32,
}

/// `attempt.start`, observed half.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct AttemptStartObs {
    /// CPU model, for people.
    pub cpu: String,
    /// What it runs in.
    pub environment: Environment,
    /// SHA-256 of the host's identity.
    pub host: Digest,
    /// The plan that runs.
    pub plan: ExecutedPlan,
    /// Process id.
    pub process: u32,
    /// Total memory in bytes.
    pub total_memory_bytes: u64,
}

/// `attempt.end`, determined half.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct AttemptEndDet {
    /// Which attempt.
    pub attempt: AttemptId,
    /// Its last completed step, or the step that it started from.
    pub last_step: u64,
    /// How it ended.
    pub outcome: Outcome,
}

/// `attempt.end`, observed half.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct AttemptEndObs {
    /// What this attempt cost.
    pub cost: CostTotals,
    /// In words: the signal, the limit, the error.
    pub reason: String,
}

/// `segment.start`, determined half.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct SegmentStartDet {
    /// Why the identity changed; null for the first segment, which is the
    /// contract's own.
    pub adjudication: Option<String>,
    /// First step that belongs to it is the one after this.
    pub from_step: u64,
    /// SHA-256 of what identifies the segment: the contract's digest for the
    /// first; later parts define others.
    pub identity: Digest,
    /// The segment before; null for the first.
    pub parent: Option<SegmentId>,
    /// Its number, from 1.
    pub segment: SegmentId,
}

/// `heartbeat`, determined half.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct HeartbeatDet {
    /// What the process is doing: `train`, `eval`, `checkpoint`.
    pub phase: String,
}

/// `heartbeat`, observed half.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct HeartbeatObs {
    /// Resident memory in bytes.
    pub resident_bytes: u64,
}

/// `intervention`, determined half.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct InterventionDet {
    /// What was done.
    pub action: String,
}

/// `intervention`, observed half.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct InterventionObs {
    /// Minutes of a person's time; null where nobody said.
    pub operator_minutes: Option<u32>,
    /// Who, and why.
    pub reason: String,
}

/// `amendment`, determined half.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct AmendmentDet {
    /// Index of the entry that it corrects.
    pub amends: u64,
    /// The correction, in words.
    pub statement: String,
}

/// Totals that accumulate over attempts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct CostTotals {
    /// Bytes sent between workers.
    pub bytes_sent: u64,
    /// Bytes written to the checkpoint store.
    pub checkpoint_bytes: u64,
    /// Microseconds spent writing checkpoints.
    pub checkpoint_us: u64,
    /// Processor time of the process in microseconds, user and system.
    pub cpu_us: u64,
    /// Energy in joules; null where it cannot be measured.
    pub energy_j: Option<u64>,
    /// Microseconds spent in evaluations.
    pub eval_us: u64,
    /// Updates executed, repeated ones included.
    pub num_steps_executed: u64,
    /// Peak resident memory in bytes.
    pub peak_resident_bytes: u64,
    /// Microseconds that the training loop waited for the recorder.
    pub recording_us: u64,
    /// Wall time in microseconds.
    pub wall_us: u64,
}

/// `cost`, determined half.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct CostDet {
    /// What it is charged to: `attempt`, `run`, `operator`, `recovery`.
    pub charged_to: String,
}

/// `cost`, observed half.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct CostObs {
    /// How much.
    pub amount: Float,
    /// In words.
    pub description: String,
    /// Unit of the amount: `s`, `bytes`, `J`, `minutes`.
    pub unit: String,
}
