//! Signed statements: in-toto v1 in a DSSE envelope.

use std::collections::BTreeMap;
use std::path::Path;

use ledger::canonical::entry_json;
use ledger::dsse;
use ledger::keys::KeyPair;
use schemas::body::QualificationResultDet;
use schemas::contract::Keys;
use schemas::digest::Digest;
use schemas::dsse::{HandoffHead, IN_TOTO_PAYLOAD_TYPE, IN_TOTO_STATEMENT_TYPE, Statement, Subject};
use schemas::ids::{CandidateId, RunId};
use schemas::report::Independence;
use serde::{Deserialize, Serialize};

use crate::error::EvaluateError;
use crate::files::{blake3_of, sha256_of, write};

/// Predicate of [`schemas::dsse::QUALIFICATION_PREDICATE_TYPE`]. The subjects
/// are those of the handoff.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct QualificationPredicate {
    /// Which candidate.
    pub candidate: CandidateId,
    /// SHA-256 of the contract.
    pub contract: Digest,
    /// Head of the qualification ledger, with opening and result under it.
    pub head: HandoffHead,
    /// Whether the qualifier could be somebody else than the other roles.
    pub independence: Independence,
    /// What this does not show: the contract's nonclaims and what no result
    /// of this kind shows.
    pub nonclaims: Vec<String>,
    /// Openings of the same sealed set before this one.
    pub num_earlier_openings: u64,
    /// The result, as the ledger's entry holds it.
    pub result: QualificationResultDet,
    /// The run.
    pub run: RunId,
    /// What the result is about, in words.
    pub scope: String,
    /// Step of the candidate's checkpoint.
    pub step: u64,
}

/// A file as a subject, with both digests.
pub(crate) fn subject(name: &str, bytes: &[u8]) -> Subject {
    let digests = [blake3_of(bytes), sha256_of(bytes)];
    let digest = digests.map(|digest| (digest.algorithm.name().to_owned(), digest.hex()));
    Subject { digest: BTreeMap::from(digest), name: name.to_owned() }
}

/// Signs a statement and writes the envelope; returns its BLAKE3.
pub(crate) fn sign_and_write<P: Serialize>(
    predicate_type: &str,
    predicate: P,
    subject: Vec<Subject>,
    key: &KeyPair,
    path: &Path,
    replace: bool,
) -> Result<Digest, EvaluateError> {
    let statement = Statement {
        statement_type: IN_TOTO_STATEMENT_TYPE.to_owned(),
        predicate,
        predicate_type: predicate_type.to_owned(),
        subject,
    };
    let envelope = dsse::sign(IN_TOTO_PAYLOAD_TYPE, &entry_json(&statement)?, key);
    let bytes = entry_json(&envelope)?;
    write(path, &bytes, replace)?;
    Ok(blake3_of(&bytes))
}

/// Whether the qualifier could be somebody else than the other roles.
///
/// Keys that are equal, or were made on one host, show that independence is
/// not established; different hosts do not show that it is.
#[must_use]
pub fn independence(keys: &Keys) -> Independence {
    let roles = [("owner", &keys.owner), ("trainer", &keys.trainer), ("validator", &keys.validator)];
    let shared: Vec<&str> = roles
        .into_iter()
        .filter(|(_, key)| key.host == keys.qualifier.host || key.public == keys.qualifier.public)
        .map(|(role, _)| role)
        .collect();
    if shared.is_empty() {
        return Independence {
            reason: "the qualifier's key was made on another host than every other role's; an operator of both hosts could still be one person".to_owned(),
            status: "declared".to_owned(),
        };
    }
    Independence {
        reason: format!(
            "the qualifier's key was made on the host of, or equals, the key of: {}",
            shared.join(", ")
        ),
        status: "not established".to_owned(),
    }
}
