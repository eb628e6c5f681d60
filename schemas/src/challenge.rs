//! Segment challenges (`docs/FORMAT.md`, "Segment challenges"): which segments a
//! reviewer drew, what came out when they were executed again, and the training
//! witness manifest that says what this shows and what it does not.
//!
//! All of these are documents beside a ledger, in entry JSON. None is an entry:
//! a challenge is made after the head that it is bound to.

use serde::{Deserialize, Serialize};

use crate::body::{ClassDistance, EvalDet, ExecutedPlan, StepDet};
use crate::contract::{Code, CompilerPlan, Environment, EquivalenceClass, Tolerance};
use crate::digest::Digest;
use crate::ids::{CheckpointId, RunId};
use crate::number::Float;
use crate::present::present;
use crate::state::{StateClass, StateDigest};

/// Format tag of a challenge.
pub const CHALLENGE_FORMAT: &str = "segment-challenge/1";
/// Format tag of a replay.
pub const REPLAY_FORMAT: &str = "segment-replay/1";
/// Format tag of a training witness manifest.
pub const TRAINING_WITNESS_FORMAT: &str = "training-witness/1";
/// Format tag of the opening of one tensor.
pub const OPENING_FORMAT: &str = "tensor-opening/1";

/// Largest replay that is written and read: some hundred thousand updates.
pub const MAX_REPLAY_BYTES: u64 = 256 << 20;

/// Fewest bytes of a reviewer's nonce: below that a trainer could prepare for
/// every one.
pub const MIN_NONCE_BYTES: usize = 16;
/// Most bytes of a reviewer's nonce.
pub const MAX_NONCE_BYTES: usize = 64;

/// A committed state of the logical run, at which a segment begins or ends.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct CommittedState {
    /// The checkpoint that holds it.
    pub checkpoint: CheckpointId,
    /// Index of its `checkpoint.durably_committed` entry.
    pub entry: u64,
    /// BLAKE3 of its manifest.
    pub manifest: Digest,
    /// Root of its state tree; left out where the contract has no such tree.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "present")]
    #[cfg_attr(feature = "json-schema", schemars(with = "Digest"))]
    pub state_root: Option<Digest>,
    /// Completed updates.
    pub step: u64,
}

/// Between which states segments lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum SegmentUnit {
    /// Between two neighbouring checkpoints; a segment whose first one cannot be
    /// resumed from is unverifiable.
    AdjacentCheckpoints,
    /// From each checkpoint that can be resumed from to the next such one, over
    /// those in between that cannot.
    ResumableCheckpoints,
}

/// Updates between two committed states: those after `start`, up to `end`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Segment {
    /// The state that the last of its updates leaves.
    pub end: CommittedState,
    /// Its place among the verifiable segments, in step order, from 0.
    pub number: u64,
    /// The state that it is executed from.
    pub start: CommittedState,
}

/// Why updates cannot be executed again, or were not shown to be what they are
/// said to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum UnverifiedReason {
    /// Another execution did not come to what is on record.
    Contradicted,
    /// The draw passed it over.
    NotDrawn,
    /// It was drawn, and the replay did not execute or compare it.
    NotReplayed,
    /// No checkpoint lies behind it.
    NoStateAtEnd,
    /// The checkpoint before it failed or was quarantined.
    StartGivenUp,
    /// The checkpoint before it was retired.
    StartRetired,
}

impl UnverifiedReason {
    /// In words.
    #[must_use]
    pub const fn text(self) -> &'static str {
        match self {
            Self::Contradicted => "another execution contradicts the record",
            Self::NotDrawn => "not drawn",
            Self::NotReplayed => "drawn, and not replayed",
            Self::NoStateAtEnd => "no checkpoint behind it",
            Self::StartGivenUp => "the checkpoint before it failed or was quarantined",
            Self::StartRetired => "the checkpoint before it was retired",
        }
    }
}

/// Updates that are not verified.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct UnverifiedSpan {
    /// Completed updates before it.
    pub from_step: u64,
    /// Why.
    pub reason: UnverifiedReason,
    /// Its last update.
    pub to_step: u64,
}

/// Updates that are verified.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct VerifiedSpan {
    /// Completed updates before it.
    pub from_step: u64,
    /// Its last update.
    pub to_step: u64,
}

