//! Training state: the state classes, why one may not apply, and the manifest
//! of a checkpoint.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::digest::Digest;
use crate::ids::{AttemptId, CheckpointId, LearnerId, RunId, WorkerId};

/// A part of training state that can change the future of a run.
///
/// The first ten are the classes that every contract must account for; the
/// others exist where the architecture, optimizer or cluster has them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum StateClass {
    /// Parameters and buffers.
    Model,
    /// Moments and per-parameter step counts of the update rule.
    Optimizer,
    /// Position in the learning-rate schedule, and its own state if it has any.
    Scheduler,
    /// Random state of the host.
    RngCpu,
    /// Random state of the device.
    RngDevice,
    /// Loss scale, growth counter, skipped steps.
    LossScaler,
    /// Epoch, position, and what has been consumed.
    DataCursor,
    /// State of the sampler beyond the cursor, such as a shuffle buffer.
    Sampler,
    /// Workers, ranks, parallel degrees.
    Topology,
    /// What was compiled or selected: kernels, threads, device features.
    CompilerPlan,
    /// Averaged parameters (EMA, SWA, schedule-free iterates).
    Averages,
    /// Gradients of an unfinished accumulation window.
    AccumulatedGradients,
    /// Hidden state carried between steps.
    RecurrentState,
    /// Momentum of an outer optimizer.
    OuterMomentum,
    /// Rounding remainders carried to the next exchange.
    Carries,
    /// Best value so far, patience counters.
    SelectionState,
    /// Faults injected or pending.
    FaultState,
}

impl StateClass {
    /// The classes that every contract captures or declares not applicable.
    pub const REQUIRED: [Self; 10] = [
        Self::Model,
        Self::Optimizer,
        Self::Scheduler,
        Self::RngCpu,
        Self::RngDevice,
        Self::LossScaler,
        Self::DataCursor,
        Self::Sampler,
        Self::Topology,
        Self::CompilerPlan,
    ];

    /// The name in JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Model => "model",
            Self::Optimizer => "optimizer",
            Self::Scheduler => "scheduler",
            Self::RngCpu => "rng_cpu",
            Self::RngDevice => "rng_device",
            Self::LossScaler => "loss_scaler",
            Self::DataCursor => "data_cursor",
            Self::Sampler => "sampler",
            Self::Topology => "topology",
            Self::CompilerPlan => "compiler_plan",
            Self::Averages => "averages",
            Self::AccumulatedGradients => "accumulated_gradients",
            Self::RecurrentState => "recurrent_state",
            Self::OuterMomentum => "outer_momentum",
            Self::Carries => "carries",
            Self::SelectionState => "selection_state",
            Self::FaultState => "fault_state",
        }
    }
}

impl fmt::Display for StateClass {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

/// Why a state class holds nothing in a run. Each reason states a property of
/// the contract that the validator checks; there is no free text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum NotApplicableReason {
    /// Randomness is counter-based: a function of seed and coordinates.
    /// Requires that every draw's scheme in the contract is counter-based: no
    /// `dropout_draws` but `keyed/1`.
    CounterBasedRandomness,
    /// The device draws nothing. Requires the same of the contract.
    NoDeviceRandomness,
    /// The schedule is a closed function of the step number.
    /// Requires a schedule shape that is one.
    FunctionOfStep,
    /// Order is a keyed permutation of the position.
    /// Requires `order.scheme = keyed_permutation/1`.
    FunctionOfPosition,
    /// No f16 computation, so no loss scaling. Requires `numerics.loss_scaler = null`.
    NoLossScaling,
    /// Checkpoints fall on update boundaries only.
    /// Requires `checkpoints.mid_accumulation = round_to_boundary`.
    UpdateBoundariesOnly,
}

/// What a contract says of one state class.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct StateClassDeclaration {
    /// The class.
    pub class: StateClass,
    /// Null when the class is captured in every checkpoint.
    pub not_applicable: Option<NotApplicableReason>,
}

/// One tensor inside a shard.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct TensorInfo {
    /// safetensors spelling: `F32`, `BF16`, `F16`, `I64`, `U64`, ...
    pub dtype: String,
    /// Name inside the shard.
    pub name: String,
    /// Row-major extents.
    pub shape: Vec<u64>,
}

/// One file of a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Shard {
    /// BLAKE3 of the file's bytes.
    pub digest: Digest,
    /// Size of the file in bytes.
    pub num_bytes: u64,
    /// Relative to the checkpoint's folder; no `..`, no leading `/`.
    pub path: String,
    /// Tensors of a safetensors shard in name order; empty for a JSON shard.
    pub tensors: Vec<TensorInfo>,
}

/// One state class as captured in a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct CapturedClass {
    /// The class.
    pub class: StateClass,
    /// Whose state.
    pub learner: LearnerId,
    /// Null when captured, and then `shards` has at least one file.
    pub not_applicable: Option<NotApplicableReason>,
    /// The files that hold it.
    pub shards: Vec<Shard>,
    /// Logical step that the state stands at; the same for every class.
    pub step: u64,
    /// Which worker, or null where workers share it.
    pub worker: Option<WorkerId>,
}

/// `manifest.json` of a checkpoint: written last, canonical bytes, named by
/// its BLAKE3 in the `checkpoint.durably_committed` entry.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct CheckpointManifest {
    /// Attempt that saved it.
    pub attempt: AttemptId,
    /// Its name.
    pub checkpoint: CheckpointId,
    /// Every class of the contract, in the order of [`StateClass`].
    pub classes: Vec<CapturedClass>,
    /// SHA-256 of the contract's canonical bytes.
    pub contract: Digest,
    /// [`crate::CHECKPOINT_MANIFEST_FORMAT`].
    pub format: String,
    /// The run.
    pub run: RunId,
    /// Logical step: completed updates; 0 is the initial state.
    pub step: u64,
}

/// Digest of one state class, for exact replay and for the `det` half of
/// entries: BLAKE3 over the class's shard digests, in path order, as
/// `docs/FORMAT.md` ("State digests") says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct StateDigest {
    /// The class.
    pub class: StateClass,
    /// Null where the class is not applicable.
    pub digest: Option<Digest>,
}
