//! Follows candidates and the values that select among them.

use std::collections::BTreeMap;

use schemas::body::{Body, CandidateAdmittedDet, CandidateObs, CandidateSelectedDet};
use schemas::contract::{Contract, Direction, EvaluationStream};
use schemas::entry::Entry;

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
                self.admitted.insert(halves.det.step, admitted);
            }
            Body::CandidateSelected(halves) => self.selected.push(Selected {
                at_step: entry.header.step.unwrap_or(0),
                det: halves.det.clone(),
                index: entry.index,
                obs: halves.obs.clone(),
            }),
            _ => {}
        }
        self.checkpoints.entry(entry);
        self.last.entry(entry);
    }
}
