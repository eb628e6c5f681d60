//! What the entries say of every checkpoint: the facts that retention decides
//! by, and that the checkpoint commands show.
//!
//! It follows the ledger entry by entry, before an attempt starts and while it
//! runs, so that a decision in the middle of an attempt and one that is made
//! from the ledger afterwards see the same. "Best" is therefore never a value
//! that a process remembers: a resumed attempt reads it again.

use std::collections::{BTreeMap, BTreeSet};

use ledger::FrozenContract;
use schemas::body::{Body, ObservedFault};
use schemas::contract::{Direction, KeepPolicy};
use schemas::entry::Entry;
use schemas::ids::{AttemptId, CheckpointId, RunId};

use super::retention::{self, Decision, Fact, Policy, Stage};

/// Every checkpoint of a run. Memory grows with checkpoints and evaluations.
#[derive(Debug, Clone)]
pub struct Roster {
    direction: Direction,
    facts: BTreeMap<CheckpointId, Fact>,
    /// A recovery was recorded and nothing was validated since.
    is_recovering: bool,
    keep: KeepPolicy,
    last_step: Option<u64>,
    /// Steps with an evaluation that is not finite.
    not_finite: BTreeSet<u64>,
    num_observed: u64,
    run: RunId,
    stream: String,
    /// Of the selection stream, by step: the latest.
    values: BTreeMap<u64, f64>,
}

impl Default for Roster {
    /// Of no run: it keeps everything.
    fn default() -> Self {
        Self {
            direction: Direction::Minimize,
            facts: BTreeMap::new(),
            is_recovering: false,
            keep: KeepPolicy::All,
            last_step: None,
            not_finite: BTreeSet::new(),
            num_observed: 0,
            run: RunId(String::new()),
            stream: String::new(),
            values: BTreeMap::new(),
        }
    }
}

impl Roster {
    /// Of a run that recorded nothing yet.
    #[must_use]
    pub fn new(frozen: &FrozenContract) -> Self {
        let contract = &frozen.contract;
        let stream = contract.selection.stream.clone();
        let known = contract.evaluation.streams.iter().find(|known| known.name == stream);
        Self {
            direction: known.map_or(Direction::Minimize, |known| known.direction),
            keep: contract.checkpoints.keep.clone(),
            run: frozen.run.clone(),
            stream,
            ..Self::default()
        }
    }

    /// Takes the next entry.
    pub fn observe_entry(&mut self, entry: &Entry) {
        self.observe(entry.header.attempt, entry.header.step, &entry.body);
    }

    /// Takes what the next entry says, with attempt and step of its header.
    pub fn observe(&mut self, attempt: Option<AttemptId>, step: Option<u64>, body: &Body) {
        self.num_observed += 1;
        match body {
            Body::Eval(halves) => {
                let (Some(step), value) = (step, halves.det.value.0) else { return };
                if !value.is_finite() {
                    self.not_finite.insert(step);
                }
                if halves.det.stream == self.stream {
                    self.values.insert(step, value);
                }
            }
            Body::AttemptStart(halves) => {
                if let Some(point) = &halves.det.resumed_from {
                    self.change(&point.checkpoint, |fact| fact.is_parent = true);
                }
            }
            Body::FaultObserved(halves) => {
                let fault = halves.det.fault;
                if matches!(fault, ObservedFault::CheckpointCorrupt | ObservedFault::CheckpointIncomplete)
                    && let Some(checkpoint) = &halves.obs.checkpoint
                {
                    let is_torn = fault == ObservedFault::CheckpointIncomplete;
                    self.reach(checkpoint, if is_torn { Stage::Failed } else { Stage::Quarantined });
                }
                let newest =
                    retention::newest_usable(self.facts.values()).map(|fact| fact.checkpoint.clone());
                if let Some(newest) = newest {
                    self.change(&newest, |fact| fact.is_pre_fault = true);
                }
            }
            Body::FaultRecovered(_) => self.is_recovering = true,
            Body::CandidateAdmitted(halves) => {
                let candidate = halves.obs.candidate.clone();
                self.change(&halves.obs.checkpoint, |fact| fact.candidate = Some(candidate));
            }
            Body::CandidateSelected(halves) => {
                self.change(&halves.obs.checkpoint, |fact| fact.is_selected = true);
            }
            Body::HandoffIssued(halves) => {
                let candidate = &halves.obs.candidate;
                let handed =
                    self.facts.values_mut().filter(|fact| fact.candidate.as_ref() == Some(candidate));
                handed.for_each(|fact| fact.is_selected = true);
            }
            Body::RunEnd(halves) => self.last_step = Some(halves.det.last_step),
            _ => self.observe_stage(attempt, body),
        }
    }

