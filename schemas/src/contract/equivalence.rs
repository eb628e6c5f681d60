//! How a resumed run is compared with an uninterrupted one: the class that is
//! claimed, and the bounds or the test that it is judged by, named in advance.

use serde::{Deserialize, Serialize};

use crate::number::DecimalU64;

/// How strong a claim of sameness is. A weaker class never replaces a stronger
/// one after the fact.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum EquivalenceClass {
    /// The same bytes.
    Bitwise,
    /// The same ids; distances within frozen bounds.
    OperationOrderBounded,
    /// The same coverage; a test named in advance over repeated seeds.
    Statistical,
}

/// How a resumed run is compared with an uninterrupted one.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ResumeEquivalence {
    /// The class that is claimed.
    pub class: EquivalenceClass,
    /// The test of the class `statistical`; left out in every other class.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub test: Option<EquivalenceTest>,
    /// Bounds of the class `operation_order_bounded`; null in every other class.
    pub tolerance: Option<Tolerance>,
}

/// Bounds of an order-bounded claim.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Tolerance {
    /// Largest absolute difference of any element.
    pub max_absolute: f64,
    /// Largest relative difference of any element.
    pub max_relative: f64,
}

/// The test of a statistical claim: two one-sided t tests on the differences,
/// one a seed, between a resumed and an uninterrupted continuation (Schuirmann
/// 1987). The claim holds where both reject at `alpha`, which is where the
/// `1 - 2 alpha` confidence interval of the mean difference lies within
/// `margin` on both sides. That no difference was found is not the claim.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct EquivalenceTest {
    /// Level of each one-sided test, 1e-6 to 0.1; such as 0.05.
    pub alpha: f64,
    /// Mean difference that counts as none, in the metric's unit, above 0 and
    /// below 1; such as 0.001. A probe's cold control has to be beyond it.
    pub margin: f64,
    /// What is measured of each continuation.
    pub metric: EquivalenceMetric,
    /// Updates of each continuation after the checkpoint, 2 to 1,000; such as
    /// 20.
    pub num_steps: u64,
    /// Seeds of the continuations, 3 to 64 different ones, such as `["1", "2",
    /// "3"]`. For each, both sides go on from the checkpoint's state and draw
    /// by this seed what `varies` names.
    pub seeds: Vec<DecimalU64>,
    /// What is drawn by the seeds, in order, each once; such as
    /// `["data_order", "dropout"]`.
    pub varies: Vec<VariedDraws>,
}

/// A number that tells how far a continuation has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum EquivalenceMetric {
    /// Value of the stream that candidates are selected by, after the last
    /// update, in the stream's metric.
    Evaluation,
    /// Loss that the last update recorded, in nats a token.
    TrainingLoss,
}

/// Draws that repeated continuations make by seeds of their own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum VariedDraws {
    /// Order of the examples from the checkpoint on.
    DataOrder,
    /// Dropout masks from the checkpoint on.
    Dropout,
}
