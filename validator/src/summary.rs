//! Counts and conclusions of the report, derived from the entries in the same
//! pass as the rules. The counts that the run recorded of itself are not used.

use std::collections::{BTreeMap, BTreeSet};

use schemas::body::{
    AttemptReason, Body, CandidateAdmittedDet, CheckpointStage, EvalDet, Outcome as End, QualificationValDet,
};
use schemas::contract::Contract;
use schemas::digest::Digest;
use schemas::entry::Entry;
use schemas::ids::{AttemptId, CandidateId, CheckpointId};
use schemas::number::Float;
use schemas::report::{Denominators, SelectedCandidate, SelectionBasis};

use crate::derive::metrics;
use crate::derive::projection::Projection;
use crate::evidence::ValNumbers;

/// A candidate as admitted.
struct Admitted {
    det: CandidateAdmittedDet,
    checkpoint: CheckpointId,
}

/// Follows a run; memory grows with its checkpoints, not with its steps.
#[derive(Default)]
pub(crate) struct Summary {
    counts: Denominators,
    running: BTreeSet<AttemptId>,
    /// By step, since a later attempt's candidate replaces an earlier one's.
    admitted: BTreeMap<u64, (CandidateId, Admitted)>,
    folders: BTreeMap<CheckpointId, String>,
    /// Checkpoints that a probe showed to resume.
    qualified: BTreeSet<CheckpointId>,
    selected: Option<CandidateId>,
    /// Newest evaluation of the target's stream: step, value.
    target_eval: Option<(u64, Float)>,
    /// Values of the target's stream at saved steps, as `GL510` takes them.
    target_values: BTreeMap<u64, Float>,
    target_stream: Option<String>,
    last_step: u64,
    pub(crate) run_ended: bool,
    projection: Projection,
}

/// What the report says besides findings.
#[derive(Default)]
pub(crate) struct Conclusions {
    pub(crate) denominators: Denominators,
    pub(crate) projection: Option<Digest>,
    pub(crate) selected: Option<SelectedCandidate>,
    pub(crate) basis: Option<SelectionBasis>,
    /// Whether there is a candidate, of the stage that the contract asks for.
    pub(crate) has_candidate: bool,
    pub(crate) target_met: Option<bool>,
}

impl Summary {
    pub(crate) fn new(contract: Option<&Contract>) -> Self {
        let target_stream = contract.and_then(|contract| contract.quality_target.as_ref());
        Self { target_stream: target_stream.map(|target| target.stream.clone()), ..Self::default() }
    }

    /// Takes the next entry of the logical order into the projection. `det`:
    /// canonical bytes of the determined half, where they are at hand.
    pub(crate) fn project(&mut self, entry: &Entry, det: Option<&[u8]>) {
        match det {
            Some(det) => self.projection.stored(entry, det),
            None => self.projection.entry(entry),
        }
    }

    /// Takes the next recorded entry into account, but for the projection.
    pub(crate) fn entry(&mut self, entry: &Entry) {
        match &entry.body {
            Body::AttemptStart(halves) => {
                self.counts.attempted += 1;
                if halves.det.reason != AttemptReason::Start {
                    self.counts.recovered += 1;
                }
                self.running.insert(halves.det.attempt);
                self.last_step = halves.det.from_step;
            }
            Body::AttemptEnd(halves) if self.running.remove(&halves.det.attempt) => {
                self.end(halves.det.outcome);
            }
            Body::Step(_) => {
                self.counts.steps_executed += 1;
                self.last_step = entry.header.step.unwrap_or(self.last_step);
            }
            Body::Eval(halves) => self.eval(entry, &halves.det),
            Body::CheckpointRequested(halves) => {
                if let Some((_, value)) = self.target_eval.filter(|(at, _)| *at == halves.det.step) {
                    self.target_values.insert(halves.det.step, value);
                }
            }
            Body::CheckpointDurablyCommitted(halves) => {
                self.counts.checkpoints += 1;
                self.folders.insert(halves.obs.checkpoint.clone(), halves.obs.path.clone());
            }
            Body::CheckpointResumeQualified(halves) => {
                self.qualified.insert(halves.obs.checkpoint.clone());
            }
            Body::CandidateAdmitted(halves) => {
                let step = halves.det.step;
                let checkpoint = halves.obs.checkpoint.clone();
                let admitted = Admitted { det: halves.det.clone(), checkpoint };
                self.admitted.insert(step, (halves.obs.candidate.clone(), admitted));
            }
            Body::CandidateSelected(halves) => {
                // One that replaces another, whose checkpoint was lost, counts once.
                self.counts.selected = 1;
                self.selected = Some(halves.obs.candidate.clone());
            }
            Body::QualificationResult(_) => self.counts.qualified += 1,
            Body::RunEnd(_) => self.run_ended = true,
            _ => {}
        }
    }

