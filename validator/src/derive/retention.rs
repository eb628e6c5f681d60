//! What has to stay, from the entries alone (`docs/FORMAT.md`, "Retention").

use std::collections::{BTreeMap, BTreeSet};

use schemas::body::{Body, ObservedFault};
use schemas::contract::{Contract, Direction, KeepPolicy};
use schemas::entry::Entry;
use schemas::ids::CheckpointId;

use super::metrics::better;

/// Where a checkpoint stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// Requested and not validated.
    InFlight,
    /// Validated: a run may go on from it.
    Usable,
    /// Failed, quarantined, or found torn or corrupt.
    Lost,
    /// Retired.
    Retired,
}

/// What the entries say of a checkpoint.
#[derive(Debug, Clone)]
pub struct Known {
    /// Whether it was admitted as a candidate.
    pub is_candidate: bool,
    /// Reasons that no later entry takes back.
    marks: BTreeSet<&'static str>,
    qualified_at: Option<u64>,
    /// Where it stands.
    pub standing: Standing,
    /// Its step.
    pub step: u64,
    validated_at: u64,
    value: Option<f64>,
    was_finite: bool,
}

/// All checkpoints of one ledger.
#[derive(Debug)]
pub struct Retention<'a> {
    candidates: BTreeMap<String, CheckpointId>,
    contract: &'a Contract,
    /// Checkpoints of each step: its copies.
    copies: BTreeMap<u64, BTreeSet<CheckpointId>>,
    known: BTreeMap<CheckpointId, Known>,
    last_step: Option<u64>,
    not_finite: BTreeSet<u64>,
    owes_recovery: bool,
    values: BTreeMap<u64, f64>,
}

impl<'a> Retention<'a> {
    /// Before the first entry.
    #[must_use]
    pub const fn new(contract: &'a Contract) -> Self {
        Self {
            candidates: BTreeMap::new(),
            contract,
            copies: BTreeMap::new(),
            known: BTreeMap::new(),
            last_step: None,
            not_finite: BTreeSet::new(),
            owes_recovery: false,
            values: BTreeMap::new(),
        }
    }

    /// A checkpoint by its name.
    #[must_use]
    pub fn get(&self, id: &CheckpointId) -> Option<&Known> {
        self.known.get(id)
    }

