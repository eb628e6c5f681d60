//! What the ledger says has happened to a run so far: attempts, checkpoints,
//! evaluations, candidates.
//!
//! It is read once, before an attempt starts, and is the only thing that an
//! attempt believes about its predecessors. Memory grows with evaluations and
//! checkpoints, not with steps.

use std::collections::{BTreeMap, BTreeSet};

use ledger::recovery::Charges;
use schemas::body::{
    Body, CandidateAdmittedDet, CandidateObs, CandidateSelectedDet, CostTotals, Counters, FaultObservedDet,
    Halves, ObservedFault, Outcome, RunEndDet, SegmentStartDet,
};
use schemas::entry::Entry;
use schemas::ids::{AttemptId, CandidateId, CheckpointId};

use crate::checkpoint::locate::RecordedCheckpoint;
use crate::checkpoint::roster::Roster;

use super::doubt;
use super::segments::PastSegment;

/// One earlier process.
#[derive(Debug, Clone, PartialEq)]
pub struct PastAttempt {
    /// Its number.
    pub attempt: AttemptId,
    /// What it cost: as it said itself when it ended; for one that vanished,
    /// its `step` entries and the time between its first and last entry
    /// (`docs/FORMAT.md`, "Costs").
    pub cost: CostTotals,
    /// Step whose state it started from.
    pub from_step: u64,
    /// Whether a fault that struck it still has no `fault.recovered`.
    pub has_open_fault: bool,
    /// Whether a fault says that something else was computed than the contract
    /// says; no recovery takes that back.
    pub is_in_doubt: bool,
    /// Whether it found its state not to be what the record gives before its
    /// first step; no recovery takes that back.
    pub is_refused: bool,
    /// Its last completed step, or the step that it started from.
    pub last_step: u64,
    /// Processes that executed it.
    pub num_workers: u32,
    /// How it ended; `None` for one that vanished.
    pub outcome: Option<Outcome>,
    /// Its process id, which is part of its staging folders' names.
    pub process: u32,
    /// Why it ended, in words; empty for one that vanished.
    pub reason: String,
    /// Checkpoint that it started from.
    pub resumed_from: Option<CheckpointId>,
    /// Whether a later process recorded that it vanished.
    pub is_reported: bool,
    start_us: u64,
}

/// How far a checkpoint came.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Progress {
    /// Requested.
    Requested,
    /// Staged.
    Staged,
    /// Durably committed.
    Committed,
    /// Validated.
    Validated,
    /// Resume-qualified.
    Qualified,
    /// Retired: its shards are gone, and what it was stays true.
    Retired,
    /// Failed or quarantined: never used again.
    Ended,
}

/// A checkpoint as the ledger knows it.
#[derive(Debug, Clone)]
pub struct PastCheckpoint {
    /// Attempt that requested it.
    pub attempt: AttemptId,
    /// Its name.
    pub checkpoint: CheckpointId,
    /// Present once it was durably committed.
    pub committed: Option<RecordedCheckpoint>,
    counters: Counters,
    /// A later attempt called it failed: what is left of its files may go.
    pub is_abandoned: bool,
    /// How far it came.
    pub progress: Progress,
    /// Its step.
    pub step: u64,
    /// Whether a probe qualified it, whatever became of it since.
    pub was_qualified: bool,
}

/// A candidate as the ledger knows it.
#[derive(Debug, Clone, PartialEq)]
pub struct PastCandidate {
    /// Its name.
    pub candidate: CandidateId,
    /// Its checkpoint.
    pub checkpoint: CheckpointId,
    /// What was admitted.
    pub det: CandidateAdmittedDet,
}

/// Everything that an attempt has to know of the run before it.
#[derive(Debug, Default)]
pub struct History {
    /// In the order of starting.
    pub attempts: Vec<PastAttempt>,
    /// By step; of one step the latest admitted.
    pub candidates: BTreeMap<u64, PastCandidate>,
    /// What recoveries cost and nobody charged yet.
    pub charges: Charges,
    /// By name.
    pub checkpoints: BTreeMap<CheckpointId, PastCheckpoint>,
    /// How the run ended, if it did.
    pub end: Option<RunEndDet>,
    /// Value by stream and step; of one step the latest evaluation.
    pub evaluations: BTreeMap<String, BTreeMap<u64, f64>>,
    /// Steps whose newest entry says that the loss scaler found an overflow.
    pub overflows: BTreeSet<u64>,
    /// The selection, where an attempt made it and then vanished; none where a
    /// candidate was admitted since, because it was of another family.
    pub selected: Option<Halves<CandidateSelectedDet, CandidateObs>>,
    /// Threads of the first attempt.
    pub num_threads: Option<u32>,
    /// The segment that began last.
    pub segment: Option<PastSegment>,
    /// Whether `run.start` was written.
    pub has_started: bool,
    /// After the newest attempt's last step.
    pub counters: Counters,
    /// What retention goes by.
    pub roster: Roster,
}