    fn observe_stage(&mut self, attempt: Option<AttemptId>, body: &Body) {
        let place = self.num_observed;
        match body {
            Body::CheckpointRequested(halves) => {
                let Some(attempt) = attempt else { return };
                let (checkpoint, step) = (halves.obs.checkpoint.clone(), halves.det.step);
                let fact = Fact {
                    attempt,
                    candidate: None,
                    checkpoint: checkpoint.clone(),
                    is_finite: !self.not_finite.contains(&step),
                    is_parent: false,
                    is_post_recovery: false,
                    is_pre_fault: false,
                    is_selected: false,
                    kept: Vec::new(),
                    manifest: None,
                    num_bytes: 0,
                    qualified: None,
                    run: self.run.clone(),
                    stage: Stage::Requested,
                    step,
                    validated: None,
                    value: self.values.get(&step).copied(),
                };
                self.facts.insert(checkpoint, fact);
            }
            Body::CheckpointStaged(halves) => self.reach(&halves.obs.checkpoint, Stage::Staged),
            Body::CheckpointDurablyCommitted(halves) => {
                self.reach(&halves.obs.checkpoint, Stage::DurablyCommitted);
                self.change(&halves.obs.checkpoint, |fact| {
                    fact.manifest = Some(halves.obs.manifest);
                    fact.num_bytes = halves.obs.num_bytes;
                });
            }
            Body::CheckpointValidated(halves) => {
                let is_first = std::mem::take(&mut self.is_recovering);
                self.reach(&halves.obs.checkpoint, Stage::Validated);
                self.change(&halves.obs.checkpoint, |fact| {
                    fact.validated = Some(place);
                    fact.is_post_recovery = is_first;
                });
            }
            Body::CheckpointResumeQualified(halves) => {
                self.reach(&halves.obs.checkpoint, Stage::ResumeQualified);
                self.change(&halves.obs.checkpoint, |fact| fact.qualified = Some(place));
            }
            Body::CheckpointFailed(halves) => self.reach(&halves.obs.checkpoint, Stage::Failed),
            Body::CheckpointQuarantined(halves) => self.reach(&halves.obs.checkpoint, Stage::Quarantined),
            Body::CheckpointRetired(halves) => {
                self.reach(&halves.obs.checkpoint, Stage::Retired);
                self.change(&halves.obs.checkpoint, |fact| fact.kept = halves.det.kept.clone());
            }
            _ => {}
        }
    }

    fn reach(&mut self, checkpoint: &CheckpointId, stage: Stage) {
        self.change(checkpoint, |fact| fact.stage = fact.stage.max(stage));
    }

    fn change(&mut self, checkpoint: &CheckpointId, change: impl FnOnce(&mut Fact)) {
        if let Some(fact) = self.facts.get_mut(checkpoint) {
            change(fact);
        }
    }

    /// Every checkpoint, by step and then by age.
    #[must_use]
    pub fn facts(&self) -> Vec<&Fact> {
        let mut facts: Vec<&Fact> = self.facts.values().collect();
        facts.sort_by_key(|fact| (fact.step, fact.attempt, fact.validated));
        facts
    }

    /// One checkpoint.
    #[must_use]
    pub fn fact(&self, checkpoint: &CheckpointId) -> Option<&Fact> {
        self.facts.get(checkpoint)
    }

    /// The contract's clauses.
    #[must_use]
    pub const fn keep(&self) -> &KeepPolicy {
        &self.keep
    }

    /// What the contract's policy lets go now, and why the rest stays.
    #[must_use]
    pub fn decide(&self) -> Decision {
        let facts: Vec<Fact> = self.facts.values().cloned().collect();
        let policy =
            Policy { direction: self.direction, keep: &self.keep, last_step: self.last_step, run: &self.run };
        retention::decide(&policy, &facts)
    }
}
