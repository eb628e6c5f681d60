//! Updates, evaluations, diagnostics.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::contract::{Metric, ParameterView};
use crate::data::Split;
use crate::digest::Digest;
use crate::ids::WorkerId;
use crate::number::Float;
use crate::present::{not_empty, present};
use crate::state::StateDigest;

/// A run of consecutive positions within one epoch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct PositionRange {
    /// Epoch, from 0.
    pub epoch: u64,
    /// First position within the epoch.
    pub first: u64,
    /// Positions.
    pub num_examples: u64,
}

/// What a step consumed of one stream.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Draw {
    /// BLAKE3 over the 32-byte example ids in the order of consumption.
    pub ids: Digest,
    /// BLAKE3 over what was fed: for each example in order, the number of its
    /// bytes as u32 little-endian and the bytes themselves (inputs and the
    /// last target), taken from the tensors that entered the model.
    pub inputs: Digest,
    /// Why examples were drawn: `update`.
    pub purpose: String,
    /// Positions in order of consumption.
    pub ranges: Vec<PositionRange>,
    /// Name of the stream: `train`.
    pub stream: String,
}

/// How credit was assigned in a step.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Credit {
    /// Reverse-mode gradients.
    Backpropagation {
        /// Euclidean norm of the gradient of the mean loss over all trainable
        /// parameters, before clipping.
        gradient_norm: Float,
        /// Mean over the global batch's target tokens, in nats.
        loss: Float,
        /// Microbatches that made the gradient.
        num_microbatches: u32,
        /// Target tokens in the global batch.
        num_tokens: u64,
    },
    /// Fitness of a population.
    Evolution {
        /// Candidate evaluations.
        evaluations: u64,
        /// Mean fitness.
        fitness: Float,
        /// Population.
        population: u64,
    },
}

/// What an update did to one parameter group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct GroupUpdate {
    /// What gradients were multiplied by; 1 where nothing was clipped.
    pub clip_coefficient: Float,
    /// Name of the group.
    pub group: String,
    /// Scheduled rate times the group's multiplier, before rounding to the
    /// parameters' dtype.
    pub learning_rate: Float,
    /// Norm of the group's parameters after the update; null when not taken.
    pub parameter_norm: Option<Float>,
    /// Norm of the change; null when not taken.
    pub update_norm: Option<Float>,
    /// Decoupled decay.
    pub weight_decay: Float,
}

/// What the loss scaler did.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Overflow {
    /// Whether a gradient was not finite.
    pub found: bool,
    /// Scale that the backward pass used.
    pub scale: Float,
    /// Whether the update was left out.
    pub skipped: bool,
}

/// Cumulative counters of the logical run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Counters {
    /// Candidate evaluations of credit rules that use them; else 0.
    pub evaluations: u64,
    /// Examples consumed by updates.
    pub examples: u64,
    /// Target tokens consumed by updates.
    pub tokens: u64,
}

/// `step`, determined half. The header's `step` is the number of completed
/// updates, this one included.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct StepDet {
    /// After the update.
    pub counters: Counters,
    /// How credit was assigned.
    pub credit: Credit,
    /// What was consumed.
    pub draws: Vec<Draw>,
    /// Null without a loss scaler.
    pub overflow: Option<Overflow>,
    /// At the contract's cadence; else null.
    pub state: Option<Vec<StateDigest>>,
    /// Root of the state tree, with `state`; left out where the contract has no
    /// such tree.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "present")]
    #[cfg_attr(feature = "json-schema", schemars(with = "Digest"))]
    pub state_root: Option<Digest>,
    /// In the order of the policy card's groups.
    pub updates: Vec<GroupUpdate>,
}

/// `step`, observed half.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct StepObs {
    /// Bytes that this worker sent.
    pub bytes_sent: u64,
    /// Wall time of the update in microseconds.
    pub duration_us: u64,
    /// Of these, waiting for the recorder.
    pub recording_us: u64,
    /// Digests of every worker's parameters and moments, in the order of
    /// workers, at the contract's cadence; left out elsewhere and where there is
    /// one worker.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "not_empty")]
    pub replicas: Vec<ReplicaDigest>,
    /// Resident memory in bytes; null when not read at this step.
    pub resident_bytes: Option<u64>,
    /// Who executed which microbatches, in the order of workers; left out where
    /// there is one worker.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "not_empty")]
    pub shares: Vec<WorkerShare>,
}

/// What a worker's replica came to (`docs/FORMAT.md`, "Workers").
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ReplicaDigest {
    /// BLAKE3 over its parameters and moments after the update.
    pub digest: Digest,
    /// Which worker.
    pub worker: WorkerId,
}

/// A worker's part of one update.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct WorkerShare {
    /// Bytes that it sent for this update; 0 of the process that records.
    pub bytes_sent: u64,
    /// From the update's start to its last byte, in microseconds.
    pub duration_us: u64,
    /// Its first microbatch of the update, from 0.
    pub first_microbatch: u32,
    /// BLAKE3 over the sums of gradients that it gave, as they were sent.
    pub gradients: Digest,
    /// Microbatches in a row.
    pub num_microbatches: u32,
    /// Which worker.
    pub worker: WorkerId,
}

/// `eval`, determined half.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct EvalDet {
    /// What was computed.
    pub metric: Metric,
    /// BLAKE3 of the evaluated model shard's bytes, where the same step is
    /// checkpointed; else null.
    pub model: Option<Digest>,
    /// Examples, from the first of the table.
    pub num_examples: u64,
    /// Target tokens.
    pub num_tokens: u64,
    /// What it was computed on.
    pub split: Split,
    /// Name of the stream.
    pub stream: String,
    /// Sum over target tokens of the negative log likelihood in nats.
    pub total_nats: Float,
    /// The metric.
    pub value: Float,
    /// Which parameters.
    pub view: ParameterView,
}

/// `eval`, observed half.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct EvalObs {
    /// Wall time in microseconds.
    pub duration_us: u64,
}

/// `diagnostic`, determined half.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct DiagnosticDet {
    /// What was measured.
    pub name: String,
    /// By name.
    pub values: BTreeMap<String, Float>,
}

/// `diagnostic`, observed half.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct DiagnosticObs {
    /// By name.
    pub values: BTreeMap<String, Float>,
}
