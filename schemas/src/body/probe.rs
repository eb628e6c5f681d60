//! Resume probes: a checkpoint is continued in a fresh process and compared
//! with a separately executed, uninterrupted trajectory.

use serde::{Deserialize, Serialize};

use super::ExecutedPlan;
use crate::contract::{Code, EquivalenceClass};
use crate::digest::Digest;
use crate::ids::CheckpointId;
use crate::number::{DecimalU64, Float};
use crate::present::not_empty;
use crate::state::{StateClass, StateDigest};

/// `probe.start`, determined half.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ProbeStartDet {
    /// Class that the probe will be judged in: the contract's.
    pub class: EquivalenceClass,
    /// What executes both trajectories.
    pub code: Code,
    /// Updates that follow the checkpoint on both trajectories.
    pub num_steps: u64,
    /// Step that it resumes from.
    pub step: u64,
    /// State classes that are left at their initial value: a control. Empty in
    /// the probe itself; every captured class but the model in the cold control.
    pub withheld: Vec<StateClass>,
}

/// `probe.start`, observed half.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ProbeStartObs {
    /// Checkpoint that it resumes from.
    pub checkpoint: CheckpointId,
    /// Plan of the process that starts both trajectories with it.
    pub plan: ExecutedPlan,
}

/// How far apart two sequences of numbers are. All zero, and the step null,
/// exactly where every bit is equal.
///
/// What is no number, or has another shape or name on the other side, is
/// infinitely far apart, and its distance in units of the last place is 2^53.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Distance {
    /// First step at which they differ; null when equal.
    pub first_step: Option<u64>,
    /// Largest absolute difference of any element.
    pub max_absolute: Float,
    /// The same among the elements whose relative difference is above the
    /// contract's `max_relative`, which is 0 where it has no tolerance.
    pub max_absolute_beyond_relative: Float,
    /// Largest difference of any element over the larger magnitude of both.
    pub max_relative: Float,
    /// Largest difference in units of the last place, at most 2^53.
    pub max_ulp: u64,
    /// Elements that differ, each counted at every step at which it does.
    pub num_different: u64,
}

/// Distance of one state class between two trajectories.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ClassDistance {
    /// The class.
    pub class: StateClass,
    /// Over every compared step.
    pub distance: Distance,
    /// Whether the bytes were equal at every compared step.
    pub equal: bool,
    /// First tensor that differs at the first such step, or JSON shard with a
    /// pointer into it; null when equal.
    pub first_tensor: Option<String>,
    /// State digest of the uninterrupted trajectory at the last step.
    pub reference: Digest,
    /// State digest of the resumed trajectory at the last step.
    pub resumed: Digest,
}

/// A part of what is recorded of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum RecordField {
    /// Cumulative counters.
    Counters,
    /// Loss, gradient norm, counts.
    Credit,
    /// Positions, ids and inputs.
    Draws,
    /// Values of the streams that were due, without the digest of the model.
    Evaluations,
    /// Whether the stopping rule's patience had run out.
    Stop,
    /// Rates, decay, norms and clipping by group.
    Updates,
}

impl RecordField {
    /// Every part, in order.
    pub const ALL: [Self; 6] =
        [Self::Counters, Self::Credit, Self::Draws, Self::Evaluations, Self::Stop, Self::Updates];

    /// The name in JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Counters => "counters",
            Self::Credit => "credit",
            Self::Draws => "draws",
            Self::Evaluations => "evaluations",
            Self::Stop => "stop",
            Self::Updates => "updates",
        }
    }
}

/// Distance of one part of the step records between two trajectories.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct RecordDistance {
    /// Over every update after the checkpoint.
    pub distance: Distance,
    /// Whether it was equal after every update.
    pub equal: bool,
    /// The part.
    pub record: RecordField,
}

/// Why a control that left something out changed nothing. Each is a property
/// that the validator checks; there is no free text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum InertReason {
    /// What was withheld has the same bytes in the checkpoint and in the
    /// initial state.
    EqualsInitial,
    /// The class is the scheduler, and its schedules are functions of the step.
    FunctionOfStep,
    /// The class is the selection state, and the first update was followed by
    /// an evaluation that became the best with it and without it.
    ReplacedByEvaluation,
    /// The class is the selection state, and the stopping rule does not use it.
    DecidesNothing,
}

/// What the uninterrupted trajectory was up to the checkpoint's step, for
/// comparison with the run's own entries.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ReplayedRun {
    /// Every class of the contract at the checkpoint's step.
    pub classes: Vec<StateDigest>,
    /// SHA-256 over the lines of every `step` and `eval` from step 0 to the
    /// checkpoint's, as `docs/FORMAT.md` ("Resume probes") says.
    pub records: Digest,
}

/// One continuation from the checkpoint by a seed of the contract's
/// equivalence test.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Continuation {
    /// SHA-256 over the lines `<step> <ids of its draw>\n` of its updates.
    pub ids: Digest,
    /// The test's metric.
    pub value: Float,
}

/// Two continuations by one seed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct SeedPair {
    /// Of the state that the uninterrupted trajectory had at the checkpoint's
    /// step.
    pub reference: Continuation,
    /// Of the state that was restored.
    pub resumed: Continuation,
    /// The seed.
    pub seed: DecimalU64,
}

/// `probe.result`, determined half: raw distances, from which the validator
/// derives the verdict.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ProbeResultDet {
    /// Class that the probe is judged in.
    pub class: EquivalenceClass,
    /// Every captured class, in the order of [`StateClass`].
    pub distances: Vec<ClassDistance>,
    /// Why a control changed nothing; null where it did, and in the probe
    /// itself.
    pub inert: Option<InertReason>,
    /// Updates that follow the checkpoint on both trajectories.
    pub num_steps: u64,
    /// Every part of the step records, in the order of [`RecordField`].
    pub records: Vec<RecordDistance>,
    /// What the uninterrupted trajectory was before.
    pub reference: ReplayedRun,
    /// Continuations by each seed of the contract's equivalence test, in its
    /// order; left out where the contract's class is not `statistical`.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "not_empty")]
    pub samples: Vec<SeedPair>,
    /// Step that it resumed from.
    pub step: u64,
    /// As in `probe.start`.
    pub withheld: Vec<StateClass>,
}

/// `probe.result`, observed half.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ProbeResultObs {
    /// Checkpoint that it resumed from.
    pub checkpoint: CheckpointId,
    /// Wall time in microseconds; of the reference where this probe ran it.
    pub duration_us: u64,
    /// Index of its `probe.start`.
    pub start: u64,
}
