//! Entries of a campaign's ledger.

use serde::{Deserialize, Serialize};

use crate::digest::Digest;
use crate::dsse::EnvelopeSignature;
use crate::ids::RunId;
use crate::number::DecimalU64;

/// `campaign.frozen`, determined half.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct CampaignFrozenDet {
    /// SHA-256 of the preregistration.
    pub digest: Digest,
    /// Its canonical bytes (RFC 8785) as text.
    pub preregistration: String,
    /// The owner's signature over the DSSE pre-authentication encoding with
    /// type [`crate::dsse::PREREGISTRATION_PAYLOAD_TYPE`].
    pub signature: EnvelopeSignature,
}

/// `campaign.frozen`, observed half.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct CampaignFrozenObs {
    /// 16 hex digits, drawn at the freeze; part of the campaign's identifier.
    pub nonce: String,
    /// Program and version that froze it.
    pub tool: String,
}

/// What a run is for within its campaign.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum RunPurpose {
    /// One trial of the arm's tuning.
    Tuning,
    /// One of the runs that the claims are decided by.
    Confirmation,
    /// It has to show that the arm works.
    PositiveControl,
}

/// `campaign.run`, determined half: who the run is. Every later entry of the
/// same run says the same.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct CampaignRunDet {
    /// Its arm, from the run's contract.
    pub arm: String,
    /// SHA-256 of the run's contract.
    pub contract: Digest,
    /// Public key of the contract's owner, 64 hex digits.
    pub owner: String,
    /// What it is for.
    pub purpose: RunPurpose,
    /// Rung of the rescue ladder, 0 for none, from the run's contract.
    pub rescue_level: u32,
    /// The run.
    pub run: RunId,
    /// Its seed, which is each of the contract's three.
    pub seed: DecimalU64,
    /// Its number among all runs of the arm, from 1, from the run's contract.
    pub trial: u32,
}

/// `campaign.run`, observed half: how far it had come.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct CampaignRunObs {
    /// The newest signed tree head that the run's ledger had, the whole note.
    pub head: String,
    /// Why the run was first bound when it was trained already; null where it
    /// was not, and in every later entry of a run.
    pub late: Option<String>,
    /// The run's ledger, relative to the campaign's folder; no `..`, no leading
    /// `/`.
    pub path: String,
}
