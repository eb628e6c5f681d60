//! How an attempt ends in the ledger, and how the run does: selection, the
//! terminal entries, and what the process reports.

use std::path::Path;

use ledger::FrozenContract;
use ledger::recorder::{Record, Recorder};
use schemas::body::{
    AnomalyDet, AnomalyObs, Body, CandidateObs, CandidateSelectedDet, CostTotals, FaultObservedDet,
    FaultObservedObs, Halves, Outcome, RunEndDet, RunEndObs,
};
use schemas::contract::{Contract, Recovery};
use serde::Serialize;

use crate::{detect, faults};

use super::attempt::Attempt;
use super::costs;
use super::error::{self, RunError};
use super::failpoint;
use super::history::{History, PastCandidate};
use super::refusal::Refusal;
use super::retire;
use super::select;
use super::signals::ReceivedSignal;
use super::train::{Ending, Trained};

/// Exit code of a run that completed, or had already ended.
const EXIT_COMPLETED: u8 = 0;
/// Exit code of a run that did not complete but is cleanly on record.
const EXIT_RECORDED: u8 = 1;
/// Exit code of a refusal.
const EXIT_REFUSED: u8 = 2;

/// What the process did, for standard output.
#[derive(Debug, Clone, Serialize)]
pub struct RunReport {
    /// This process's attempt; null where none was started.
    pub attempt: Option<u32>,
    /// The candidate that was selected; null where none was.
    pub candidate: Option<String>,
    /// The process's exit code.
    pub exit_code: u8,
    /// Version of this document.
    pub format: &'static str,
    /// What can be done about it; null where nothing is known.
    pub hint: Option<String>,
    /// Last completed step.
    pub last_step: u64,
    /// How the attempt ended, or how the run had ended before.
    pub outcome: Outcome,
    /// In words.
    pub reason: String,
    /// The run.
    pub run: String,
    /// Whether the run is over.
    pub run_ended: bool,
    /// Whether the contract's quality target was met; null where it has none,
    /// or nothing was selected.
    pub target_met: Option<bool>,
}

impl RunReport {
    fn new(frozen: &FrozenContract, outcome: Outcome, reason: String, exit_code: u8) -> Self {
        Self {
            attempt: None,
            candidate: None,
            exit_code,
            format: "run-report/1",
            hint: None,
            last_step: 0,
            outcome,
            reason,
            run: frozen.run.0.clone(),
            run_ended: false,
            target_met: None,
        }
    }

    /// For a run that was over when the process started: nothing is to be done.
    #[must_use]
    pub fn already_ended(frozen: &FrozenContract, end: &RunEndDet) -> Self {
        let reason = format!("the run had ended before: {}", end.reason);
        Self {
            last_step: end.last_step,
            run_ended: true,
            target_met: end.target_met,
            ..Self::new(frozen, end.outcome, reason, EXIT_COMPLETED)
        }
    }

    /// For a signal that came before an attempt had started; nothing was
    /// recorded.
    #[must_use]
    pub fn interrupted_early(frozen: &FrozenContract, signal: ReceivedSignal) -> Self {
        let reason = format!("{} came before the attempt started; nothing was recorded", signal.name());
        Self::new(frozen, Outcome::Interrupted, reason, signal.exit_code())
    }

    /// One or two lines for people.
    #[must_use]
    pub fn text(&self) -> String {
        let what = match self.outcome {
            Outcome::Completed => "completed",
            Outcome::Interrupted => "interrupted",
            Outcome::BudgetExhausted => "out of budget",
            Outcome::FloorReached => "stopped at a floor",
            Outcome::Failed => "failed",
            Outcome::Refused => "refused",
        };
        let mut text = format!("Run {} {what} at step {}: {}\n", self.run, self.last_step, self.reason);
        if let Some(candidate) = &self.candidate {
            text.push_str(&format!("Selected {candidate}\n"));
        }
        match self.target_met {
            Some(true) => text.push_str("The quality target was met\n"),
            Some(false) => {
                text.push_str("THE QUALITY TARGET WAS MISSED: this run is no evidence of competence\n");
            }
            None => {}
        }
        text
    }
}

/// Ends an attempt as its work turned out, and the run where it is over.
///
/// # Errors
/// When the ledger cannot be written; everything else is on record and in the
/// report.
pub fn conclude(
    attempt: Attempt,
    frozen: &FrozenContract,
    history: &History,
    ledger_folder: &Path,
    result: Result<Trained, RunError>,
) -> Result<RunReport, RunError> {
    match result {
        Ok(trained) => match &trained.ending {
            Ending::Last { .. } => finish(attempt, frozen, history, ledger_folder, trained),
            Ending::Floor(floor) => {
                let reason = floor.to_string();
                leave(attempt, frozen, Outcome::FloorReached, reason, EXIT_RECORDED)
            }
            Ending::Interrupted(signal) => {
                let (reason, code) = (signal.name().to_owned(), signal.exit_code());
                leave(attempt, frozen, Outcome::Interrupted, reason, code)
            }
        },
        // Without a ledger nothing more can be recorded.
        Err(failure @ RunError::Record(_)) => Err(failure),
        Err(failure) => fail(attempt, frozen, history, &failure),
    }
}

