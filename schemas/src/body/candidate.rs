//! Candidates, handoff, witnesses, qualification.

use serde::{Deserialize, Serialize};

use crate::contract::Metric;
use crate::digest::Digest;
use crate::ids::{CandidateId, CheckpointId};
use crate::number::Float;

/// `candidate.admitted`, determined half.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct CandidateAdmittedDet {
    /// BLAKE3 of `config.json`.
    pub config: Digest,
    /// BLAKE3 of the weights file.
    pub model: Digest,
    /// Step of its checkpoint.
    pub step: u64,
    /// The trainer's own value of the selection stream.
    pub value: Float,
}

/// Observed half of candidate entries.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct CandidateObs {
    /// Which candidate.
    pub candidate: CandidateId,
    /// Its checkpoint.
    pub checkpoint: CheckpointId,
}

/// `candidate.selected`, determined half.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct CandidateSelectedDet {
    /// BLAKE3 of the weights file.
    pub model: Digest,
    /// Size of the family that it was chosen from.
    pub num_candidates: u64,
    /// Step of its checkpoint.
    pub step: u64,
    /// Stream that decided.
    pub stream: String,
    /// Its value.
    pub value: Float,
}

/// `handoff.issued`, determined half.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct HandoffIssuedDet {
    /// BLAKE3 of the weights file.
    pub model: Digest,
    /// Step of its checkpoint.
    pub step: u64,
}

/// `handoff.issued`, observed half.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct HandoffIssuedObs {
    /// Which candidate.
    pub candidate: CandidateId,
    /// BLAKE3 of the audit report that accepted the run.
    pub report: Digest,
    /// Root hash that the report saw, 64 hex digits.
    pub root: String,
    /// Tree size that the report saw.
    pub size: u64,
}

/// `witness.head`, determined half.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct WitnessHeadDet {
    /// The cosigned note.
    pub note: String,
    /// Name of the witness.
    pub witness: String,
}

/// `qualification.opened`, determined half: durable before the set is opened.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct QualificationOpenedDet {
    /// BLAKE3 of the handoff envelope.
    pub handoff: Digest,
    /// BLAKE3 of the candidate's weights file.
    pub model: Digest,
    /// BLAKE3 of the sealed file.
    pub sealed: Digest,
}

/// `qualification.opened`, observed half.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct QualificationOpenedObs {
    /// Earlier openings of the same sealed set in this ledger.
    pub num_earlier_openings: u64,
    /// Program and version.
    pub tool: String,
}

/// Text that the opened set shares with train or val text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Overlap {
    /// How it was measured.
    pub method: String,
    /// Spans of the opened set that occur in train or val text.
    pub num_shared: u64,
    /// Spans of the opened set.
    pub num_spans: u64,
}

/// `qualification.result`, determined half.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct QualificationResultDet {
    /// BLAKE3 of the handoff envelope.
    pub handoff: Digest,
    /// What was computed.
    pub metric: Metric,
    /// BLAKE3 of the candidate's weights file.
    pub model: Digest,
    /// Target tokens.
    pub num_tokens: u64,
    /// Overlap with what the run could see; null where train and val text
    /// were not at hand, and then the result says so.
    pub overlap: Option<Overlap>,
    /// BLAKE3 of the opened set.
    pub plaintext: Digest,
    /// Sum of the negative log likelihood in nats.
    pub total_nats: Float,
    /// The metric.
    pub value: Float,
}

/// Observed half of the evaluator's results.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct QualificationResultObs {
    /// Wall time in microseconds.
    pub duration_us: u64,
    /// Program and version.
    pub tool: String,
}

/// `qualification.val`, determined half: one candidate on the val split.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct QualificationValDet {
    /// What was computed.
    pub metric: Metric,
    /// BLAKE3 of the candidate's weights file.
    pub model: Digest,
    /// Examples, from the first of the table.
    pub num_examples: u64,
    /// Target tokens.
    pub num_tokens: u64,
    /// Step of its checkpoint.
    pub step: u64,
    /// Evaluation stream.
    pub stream: String,
    /// Sum of the negative log likelihood in nats.
    pub total_nats: Float,
    /// The metric.
    pub value: Float,
}