/// The tree head that a challenge is bound to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ChallengeHead {
    /// Origin line of its note.
    pub origin: String,
    /// Root hash.
    pub root: Digest,
    /// Entries below it.
    pub size: u64,
}

/// A draw of segments that follows from a head and a nonce, so that anybody who
/// has the ledger can make it again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Challenge {
    /// SHA-256 of the contract.
    pub contract: Digest,
    /// In the order of the draw.
    pub drawn: Vec<Segment>,
    /// [`CHALLENGE_FORMAT`].
    pub format: String,
    /// The head, which was fixed before the nonce.
    pub head: ChallengeHead,
    /// The reviewer's, in lower-case hex: 16 to 64 bytes.
    pub nonce: String,
    /// Segments that could have been drawn.
    pub num_segments: u64,
    /// The run.
    pub run: RunId,
    /// Between which states segments lie.
    pub unit: SegmentUnit,
    /// Updates that no segment covers, in step order.
    pub unverifiable: Vec<UnverifiedSpan>,
}

/// One update as it was executed again, with what follows it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ReplayedStep {
    /// What its `step` entry should say.
    pub det: StepDet,
    /// What its `eval` entries should say, by stream.
    pub evaluations: Vec<EvalDet>,
    /// The step.
    pub step: u64,
}

/// A shard as a checkpoint of the replayed state would have it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ReplayedShard {
    /// Its class.
    pub class: StateClass,
    /// BLAKE3 of its bytes.
    pub digest: Digest,
    /// Its file name.
    pub path: String,
}

/// The state that a replayed segment came to.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ReplayedState {
    /// Every class of the contract, in its order.
    pub classes: Vec<StateDigest>,
    /// How far each captured class is from the files of the segment's last
    /// checkpoint (`reference`), where they are at hand and the contract's class
    /// is not bitwise.
    pub distances: Vec<ClassDistance>,
    /// Microbatches of the next update that it holds.
    pub microbatches: u32,
    /// By class, then by path.
    pub shards: Vec<ReplayedShard>,
    /// Root of its state tree; left out where the contract has none.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "present")]
    #[cfg_attr(feature = "json-schema", schemars(with = "Digest"))]
    pub state_root: Option<Digest>,
}

/// A segment that was executed again, or why it was not.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ReplayedSegment {
    /// The state behind its last update; null where it was not executed.
    pub end: Option<ReplayedState>,
    /// Why it was not executed; null where it was.
    pub failure: Option<String>,
    /// As in the challenge.
    pub number: u64,
    /// Every update in order.
    pub steps: Vec<ReplayedStep>,
}

/// What came out when the segments of a challenge were executed again. It is as
/// good as whoever executed it: one from the trainer's own hands shows nothing.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Replay {
    /// SHA-256 of the challenge's bytes.
    pub challenge: Digest,
    /// What executed it.
    pub code: Code,
    /// Where.
    pub environment: Environment,
    /// [`REPLAY_FORMAT`].
    pub format: String,
    /// The plan that ran.
    pub plan: ExecutedPlan,
    /// The run.
    pub run: RunId,
    /// In the challenge's order.
    pub segments: Vec<ReplayedSegment>,
    /// Program and version.
    pub tool: String,
}

/// What a comparison came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum ChallengeOutcome {
    /// Everything that was compared is within the contract's class.
    Consistent,
    /// Something is not.
    Contradicted,
    /// Nothing contradicts the record, and something could not be compared.
    Incomplete,
}

impl ChallengeOutcome {
    /// The name in JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Consistent => "consistent",
            Self::Contradicted => "contradicted",
            Self::Incomplete => "incomplete",
        }
    }
}

/// One place at which a replay and the record part.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ReplayDifference {
    /// Entry that holds what is on record; null for a file.
    pub entry: Option<u64>,
    /// JSON pointer into the entry, or the file.
    pub place: String,
    /// As on record.
    pub recorded: String,
    /// As the replay gives it.
    pub replayed: String,
    /// The step.
    pub step: u64,
}

/// What became of one drawn segment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct SegmentResult {
    /// The first few places at which the two part, in step order.
    pub differences: Vec<ReplayDifference>,
    /// Completed updates before it.
    pub from_step: u64,
    /// All such places.
    pub num_differences: u64,
    /// As in the challenge.
    pub number: u64,
    /// What the comparison came to.
    pub outcome: ChallengeOutcome,
    /// Why it could not be compared in full; null where it was.
    pub reason: Option<String>,
    /// Its last update.
    pub to_step: u64,
}

