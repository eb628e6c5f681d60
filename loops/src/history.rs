//! What the ledger says has happened to the run so far.
//!
//! It is read once, when a run is opened, and is all that an attempt believes
//! about its predecessors. Memory grows with evaluations and checkpoints, not
//! with steps.

use std::collections::{BTreeMap, BTreeSet};

use ledger::recovery::Charges;
use schemas::body::{
    Body, CandidateAdmittedDet, CandidateObs, CandidateSelectedDet, CostTotals, Counters, Halves, Outcome,
    RunEndDet,
};
use schemas::digest::Digest;
use schemas::entry::Entry;
use schemas::ids::{AttemptId, CandidateId, CheckpointId};

/// An attempt of an earlier process.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct PastAttempt {
    pub(crate) attempt: AttemptId,
    /// As it said when it ended; wall time and steps of one that vanished.
    pub(crate) cost: CostTotals,
    /// A fault was observed of it and not recovered from.
    pub(crate) has_open_fault: bool,
    /// Its end was missing and somebody said so.
    pub(crate) is_reported: bool,
    pub(crate) last_step: u64,
    pub(crate) outcome: Option<Outcome>,
    pub(crate) process: u32,
    pub(crate) reason: String,
    start_us: u64,
}

/// How far a checkpoint came.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Progress {
    Requested,
    Staged,
    Committed,
    Validated,
    /// Failed, quarantined or retired.
    Ended,
}

/// A checkpoint of an earlier attempt.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct PastCheckpoint {
    pub(crate) attempt: AttemptId,
    pub(crate) checkpoint: CheckpointId,
    pub(crate) counters: Counters,
    /// BLAKE3 of the manifest, size and folder, from the commit on.
    pub(crate) committed: Option<(Digest, u64, String)>,
    /// A later attempt called it failed: what is left of its files may go.
    pub(crate) is_abandoned: bool,
    pub(crate) progress: Progress,
    pub(crate) step: u64,
}

/// A candidate.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Candidate {
    pub(crate) candidate: CandidateId,
    pub(crate) checkpoint: CheckpointId,
    pub(crate) det: CandidateAdmittedDet,
}

/// Everything that is read from the ledger.
#[derive(Debug, Default)]
pub(crate) struct History {
    pub(crate) attempts: Vec<PastAttempt>,
    pub(crate) candidates: BTreeMap<u64, Candidate>,
    pub(crate) charges: Charges,
    pub(crate) checkpoints: BTreeMap<CheckpointId, PastCheckpoint>,
    pub(crate) counters: Counters,
    pub(crate) end: Option<RunEndDet>,
    /// Value by stream and step, of the newest attempt that recorded it.
    pub(crate) evaluations: BTreeMap<String, BTreeMap<u64, f64>>,
    pub(crate) has_segment: bool,
    pub(crate) has_started: bool,
    /// Threads of the first attempt.
    pub(crate) num_threads: Option<u32>,
    pub(crate) selected: Option<Halves<CandidateSelectedDet, CandidateObs>>,
}

