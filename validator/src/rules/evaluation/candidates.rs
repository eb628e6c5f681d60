//! Follows candidates and the values that select among them.

use std::collections::{BTreeMap, BTreeSet};

use schemas::body::{Body, CandidateAdmittedDet, CandidateObs, CandidateSelectedDet};
use schemas::contract::{Contract, Direction, EvaluationStream};
use schemas::entry::Entry;
use schemas::ids::CheckpointId;

use crate::rules::common::{Checkpoints, LastStep};

/// One admission.
#[derive(Debug, Clone)]
pub(crate) struct Admitted {
    pub(crate) det: CandidateAdmittedDet,
    pub(crate) index: u64,
    pub(crate) obs: CandidateObs,
}

/// One selection.
#[derive(Debug, Clone)]
pub(crate) struct Selected {
    pub(crate) at_step: u64,
    pub(crate) det: CandidateSelectedDet,
    pub(crate) index: u64,
    pub(crate) obs: CandidateObs,
}

/// What the entries say of candidates. Memory grows with checkpoints only.
#[derive(Debug)]
pub(crate) struct Candidates<'a> {
    /// By step: the admission of the latest attempt.
    pub(crate) admitted: BTreeMap<u64, Admitted>,
    pub(crate) checkpoints: Checkpoints,
    pub(crate) contract: &'a Contract,
    /// The latest value of the selection stream and its step.
    current: Option<(u64, f64)>,
    pub(crate) last: LastStep,
    /// Entries that gave up the checkpoint of a candidate.
    given_up: Vec<u64>,
    /// Every checkpoint that was admitted, also where a later one replaced it.
    members: BTreeSet<CheckpointId>,
    pub(crate) selected: Vec<Selected>,
    /// Values of the selection stream at saved steps.
    pub(crate) values: BTreeMap<u64, f64>,
}

impl<'a> Candidates<'a> {
    pub(crate) fn new(contract: &'a Contract) -> Self {
        Self {
            admitted: BTreeMap::new(),
            checkpoints: Checkpoints::default(),
            contract,
            current: None,
            last: LastStep::default(),
            given_up: Vec::new(),
            members: BTreeSet::new(),
            selected: Vec::new(),
            values: BTreeMap::new(),
        }
    }

    /// The selection stream.
    pub(crate) fn stream(&self) -> Option<&'a EvaluationStream> {
        let name = &self.contract.selection.stream;
        self.contract.evaluation.streams.iter().find(|stream| stream.name == *name)
    }

    /// Which way is better.
    pub(crate) fn direction(&self) -> Option<Direction> {
        self.stream().map(|stream| stream.direction)
    }

    /// The family: of each step that the run kept, the latest admission. An
    /// attempt that fell back and ended sooner leaves admissions beyond.
    pub(crate) fn family(&self) -> impl Iterator<Item = (u64, &Admitted)> {
        self.admitted.range(..=self.last.step()).map(|(step, admitted)| (*step, admitted))
    }

    /// Whether a checkpoint was failed or quarantined. One that was retired
    /// keeps the model, and with it all that a candidate is.
    pub(crate) fn is_given_up(&self, id: &CheckpointId) -> bool {
        self.checkpoints.all.get(id).is_some_and(|checkpoint| checkpoint.is_lost)
    }

    /// Whether a candidate's checkpoint was given up between two entries, so
    /// that a selection among them no longer stands.
    pub(crate) fn is_invalidated(&self, after: u64, before: u64) -> bool {
        self.given_up.iter().any(|index| (after..before).contains(index))
    }

    pub(crate) fn entry(&mut self, entry: &Entry) {
        match &entry.body {
            Body::Eval(halves) if halves.det.stream == self.contract.selection.stream => {
                self.current = Some((entry.header.step.unwrap_or(0), halves.det.value.0));
            }
            Body::CheckpointRequested(halves) => {
                if let Some((_, value)) = self.current.filter(|(step, _)| *step == halves.det.step) {
                    self.values.insert(halves.det.step, value);
                }
            }
            Body::CandidateAdmitted(halves) => {
                let admitted =
                    Admitted { det: halves.det.clone(), index: entry.index, obs: halves.obs.clone() };
                self.members.insert(halves.obs.checkpoint.clone());
                self.admitted.insert(halves.det.step, admitted);
            }
            Body::CandidateSelected(halves) => self.selected.push(Selected {
                at_step: entry.header.step.unwrap_or(0),
                det: halves.det.clone(),
                index: entry.index,
                obs: halves.obs.clone(),
            }),
            Body::CheckpointFailed(halves) | Body::CheckpointQuarantined(halves)
                if self.members.contains(&halves.obs.checkpoint) =>
            {
                self.given_up.push(entry.index);
            }
            _ => {}
        }
        self.checkpoints.entry(entry);
        self.last.entry(entry);
    }
}