/// Ends the attempt and leaves the run open.
fn leave(
    attempt: Attempt,
    frozen: &FrozenContract,
    outcome: Outcome,
    reason: String,
    exit_code: u8,
) -> Result<RunReport, RunError> {
    let (number, last_step) = (attempt.attempt.0, attempt.last_step());
    let (recorder, _) = attempt.end(outcome, reason.clone())?;
    recorder.close()?;
    let report = RunReport::new(frozen, outcome, reason, exit_code);
    let contract = &frozen.contract;
    let ends = contract.faults.recovery == Recovery::Refuse || number >= contract.budget.max_attempts;
    let hint = match outcome {
        // The next attempt would be refused on record.
        _ if ends => "the contract allows no further attempt; the same command again ends the run",
        Outcome::FloorReached => "make room, then run the same command again; the run resumes",
        _ => "the same command again resumes the run",
    };
    Ok(RunReport { attempt: Some(number), hint: Some(hint.to_owned()), last_step, ..report })
}

/// The last step was reached: select, end the attempt, end the run.
fn finish(
    mut attempt: Attempt,
    frozen: &FrozenContract,
    history: &History,
    ledger_folder: &Path,
    trained: Trained,
) -> Result<RunReport, RunError> {
    let Ending::Last { outcome, reason } = trained.ending else {
        return leave(attempt, frozen, Outcome::Failed, "the loop did not end".to_owned(), EXIT_RECORDED);
    };
    let contract = &frozen.contract;
    let (number, last_step, counters) = (attempt.attempt.0, attempt.last_step(), attempt.counters());
    let stream = select::stream(contract);
    let mut winner = stream
        .and_then(|stream| select::winner(&trained.candidates, stream.direction, contract.selection.tie));
    if attempt.faults.is_some() {
        winner = faults::selected(&mut attempt, last_step, &trained.candidates, winner)?;
    }
    if attempt.detects()
        && let Err(mismatch) = detect::selection(contract, &trained.candidates, winner)
    {
        return fail(attempt, frozen, history, &mismatch.into());
    }
    let target_met = winner.and_then(|winner| {
        meets_target(contract, |stream| trained.values.get(stream)?.get(&winner.det.step).copied())
    });
    if let Some(winner) = winner {
        let halves = selected(contract, winner, trained.candidates.len());
        // A crash after the selection leaves it standing: there is one, unless
        // a checkpoint was lost behind it and admitted again since.
        let stands = history.selected.as_ref() == Some(&halves) && trained.candidates == history.candidates;
        if !stands {
            attempt.record_durably(last_step, Body::CandidateSelected(Box::new(halves)))?;
        }
        failpoint::pass("candidate.selected");
    }
    let candidate = winner.map(|winner| winner.candidate.0.clone());
    retire::apply(&mut attempt, frozen, ledger_folder)?;
    let (recorder, cost) = attempt.end(outcome, reason.clone())?;
    let det = RunEndDet { counters, last_step, outcome, reason: reason.clone(), target_met };
    end_run(&recorder, history, det, Some(cost))?;
    recorder.close()?;
    let exit_code = if outcome == Outcome::Completed { EXIT_COMPLETED } else { EXIT_RECORDED };
    Ok(RunReport {
        attempt: Some(number),
        candidate,
        last_step,
        run_ended: true,
        target_met,
        ..RunReport::new(frozen, outcome, reason, exit_code)
    })
}

/// Whether the quality target is met, by the value that a stream has at the
/// selected step; `None` where there is no target, or no value.
fn meets_target(contract: &Contract, value_of: impl Fn(&str) -> Option<f64>) -> Option<bool> {
    let target = contract.quality_target.as_ref()?;
    let stream = contract.evaluation.streams.iter().find(|stream| stream.name == target.stream)?;
    Some(select::reaches(stream.direction, value_of(&target.stream)?, target.threshold))
}

fn selected(
    contract: &Contract,
    winner: &PastCandidate,
    num_candidates: usize,
) -> Halves<CandidateSelectedDet, CandidateObs> {
    let det = CandidateSelectedDet {
        model: winner.det.model,
        num_candidates: num_candidates as u64,
        step: winner.det.step,
        stream: contract.selection.stream.clone(),
        value: winner.det.value,
    };
    let obs = CandidateObs { candidate: winner.candidate.clone(), checkpoint: winner.checkpoint.clone() };
    Halves { det, obs }
}

