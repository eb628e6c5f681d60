//! A run that is executed again step by step: each update with everything that
//! a run does between it and the next one.
//!
//! It writes no entry, and one process executes the microbatches of all workers:
//! bits do not depend on who does. Where it begins and where it ends is for
//! whoever drives it.

use ledger::FrozenContract;
use schemas::body::{EvalDet, StepDet};
use schemas::contract::{CompilerPlan, Contract};
use schemas::number::Float;
use sha2::{Digest as _, Sha256};

use crate::engine::{Engine, StepOutcome};
use crate::identity::Identity;
use crate::run::error::RunError;
use crate::run::progress::Console;
use crate::run::signals::Interrupt;
use crate::state::SelectionTracker;
use crate::state::tree::RecordedState;

use super::error::ProbeError;
use super::state_bytes::StateBytes;
use super::transcript::Records;

pub(crate) fn interrupted(interrupt: &Interrupt) -> ProbeError {
    ProbeError::Interrupted { signal: interrupt.received() }
}

/// What does not change while a trajectory runs.
pub(crate) struct Setting<'a> {
    pub(crate) console: Console,
    /// The last step of a run that ended in the ordinary way: every stream was
    /// evaluated there ([`History::ordinary_end`](crate::run::history::History::ordinary_end)).
    pub(crate) end_step: Option<u64>,
    pub(crate) frozen: &'a FrozenContract,
    pub(crate) identity: &'a Identity,
    pub(crate) interrupt: Interrupt,
    /// Of the attempt that saved the checkpoint, as its state says. One process
    /// executes them all here.
    pub(crate) num_workers: u32,
}

impl Setting<'_> {
    pub(crate) const fn contract(&self) -> &Contract {
        &self.frozen.contract
    }

    pub(crate) const fn plan(&self) -> &CompilerPlan {
        &self.identity.plan
    }

    fn is_last(&self, step: u64) -> bool {
        self.end_step == Some(step)
    }
}

/// A run that goes on, step by step. A clone goes on by itself.
#[derive(Clone)]
pub(crate) struct Trajectory<'a> {
    pub(super) setting: &'a Setting<'a>,
    pub(super) engine: Engine,
    /// Classes that were not restored and that the engine does not hold.
    left_out: StateBytes,
    /// Processes of the attempt whose state is made again; one executes them all
    /// here.
    num_workers: u32,
    selection: SelectionTracker,
}

/// An update and what follows it.
pub(crate) struct Done {
    /// In the contract's order of streams.
    pub(crate) evaluations: Vec<EvalDet>,
    pub(crate) outcome: Option<StepOutcome>,
    /// At the contract's cadence.
    recorded: Option<RecordedState>,
    pub(crate) state: Option<StateBytes>,
}

impl<'a> Trajectory<'a> {
    /// One that stands where the engine does.
    pub(crate) const fn new(
        setting: &'a Setting<'a>,
        engine: Engine,
        left_out: StateBytes,
        selection: SelectionTracker,
    ) -> Self {
        Self { setting, engine, left_out, num_workers: setting.num_workers, selection }
    }

    /// Says how many processes the attempt had that executed what comes next.
    pub(crate) const fn executed_by(&mut self, num_workers: u32) {
        self.num_workers = num_workers;
    }

    /// Whether the stopping rule's patience has run out.
    pub(crate) fn is_exhausted(&self) -> bool {
        self.selection.is_exhausted()
    }

    /// The state as a checkpoint of it would hold it.
    pub(crate) fn state(&self) -> Result<StateBytes, ProbeError> {
        let plan_of_run = (self.setting.plan(), self.num_workers);
        let (contract, selection) = (self.setting.contract(), self.selection.state());
        let state = StateBytes::capture(&self.engine, contract, plan_of_run, selection)?;
        Ok(state.with(&self.left_out))
    }

