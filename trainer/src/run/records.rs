//! What the loop does at a step and writes down: updates, evaluations,
//! admissions. When, the loop decides.

use std::time::{Duration, Instant};

use schemas::body::{Body, CandidateAdmittedDet, CandidateObs, Credit, EvalDet, EvalObs, Halves, StepObs};
use schemas::contract::EvaluationStream;
use schemas::digest::Digest;
use schemas::ids::CandidateId;
use schemas::number::Float;

use crate::detect;
use crate::engine::{Engine, StepOutcome};
use crate::evaluate::EvaluationOutcome;
use crate::faults;
use crate::state::tree::RecordedState;
use crate::workers::Exchange;

use super::attempt::Attempt;
use super::costs::{self, micros};
use super::error::RunError;
use super::failpoint;
use super::history::PastCandidate;
use super::save::Saved;
use super::signals::Interrupt;

/// Updates between two readings of the resident memory; reading it at each
/// would cost more than recording.
const RESIDENT_EVERY_STEPS: u64 = 50;

/// One evaluation of the current step.
pub(super) struct Evaluated<'a> {
    duration: Duration,
    pub(super) outcome: EvaluationOutcome,
    pub(super) stream: &'a EvaluationStream,
}

/// An update whose entry is not written yet.
#[derive(Debug)]
pub(super) struct Pending {
    pub(super) duration: Duration,
    /// What workers did of it.
    pub(super) exchange: Exchange,
    pub(super) outcome: StepOutcome,
}

/// Loss and gradient norm have to be finite: the contract has no permission to
/// go on otherwise, unless a loss scaler skipped the step for its gradient.
pub(super) fn check_finite(step: u64, outcome: &StepOutcome) -> Result<(), RunError> {
    let norm = match outcome.credit {
        Credit::Backpropagation { gradient_norm, .. } => gradient_norm.0,
        Credit::Evolution { .. } => 0.0,
    };
    if !outcome.loss.is_finite() {
        return Err(RunError::NotFinite { what: "the loss", step, value: outcome.loss });
    }
    let is_skipped = outcome.overflow.as_ref().is_some_and(|overflow| overflow.skipped);
    if !norm.is_finite() && !is_skipped {
        return Err(RunError::NotFinite { what: "the gradient norm", step, value: norm });
    }
    Ok(())
}

pub(super) fn record_step(
    attempt: &mut Attempt,
    step: u64,
    update: &Pending,
    state: Option<RecordedState>,
) -> Result<(), RunError> {
    let outcome = &update.outcome;
    let det = outcome.det(state);
    let is_read = step.is_multiple_of(RESIDENT_EVERY_STEPS);
    let obs = StepObs {
        bytes_sent: update.exchange.bytes_sent(),
        duration_us: micros(update.duration),
        recording_us: micros(attempt.take_waited()),
        replicas: update.exchange.replicas.clone(),
        resident_bytes: if is_read { costs::resident_bytes() } else { None },
        shares: update.exchange.shares.clone(),
    };
    attempt.costs.sent(obs.bytes_sent);
    attempt.console.step(step, &det, update.duration);
    attempt.record(step, Body::Step(Box::new(Halves { det, obs })))?;
    attempt.costs.step();
    failpoint::pass("step.recorded");
    Ok(())
}

/// Evaluates one stream; `None` when a signal came in between.
pub(super) fn evaluate<'a>(
    attempt: &mut Attempt,
    engine: &Engine,
    stream: &'a EvaluationStream,
    interrupt: &Interrupt,
) -> Result<Option<Evaluated<'a>>, RunError> {
    let started = Instant::now();
    let struck = match attempt.faults.is_some() {
        true => faults::evaluated(attempt, engine, stream)?,
        false => None,
    };
    let outcome = engine.evaluate(struck.as_ref().unwrap_or(stream), interrupt.flag())?;
    if let (true, Some(outcome)) = (attempt.detects(), &outcome) {
        detect::evaluation(engine, stream, outcome)?;
    }
    let duration = started.elapsed();
    attempt.costs.eval(duration);
    Ok(outcome.map(|outcome| Evaluated { duration, outcome, stream }))
}

pub(super) fn record_evaluation(
    attempt: &mut Attempt,
    step: u64,
    evaluation: &Evaluated<'_>,
    model: Option<Digest>,
) -> Result<(), RunError> {
    let (stream, outcome) = (evaluation.stream, &evaluation.outcome);
    let det = EvalDet {
        metric: stream.metric,
        model,
        num_examples: outcome.num_examples,
        num_tokens: outcome.num_tokens,
        split: stream.split,
        stream: stream.name.clone(),
        total_nats: Float(outcome.total_nats),
        value: Float(outcome.value),
        view: stream.view,
    };
    attempt.console.note(&format!("eval {step:>6}  {} {:.4}", stream.name, outcome.value));
    let obs = EvalObs { duration_us: micros(evaluation.duration) };
    attempt.record(step, Body::Eval(Box::new(Halves { det, obs })))
}

pub(super) fn admit(
    attempt: &mut Attempt,
    step: u64,
    saved: &Saved,
    value: f64,
) -> Result<PastCandidate, RunError> {
    let det = CandidateAdmittedDet { config: saved.config, model: saved.model, step, value: Float(value) };
    let candidate = CandidateId(format!("candidate-{}", saved.checkpoint));
    let obs = CandidateObs { candidate: candidate.clone(), checkpoint: saved.checkpoint.clone() };
    let halves = Halves { det: det.clone(), obs };
    attempt.record(step, Body::CandidateAdmitted(Box::new(halves)))?;
    failpoint::pass("candidate.admitted");
    Ok(PastCandidate { candidate, checkpoint: saved.checkpoint.clone(), det })
}
