//! Whether an evaluation was fed what its stream names, and a selection is the
//! one that the candidates give.

use std::collections::BTreeMap;

use schemas::body::ObservedFault;
use schemas::contract::{Contract, Direction, EvaluationStream, FaultKind};
use schemas::digest::Digest;

use super::Mismatch;
use crate::engine::Engine;
use crate::evaluate::EvaluationOutcome;
use crate::run::history::PastCandidate;

const CAUSE: FaultKind = FaultKind::ValidationLeakageInSelection;

/// Compares the examples that were fed with those that the stream names, by
/// their ids in the frozen table.
///
/// # Errors
/// When they are others.
pub fn evaluation(
    engine: &Engine,
    stream: &EvaluationStream,
    outcome: &EvaluationOutcome,
) -> Result<(), Mismatch> {
    let name = &stream.name;
    let differs = |what: String| Mismatch::own(ObservedFault::SelectionMismatch, CAUSE, what);
    let Some(source) = engine.source(stream.split) else {
        return Err(differs(format!("stream {name:?} is of a split that is never opened")));
    };
    let num_examples = stream.num_examples.unwrap_or_else(|| source.num_examples());
    let mut hasher = blake3::Hasher::new();
    for id in source.first_ids(num_examples) {
        hasher.update(id);
    }
    let expected = Digest::blake3(*hasher.finalize().as_bytes());
    if (outcome.num_examples, outcome.ids) == (num_examples, expected) {
        return Ok(());
    }
    Err(differs(format!(
        "the evaluation of stream {name:?} at step {} was fed {} examples with ids {}; the first \
         {num_examples} of the {} split have ids {expected}",
        engine.step_number(),
        outcome.num_examples,
        outcome.ids,
        stream.split.name(),
    )))
}

/// Compares the chosen candidate with what the contract's rule gives: the best
/// finite value, the smallest step among equals.
///
/// # Errors
/// When it is another.
pub fn selection(
    contract: &Contract,
    candidates: &BTreeMap<u64, PastCandidate>,
    chosen: Option<&PastCandidate>,
) -> Result<(), Mismatch> {
    let name = &contract.selection.stream;
    let stream = contract.evaluation.streams.iter().find(|stream| stream.name == *name);
    let mut best: Option<(u64, f64)> = None;
    for (step, candidate) in candidates {
        let value = candidate.det.value.0;
        let improves = stream.is_some_and(|stream| {
            best.is_none_or(|(_, best)| match stream.direction {
                Direction::Minimize => value < best,
                Direction::Maximize => value > best,
            })
        });
        if value.is_finite() && improves {
            best = Some((*step, value));
        }
    }
    let (found, expected) = (chosen.map(|candidate| candidate.det.step), best.map(|(step, _)| step));
    if found == expected {
        return Ok(());
    }
    let words =
        |step: Option<u64>| step.map_or_else(|| "none".to_owned(), |step| format!("that of step {step}"));
    let what = format!(
        "the selected candidate is {}, and the values of stream {name:?} give {}",
        words(found),
        words(expected)
    );
    Err(Mismatch::own(ObservedFault::SelectionMismatch, CAUSE, what))
}
