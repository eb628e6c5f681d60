//! Schedule, batch, budget, stopping, evaluation, selection, checkpoints.

use serde::{Deserialize, Serialize};

use super::Metric;
use crate::body::CheckpointStage;
use crate::data::Split;

/// Learning rate of one parameter group.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct GroupSchedule {
    /// Group of the policy card.
    pub group: String,
    /// The rate as a function of the step.
    pub shape: ScheduleShape,
}

/// Rate of step `t`, from 1; see `docs/FORMAT.md` ("Learning rates").
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum ScheduleShape {
    /// The same at every step.
    Constant {
        /// The rate.
        rate: f64,
    },
    /// As high as at first until an evaluation stream stops improving, then
    /// lower by `factor`; see `docs/FORMAT.md` ("Plateau").
    Plateau {
        /// Evaluations after a reduction during which none counts as bad.
        cooldown: u64,
        /// Multiplies the rate; above 0 and below 1.
        factor: f64,
        /// The rate never falls below it.
        floor: f64,
        /// Smallest improvement that counts.
        min_delta: f64,
        /// Bad evaluations in a row that are still tolerated.
        patience: u64,
        /// Rate of step 1.
        rate: f64,
        /// Evaluation stream that is watched.
        stream: String,
    },
    /// Linear from `peak / warmup_steps` to `peak` over `warmup_steps`, then
    /// half a cosine to `floor` at `total_steps`, then `floor`.
    WarmupCosine {
        /// Rate from `total_steps` on.
        floor: f64,
        /// Rate at step `warmup_steps`.
        peak: f64,
        /// Step at which the cosine ends.
        total_steps: u64,
        /// Steps of warmup; may be 0.
        warmup_steps: u64,
    },
}

/// Batch arithmetic: `global = microbatch * accumulation * data_parallel`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Batch {
    /// Microbatches that one worker accumulates for an update.
    pub accumulation: u32,
    /// Workers with the same parameters.
    pub data_parallel: u32,
    /// Examples in one update.
    pub global_examples: u32,
    /// Examples in one forward pass of one worker.
    pub microbatch_examples: u32,
}

/// Limits of the run; the first to be reached ends it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Budget {
    /// Process starts.
    pub max_attempts: u32,
    /// Updates, over the run's logical length.
    pub max_steps: u64,
    /// Target tokens over the run's logical length; null: no limit.
    pub max_tokens: Option<u64>,
    /// Seconds over all attempts; null: no limit.
    pub max_wall_s: Option<u64>,
}

/// When training ends.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum StoppingRule {
    /// At exactly this step.
    AtStep {
        /// The last update.
        step: u64,
    },
    /// When the stream's metric has not improved by more than `min_delta` for
    /// `patience` evaluations, or at `max_step`.
    Patience {
        /// The last update at the latest.
        max_step: u64,
        /// Smallest improvement that counts.
        min_delta: f64,
        /// Evaluations without improvement.
        patience: u32,
        /// Evaluation stream.
        stream: String,
    },
}

/// Which way is better.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Direction {
    /// Smaller is better.
    Minimize,
    /// Larger is better.
    Maximize,
}

/// Which parameters are evaluated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum ParameterView {
    /// As the last update left them.
    Current,
    /// Averaged.
    Averages,
}

/// Evaluation streams.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Evaluation {
    /// At least one.
    pub streams: Vec<EvaluationStream>,
}

/// One evaluation stream: at step 0, at every multiple of `every_steps`, and
/// at the last step of the run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct EvaluationStream {
    /// Which way is better.
    pub direction: Direction,
    /// Interval in updates, at least 1.
    pub every_steps: u64,
    /// What is computed.
    pub metric: Metric,
    /// Name.
    pub name: String,
    /// The first so many examples of the table; null: all of them.
    pub num_examples: Option<u64>,
    /// What it is computed on.
    pub split: Split,
    /// Which parameters.
    pub view: ParameterView,
}

/// Which candidate is handed off.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct SelectionRule {
    /// Which checkpoints become candidates.
    pub family: CandidateFamily,
    /// Stream whose metric decides; it must be of the val split.
    pub stream: String,
    /// What decides between equal values. A value that is not finite never wins.
    pub tie: TieBreak,
}

/// Which checkpoints become candidates.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum CandidateFamily {
    /// Every checkpoint at a step of the selection stream, but step 0.
    EveryEvaluatedCheckpoint,
    /// Only the last one.
    FinalOnly,
}

/// What decides between equal values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum TieBreak {
    /// The smallest step.
    Earliest,
}

/// A frozen quality that the run must reach to be evidence of competence.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct QualityTarget {
    /// Where the threshold comes from, such as a baseline and its score.
    pub derivation: String,
    /// Evaluation stream.
    pub stream: String,
    /// Reached when the selected candidate's value is at least this good.
    pub threshold: f64,
}

/// When state is saved and what is kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct CheckpointPolicy {
    /// Microbatches of the next update after which a due state is saved; left
    /// out: none, at the boundary. Steps 0 and the last are saved at the
    /// boundary always. Needs `mid_accumulation` `save_gradients`, and is at
    /// least 1 and below `batch.accumulation`. Example: `2` of an accumulation
    /// of 5.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after_microbatches: Option<u32>,
    /// Stage that a candidate must have reached before it is handed off.
    pub candidate_stage: CheckpointStage,
    /// At step 0, every multiple of this, and the last step.
    pub every_steps: u64,
    /// What pruning leaves.
    pub keep: KeepPolicy,
    /// What a save inside an accumulation window does.
    pub mid_accumulation: MidAccumulation,
    /// How the writer and the training loop overlap.
    pub mode: SaveMode,
    /// Folder relative to the ledger's folder, or `s3://bucket/prefix`: the URL
    /// without credentials, which come from the trainer's environment. Under a
    /// URL the files also lie in `checkpoints` beside the ledger.
    pub store: String,
}

/// What pruning leaves. What `docs/FORMAT.md` ("Retention") protects is kept
/// under every policy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum KeepPolicy {
    /// Everything.
    All,
    /// What any of these four chooses; the rest is retired as soon as a newer
    /// checkpoint is validated.
    Chosen {
        /// How many of the best by the selection stream, at least 1.
        best: u32,
        /// Every multiple of this; null: none.
        every_steps: Option<u64>,
        /// How many of the newest, at least 1.
        last: u32,
        /// These steps, in ascending order.
        pinned: Vec<u64>,
    },
}

/// What a save inside an accumulation window does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum MidAccumulation {
    /// There is none: state is saved between updates, and an attempt that is
    /// interrupted falls back to the last one saved.
    RoundToBoundary,
    /// It saves the accumulated gradients, and a resume goes on with the next
    /// microbatch. An attempt that a signal ends then saves where it stands;
    /// see `docs/FORMAT.md` ("Accumulation windows").
    SaveGradients,
}

/// How saving and training overlap.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum SaveMode {
    /// Training waits for the commit.
    Synchronous,
    /// Training goes on beside the save of a consistent copy, one at a time; see `docs/FORMAT.md` ("Saves in flight").
    Asynchronous,
}