    /// Takes the next entry into account.
    pub fn entry(&mut self, entry: &Entry) {
        let step = entry.header.step.unwrap_or(0);
        match &entry.body {
            Body::Eval(eval) => {
                if !eval.det.value.0.is_finite() {
                    self.not_finite.insert(step);
                }
                if eval.det.stream == self.contract.selection.stream {
                    self.values.insert(step, eval.det.value.0);
                }
            }
            Body::CheckpointRequested(request) => {
                let step = request.det.step;
                let known = Known {
                    is_candidate: false,
                    marks: BTreeSet::new(),
                    qualified_at: None,
                    standing: Standing::InFlight,
                    step,
                    validated_at: 0,
                    value: self.values.get(&step).copied(),
                    was_finite: !self.not_finite.contains(&step),
                };
                let id = request.obs.checkpoint.clone();
                if let Some(before) = self.known.insert(id.clone(), known) {
                    self.copies.entry(before.step).or_default().remove(&id);
                }
                self.copies.entry(step).or_default().insert(id);
            }
            Body::CheckpointValidated(stage) => {
                let is_first = std::mem::replace(&mut self.owes_recovery, false);
                if let Some(known) = self.known.get_mut(&stage.obs.checkpoint) {
                    known.validated_at = entry.index;
                    if known.standing == Standing::InFlight {
                        known.standing = Standing::Usable;
                    }
                    if is_first {
                        known.marks.insert("the first that was validated after a recovery");
                    }
                }
            }
            Body::CheckpointResumeQualified(stage) => {
                if let Some(known) = self.known.get_mut(&stage.obs.checkpoint) {
                    known.qualified_at = Some(entry.index);
                }
            }
            Body::CheckpointFailed(end) | Body::CheckpointQuarantined(end) => self.lose(&end.obs.checkpoint),
            Body::CheckpointRetired(retired) => {
                if let Some(known) = self.known.get_mut(&retired.obs.checkpoint)
                    && known.standing != Standing::Lost
                {
                    known.standing = Standing::Retired;
                }
            }
            Body::FaultObserved(fault) => {
                let is_of_checkpoint = matches!(
                    fault.det.fault,
                    ObservedFault::CheckpointCorrupt | ObservedFault::CheckpointIncomplete
                );
                if let Some(checkpoint) = fault.obs.checkpoint.as_ref().filter(|_| is_of_checkpoint) {
                    self.lose(checkpoint);
                }
                let newest = self.usable().last().map(|(id, _)| (*id).clone());
                self.mark(newest.as_ref(), "the newest usable one when a fault was observed");
            }
            Body::FaultRecovered(_) => self.owes_recovery = true,
            Body::AttemptStart(start) => {
                let parent = start.det.resumed_from.as_ref().map(|point| &point.checkpoint);
                self.mark(parent, "the parent of a resume");
            }
            Body::CandidateAdmitted(admission) => {
                let checkpoint = admission.obs.checkpoint.clone();
                if let Some(known) = self.known.get_mut(&checkpoint) {
                    known.is_candidate = true;
                }
                self.candidates.insert(admission.obs.candidate.to_string(), checkpoint);
            }
            Body::CandidateSelected(selection) => self.mark(Some(&selection.obs.checkpoint), "selected"),
            Body::HandoffIssued(handoff) => {
                let checkpoint = self.candidates.get(handoff.obs.candidate.as_str()).cloned();
                self.mark(checkpoint.as_ref(), "handed off");
            }
            Body::RunEnd(end) => self.last_step = Some(end.det.last_step),
            _ => {}
        }
    }

    fn lose(&mut self, id: &CheckpointId) {
        if let Some(known) = self.known.get_mut(id) {
            known.standing = Standing::Lost;
        }
    }

    fn mark(&mut self, id: Option<&CheckpointId>, mark: &'static str) {
        if let Some(known) = id.and_then(|id| self.known.get_mut(id)) {
            known.marks.insert(mark);
        }
    }

    /// Those that a run could go on from, oldest first.
    fn usable(&self) -> Vec<(&CheckpointId, &Known)> {
        let mut usable: Vec<_> =
            self.known.iter().filter(|(_, known)| known.standing == Standing::Usable).collect();
        usable.sort_by_key(|(_, known)| (known.step, known.validated_at));
        usable
    }

    /// Whether a newer copy of the same step was validated and not lost since,
    /// retired or not.
    #[must_use]
    pub fn is_superseded(&self, id: &CheckpointId) -> bool {
        let Some(own) = self.known.get(id) else { return false };
        let stands = |other: &Known| matches!(other.standing, Standing::Usable | Standing::Retired);
        let copies = self.copies.get(&own.step).into_iter().flatten();
        let mut copies = copies.filter_map(|copy| self.known.get(copy)).filter(|other| stands(other));
        copies.any(|other| other.validated_at > own.validated_at)
    }

    /// Usable checkpoints that nothing keeps, in the order of their names.
    pub fn unkept(&self) -> impl Iterator<Item = &CheckpointId> {
        let usable = self.known.iter().filter(|(_, known)| known.standing == Standing::Usable);
        // What is marked stays for good, and need not be compared with all others.
        let unmarked = usable.filter(|(_, known)| known.marks.is_empty() && known.step > 0);
        unmarked.map(|(id, _)| id).filter(|id| self.reasons(id).is_empty())
    }