    fn end(&mut self, outcome: End) {
        let count = match outcome {
            End::Completed => &mut self.counts.completed,
            End::Interrupted => &mut self.counts.interrupted,
            End::BudgetExhausted | End::FloorReached | End::Failed | End::Refused => &mut self.counts.failed,
        };
        *count += 1;
    }

    fn eval(&mut self, entry: &Entry, det: &EvalDet) {
        if self.target_stream.as_deref() == Some(det.stream.as_str())
            && let Some(step) = entry.header.step
        {
            self.target_eval = Some((step, det.value));
        }
    }

    pub(crate) fn finish(mut self, contract: Option<&Contract>, numbers: &ValNumbers) -> Conclusions {
        self.counts.candidates = self.admitted.len() as u64;
        // What left no terminal entry was interrupted, or still runs.
        self.counts.interrupted += self.running.len() as u64;
        self.counts.steps_logical = self.last_step;
        let projection = self.run_ended.then(|| self.projection.finish());
        let chosen = self
            .selected
            .as_ref()
            .and_then(|selected| self.admitted.values().find(|(candidate, _)| candidate == selected));
        let (Some((candidate, admitted)), Some(contract)) = (chosen, contract) else {
            return Conclusions { denominators: self.counts, projection, ..Conclusions::default() };
        };
        let results = match numbers {
            ValNumbers::Signed(results) => results.as_slice(),
            ValNumbers::Absent | ValNumbers::Unusable(_) => &[],
        };
        let stream = &contract.selection.stream;
        let by_evaluator =
            self.admitted.values().all(|(_, one)| find(results, one.det.model, stream).is_some());
        let value = match find(results, admitted.det.model, stream) {
            Some(result) if by_evaluator => result.value,
            _ => admitted.det.value,
        };
        let target_met = contract.quality_target.as_ref().and_then(|target| {
            let value = match find(results, admitted.det.model, &target.stream) {
                Some(result) => result.value,
                None => *self.target_values.get(&admitted.det.step)?,
            };
            let streams = &contract.evaluation.streams;
            let direction = streams.iter().find(|stream| stream.name == target.stream)?.direction;
            Some(metrics::reaches(direction, value.0, target.threshold))
        });
        // Of the two stages that a contract may ask for, an admission is the first.
        let is_qualified = self.qualified.contains(&admitted.checkpoint);
        let has_candidate =
            is_qualified || contract.checkpoints.candidate_stage < CheckpointStage::ResumeQualified;
        let selected = SelectedCandidate {
            candidate: candidate.clone(),
            config: admitted.det.config,
            model: admitted.det.model,
            path: self.folders.get(&admitted.checkpoint).cloned().unwrap_or_default(),
            step: admitted.det.step,
            value,
        };
        let basis = if by_evaluator { SelectionBasis::Evaluator } else { SelectionBasis::Trainer };
        Conclusions {
            denominators: self.counts,
            projection,
            selected: Some(selected),
            basis: Some(basis),
            has_candidate,
            target_met,
        }
    }
}

fn find<'a>(
    results: &'a [QualificationValDet],
    model: Digest,
    stream: &str,
) -> Option<&'a QualificationValDet> {
    results.iter().find(|result| result.model == model && result.stream == stream)
}
