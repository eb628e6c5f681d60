//! DSSE envelope v1 (github.com/secure-systems-lab/dsse) and the payload types
//! that this project signs. Signatures cover the pre-authentication encoding
//! `DSSEv1 <len(type)> <type> <len(payload)> <payload>`.

use serde::{Deserialize, Serialize};

use crate::digest::Digest;
use crate::ids::{CandidateId, RunId};
use crate::report::{Independence, SelectionBasis};

/// Payload type of a contract's signature.
pub const CONTRACT_PAYLOAD_TYPE: &str = "application/vnd.governed-ledger.contract+json";
/// Payload type of a preregistration's signature.
pub const PREREGISTRATION_PAYLOAD_TYPE: &str = "application/vnd.governed-ledger.preregistration+json";
/// Payload type of a signed audit report.
pub const REPORT_PAYLOAD_TYPE: &str = "application/vnd.governed-ledger.report+json";
/// Payload type of a signed report on a campaign.
pub const CAMPAIGN_REPORT_PAYLOAD_TYPE: &str = "application/vnd.governed-ledger.campaign-report+json";
/// Payload type of a signed training witness manifest.
pub const TRAINING_WITNESS_PAYLOAD_TYPE: &str = "application/vnd.governed-ledger.training-witness+json";
/// Payload type of an in-toto statement (in-toto attestation spec v1).
pub const IN_TOTO_PAYLOAD_TYPE: &str = "application/vnd.in-toto+json";
/// Predicate type of the handoff of one candidate.
pub const HANDOFF_PREDICATE_TYPE: &str = "https://governed-ledger.invalid/handoff/v1";
/// Predicate type of the evaluator's own `val` numbers.
pub const VAL_PREDICATE_TYPE: &str = "https://governed-ledger.invalid/val/v1";
/// Predicate type of a qualification result.
pub const QUALIFICATION_PREDICATE_TYPE: &str = "https://governed-ledger.invalid/qualification/v1";
/// `_type` of an in-toto statement.
pub const IN_TOTO_STATEMENT_TYPE: &str = "https://in-toto.io/Statement/v1";

/// One signature over the envelope's pre-authentication encoding.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct EnvelopeSignature {
    /// [`crate::ids::KeyId`] of the signer: a hint, never trusted.
    pub keyid: String,
    /// Standard base64 of the 64-byte Ed25519 signature (RFC 8032).
    pub sig: String,
}

/// A DSSE envelope.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Envelope {
    /// Standard base64 of the payload bytes.
    pub payload: String,
    /// Media type of the payload.
    #[serde(rename = "payloadType")]
    pub payload_type: String,
    /// At least one.
    pub signatures: Vec<EnvelopeSignature>,
}

/// What a statement is about: one file by its digests.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Subject {
    /// Hash name to lower-case hex; `sha256` and `blake3` here.
    pub digest: std::collections::BTreeMap<String, String>,
    /// Relative path of the file.
    pub name: String,
}

/// An in-toto statement v1 around a predicate of ours.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Statement<P> {
    /// Always [`IN_TOTO_STATEMENT_TYPE`].
    #[serde(rename = "_type")]
    pub statement_type: String,
    /// What is claimed.
    pub predicate: P,
    /// Names the predicate's schema.
    #[serde(rename = "predicateType")]
    pub predicate_type: String,
    /// What it is claimed of.
    pub subject: Vec<Subject>,
}

/// The tree head that a handoff rests on: the one that its report saw.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HandoffHead {
    /// Origin line of the note.
    pub origin: String,
    /// Root hash, 64 hex digits.
    pub root: String,
    /// Tree size.
    pub size: u64,
}

/// Predicate of [`HANDOFF_PREDICATE_TYPE`]. The subjects are the candidate's
/// `model.safetensors` (or the index and the files of a model in several) and
/// `config.json`, named relative to the ledger's folder.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HandoffPredicate {
    /// Which candidate.
    pub candidate: CandidateId,
    /// SHA-256 of the contract.
    pub contract: Digest,
    /// The head that the report saw.
    pub head: HandoffHead,
    /// Whether roles could be different people.
    pub independence: Independence,
    /// What the run has no authority to do, from the contract.
    pub non_authorities: Vec<String>,
    /// What the run does not show, from the contract.
    pub nonclaims: Vec<String>,
    /// BLAKE3 of the signed report's envelope.
    pub report: Digest,
    /// The run.
    pub run: RunId,
    /// Whose numbers the selection rests on.
    pub selection_basis: SelectionBasis,
    /// Step of the candidate's checkpoint.
    pub step: u64,
}