    /// Why a checkpoint has to stay; empty where it may be retired.
    #[must_use]
    pub fn reasons(&self, id: &CheckpointId) -> Vec<String> {
        let Some(own) = self.known.get(id) else {
            return vec!["not a checkpoint that this run requested".to_owned()];
        };
        let mut reasons: Vec<String> = own.marks.iter().map(|mark| (*mark).to_owned()).collect();
        match own.standing {
            Standing::Usable => {}
            Standing::InFlight => reasons.push("in flight: it was never validated".to_owned()),
            Standing::Lost => reasons.push("failed or quarantined, and kept as it is".to_owned()),
            Standing::Retired => reasons.push("retired already".to_owned()),
        }
        if own.step == 0 {
            reasons.push("the initial state".to_owned());
        }
        let usable = self.usable();
        let is_last = |found: Option<&(&CheckpointId, &Known)>| found.is_some_and(|(other, _)| *other == id);
        if is_last(usable.last()) {
            reasons.push("the latest that is validated: nothing newer exists".to_owned());
        }
        if is_last(usable.iter().rev().find(|(_, known)| known.was_finite)) {
            reasons.push("the last with finite values".to_owned());
        }
        if is_last(usable.iter().rev().find(|(_, known)| known.qualified_at.is_some())) {
            reasons.push("the latest that is resume-qualified".to_owned());
        }
        if !self.is_superseded(id) {
            reasons.extend(self.chosen(id, own, &usable));
        }
        reasons
    }

    /// What chooses one copy of a step: the newest.
    fn chosen(&self, id: &CheckpointId, own: &Known, usable: &[(&CheckpointId, &Known)]) -> Vec<String> {
        let mut reasons = Vec::new();
        let newer =
            usable.iter().filter(|(other, known)| known.step > own.step && !self.is_superseded(other));
        let num_newer = newer.count();
        let num_better = self.num_better(id, own, usable);
        if self.last_step == Some(own.step) {
            reasons.push("the final state".to_owned());
        }
        if num_better == Some(0) {
            reasons.push("the best so far".to_owned());
        }
        match &self.contract.checkpoints.keep {
            KeepPolicy::All => reasons.push("the policy keeps everything".to_owned()),
            KeepPolicy::Chosen { best, every_steps, last, pinned } => {
                if num_newer < *last as usize {
                    reasons.push(format!("among the last {last} that the policy keeps"));
                }
                if num_better.is_some_and(|num_better| num_better > 0 && num_better < *best as usize) {
                    reasons.push(format!("among the best {best} that the policy keeps"));
                }
                if let Some(every_steps) =
                    every_steps.filter(|every| *every > 0 && own.step.is_multiple_of(*every))
                {
                    reasons.push(format!("a multiple of {every_steps}, which the policy keeps"));
                }
                if pinned.contains(&own.step) {
                    reasons.push("pinned by the policy".to_owned());
                }
            }
        }
        reasons
    }

    /// How many usable steps have a better value, or an equal one earlier;
    /// none where the checkpoint has no finite value or is the initial state.
    fn num_better(
        &self,
        id: &CheckpointId,
        own: &Known,
        usable: &[(&CheckpointId, &Known)],
    ) -> Option<usize> {
        let value = own.value.filter(|value| value.is_finite() && own.step > 0)?;
        let direction = self.direction();
        let is_better = |other: &Known| {
            other.value.is_some_and(|theirs| {
                better(direction, theirs, value)
                    || theirs.is_finite() && !better(direction, value, theirs) && other.step < own.step
            })
        };
        let rivals = usable.iter().filter(|(other, known)| *other != id && known.step > 0);
        Some(rivals.filter(|(other, known)| !self.is_superseded(other) && is_better(known)).count())
    }

    fn direction(&self) -> Direction {
        let streams = &self.contract.evaluation.streams;
        let stream = streams.iter().find(|stream| stream.name == self.contract.selection.stream);
        stream.map_or(Direction::Minimize, |stream| stream.direction)
    }
}
