//! One trajectory of a probe, in a process of its own: the uninterrupted one
//! from the initial state, or the one that resumes from the checkpoint.
//!
//! It writes no entry. It evaluates where a run would, because the selection
//! state is part of the state, and it goes on where a run would stop: what is
//! compared is what the run would have done next.

use std::path::PathBuf;

use ledger::FrozenContract;
use ledger::reader::Reader;
use rustix::process::{Signal, set_parent_process_death_signal};
use schemas::body::{EvalDet, ReplayedRun, StepDet};
use schemas::contract::{CompilerPlan, Contract};
use schemas::digest::Digest;
use schemas::ids::CheckpointId;
use schemas::number::Float;
use schemas::state::StateClass;
use sha2::{Digest as _, Sha256};

use crate::device;
use crate::engine::{Engine, EngineConfig, StepOutcome};
use crate::identity::{self, Identity};
use crate::run::error::RunError;
use crate::run::history::History;
use crate::run::inputs::{self, Places};
use crate::run::progress::Console;
use crate::run::resume::{self, ResumeState};
use crate::run::signals::Interrupt;
use crate::run::{failpoint, folder_of, refusal, warm_start};
use crate::state::SelectionTracker;

use super::continuations;
use super::error::ProbeError;
use super::state_bytes::StateBytes;
use super::transcript::{Opening, Records, Transcript, TranscriptWriter};
use super::withhold;

/// What the parent process asks for.
#[derive(Debug, Clone)]
pub struct TrajectoryOptions {
    /// Folder of the reference, for a resumed trajectory.
    pub against: Option<PathBuf>,
    /// The probed checkpoint.
    pub checkpoint: CheckpointId,
    /// Folder of the data shards; the data manifest's own where `None`.
    pub data: Option<PathBuf>,
    /// Leaves out lines of steps.
    pub is_quiet: bool,
    /// The run's ledger.
    pub ledger: PathBuf,
    /// Updates after the checkpoint.
    pub num_steps: u64,
    /// Threads of tensor kernels.
    pub num_threads: u32,
    /// Folder that the transcript gets.
    pub output: PathBuf,
    /// State classes that keep their initial value; for a resumed trajectory.
    pub withheld: Vec<StateClass>,
}

/// Everything that happened to a ledger.
///
/// # Errors
/// When it cannot be read.
pub fn history(reader: &Reader) -> Result<History, ProbeError> {
    let mut history = History::default();
    for entry in reader.entries(0) {
        history.observe(&entry?);
    }
    Ok(history)
}

/// Executes a trajectory and leaves its transcript.
///
/// # Errors
/// When the run's contract, inputs or checkpoint cannot be used, the device
/// fails, the scratch folder cannot be written, or a signal came.
pub fn run(options: &TrajectoryOptions) -> Result<(), ProbeError> {
    // Nobody waits for the transcript once the parent is gone.
    set_parent_process_death_signal(Some(Signal::TERM)).map_err(|error| RunError::Process(error.into()))?;
    let interrupt = Interrupt::install().map_err(RunError::Process)?;
    failpoint::check_permission()?;
    let reader = Reader::open(&options.ledger)?;
    let frozen = reader.contract()?;
    let identity = identity::identity(frozen.contract.plan.device);
    refusal::check_identity(&frozen.contract, &identity)?;
    refusal::check_supported(&frozen.contract)?;
    let pool = rayon::ThreadPoolBuilder::new().num_threads(options.num_threads as usize);
    pool.build_global().map_err(|error| RunError::Process(std::io::Error::other(error)))?;

    let history = history(&reader)?;
    let ledger_folder = folder_of(&options.ledger);
    let records = history.usable_checkpoints();
    let records = records.into_iter().filter(|record| record.checkpoint == options.checkpoint).collect();
    let resume = resume::decide_among(&frozen, &history, &ledger_folder, records)?;
    if let Some(unusable) = resume.unusable.into_iter().next() {
        let source = Box::new(unusable.error);
        return Err(ProbeError::Bytes { checkpoint: unusable.record.checkpoint, source });
    }
    let resume = ResumeState { unusable: Vec::new(), ..resume };

    let console = Console::new(options.is_quiet);
    let places = Places { data: options.data.as_deref(), ledger: &ledger_folder };
    let loaded = inputs::load(&frozen.contract, &reader, places, &console, &interrupt)?;
    let Some(loaded) = loaded else { return Err(interrupted(&interrupt)) };
    drop(reader);
    let mut engine = Engine::initial(EngineConfig {
        contract: &frozen.contract,
        card: &loaded.card,
        parameters: &loaded.parameters,
        train: loaded.train,
        val: loaded.val,
        device: device::open(frozen.contract.plan.device)?,
    })?;
    warm_start::apply(&mut engine, loaded.weights.as_deref())?;
    let end_step = history.end.as_ref().map(|end| end.last_step);
    let num_workers = resume.num_workers;
    let identity = &identity;
    let context = Context { console, end_step, frozen: &frozen, identity, interrupt, num_workers, options };
    rayon::scope(|_| match &options.against {
        None => reference(&context, engine, &resume),
        Some(_) => resumed(&context, engine, resume),
    })
}

