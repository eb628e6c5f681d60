//! Numerics, topology, code, environment, floors, durability.

use serde::{Deserialize, Serialize};

use super::EquivalenceClass;
use crate::digest::Digest;
use crate::present::present;

/// dtypes, reductions, determinism.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Numerics {
    /// dtype of gradient accumulation over microbatches.
    pub accumulation_dtype: Dtype,
    /// dtype of the operands of matrix products in the forward and backward
    /// pass of an update; see `docs/FORMAT.md` ("Compute dtype"). Evaluations
    /// are of the stored parameters, in binary32.
    pub compute_dtype: Dtype,
    /// What the same contract gives when it is executed again.
    pub determinism: EquivalenceClass,
    /// Loss scaling; there exactly where compute is f16.
    pub loss_scaler: Option<LossScaler>,
    /// dtype of stored parameters.
    pub parameter_dtype: Dtype,
    /// In which order microbatch gradients are summed.
    pub reduction: Reduction,
}

/// Element types.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Dtype {
    /// IEEE 754 binary32.
    F32,
    /// bfloat16.
    Bf16,
    /// IEEE 754 binary16.
    F16,
}

/// Dynamic loss scaling: what the loss is multiplied by before the backward
/// pass. A step whose gradient is not finite is skipped: it counts, is recorded
/// and consumes its examples, and it changes no parameter, moment or average;
/// see `docs/FORMAT.md` ("Loss scaling"). All three factors are powers of two,
/// so that scaling changes no bits.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct LossScaler {
    /// Multiplies the scale after an overflow; below 1, such as `0.5`.
    pub backoff: f64,
    /// Multiplies the scale after `growth_interval` steps without overflow;
    /// above 1, such as `2.0`.
    pub growth: f64,
    /// Steps in a row without overflow; at least 1, such as `2000`.
    pub growth_interval: u64,
    /// First scale, such as `65536.0`.
    pub initial: f64,
}

impl Eq for LossScaler {}

/// Order in which microbatch gradients are summed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Reduction {
    /// One binary tree over the global microbatch indices: `sum(a..b)` is
    /// `sum(a..m) + sum(m..b)` with `m - a` the largest power of two below
    /// `b - a`. Workers hold subtrees, so their number does not change bits.
    MicrobatchTree,
}

/// Workers and learners.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Topology {
    /// How workers exchange gradients; there exactly where there are several.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "present")]
    #[cfg_attr(feature = "json-schema", schemars(with = "Collective"))]
    pub collective: Option<Collective>,
    /// Adaptive identities; one unless the learning process has more.
    pub learners: u32,
    /// Ways in which execution may differ from the declared plan without
    /// being another learning process, such as `thread_count`.
    pub permitted_rewrites: Vec<PermittedRewrite>,
    /// Processes that execute one learner; equals `batch.data_parallel`.
    pub workers: u32,
}

/// How workers exchange gradients (`docs/FORMAT.md`, "Workers").
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Collective {
    /// Milliseconds between two signs of life of a worker, on a connection of
    /// their own; below `timeout_ms`.
    pub heartbeat_ms: u32,
    /// Every so many steps the digests of all workers' parameters and moments
    /// are compared and recorded; at least 1.
    pub replica_digest_every_steps: u64,
    /// Milliseconds that a worker may take for its share of an update, or be
    /// silent, before the attempt ends.
    pub timeout_ms: u32,
}

/// A difference in execution that keeps the learning process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum PermittedRewrite {
    /// Any number of threads; the same bits are still required.
    ThreadCount,
    /// An attempt may have another number of workers that share the same global
    /// batch in the same microbatches. It begins a segment of its own, whose
    /// claim is order-bounded.
    WorkerCount,
}

/// What is compiled and where it runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct CompilerPlan {
    /// Whether kernels may be chosen by timing.
    pub autotune: bool,
    /// Package and version that executes tensors: `burn-flex 0.22.1`.
    pub backend: String,
    /// CPU features that kernels may use, in alphabetical order, as
    /// `trainer identity` reports them; an attempt that runs with others is
    /// refused, because bits may differ.
    pub cpu_features: Vec<String>,
    /// Where tensors live.
    pub device: Device,
}

/// Where tensors live.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Device {
    /// burn-flex.
    Cpu,
    /// burn-wgpu.
    Wgpu,
    /// burn-cuda.
    Cuda,
}

/// Memory and traffic that the team expects; a rule compares with what ran.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ExpectedEnvelope {
    /// Bytes that a worker sends for one update.
    pub communication_bytes_per_step: u64,
    /// Peak resident memory of one worker in bytes.
    pub memory_bytes: u64,
}

/// The code that may execute a contract.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Code {
    /// SHA-256 over sources, lock file, compiler version, target and features,
    /// embedded in the binary when it was built; `trainer identity` prints it.
    pub digest: Digest,
    /// Cargo features that were compiled in, in alphabetical order.
    pub features: Vec<String>,
    /// Package name.
    pub package: String,
    /// Package version.
    pub version: String,
}

/// The environment that may execute a contract.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Environment {
    /// `x86_64`, ...
    pub architecture: String,
    /// `linux`, ...
    pub operating_system: String,
    /// Output of `rustc --version` at the build.
    pub rustc: String,
}

/// Limits under which the trainer leaves cleanly.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Floors {
    /// Free bytes on the store's filesystem beyond one more checkpoint.
    pub free_disk_bytes: u64,
    /// `MemAvailable` of `/proc/meminfo`.
    pub free_memory_bytes: u64,
}

/// How much a crash may lose: entries are made durable at the first of these.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Durability {
    /// Milliseconds since the oldest entry that is not durable.
    pub max_unsynced_ms: u32,
    /// Steps that are not durable.
    pub max_unsynced_steps: u32,
}
