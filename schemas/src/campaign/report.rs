//! The report on a campaign: verdict, denominators, costs, and the outcome of
//! every claim that was made in advance. All of it is derived by the validator
//! from the ledgers of the runs.

use serde::{Deserialize, Serialize};

use super::{Axis, ClaimDimension, ClaimKind, RunPurpose};
use crate::body::Outcome;
use crate::digest::Digest;
use crate::finding::Finding;
use crate::ids::RunId;
use crate::number::{DecimalU64, Float};
use crate::present::present;
use crate::report::{HeadSeen, RuleResult, Verdict};

/// Format tag of a campaign report.
pub const CAMPAIGN_REPORT_FORMAT: &str = "campaign-report/1";

/// What became of a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum ClaimOutcome {
    /// The runs show it, within the claim's own scope and for these seeds.
    Supported,
    /// The runs do not show it; that is no evidence for the opposite.
    NotSupported,
    /// The campaign is not competent to say, and the reasons say why.
    Blocked,
}

impl ClaimOutcome {
    /// The name in JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Supported => "supported",
            Self::NotSupported => "not_supported",
            Self::Blocked => "blocked",
        }
    }
}

/// Whose numbers a value or a claim rests on; of several the last of this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum ValueBasis {
    /// There is no number.
    None,
    /// The evaluator's, which computed every candidate of the run again.
    Evaluator,
    /// The trainer's own.
    Trainer,
}

impl ValueBasis {
    /// The name in JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Evaluator => "evaluator",
            Self::Trainer => "trainer",
        }
    }
}

/// One seed of a comparison.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct SeedComparison {
    /// How much better the arm is than the other one, in the unit of the claim's
    /// margin; null where one of the two has no value.
    pub advantage: Option<Float>,
    /// The other arm's value; null where its run gave none.
    pub against: Option<Float>,
    /// The arm's value; null where its run gave none.
    pub arm: Option<Float>,
    /// The seed.
    pub seed: DecimalU64,
}

/// An interval of the mean of the advantages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct MeanInterval {
    /// Lower end.
    pub lower: Float,
    /// Mean.
    pub mean: Float,
    /// Upper end.
    pub upper: Float,
}

/// A dimension beside the claimed one: sums over the seeds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct CostComparison {
    /// The other arm's sum; null where a seed has no value.
    pub against: Option<Float>,
    /// The arm's sum; null where a seed has no value.
    pub arm: Option<Float>,
    /// Name.
    pub dimension: ClaimDimension,
}

/// One pair of arms of a claim.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ArmComparison {
    /// What it is compared with.
    pub against: String,
    /// The arm that the claim is about.
    pub arm: String,
    /// Every other dimension, whatever the claim is about.
    pub beside: Vec<CostComparison>,
    /// Of the mean advantage; null where there is none.
    pub interval: Option<MeanInterval>,
    /// Every preregistered seed; empty where the dimension is of a whole arm.
    pub seeds: Vec<SeedComparison>,
}

/// One claim and what the runs say of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ClaimResult {
    /// Whose numbers it rests on, over all runs of its arms; always the trainer's
    /// of a cost. Reports that were saved before it existed lack it.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "present")]
    #[cfg_attr(feature = "json-schema", schemars(with = "ValueBasis"))]
    pub basis: Option<ValueBasis>,
    /// One for each pair of arms that the claim names.
    pub comparisons: Vec<ArmComparison>,
    /// What was compared.
    pub dimension: ClaimDimension,
    /// The claim's identifier.
    pub id: String,
    /// What was said.
    pub kind: ClaimKind,
    /// The claim's margin.
    pub margin: Float,
    /// What became of it.
    pub outcome: ClaimOutcome,
    /// Why, one sentence each; at least one.
    pub reasons: Vec<String>,
    /// Axes that the claim speaks of; it holds for nothing else.
    pub scope: Vec<Axis>,
}

/// Costs as the entries of the runs tell them, every attempt included.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct CampaignCosts {
    /// Process starts.
    pub attempts: u64,
    /// Bytes sent between workers.
    pub bytes_sent: u64,
    /// Bytes of checkpoints that were committed.
    pub checkpoint_bytes: u64,
    /// Processor time in microseconds of attempts that left a terminal entry.
    pub cpu_us: u64,
    /// Microseconds of all workers in updates and evaluations.
    pub device_us: u64,
    /// Joules; null where an attempt did not measure them.
    pub energy_j: Option<u64>,
    /// Evaluations made.
    pub evaluations: u64,
    /// Examples consumed by updates, repeated ones included.
    pub examples: u64,
    /// Minutes of a person's time that interventions name.
    pub operator_minutes: u64,
    /// Microseconds that training waited for the recorder.
    pub recording_us: u64,
    /// Runs.
    pub runs: u64,
    /// Updates executed, repeated ones included.
    pub steps_executed: u64,
    /// Target tokens consumed by updates, repeated ones included.
    pub tokens: u64,
    /// Wall time of all attempts in microseconds.
    pub wall_us: u64,
}