impl History {
    /// Takes the next entry, in index order.
    pub fn observe(&mut self, entry: &Entry) {
        self.roster.observe_entry(entry);
        if let Some(attempt) = entry.header.attempt.and_then(|attempt| self.attempt_mut(attempt)) {
            attempt.cost.wall_us = entry.time_us.saturating_sub(attempt.start_us);
        }
        match &entry.body {
            Body::RunStart(_) => self.has_started = true,
            Body::SegmentStart(halves) => self.observe_segment(entry, &halves.det),
            Body::RunEnd(halves) => self.end = Some(halves.det.clone()),
            Body::AttemptStart(halves) => {
                self.num_threads.get_or_insert(halves.obs.plan.num_threads);
                // What lies behind the step that it starts from is executed again.
                self.overflows.retain(|step| *step <= halves.det.from_step);
                let from = halves.det.resumed_from.as_ref();
                self.counters = from
                    .and_then(|point| self.checkpoints.get(&point.checkpoint))
                    .map_or_else(Counters::default, |checkpoint| checkpoint.counters);
                self.attempts.push(PastAttempt {
                    attempt: halves.det.attempt,
                    cost: CostTotals::default(),
                    from_step: halves.det.from_step,
                    has_open_fault: false,
                    is_in_doubt: false,
                    is_refused: false,
                    last_step: halves.det.from_step,
                    num_workers: halves.obs.plan.num_workers,
                    outcome: None,
                    process: halves.obs.process,
                    reason: String::new(),
                    resumed_from: from.map(|point| point.checkpoint.clone()),
                    is_reported: false,
                    start_us: entry.time_us,
                });
            }
            Body::AttemptEnd(halves) => {
                if let Some(attempt) = self.attempt_mut(halves.det.attempt) {
                    attempt.outcome = Some(halves.det.outcome);
                    attempt.cost = halves.obs.cost;
                    attempt.reason.clone_from(&halves.obs.reason);
                }
            }
            Body::Step(halves) => {
                self.counters = halves.det.counters;
                if halves.det.overflow.as_ref().is_some_and(|overflow| overflow.found) {
                    self.overflows.extend(entry.header.step);
                }
                if let Some(attempt) = self.header_attempt(entry) {
                    attempt.last_step = entry.header.step.unwrap_or(attempt.last_step);
                    attempt.cost.num_steps_executed += 1;
                }
            }
            Body::Eval(halves) => {
                if let Some(step) = entry.header.step {
                    let stream = self.evaluations.entry(halves.det.stream.clone()).or_default();
                    stream.insert(step, halves.det.value.0);
                }
            }
            Body::FaultObserved(halves) => self.observe_fault(&halves.det),
            Body::Cost(halves) => self.charges.charged(&halves.det, &halves.obs),
            Body::FaultRecovered(halves) => {
                self.charges.recovered(&halves.det);
                if let Some(attempt) = self.attempt_mut(halves.det.attempt) {
                    attempt.has_open_fault = false;
                    attempt.is_reported = true;
                }
            }
            Body::CandidateAdmitted(halves) => {
                let candidate = PastCandidate {
                    candidate: halves.obs.candidate.clone(),
                    checkpoint: halves.obs.checkpoint.clone(),
                    det: halves.det.clone(),
                };
                self.candidates.insert(halves.det.step, candidate);
                self.selected = None;
            }
            Body::CandidateSelected(halves) => self.selected = Some((**halves).clone()),
            _ => self.observe_checkpoint(entry),
        }
    }

    fn observe_fault(&mut self, fault: &FaultObservedDet) {
        if let Some(attempt) = self.attempt_mut(fault.attempt) {
            attempt.has_open_fault = true;
            attempt.is_in_doubt |= doubt::is_of_state(fault.fault);
            let has_stepped = attempt.cost.num_steps_executed > 0;
            attempt.is_refused |= fault.fault == ObservedFault::StateMismatch && !has_stepped;
        }
    }

