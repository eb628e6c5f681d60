//! The evaluator's own `val` numbers: an in-toto statement in a DSSE envelope
//! that the contract's qualifier signed.

use std::collections::BTreeSet;

use schemas::body::QualificationValDet;
use schemas::digest::Digest;
use schemas::dsse::{IN_TOTO_PAYLOAD_TYPE, IN_TOTO_STATEMENT_TYPE, Statement, VAL_PREDICATE_TYPE};
use schemas::ids::RunId;
use serde::{Deserialize, Serialize};

use crate::canonical::check_entry_json;
use crate::contract::ContractRead;
use crate::dsse;
use crate::evidence::ValNumbers;
use crate::form;
use crate::rule::{At, Outcome, Sink};

/// Predicate of the statement.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ValPredicate {
    /// SHA-256 of the contract.
    pub contract: Digest,
    /// One result for each candidate and stream.
    pub results: Vec<QualificationValDet>,
    /// The run.
    pub run: RunId,
}

/// Verifies the file's bytes. `None` where there is no file.
pub(crate) fn read(
    bytes: Option<&[u8]>,
    place: &str,
    contract: Option<&ContractRead>,
    sink: &mut Sink,
) -> (ValNumbers, Outcome) {
    let Some(bytes) = bytes else {
        let reason = "there are no val numbers of an evaluator; selection rests on the trainer's own";
        return (ValNumbers::Absent, Outcome::NotApplicable(reason.to_owned()));
    };
    let Some((contract, key)) = contract.and_then(|read| Some((read, read.qualifier.as_ref()?))) else {
        let reason = "the contract, which names the qualifier's key, could not be read".to_owned();
        return (ValNumbers::Unusable(reason.clone()), Outcome::NotEvaluated(reason));
    };
    let payload = match dsse::verify(bytes, IN_TOTO_PAYLOAD_TYPE, key) {
        Ok(payload) => payload,
        Err(error) => {
            let expected =
                format!("an envelope signed by the qualifier {}", contract.contract.keys.qualifier.public);
            sink.tampered(
                At::place(place),
                "the val numbers are not signed by the qualifier",
                expected,
                &error,
            );
            return (ValNumbers::Unusable(error.to_string()), Outcome::Checked(1));
        }
    };
    match check(&payload, contract) {
        Ok(results) => {
            let num_results = results.len() as u64;
            (ValNumbers::Signed(results), Outcome::Checked(num_results + 1))
        }
        Err(reason) => {
            sink.rejected(
                At::place(place),
                "the val numbers are signed, but are not results for this run",
                format!("a statement of type {VAL_PREDICATE_TYPE} for run {}", contract.run),
                &reason,
            );
            (ValNumbers::Unusable(reason), Outcome::Checked(1))
        }
    }
}

fn check(payload: &[u8], read: &ContractRead) -> Result<Vec<QualificationValDet>, String> {
    check_entry_json(payload).map_err(|problem| format!("the payload is not canonical: {problem}"))?;
    let statement: Statement<ValPredicate> =
        serde_json::from_slice(payload).map_err(|error| error.to_string())?;
    if let Some(offset) = form::first_difference(&statement, payload) {
        return Err(format!("the payload leaves a field out or has another form at byte {offset}"));
    }
    if statement.statement_type != IN_TOTO_STATEMENT_TYPE || statement.predicate_type != VAL_PREDICATE_TYPE {
        return Err(format!("a statement of type {}", statement.predicate_type));
    }
    let predicate = statement.predicate;
    if predicate.contract != read.digest || predicate.run != read.run {
        return Err(format!("results for run {} under contract {}", predicate.run, predicate.contract));
    }
    let mut seen = BTreeSet::new();
    for result in &predicate.results {
        if !seen.insert((result.model, result.stream.as_str())) {
            return Err(format!("two results for {} on {}", result.model, result.stream));
        }
    }
    Ok(predicate.results)
}