    /// Everything that a run does between a step's update and the next one. The
    /// step is that of the run, which decides what is due; an engine that was
    /// restored without its step counts from another one. The state is taken
    /// after `inside` microbatches of the next update.
    pub(crate) fn advance(
        &mut self,
        step: u64,
        updates: bool,
        is_compared: bool,
        inside: u32,
    ) -> Result<Done, ProbeError> {
        let setting = self.setting;
        let contract = setting.contract();
        let started = std::time::Instant::now();
        let outcome = if updates {
            let outcome = self.engine.step(setting.interrupt.flag())?;
            Some(outcome.ok_or_else(|| interrupted(&setting.interrupt))?)
        } else {
            None
        };
        let duration = started.elapsed();
        let is_last = setting.is_last(step);
        let mut evaluations = Vec::new();
        let is_due = |every: u64| step.is_multiple_of(every) || is_last;
        for stream in contract.evaluation.streams.iter().filter(|stream| is_due(stream.every_steps)) {
            let outcome = self.engine.evaluate(stream, setting.interrupt.flag())?;
            let outcome = outcome.ok_or_else(|| interrupted(&setting.interrupt))?;
            self.engine.observe_evaluation(&stream.name, outcome.value);
            if stream.name == self.selection.stream() {
                self.selection.observe(step, outcome.value);
            }
            evaluations.push(EvalDet {
                metric: stream.metric,
                model: None,
                num_examples: outcome.num_examples,
                num_tokens: outcome.num_tokens,
                split: stream.split,
                stream: stream.name.clone(),
                total_nats: Float(outcome.total_nats),
                value: Float(outcome.value),
                view: stream.view,
            });
        }
        let is_saved = is_due(contract.checkpoints.every_steps);
        let cadence = contract.state_digest_every_steps.filter(|every| step.is_multiple_of(*every));
        let has_digests = updates && cadence.is_some();
        let needs_state = is_compared || has_digests || is_saved && !evaluations.is_empty();
        let mut state = if needs_state { Some(self.state()?) } else { None };
        if is_saved {
            for evaluation in &mut evaluations {
                evaluation.model = state.as_ref().and_then(|state| state.evaluated(evaluation.view));
            }
        }
        let recorded = state.as_ref().filter(|_| has_digests).map(|state| state.recorded(contract));
        let recorded = recorded.transpose()?;
        if inside > 0 {
            if !self.engine.accumulate(inside, setting.interrupt.flag())? {
                return Err(interrupted(&setting.interrupt));
            }
            state = Some(self.state()?);
        }
        let done = Done { evaluations, outcome, recorded, state };
        if let Some(det) = done.step_det() {
            setting.console.step(step, &det, duration);
        }
        Ok(done)
    }
}

impl Done {
    /// What its `step` entry says; none of the initial state.
    pub(crate) fn step_det(&self) -> Option<StepDet> {
        let outcome = self.outcome.as_ref()?;
        Some(outcome.det(self.recorded.clone()))
    }

    /// Adds the lines of `docs/FORMAT.md` ("Resume probes").
    pub(super) fn hash(&self, step: u64, lines: &mut Sha256) -> Result<(), ProbeError> {
        let mut add = |kind: &str, det: Result<Vec<u8>, ledger::canonical::CanonicalError>| {
            let det = det.map_err(|error| RunError::Process(std::io::Error::other(error)))?;
            lines.update(format!("{kind} {step} "));
            lines.update(det);
            lines.update(b"\n");
            Ok::<(), ProbeError>(())
        };
        if let Some(det) = self.step_det() {
            add("step", ledger::canonical::entry_json(&det))?;
        }
        let mut evaluations: Vec<&EvalDet> = self.evaluations.iter().collect();
        evaluations.sort_by(|left, right| left.stream.cmp(&right.stream));
        for evaluation in evaluations {
            add("eval", ledger::canonical::entry_json(evaluation))?;
        }
        Ok(())
    }

    /// What is compared of the update; `None` at the initial state. The digest
    /// of the model is left out of evaluations: the model is compared itself.
    pub(super) fn records(&self, stop: bool) -> Option<Records> {
        let outcome = self.outcome.as_ref()?;
        let evaluations = self.evaluations.iter().cloned();
        Some(Records {
            counters: outcome.counters,
            credit: outcome.credit.clone(),
            draws: outcome.draws.clone(),
            evaluations: evaluations.map(|evaluation| EvalDet { model: None, ..evaluation }).collect(),
            stop,
            updates: outcome.updates.clone(),
        })
    }
}