    fn observe_checkpoint(&mut self, entry: &Entry) {
        match &entry.body {
            Body::CheckpointRequested(halves) => {
                let Some(attempt) = entry.header.attempt else { return };
                let checkpoint = PastCheckpoint {
                    attempt,
                    checkpoint: halves.obs.checkpoint.clone(),
                    committed: None,
                    counters: self.counters,
                    is_abandoned: false,
                    progress: Progress::Requested,
                    step: halves.det.step,
                    was_qualified: false,
                };
                self.checkpoints.insert(halves.obs.checkpoint.clone(), checkpoint);
            }
            Body::CheckpointStaged(halves) => self.advance(&halves.obs.checkpoint, Progress::Staged),
            Body::CheckpointDurablyCommitted(halves) => {
                self.advance(&halves.obs.checkpoint, Progress::Committed);
                if let Some(known) = self.checkpoints.get_mut(&halves.obs.checkpoint) {
                    known.committed = Some(RecordedCheckpoint {
                        attempt: known.attempt,
                        checkpoint: known.checkpoint.clone(),
                        counters: known.counters,
                        manifest: halves.obs.manifest,
                        model: halves.det.model,
                        num_bytes: halves.obs.num_bytes,
                        path: halves.obs.path.clone(),
                        step: halves.det.step,
                    });
                }
            }
            Body::CheckpointValidated(halves) => self.advance(&halves.obs.checkpoint, Progress::Validated),
            Body::CheckpointResumeQualified(halves) => {
                self.advance(&halves.obs.checkpoint, Progress::Qualified);
                if let Some(known) = self.checkpoints.get_mut(&halves.obs.checkpoint) {
                    known.was_qualified = true;
                }
            }
            Body::CheckpointFailed(halves) => {
                let num_bytes = self.num_bytes(&halves.obs.checkpoint);
                self.charges.given_up(num_bytes);
                self.advance(&halves.obs.checkpoint, Progress::Ended);
                if let Some(known) = self.checkpoints.get_mut(&halves.obs.checkpoint) {
                    known.is_abandoned |= entry.header.attempt != Some(known.attempt);
                }
            }
            Body::CheckpointQuarantined(halves) => {
                let num_bytes = self.num_bytes(&halves.obs.checkpoint);
                self.charges.given_up(num_bytes);
                self.advance(&halves.obs.checkpoint, Progress::Ended);
            }
            Body::CheckpointRetired(halves) => self.advance(&halves.obs.checkpoint, Progress::Retired),
            _ => {}
        }
    }

    /// The first segment has the contract's number of workers, every other one
    /// that of the attempt which began it.
    fn observe_segment(&mut self, entry: &Entry, det: &SegmentStartDet) {
        let begun_by = self.header_attempt(entry).map(|past| past.num_workers);
        let num_workers = begun_by.filter(|_| det.adjudication.is_some());
        self.segment = Some(PastSegment { num_workers, segment: det.segment });
    }

    /// Processes that executed an attempt; `None` for one that is not on record.
    #[must_use]
    pub fn num_workers_of(&self, attempt: AttemptId) -> Option<u32> {
        self.attempts.iter().find(|past| past.attempt == attempt).map(|past| past.num_workers)
    }

    fn advance(&mut self, checkpoint: &CheckpointId, progress: Progress) {
        if let Some(known) = self.checkpoints.get_mut(checkpoint) {
            known.progress = known.progress.max(progress);
        }
    }

    /// Size of what was committed of a checkpoint; 0 where nothing was.
    pub(super) fn num_bytes(&self, checkpoint: &CheckpointId) -> u64 {
        let committed = self.checkpoints.get(checkpoint).and_then(|known| known.committed.as_ref());
        committed.map_or(0, |record| record.num_bytes)
    }

    fn attempt_mut(&mut self, attempt: AttemptId) -> Option<&mut PastAttempt> {
        self.attempts.iter_mut().rev().find(|past| past.attempt == attempt)
    }

    fn header_attempt(&mut self, entry: &Entry) -> Option<&mut PastAttempt> {
        self.attempt_mut(entry.header.attempt?)
    }

    /// Number that the next attempt gets.
    #[must_use]
    pub fn next_attempt(&self) -> AttemptId {
        AttemptId(self.attempts.iter().map(|past| past.attempt.0).max().unwrap_or(0) + 1)
    }

    /// Attempts that vanished and whose vanishing nobody recorded yet.
    pub fn vanished(&self) -> impl Iterator<Item = &PastAttempt> {
        self.attempts.iter().filter(|past| past.outcome.is_none() && !past.is_reported)
    }

