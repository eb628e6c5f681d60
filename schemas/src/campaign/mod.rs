//! The campaign: which runs are compared, what is varied, what is claimed, all
//! of it frozen and signed before any of the runs is trained.
//!
//! A preregistration is to a campaign's ledger what a contract is to a run's.
//! Its canonical bytes are RFC 8785, and in the file that a person writes any
//! object may hold a `$comment`, which `ledger campaign freeze` drops. What it
//! means is in `docs/FORMAT.md` ("Campaigns").
//!
//! Nothing here can ask for a claim about throughput, utilisation or the number
//! of parameters: there is no such dimension, because none of them says how
//! well a model was trained.

mod arm;
mod claim;
mod entries;
mod pointer;

use serde::{Deserialize, Serialize};

pub use arm::*;
pub use claim::*;
pub use entries::*;
pub use pointer::*;

use crate::contract::{Authority, PublicKey, Residual};
use crate::entry::Extension;
use crate::number::DecimalU64;

/// A preregistration.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Preregistration {
    /// What is compared; at least two, one of them a baseline.
    pub arms: Vec<Arm>,
    /// Who granted what to whom.
    pub authority: Authority,
    /// Along which axes the runs differ beyond their arms' methods; empty: the
    /// campaign says nothing of any other scale, data or machine.
    pub axes: Vec<TestedAxis>,
    /// What will be decided, each by its own words; at least one.
    pub claims: Vec<Claim>,
    /// What is reported of every arm beside quality, failed runs included; at
    /// least `steps` and `tokens`.
    pub costs: Vec<CostDimension>,
    /// How numbers of repeated seeds become a decision.
    pub decision: Decision,
    /// Anything that a later edition adds.
    pub extensions: Vec<Extension>,
    /// [`crate::PREREGISTRATION_FORMAT`].
    pub format: String,
    /// Public keys by role.
    pub keys: CampaignKeys,
    /// What is measured of every run.
    pub metric: CampaignMetric,
    /// Name of the campaign, for people.
    pub name: String,
    /// What the campaign will not show; at least one.
    pub nonclaims: Vec<String>,
    /// What is asked, in one or two sentences.
    pub question: String,
    /// Name of the arm that the contracts of the others are compared with.
    pub reference_arm: String,
    /// Known gaps, each with an owner.
    pub residuals: Vec<Residual>,
    /// Edition of the campaign rules.
    pub ruleset: CampaignRuleset,
    /// Seeds of the confirmation runs, each once; at least three. A run of seed
    /// `n` has `n` as each of its contract's three seeds.
    pub seeds: Vec<DecimalU64>,
}

/// Public keys of a campaign.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct CampaignKeys {
    /// Signs the preregistration and the campaign's tree heads, and owns every
    /// run of it.
    pub owner: PublicKey,
    /// Signs the campaign's report.
    pub validator: PublicKey,
}

/// What the validator evaluates of a campaign.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct CampaignRuleset {
    /// Edition of the campaign rules, such as `2026.1`.
    pub edition: String,
}
