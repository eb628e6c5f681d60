//! Purpose, authority, roles and keys, nonclaims, retention.

use serde::{Deserialize, Serialize};

use super::FileBinding;
use crate::digest::Digest;
use crate::ids::RunId;

/// Why the run exists and who allowed it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Purpose {
    /// Who granted what.
    pub authority: Authority,
    /// One or two sentences.
    pub statement: String,
}

/// A grant.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Authority {
    /// Last day of the grant, `YYYY-MM-DD` in UTC; null: no expiry.
    pub expires: Option<String>,
    /// Person or body.
    pub granted_by: String,
    /// What the run has no authority to do, such as to release. At least one.
    pub non_authorities: Vec<String>,
    /// What it may do.
    pub scope: String,
}

/// A known gap.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Residual {
    /// What remains open.
    pub description: String,
    /// Who answers for it.
    pub owner: String,
}

/// A role's public key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct PublicKey {
    /// SHA-256 of the identity of the host on which the key was made, as
    /// `ledger keygen` found it. Equal values show that two roles are not
    /// independent; different ones do not show that they are.
    pub host: Digest,
    /// 64 hex digits of the Ed25519 public key (RFC 8032).
    pub public: String,
}

/// A witness that must cosign heads.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct WitnessKey {
    /// Key name in cosignatures, such as `witness.example/w1`: without white
    /// space and `+`.
    pub name: String,
    /// 64 hex digits of the Ed25519 public key.
    pub public: String,
}

/// Public keys by role.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Keys {
    /// Signs the contract.
    pub owner: PublicKey,
    /// Signs the qualifier's ledger, `val` numbers and result.
    pub qualifier: PublicKey,
    /// age recipient (`age1...`) that the qualification set is sealed to.
    pub qualifier_recipient: String,
    /// Signs tree heads while training.
    pub trainer: PublicKey,
    /// Signs reports and handoffs.
    pub validator: PublicKey,
    /// How many of `witnesses` must cosign one head that covers the end of the
    /// run, and one before its first step; 0 where none is named.
    pub witness_quorum: u32,
    /// Witnesses; empty: heads are kept only by the operator.
    pub witnesses: Vec<WitnessKey>,
}

/// Whether the run stands alone.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Membership {
    /// No campaign; the denominator of runs is not evaluated.
    Standalone,
    /// One run of a campaign, which is frozen before it; `ledger init
    /// --campaign` fills it in.
    Campaign {
        /// Arm of the comparison, by its name in the preregistration.
        arm: String,
        /// The campaign: its ledger's identifier. It tells apart two campaigns
        /// that were frozen from one preregistration.
        campaign: RunId,
        /// The campaign's preregistration, in its canonical bytes, as
        /// `ledger campaign freeze` writes it.
        preregistration: FileBinding,
        /// Rung of the arm's rescue ladder, 0 for none.
        rescue_level: u32,
        /// Number among all runs of the arm, from 1, without a gap.
        trial: u32,
    },
}

/// How long what is kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Retention {
    /// Who keeps them.
    pub custodian: String,
    /// Days that ledger, candidates and failed attempts stay available.
    pub days: u32,
}

/// What the validator evaluates.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct RulesetBinding {
    /// Edition of the rules, such as `2026.1`.
    pub edition: String,
    /// What kind of evidence the run leaves.
    pub profile: EvidenceProfile,
}

/// What kind of evidence a run leaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum EvidenceProfile {
    /// The project's own trainer.
    Native,
    /// Somebody's own loop through the recorder; promises less.
    ExternalLoop,
}