    /// Attempts without a terminal entry.
    #[must_use]
    pub fn num_incomplete(&self) -> u32 {
        let num = self.attempts.iter().filter(|past| past.outcome.is_none()).count();
        u32::try_from(num).unwrap_or(u32::MAX)
    }

    /// Checkpoints that a crash left between request and validation.
    pub fn unfinished_checkpoints(&self) -> impl Iterator<Item = &PastCheckpoint> {
        self.checkpoints.values().filter(|known| known.progress < Progress::Validated)
    }

    /// Checkpoints that an earlier recovery called failed; a crash may have left
    /// files of them all the same.
    pub fn abandoned_checkpoints(&self) -> impl Iterator<Item = &PastCheckpoint> {
        self.checkpoints.values().filter(|known| known.is_abandoned)
    }

    /// Checkpoints that the ledger allows a run to go on from.
    #[must_use]
    pub fn usable_checkpoints(&self) -> Vec<RecordedCheckpoint> {
        let usable =
            |known: &&PastCheckpoint| (Progress::Validated..Progress::Retired).contains(&known.progress);
        self.checkpoints.values().filter(usable).filter_map(|known| known.committed.clone()).collect()
    }

    /// Those of them that a probe has shown to continue the run.
    #[must_use]
    pub fn qualified_checkpoints(&self) -> Vec<RecordedCheckpoint> {
        let is_qualified = |record: &RecordedCheckpoint| {
            let known = self.checkpoints.get(&record.checkpoint);
            known.is_some_and(|known| known.progress == Progress::Qualified)
        };
        self.usable_checkpoints().into_iter().filter(is_qualified).collect()
    }

    /// Checkpoints that must not be used: they failed or are quarantined.
    #[must_use]
    pub fn ended_checkpoints(&self) -> BTreeSet<CheckpointId> {
        let ended = |known: &&PastCheckpoint| known.progress == Progress::Ended;
        self.checkpoints.values().filter(ended).map(|known| known.checkpoint.clone()).collect()
    }

    /// The last step, where the last attempt came to it in the ordinary way: then
    /// every stream was evaluated there. A run that was given up ends anywhere.
    #[must_use]
    pub fn ordinary_end(&self) -> Option<u64> {
        let outcome = self.attempts.last().and_then(|attempt| attempt.outcome);
        let is_ordinary = matches!(outcome, Some(Outcome::Completed | Outcome::BudgetExhausted));
        self.end.as_ref().filter(|_| is_ordinary).map(|end| end.last_step)
    }

    /// Evaluation of a stream at a step.
    #[must_use]
    pub fn evaluation(&self, stream: &str, step: u64) -> Option<f64> {
        self.evaluations.get(stream)?.get(&step).copied()
    }

    /// Costs of all earlier attempts together.
    #[must_use]
    pub fn cost(&self) -> CostTotals {
        self.attempts.iter().fold(CostTotals::default(), |total, past| super::costs::add(total, past.cost))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended(outcome_of_attempt: Option<Outcome>, outcome: Outcome) -> History {
        let attempt = PastAttempt {
            attempt: AttemptId(1),
            cost: CostTotals::default(),
            from_step: 0,
            has_open_fault: false,
            is_in_doubt: false,
            is_refused: false,
            last_step: 7,
            num_workers: 1,
            outcome: outcome_of_attempt,
            process: 1,
            reason: String::new(),
            resumed_from: None,
            is_reported: true,
            start_us: 0,
        };
        let reason = "of this test".to_owned();
        let end =
            RunEndDet { counters: Counters::default(), last_step: 7, outcome, reason, target_met: None };
        History { attempts: vec![attempt], end: Some(end), ..History::default() }
    }

    #[test]
    fn a_run_that_was_given_up_is_not_fully_evaluated_at_its_end() {
        for outcome in [Outcome::Completed, Outcome::BudgetExhausted] {
            assert_eq!(ended(Some(outcome), outcome).ordinary_end(), Some(7));
        }
        // All attempts are used, and the last one failed or vanished.
        for outcome in [Some(Outcome::Failed), Some(Outcome::Interrupted), None] {
            assert_eq!(ended(outcome, Outcome::BudgetExhausted).ordinary_end(), None, "{outcome:?}");
        }
        assert_eq!(ended(Some(Outcome::Refused), Outcome::Refused).ordinary_end(), None);
        let running = History { end: None, ..ended(Some(Outcome::Completed), Outcome::Completed) };
        assert_eq!(running.ordinary_end(), None);
    }
}
