//! Faults in what decides: the evaluation of the selection stream, and the
//! selection.

use std::collections::BTreeMap;

use schemas::contract::{EvaluationStream, FaultPhase};
use schemas::data::Split;

use super::Due;
use crate::data::ExampleSource;
use crate::engine::Engine;
use crate::run::attempt::Attempt;
use crate::run::error::RunError;
use crate::run::history::PastCandidate;

/// What is evaluated in a stream's place at the engine's step; `None` for the
/// stream itself.
///
/// # Errors
/// When a fault cannot be recorded.
pub fn evaluated(
    attempt: &mut Attempt,
    engine: &Engine,
    stream: &EvaluationStream,
) -> Result<Option<EvaluationStream>, RunError> {
    let step = engine.step_number();
    let injector = attempt.faults.as_ref().filter(|injector| injector.selection_stream == stream.name);
    let due = injector.map_or_else(Vec::new, |injector| injector.due(FaultPhase::Evaluation, step));
    let mut leaked = None;
    for due in due {
        let num_train = engine.num_train_examples();
        let of_split = engine.source(stream.split).map_or(num_train, ExampleSource::num_examples);
        let num_examples = stream.num_examples.unwrap_or(of_split).min(num_train);
        due.record(attempt)?;
        leaked = Some(EvaluationStream {
            num_examples: Some(num_examples),
            split: Split::Train,
            ..stream.clone()
        });
    }
    Ok(leaked)
}

/// The candidate that is selected at a step, where the rule gives `winner`.
///
/// # Errors
/// When a fault cannot be recorded.
pub fn selected<'a>(
    attempt: &mut Attempt,
    step: u64,
    candidates: &'a BTreeMap<u64, PastCandidate>,
    winner: Option<&'a PastCandidate>,
) -> Result<Option<&'a PastCandidate>, RunError> {
    let Some(injector) = &attempt.faults else { return Ok(winner) };
    let due: Vec<Due> = injector.due(FaultPhase::Selection, step);
    let best = best_by_loss(&injector.losses, candidates, winner);
    let (Some(best), false) = (best, due.is_empty()) else { return Ok(winner) };
    for due in due {
        due.record(attempt)?;
    }
    Ok(Some(best))
}

/// Of the candidates but the winner, the one with the least train loss; the
/// smallest step among equals.
fn best_by_loss<'a>(
    losses: &BTreeMap<u64, f64>,
    candidates: &'a BTreeMap<u64, PastCandidate>,
    winner: Option<&PastCandidate>,
) -> Option<&'a PastCandidate> {
    let others = candidates.iter().filter(|(_, candidate)| Some(*candidate) != winner);
    let with_loss = others.filter_map(|(step, candidate)| Some((*losses.get(step)?, candidate)));
    let best = with_loss.reduce(|best, next| if next.0 < best.0 { next } else { best });
    best.map(|(_, candidate)| candidate)
}
