//! The faults that a contract plans against its own run, and how they act
//! (`docs/FORMAT.md`, "Injected faults").
//!
//! An injector exists only where a plan does: [`Injector::open`] gives none
//! without one, and every place in the loop asks for it once. What it does is on
//! record before it acts, and it tells no detector.

mod choices;
mod plan;
mod saves;
mod updates;
mod workers;

use std::collections::BTreeMap;

use ledger::FrozenContract;
use ledger::reader::Reader;
use rustix::process::{Signal, getpid, kill_process};
use schemas::body::{Body, Credit, FaultInjectedDet, Halves, Nothing, StepDet};
use schemas::contract::{Detection, FaultPhase, PlannedFault};
use schemas::ids::WorkerId;

use crate::engine::gradients::Gradients;
use crate::randomness::philox::{key, philox};
use crate::run::error::RunError;
use crate::run::save::Stages;

pub use choices::{evaluated, selected};
pub use plan::PlanError;
pub use saves::in_save;
pub use updates::{after_update, before_exchange, before_forward, restored};

use plan::Journal;

/// Purpose of what a fault draws.
const PURPOSE: &str = "fault";

/// The plan of a run, and what of it has acted.
#[derive(Debug, Clone)]
pub struct Injector {
    detection: Detection,
    /// By index into the plan: none where it has acted.
    waiting: Vec<Option<PlannedFault>>,
    journal: Journal,
    /// Sum of gradients of an update, by its step, for the one after it.
    kept: Option<(u64, Gradients)>,
    /// Recorded train loss by step; empty where no selection is to be struck.
    losses: BTreeMap<u64, f64>,
    /// Whether losses are kept.
    keeps_losses: bool,
    selection_stream: String,
}

/// A fault whose place was reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Due {
    /// As it is planned.
    pub planned: PlannedFault,
    /// Index into the plan.
    pub plan_index: u32,
}

impl Injector {
    /// For the next attempt of a run, from its contract (or, in a build for
    /// tests, a plan that is withheld from the record) and what has acted;
    /// `None` where nothing is planned.
    ///
    /// # Errors
    /// When the ledger or a withheld plan cannot be read.
    pub fn open(frozen: &FrozenContract, reader: &Reader) -> Result<Option<Self>, RunError> {
        let plan::Source { policy, journal } = plan::source(&frozen.contract)?;
        if policy.plan.is_empty() && policy.detection.is_everywhere() {
            return Ok(None);
        }
        let keeps_losses = policy.plan.iter().any(|planned| planned.phase == FaultPhase::Selection);
        let mut injector = Self {
            detection: policy.detection,
            waiting: policy.plan.into_iter().map(Some).collect(),
            kept: None,
            losses: BTreeMap::new(),
            keeps_losses,
            selection_stream: frozen.contract.selection.stream.clone(),
            journal: journal.clone(),
        };
        for index in journal.acted()? {
            injector.has_acted(index);
        }
        for entry in reader.entries(0) {
            let entry = entry?;
            match &entry.body {
                Body::FaultInjected(halves) => injector.has_acted(halves.det.plan_index),
                Body::Step(halves) => injector.observe_step(entry.header.step.unwrap_or(0), &halves.det),
                _ => {}
            }
        }
        Ok(Some(injector))
    }

    /// Whether the trainer looks for damage itself.
    #[must_use]
    pub fn detects(&self) -> bool {
        self.detection.is_everywhere()
    }

    /// Faults that wait for this place, in the plan's order, of all workers.
    /// Each acts only once [`Due::record`] has put it on record.
    #[must_use]
    pub fn due(&self, phase: FaultPhase, step: u64) -> Vec<Due> {
        let waiting =
            (0..).zip(&self.waiting).filter_map(|(index, planned)| Some((index, planned.as_ref()?)));
        waiting
            .filter(|(_, planned)| (planned.phase, planned.step) == (phase, step))
            .map(|(plan_index, planned)| Due { planned: planned.clone(), plan_index })
            .collect()
    }

    /// Takes a `step` entry that is in the record.
    pub fn observe_step(&mut self, step: u64, det: &StepDet) {
        if let (true, Credit::Backpropagation { loss, .. }) = (self.keeps_losses, &det.credit) {
            self.losses.insert(step, loss.0);
        }
    }

    /// What a thread needs of it that saves beside the loop.
    #[must_use]
    pub fn of_saves(&self) -> Self {
        Self {
            detection: self.detection,
            waiting: self.waiting.clone(),
            journal: self.journal.clone(),
            kept: None,
            losses: BTreeMap::new(),
            keeps_losses: false,
            selection_stream: self.selection_stream.clone(),
        }
    }

    fn has_acted(&mut self, plan_index: u32) {
        if let Some(planned) = self.waiting.get_mut(plan_index as usize) {
            *planned = None;
        }
    }
}

impl Due {
    /// The struck worker; the process that records where the plan says null.
    #[must_use]
    pub fn worker(&self) -> u32 {
        self.planned.worker.unwrap_or(0)
    }

    /// Words that decide amounts and places.
    #[must_use]
    pub fn words(&self) -> [u32; 4] {
        philox(key(PURPOSE, self.planned.seed.0), [0; 4])
    }

    /// Puts the fault on record, durably; behind it, it acts.
    ///
    /// # Errors
    /// When the ledger cannot be written; then it must not act.
    pub fn record(&self, stages: &mut dyn Stages) -> Result<(), RunError> {
        let Some(injector) = stages.faults() else { return Ok(()) };
        injector.has_acted(self.plan_index);
        if let Some(noted) = injector.journal.note(self.plan_index) {
            return Ok(noted?);
        }
        let PlannedFault { fault, phase, step, .. } = self.planned;
        let det = FaultInjectedDet { fault, phase, plan_index: self.plan_index };
        let body = Body::FaultInjected(Box::new(Halves { det, obs: Nothing {} }));
        stages.append_durably_of(WorkerId(self.worker()), step, body)
    }
}

/// Ends this process as the out-of-memory killer does: no handler, no flush.
fn vanish() -> Result<(), RunError> {
    kill_process(getpid(), Signal::KILL).map_err(|error| RunError::Process(error.into()))
}
