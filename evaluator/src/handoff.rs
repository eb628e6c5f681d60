//! The handoff, checked against the ledger, before anything is opened.

use std::path::Path;

use schemas::body::HandoffIssuedObs;
use schemas::digest::Digest;
use schemas::dsse::{
    HANDOFF_PREDICATE_TYPE, HandoffPredicate, IN_TOTO_PAYLOAD_TYPE, IN_TOTO_STATEMENT_TYPE, Statement,
    Subject,
};
use validator::canonical::check_entry_json;
use validator::ed25519::PublicKey;

use crate::error::{EvaluateError, Refusal};
use crate::files::{blake3_of, read};
use crate::run::{Candidate, RunLedger};

/// Largest envelope that is read, in bytes (`docs/FORMAT.md`, limits).
const MAX_ENVELOPE_BYTES: u64 = 16 << 20;

/// A handoff that was checked.
pub(crate) struct Handoff {
    pub(crate) candidate: Candidate,
    /// BLAKE3 of the envelope.
    pub(crate) digest: Digest,
    pub(crate) predicate: HandoffPredicate,
    pub(crate) subjects: Vec<Subject>,
}

fn refusal(reason: impl Into<String>) -> Refusal {
    Refusal::Handoff { reason: reason.into() }
}

/// Reads a handoff and checks: the validator's signature, run and contract,
/// that its head is one that the run signed over these entries, that it names
/// the selected candidate, and that the ledger records it.
pub(crate) fn check(path: &Path, run: &RunLedger) -> Result<Handoff, EvaluateError> {
    let bytes = read(path, MAX_ENVELOPE_BYTES)?;
    let key = PublicKey::from_hex(&run.contract().keys.validator.public)
        .map_err(|error| refusal(format!("the contract's validator key: {error}")))?;
    let payload = validator::dsse::verify(&bytes, IN_TOTO_PAYLOAD_TYPE, &key)
        .map_err(|error| refusal(format!("under the contract's validator key: {error}")))?;
    check_entry_json(&payload).map_err(|error| refusal(format!("its payload is not canonical: {error}")))?;
    let statement: Statement<HandoffPredicate> =
        serde_json::from_slice(&payload).map_err(|error| refusal(error.to_string()))?;
    if statement.statement_type != IN_TOTO_STATEMENT_TYPE
        || statement.predicate_type != HANDOFF_PREDICATE_TYPE
    {
        return Err(refusal(format!("it is a statement of type {:?}", statement.predicate_type)).into());
    }
    let predicate = statement.predicate;
    if predicate.contract != run.frozen.digest || predicate.run != run.frozen.run {
        let (run, contract) = (&predicate.run, predicate.contract);
        return Err(refusal(format!("it is of run {run} under contract {contract}")).into());
    }
    if predicate.head.origin != run.origin() {
        return Err(refusal(format!("its head is of {:?}", predicate.head.origin)).into());
    }
    run.check_head(predicate.head.size, &predicate.head.root)?;
    let candidate = selected_candidate(&predicate, run)?;
    check_issued(&predicate, &candidate, run)?;
    let subjects = statement.subject;
    Ok(Handoff { candidate, digest: blake3_of(&bytes), predicate, subjects })
}

fn selected_candidate(predicate: &HandoffPredicate, run: &RunLedger) -> Result<Candidate, Refusal> {
    let (name, det) = run.selected.as_ref().ok_or_else(|| refusal("the run selected no candidate"))?;
    if *name != predicate.candidate || det.step != predicate.step {
        let found = &predicate.candidate;
        return Err(refusal(format!("it names candidate {found}, the run selected {name}")));
    }
    let mut admitted = run.candidates.iter().filter(|candidate| candidate.candidate == *name);
    let candidate =
        admitted.next().filter(|candidate| candidate.model == det.model && candidate.step == det.step);
    candidate
        .cloned()
        .ok_or_else(|| refusal(format!("candidate {name} was selected and not admitted as such")))
}

/// The ledger must record this handoff, and none of another candidate.
fn check_issued(predicate: &HandoffPredicate, candidate: &Candidate, run: &RunLedger) -> Result<(), Refusal> {
    if let Some((_, other)) = run.handoffs.iter().find(|(det, _)| det.model != candidate.model) {
        let other = &other.candidate;
        return Err(refusal(format!(
            "the ledger also records a handoff of {other}; a run hands over one candidate"
        )));
    }
    let matches = |obs: &HandoffIssuedObs| {
        obs.candidate == predicate.candidate
            && obs.report == predicate.report
            && obs.size == predicate.head.size
            && obs.root == predicate.head.root
    };
    if run.handoffs.iter().any(|(det, obs)| det.step == predicate.step && matches(obs)) {
        Ok(())
    } else {
        Err(refusal(
            "the ledger has no handoff.issued entry for it; bring the ledger as it is after `ledger handoff`",
        ))
    }
}

/// Checks that the candidate's files are the subjects of the handoff.
pub(crate) fn check_subjects(handoff: &Handoff, found: &[Subject]) -> Result<(), Refusal> {
    if handoff.subjects.len() != found.len() {
        return Err(refusal(format!("it has {} subjects, expected {}", handoff.subjects.len(), found.len())));
    }
    for subject in found {
        let file = subject.name.rsplit('/').next().unwrap_or_default();
        let same_file = |stated: &&Subject| stated.name.rsplit('/').next() == Some(file);
        let stated = handoff.subjects.iter().find(same_file);
        let stated = stated.ok_or_else(|| refusal(format!("it has no subject {file}")))?;
        if stated.digest != subject.digest {
            let reason = format!(
                "its subject {file} has digests {:?}, the file has {:?}",
                stated.digest, subject.digest
            );
            return Err(refusal(reason));
        }
    }
    Ok(())
}
