//! Checkpoint stages.

use serde::{Deserialize, Serialize};

use crate::contract::EquivalenceClass;
use crate::digest::Digest;
use crate::ids::CheckpointId;
use crate::present::present;
use crate::state::{StateClass, StateDigest};

/// Stage of a checkpoint, weakest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum CheckpointStage {
    /// Announced.
    Requested,
    /// Complete in a temporary folder.
    Staged,
    /// Renamed and flushed.
    DurablyCommitted,
    /// Read back; a crash may resume from it.
    Validated,
    /// A probe matched; it may be claimed and may allow others to be pruned.
    ResumeQualified,
}

/// Determined half of most checkpoint entries; the step is in the header too.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct CheckpointDet {
    /// Logical step of the state.
    pub step: u64,
}

/// Observed half of most checkpoint entries.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct CheckpointObs {
    /// Which checkpoint.
    pub checkpoint: CheckpointId,
    /// Since the stage before, in microseconds.
    pub duration_us: u64,
}

/// `checkpoint.durably_committed`, determined half.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct CheckpointCommittedDet {
    /// Every class of the contract.
    pub classes: Vec<StateDigest>,
    /// BLAKE3 of the model shard, which is also the candidate's weights file; of
    /// a model in several files, of its index.
    pub model: Digest,
    /// Root of the state tree; left out where the contract has no such tree.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "present")]
    #[cfg_attr(feature = "json-schema", schemars(with = "Digest"))]
    pub state_root: Option<Digest>,
    /// Logical step of the state.
    pub step: u64,
}

/// `checkpoint.durably_committed`, observed half: what names this copy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct CheckpointCommittedObs {
    /// Which checkpoint.
    pub checkpoint: CheckpointId,
    /// Since the request, in microseconds.
    pub duration_us: u64,
    /// BLAKE3 of `manifest.json`.
    pub manifest: Digest,
    /// Size of all files in bytes.
    pub num_bytes: u64,
    /// Folder, relative to the ledger's folder.
    pub path: String,
}

/// `checkpoint.resume_qualified`, determined half.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct CheckpointQualifiedDet {
    /// Class that the probe was judged in.
    pub class: EquivalenceClass,
    /// Index of the `probe.result` entry.
    pub probe: u64,
    /// Logical step of the state.
    pub step: u64,
}

/// `checkpoint.failed` and `checkpoint.quarantined`, observed half.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct CheckpointFailedObs {
    /// Which checkpoint.
    pub checkpoint: CheckpointId,
    /// In words.
    pub reason: String,
}

/// `checkpoint.retired`, determined half. The entry is durable before the
/// first file goes; manifest and digests stay.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct CheckpointRetiredDet {
    /// Classes whose shards stay: the model of a candidate, else none.
    pub kept: Vec<StateClass>,
    /// Why the retention policy let it go.
    pub reason: RetirementReason,
    /// Logical step of the state.
    pub step: u64,
}

/// Why the retention policy let a checkpoint go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum RetirementReason {
    /// The policy chooses it by none of its clauses, and nothing protects it.
    NotChosen,
    /// The same, although the policy chooses its step: a later attempt saved
    /// that step again.
    Superseded,
}

impl RetirementReason {
    /// In words.
    #[must_use]
    pub const fn text(self) -> &'static str {
        match self {
            Self::NotChosen => "the policy chooses it neither as newest, best, multiple nor pinned",
            Self::Superseded => "a later attempt saved its step again",
        }
    }
}