/// Records what went wrong and ends the attempt; the run too, where every
/// attempt would meet the same.
fn fail(
    mut attempt: Attempt,
    frozen: &FrozenContract,
    history: &History,
    failure: &RunError,
) -> Result<RunReport, RunError> {
    let (number, last_step, counters) = (attempt.attempt, attempt.last_step(), attempt.counters());
    let reason = error::chain(failure);
    let body = match failure.fault() {
        Some(fault) => {
            let det = FaultObservedDet { attempt: number, cause: failure.cause(), fault, last_step };
            let obs = FaultObservedObs { checkpoint: None, description: reason.clone() };
            Body::FaultObserved(Box::new(Halves { det, obs }))
        }
        None => {
            let det = AnomalyDet::named(failure.name());
            let obs = AnomalyObs { description: reason.clone() };
            Body::Anomaly(Box::new(Halves { det, obs }))
        }
    };
    attempt.dismiss();
    attempt.record_of(last_step, body, failure.worker(), None)?;
    let (recorder, cost) = attempt.end(Outcome::Failed, reason.clone())?;
    let run_ended = failure.ends_run();
    if run_ended {
        let outcome = Outcome::Failed;
        let det = RunEndDet { counters, last_step, outcome, reason: reason.clone(), target_met: None };
        end_run(&recorder, history, det, Some(cost))?;
    }
    recorder.close()?;
    let exit_code = if failure.is_refusal() { EXIT_REFUSED } else { EXIT_RECORDED };
    Ok(RunReport {
        attempt: Some(number.0),
        hint: failure.hint().map(str::to_owned),
        last_step,
        run_ended,
        ..RunReport::new(frozen, Outcome::Failed, reason, exit_code)
    })
}

/// Ends a run whose last attempt had reached the end, and whose process was gone
/// before it wrote `run.end`: nothing is left to be executed. `None` for others.
///
/// # Errors
/// When the ledger cannot be written.
pub fn end_after_last(
    recorder: &Recorder,
    frozen: &FrozenContract,
    history: &History,
) -> Result<Option<RunReport>, RunError> {
    let Some(past) = history.attempts.last() else { return Ok(None) };
    let Some(outcome @ (Outcome::Completed | Outcome::BudgetExhausted)) = past.outcome else {
        return Ok(None);
    };
    // The selection precedes the end of the attempt.
    let selected = history.selected.as_ref();
    let target_met = selected.and_then(|selected| {
        meets_target(&frozen.contract, |stream| history.evaluation(stream, selected.det.step))
    });
    let (last_step, reason) = (past.last_step, past.reason.clone());
    let det =
        RunEndDet { counters: history.counters, last_step, outcome, reason: reason.clone(), target_met };
    end_run(recorder, history, det, None)?;
    let exit_code = if outcome == Outcome::Completed { EXIT_COMPLETED } else { EXIT_RECORDED };
    Ok(Some(RunReport {
        candidate: selected.map(|selected| selected.obs.candidate.0.clone()),
        last_step,
        run_ended: true,
        target_met,
        ..RunReport::new(frozen, outcome, reason, exit_code)
    }))
}

/// Ends a run that may not go on, without an attempt.
///
/// # Errors
/// When the ledger cannot be written.
pub fn end_without_attempt(
    recorder: &Recorder,
    frozen: &FrozenContract,
    history: &History,
    outcome: Outcome,
    refusal: &Refusal,
) -> Result<RunReport, RunError> {
    let last_step = history.attempts.last().map_or(0, |past| past.last_step);
    let reason = refusal.to_string();
    let counters = history.counters;
    let det = RunEndDet { counters, last_step, outcome, reason: reason.clone(), target_met: None };
    end_run(recorder, history, det, None)?;
    let exit_code = if outcome == Outcome::Refused { EXIT_REFUSED } else { EXIT_RECORDED };
    Ok(RunReport {
        hint: Some(refusal.hint().to_owned()),
        last_step,
        run_ended: true,
        ..RunReport::new(frozen, outcome, reason, exit_code)
    })
}

/// Writes `run.end` durably. `cost` is that of the attempt that ends it.
fn end_run(
    recorder: &Recorder,
    history: &History,
    det: RunEndDet,
    cost: Option<CostTotals>,
) -> Result<(), RunError> {
    let num_earlier = u32::try_from(history.attempts.len()).unwrap_or(u32::MAX);
    let obs = RunEndObs {
        cost: cost.map_or_else(|| history.cost(), |cost| costs::add(history.cost(), cost)),
        num_attempts: num_earlier + u32::from(cost.is_some()),
        num_attempts_incomplete: history.num_incomplete(),
    };
    let last_step = det.last_step;
    recorder.append_durable(Record::new(Body::RunEnd(Box::new(Halves { det, obs }))).step(last_step))?;
    Ok(())
}