pub(super) fn interrupted(interrupt: &Interrupt) -> ProbeError {
    ProbeError::Interrupted { signal: interrupt.received() }
}

/// What does not change while a trajectory runs.
pub(super) struct Context<'a> {
    pub(super) console: Console,
    /// The last step of a run that ended: every stream was evaluated there.
    end_step: Option<u64>,
    frozen: &'a FrozenContract,
    identity: &'a Identity,
    pub(super) interrupt: Interrupt,
    /// Of the attempt that saved the checkpoint, as its state says. One process
    /// executes them all here.
    num_workers: u32,
    pub(super) options: &'a TrajectoryOptions,
}

impl Context<'_> {
    pub(super) const fn contract(&self) -> &Contract {
        &self.frozen.contract
    }

    const fn plan(&self) -> &CompilerPlan {
        &self.identity.plan
    }

    fn is_last(&self, step: u64) -> bool {
        self.end_step == Some(step)
    }
}

/// The uninterrupted trajectory: every step from the initial state on, in one
/// go, without restoring anything.
fn reference(context: &Context<'_>, engine: Engine, resume: &ResumeState) -> Result<(), ProbeError> {
    let contract = context.contract();
    let selection = SelectionTracker::new(contract).ok_or_else(|| no_stream(contract))?;
    let mut trajectory = Trajectory { context, engine, left_out: StateBytes::default(), selection };
    let mut lines = Sha256::new();
    let mut writer = None;
    let mut fork = None;
    let last = resume.step + context.options.num_steps;
    let num_microbatches = resume.num_microbatches().map_err(RunError::State)?;
    for step in 0..=last {
        // The checkpoint may stand inside of the update that follows its step.
        let inside = if step == resume.step { num_microbatches } else { 0 };
        let done = trajectory.advance(step, step > 0, step >= resume.step, inside)?;
        if step <= resume.step {
            done.hash(step, &mut lines)?;
        }
        let Some(state) = &done.state else { continue };
        if step == resume.step {
            fork = continuations::test(contract).map(|_| trajectory.clone());
            let records = Digest::sha256(lines.clone().finalize().into());
            let replayed = Some(ReplayedRun { classes: state.digests(contract), records });
            let opening = Opening { equals_initial: false, replayed };
            writer = Some(TranscriptWriter::create(&context.options.output, None, &opening)?);
        }
        if let (Some(writer), Some(offset)) = (&mut writer, step.checked_sub(resume.step)) {
            let is_after = offset > 0;
            let stop = trajectory.selection.is_exhausted();
            writer.step(offset, state, done.records(stop).filter(|_| is_after))?;
        }
    }
    writer.map_or(Ok(()), TranscriptWriter::finish)?;
    fork.map_or(Ok(()), |fork| continuations::write(&fork, resume.step, &context.options.output))
}