impl History {
    /// Takes the next entry.
    pub(crate) fn observe(&mut self, entry: &Entry) {
        if let Some(attempt) = entry.header.attempt.and_then(|attempt| self.attempt_mut(attempt)) {
            attempt.cost.wall_us = entry.time_us.saturating_sub(attempt.start_us);
        }
        match &entry.body {
            Body::RunStart(_) => self.has_started = true,
            Body::SegmentStart(_) => self.has_segment = true,
            Body::RunEnd(halves) => self.end = Some(halves.det.clone()),
            Body::AttemptStart(halves) => {
                let from = halves.det.resumed_from.as_ref();
                self.counters = from
                    .and_then(|point| self.checkpoints.get(&point.checkpoint))
                    .map_or_else(Counters::default, |checkpoint| checkpoint.counters);
                self.num_threads.get_or_insert(halves.obs.plan.num_threads);
                self.attempts.push(PastAttempt {
                    attempt: halves.det.attempt,
                    cost: CostTotals::default(),
                    has_open_fault: false,
                    is_reported: false,
                    last_step: halves.det.from_step,
                    outcome: None,
                    process: halves.obs.process,
                    reason: String::new(),
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
                let step = entry.header.step;
                if let Some(attempt) = entry.header.attempt.and_then(|attempt| self.attempt_mut(attempt)) {
                    attempt.last_step = step.unwrap_or(attempt.last_step);
                    attempt.cost.num_steps_executed += 1;
                }
            }
            Body::Eval(halves) => {
                if let Some(step) = entry.header.step {
                    let stream = self.evaluations.entry(halves.det.stream.clone()).or_default();
                    stream.insert(step, halves.det.value.0);
                }
            }
            Body::FaultObserved(halves) => {
                if let Some(attempt) = self.attempt_mut(halves.det.attempt) {
                    attempt.has_open_fault = true;
                }
            }
            Body::FaultRecovered(halves) => {
                self.charges.recovered(&halves.det);
                if let Some(attempt) = self.attempt_mut(halves.det.attempt) {
                    attempt.has_open_fault = false;
                    attempt.is_reported = true;
                }
            }
            Body::Cost(halves) => self.charges.charged(&halves.det, &halves.obs),
            Body::CandidateAdmitted(halves) => {
                let candidate = Candidate {
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

    fn observe_checkpoint(&mut self, entry: &Entry) {
        match &entry.body {
            Body::CheckpointRequested(halves) => {
                let Some(attempt) = entry.header.attempt else { return };
                let checkpoint = halves.obs.checkpoint.clone();
                let known = PastCheckpoint {
                    attempt,
                    checkpoint: checkpoint.clone(),
                    counters: self.counters,
                    committed: None,
                    is_abandoned: false,
                    progress: Progress::Requested,
                    step: halves.det.step,
                };
                self.checkpoints.insert(checkpoint, known);
            }
            Body::CheckpointStaged(halves) => self.advance(&halves.obs.checkpoint, Progress::Staged),
            Body::CheckpointDurablyCommitted(halves) => {
                self.advance(&halves.obs.checkpoint, Progress::Committed);
                if let Some(known) = self.checkpoints.get_mut(&halves.obs.checkpoint) {
                    known.committed =
                        Some((halves.obs.manifest, halves.obs.num_bytes, halves.obs.path.clone()));
                }
            }
            Body::CheckpointValidated(halves) => self.advance(&halves.obs.checkpoint, Progress::Validated),
            Body::CheckpointFailed(halves) | Body::CheckpointQuarantined(halves) => {
                let num_bytes = self.num_bytes(&halves.obs.checkpoint);
                self.charges.given_up(num_bytes);
                self.advance(&halves.obs.checkpoint, Progress::Ended);
                let is_failed = matches!(entry.body, Body::CheckpointFailed(_));
                if let Some(known) = self.checkpoints.get_mut(&halves.obs.checkpoint) {
                    known.is_abandoned |= is_failed && entry.header.attempt != Some(known.attempt);
                }
            }
            Body::CheckpointRetired(halves) => self.advance(&halves.obs.checkpoint, Progress::Ended),
            _ => {}
        }
    }

    fn advance(&mut self, checkpoint: &CheckpointId, progress: Progress) {
        if let Some(known) = self.checkpoints.get_mut(checkpoint) {
            known.progress = known.progress.max(progress);
        }
    }

    /// Size of a committed checkpoint; 0 of another.
    pub(crate) fn num_bytes(&self, checkpoint: &CheckpointId) -> u64 {
        let committed = self.checkpoints.get(checkpoint).and_then(|known| known.committed.as_ref());
        committed.map_or(0, |(_, num_bytes, _)| *num_bytes)
    }

    fn attempt_mut(&mut self, attempt: AttemptId) -> Option<&mut PastAttempt> {
        self.attempts.iter_mut().rev().find(|past| past.attempt == attempt)
    }

    /// An attempt by its number.
    pub(crate) fn attempt(&self, attempt: AttemptId) -> Option<&PastAttempt> {
        self.attempts.iter().find(|past| past.attempt == attempt)
    }

    /// Number of the attempt that is next.
    pub(crate) fn next_attempt(&self) -> AttemptId {
        AttemptId(self.attempts.iter().map(|past| past.attempt.0).max().unwrap_or(0) + 1)
    }

    /// Attempts without a terminal entry that nobody has reported.
    pub(crate) fn vanished(&self) -> impl Iterator<Item = &PastAttempt> {
        self.attempts.iter().filter(|past| past.outcome.is_none() && !past.is_reported)
    }

    /// Attempts without a terminal entry.
    pub(crate) fn num_incomplete(&self) -> u32 {
        let num = self.attempts.iter().filter(|past| past.outcome.is_none()).count();
        u32::try_from(num).unwrap_or(u32::MAX)
    }

    /// Saves that were not validated.
    pub(crate) fn unfinished_checkpoints(&self) -> impl Iterator<Item = &PastCheckpoint> {
        self.checkpoints.values().filter(|known| known.progress < Progress::Validated)
    }

    /// Saves that an earlier recovery called failed; a crash may have left files of
    /// them all the same.
    pub(crate) fn abandoned_checkpoints(&self) -> impl Iterator<Item = &PastCheckpoint> {
        self.checkpoints.values().filter(|known| known.is_abandoned)
    }

    /// Checkpoints that can be resumed from, newest first.
    pub(crate) fn usable_checkpoints(&self) -> Vec<&PastCheckpoint> {
        let usable = self.checkpoints.values().filter(|known| known.progress == Progress::Validated);
        let mut usable: Vec<&PastCheckpoint> = usable.collect();
        usable.sort_by_key(|known| std::cmp::Reverse((known.step, known.attempt)));
        usable
    }

    /// Folders of the checkpoints that were committed and not given up, relative to
    /// the ledger's.
    pub(crate) fn standing_folders(&self) -> impl Iterator<Item = &str> {
        let standing = self.checkpoints.values().filter(|known| known.progress != Progress::Ended);
        standing.filter_map(|known| known.committed.as_ref().map(|(_, _, folder)| folder.as_str()))
    }

    /// Candidates at or before a step whose checkpoints still stand.
    pub(crate) fn standing_candidates(&self, step: u64) -> BTreeMap<u64, Candidate> {
        let ended = self.checkpoints.values().filter(|known| known.progress == Progress::Ended);
        let ended: BTreeSet<&CheckpointId> = ended.map(|known| &known.checkpoint).collect();
        let stands =
            |candidate: &&Candidate| candidate.det.step <= step && !ended.contains(&candidate.checkpoint);
        let standing = self.candidates.values().filter(stands).cloned();
        standing.map(|candidate| (candidate.det.step, candidate)).collect()
    }

    /// What all attempts cost.
    pub(crate) fn cost(&self) -> CostTotals {
        let costs = self.attempts.iter().map(|past| past.cost);
        costs.fold(CostTotals::default(), ledger::costs::add)
    }
}