/// What a span of updates consumed: SHA-256 over the lines
/// `<step> <ids> <inputs>\n` of their draws.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct BatchCommitment {
    /// Over the lines.
    pub digest: Digest,
    /// Completed updates before it.
    pub from_step: u64,
    /// Its last update.
    pub to_step: u64,
}

/// What turned gradients into parameters, as the contract freezes it and as the
/// replay executed it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct TransitionIdentity {
    /// BLAKE3 of the optimizer policy card.
    pub card: Digest,
    /// The code; the replay's is the contract's.
    pub code: Code,
    /// The contract's plan.
    pub plan: CompilerPlan,
    /// The plan that the replay executed.
    pub replayed_with: ExecutedPlan,
}

/// The chance that a draw of this size meets at least one of so many forged
/// segments, wherever they lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Detection {
    /// Forged ones among the segments that could be drawn.
    pub num_forged: u64,
    /// 0 to 1, over nonces.
    pub probability: Float,
}

/// By what numbers two executions count as the same.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ComparisonClass {
    /// The weaker of the contract's `numerics.determinism` and `resume.class`.
    pub class: EquivalenceClass,
    /// Bounds of `operation_order_bounded`; null in `bitwise`.
    pub tolerance: Option<Tolerance>,
}

/// Training witness manifest: what a challenge showed of a run, and what not.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct TrainingWitness {
    /// Of every span between neighbouring committed states.
    pub batches: Vec<BatchCommitment>,
    /// The challenge.
    pub challenge: Challenge,
    /// By what numbers.
    pub comparison: ComparisonClass,
    /// By the number of forged segments; empty unless every drawn segment was
    /// compared in full.
    pub detection: Vec<Detection>,
    /// [`TRAINING_WITNESS_FORMAT`].
    pub format: String,
    /// The last update on record below the head.
    pub last_step: u64,
    /// What it does not say.
    pub nonclaims: Vec<String>,
    /// What the segments came to together.
    pub outcome: ChallengeOutcome,
    /// BLAKE3 of the replay's bytes.
    pub replay: Digest,
    /// One for each drawn segment, in the order of the draw.
    pub results: Vec<SegmentResult>,
    /// Every committed state of the logical run, in step order.
    pub states: Vec<CommittedState>,
    /// Program and version.
    pub tool: String,
    /// What turned gradients into parameters.
    pub transition: TransitionIdentity,
    /// Updates that it does not speak for, in step order.
    pub unverified: Vec<UnverifiedSpan>,
    /// Updates that another execution confirmed, in step order.
    pub verified: Vec<VerifiedSpan>,
}

/// What a leaf of the state tree says: one tensor, or a shard that holds none.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct StateLeaf {
    /// The class.
    pub class: StateClass,
    /// BLAKE3 of the tensor's elements, little-endian and row-major; of a shard
    /// without tensors, of its bytes.
    pub digest: Digest,
    /// safetensors spelling; null for a shard without tensors.
    pub dtype: Option<String>,
    /// The tensor's name; null for a shard without tensors.
    pub name: Option<String>,
    /// Name of the shard's file.
    pub path: String,
    /// Row-major extents; null for a shard without tensors.
    pub shape: Option<Vec<u64>>,
}

/// Shows that one tensor is the one that a ledger committed to, without the
/// others.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct TensorOpening {
    /// The checkpoint.
    pub checkpoint: CheckpointId,
    /// SHA-256 of the contract.
    pub contract: Digest,
    /// Index of the entry that holds the root: `checkpoint.durably_committed`.
    pub entry: u64,
    /// [`OPENING_FORMAT`].
    pub format: String,
    /// The leaf.
    pub leaf: StateLeaf,
    /// Its place in the tree, from 0, as far as the proof needs it: no root binds
    /// it, and another one may lead there by the same proof.
    pub leaf_index: u64,
    /// Leaves of the tree, as far as the proof needs them: no root binds their
    /// number.
    pub num_leaves: u64,
    /// Sibling hashes from the leaf to the root (RFC 6962, section 2.1.1).
    pub proof: Vec<Digest>,
    /// The root.
    pub root: Digest,
    /// The run.
    pub run: RunId,
    /// Completed updates.
    pub step: u64,
}