/// The trajectory that goes on from the checkpoint, through the same restore as
/// a run, unless something is withheld.
fn resumed(context: &Context<'_>, mut engine: Engine, resume: ResumeState) -> Result<(), ProbeError> {
    let Context { options, .. } = context;
    let (contract, plan) = (context.contract(), context.plan());
    let against = options.against.as_deref();
    let against = against.map(|folder| Transcript::read(folder, options.num_steps)).transpose()?;
    let first = resume.step;
    let mut opening = Opening { equals_initial: false, replayed: None };
    let (left_out, selection) = if options.withheld.is_empty() {
        resume.restore(&mut engine, contract, plan)?;
        (StateBytes::default(), resume.selection)
    } else {
        let restored = withhold::restore(&mut engine, resume, contract, plan, &options.withheld)?;
        opening.equals_initial = restored.equals_initial;
        (restored.left_out, restored.selection)
    };
    let mut writer = TranscriptWriter::create(&options.output, against, &opening)?;
    let mut trajectory = Trajectory { context, engine, left_out, selection };
    writer.step(0, &trajectory.state()?, None)?;
    let fork = continuations::test(contract).map(|_| trajectory.clone());
    for offset in 1..=options.num_steps {
        let done = trajectory.advance(first + offset, true, true, 0)?;
        if let Some(state) = &done.state {
            writer.step(offset, state, done.records(trajectory.selection.is_exhausted()))?;
        }
    }
    writer.finish()?;
    fork.map_or(Ok(()), |fork| continuations::write(&fork, first, &options.output))
}

fn no_stream(contract: &Contract) -> ProbeError {
    refusal::Refusal::Unsupported { pointer: "/selection/stream", found: contract.selection.stream.clone() }
        .into()
}

/// A run that goes on, step by step. A clone goes on by itself.
#[derive(Clone)]
pub(super) struct Trajectory<'a> {
    pub(super) context: &'a Context<'a>,
    pub(super) engine: Engine,
    /// Classes that were not restored and that the engine does not hold.
    left_out: StateBytes,
    selection: SelectionTracker,
}

/// An update and what follows it.
pub(super) struct Done {
    pub(super) evaluations: Vec<EvalDet>,
    pub(super) outcome: Option<StepOutcome>,
    /// At the contract's cadence.
    digests: Option<Vec<schemas::state::StateDigest>>,
    state: Option<StateBytes>,
}

impl Trajectory<'_> {
    fn state(&self) -> Result<StateBytes, ProbeError> {
        let plan_of_run = (self.context.plan(), self.context.num_workers);
        let (contract, selection) = (self.context.contract(), self.selection.state());
        let state = StateBytes::capture(&self.engine, contract, plan_of_run, selection)?;
        Ok(state.with(&self.left_out))
    }

    /// Everything that a run does between a step's update and the next one. The
    /// step is that of the run, which decides what is due; an engine that was
    /// restored without its step counts from another one. The state is taken
    /// after `inside` microbatches of the next update.
    pub(super) fn advance(
        &mut self,
        step: u64,
        updates: bool,
        is_compared: bool,
        inside: u32,
    ) -> Result<Done, ProbeError> {
        let context = self.context;
        let contract = context.contract();
        let started = std::time::Instant::now();
        let outcome = if updates {
            let outcome = self.engine.step(context.interrupt.flag())?;
            Some(outcome.ok_or_else(|| interrupted(&context.interrupt))?)
        } else {
            None
        };
        let duration = started.elapsed();
        let is_last = context.is_last(step);
        let mut evaluations = Vec::new();
        let is_due = |every: u64| step.is_multiple_of(every) || is_last;
        for stream in contract.evaluation.streams.iter().filter(|stream| is_due(stream.every_steps)) {
            let outcome = self.engine.evaluate(stream, context.interrupt.flag())?;
            let outcome = outcome.ok_or_else(|| interrupted(&context.interrupt))?;
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
        let digests = state.as_ref().filter(|_| has_digests).map(|state| state.digests(contract));
        if inside > 0 {
            if !self.engine.accumulate(inside, context.interrupt.flag())? {
                return Err(interrupted(&context.interrupt));
            }
            state = Some(self.state()?);
        }
        let done = Done { evaluations, outcome, digests, state };
        if let Some(det) = done.step_det() {
            context.console.step(step, &det, duration);
        }
        Ok(done)
    }
}

impl Done {
    fn step_det(&self) -> Option<StepDet> {
        let outcome = self.outcome.as_ref()?;
        Some(outcome.det(self.digests.clone()))
    }

    /// Adds the lines of `docs/FORMAT.md` ("Resume probes").
    fn hash(&self, step: u64, lines: &mut Sha256) -> Result<(), ProbeError> {
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
    fn records(&self, stop: bool) -> Option<Records> {
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
