//! What a campaign measures, and what it may claim of it.

use serde::{Deserialize, Serialize};

use super::ContractPointer;
use crate::contract::Direction;

/// What is measured of every run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct CampaignMetric {
    /// Which values are better; that of the stream in every contract.
    pub direction: Direction,
    /// Evaluation stream of the val split, by its name in every contract. A
    /// run's quality is the value of its selected candidate on it.
    pub stream: String,
    /// Value that counts as having got there. Tokens, steps and time to quality
    /// are those of the first evaluation of `stream` that reaches it.
    pub threshold: f64,
}

/// How numbers of repeated seeds become a decision.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(tag = "kind", deny_unknown_fields)]
pub enum Decision {
    /// The two-sided interval of Student's t around the mean of the differences
    /// between two arms, one a seed; see `docs/FORMAT.md` ("Campaigns").
    #[serde(rename = "paired_interval/1")]
    PairedInterval {
        /// Coverage of the interval, at least 0.8 and below 1; such as 0.95.
        confidence: f64,
    },
}

/// A cost that is reported of every arm. There is no throughput, utilisation or
/// number of parameters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum CostDimension {
    /// Bytes sent between workers.
    Bytes,
    /// Device seconds, of all attempts.
    DeviceSeconds,
    /// Energy; only where every run measures it.
    Energy,
    /// Evaluations of the objective for credit, where the credit rule has them.
    Evaluations,
    /// Train examples, with what was executed again.
    Examples,
    /// Updates, with those that were executed again.
    Steps,
    /// Train tokens, with what was executed again.
    Tokens,
    /// Wall time of all attempts.
    WallTime,
}

/// An axis of scale or substrate along which a result may be said to hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Axis {
    /// Shape of the model in another way than width and depth.
    Architecture,
    /// Global batch.
    Batch,
    /// Data of the same modality.
    Data,
    /// Layers.
    Depth,
    /// Steps or tokens.
    Duration,
    /// Devices, workers and how they are connected.
    HardwareTopology,
    /// Kind of data.
    Modality,
    /// Update rule.
    Optimizer,
    /// Sizes of layers.
    Width,
}

/// An axis along which the campaign's runs really vary.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct TestedAxis {
    /// Which; each once.
    pub axis: Axis,
    /// Places in the contract whose values tell the points apart; at least one.
    pub pointers: Vec<ContractPointer>,
    /// The points on it, at least two different ones: for each the values at
    /// `pointers`, in their order.
    pub points: Vec<Vec<serde_json::Value>>,
}

/// What is said of each pair of arms.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum ClaimKind {
    /// The arm is better than the other by more than the margin.
    Better,
    /// The arm is not worse than the other by the margin or more.
    NotWorse,
    /// Neither is better than the other by the margin or more. This is what the
    /// interval shows, and not that none was found.
    NoDifferenceFound,
    /// The arm is worse than the other by more than the margin.
    Negative,
    /// The arm reaches the threshold at a cost that is lower by more than the
    /// margin, all costs being reported.
    Efficiency,
}

/// What a claim is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum ClaimDimension {
    /// The metric's value of the selected candidate.
    Quality,
    /// Tokens until the threshold.
    TokensToQuality,
    /// Examples until the threshold.
    ExamplesToQuality,
    /// Updates until the threshold. An efficiency claim on it alone is blocked.
    StepsToQuality,
    /// Wall time until the threshold, all attempts.
    WallTimeToQuality,
    /// Device seconds until the threshold, all attempts.
    DeviceSecondsToQuality,
    /// Device seconds of all runs of the arm, tuning and failed ones included.
    TotalCostToQuality,
}

/// Two arms that a claim compares.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ArmPair {
    /// What it is compared with.
    pub against: String,
    /// The arm that the claim is about.
    pub arm: String,
}

/// One claim, made in advance.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Claim {
    /// Pairs of arms of which it has to hold, every one of them; at least one.
    pub arms: Vec<ArmPair>,
    /// What it is about.
    pub dimension: ClaimDimension,
    /// Name within the preregistration.
    pub id: String,
    /// What is said.
    pub kind: ClaimKind,
    /// Of `quality` an amount of the metric, of every other dimension a share of
    /// the other arm's cost, below 1. Above 0 where the claim is that something
    /// is small; at least 0 elsewhere.
    pub margin: f64,
    /// Fewest seeds with which it is decided; at least three, and not more than
    /// there are.
    pub min_seeds: u32,
    /// Axes along which it is said to hold, each among the axes tested; empty:
    /// it is said of these contracts and of nothing else.
    pub scope: Vec<Axis>,
}