/// Runs by what their own audit says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct RunVerdicts {
    /// Accepted.
    pub accepted: u64,
    /// Not over, or with parts missing.
    pub incomplete: u64,
    /// No ledger where the campaign says that it is.
    pub missing: u64,
    /// A rule could not run.
    pub not_evaluated: u64,
    /// A rule is broken.
    pub rejected: u64,
    /// Bytes are not what was committed to.
    pub tampered: u64,
}

/// One run of the campaign.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct RunOfCampaign {
    /// Its arm.
    pub arm: String,
    /// What it cost; null where its ledger cannot be read.
    pub costs: Option<CampaignCosts>,
    /// Entry of its first registration.
    pub entry: u64,
    /// Whether it was registered after it had begun, as the record admits.
    pub is_late: bool,
    /// Outcome of its `run.end`; null where there is none.
    pub outcome: Option<Outcome>,
    /// Its ledger, relative to the campaign's folder.
    pub path: String,
    /// What it is for.
    pub purpose: RunPurpose,
    /// Value of the campaign's metric for its selected candidate; null without.
    pub quality: Option<Float>,
    /// Whose number that value is; reports that were saved before it existed lack
    /// it.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "present")]
    #[cfg_attr(feature = "json-schema", schemars(with = "ValueBasis"))]
    pub quality_basis: Option<ValueBasis>,
    /// Rung of the rescue ladder, 0 for none.
    pub rescue_level: u32,
    /// The run.
    pub run: RunId,
    /// Its seed.
    pub seed: DecimalU64,
    /// First step whose value reached the threshold; null where none did.
    pub threshold_step: Option<u64>,
    /// Its trial.
    pub trial: u32,
    /// Its own verdict; null where its ledger is missing.
    pub verdict: Option<Verdict>,
}

/// One arm with its denominators.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ArmOfCampaign {
    /// All runs of the arm, failed ones, trials and controls included.
    pub costs: CampaignCosts,
    /// Name.
    pub name: String,
    /// Confirmation runs.
    pub num_confirmations: u64,
    /// Runs that ended without completing.
    pub num_failed: u64,
    /// Positive controls.
    pub num_positive_controls: u64,
    /// Confirmation runs that reached the threshold.
    pub num_reached: u64,
    /// Runs with a rescue level above 0.
    pub num_rescued: u64,
    /// Tuning runs.
    pub num_trials: u64,
    /// Tokens that its tuning runs cost.
    pub tuning_tokens: u64,
    /// Its runs by their own verdicts.
    pub verdicts: RunVerdicts,
}

/// A campaign's audit report. Beside the ledger, never in it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct CampaignReport {
    /// In the order of the preregistration.
    pub arms: Vec<ArmOfCampaign>,
    /// The campaign; null where it could not be read.
    pub campaign: Option<RunId>,
    /// In the order of the preregistration.
    pub claims: Vec<ClaimResult>,
    /// All runs, failed ones included.
    pub costs: CampaignCosts,
    /// All findings, in the order of the campaign's entries.
    pub findings: Vec<Finding>,
    /// [`CAMPAIGN_REPORT_FORMAT`].
    pub format: String,
    /// The head that was seen; null where none verified.
    pub head: Option<HeadSeen>,
    /// What the campaign does not show, and what no audit of this kind shows.
    pub nonclaims: Vec<String>,
    /// Entries of the campaign's ledger.
    pub num_entries: u64,
    /// SHA-256 of the preregistration; null where it could not be read.
    pub preregistration: Option<Digest>,
    /// Every rule of the edition.
    pub rules: Vec<RuleResult>,
    /// Edition of the rules.
    pub ruleset: String,
    /// In the order of their first registrations.
    pub runs: Vec<RunOfCampaign>,
    /// Program and version.
    pub tool: String,
    /// Whether the record is whole and every claim's outcome is stated; not
    /// whether claims hold.
    pub verdict: Verdict,
    /// Runs by their own verdicts.
    pub verdicts: RunVerdicts,
}
