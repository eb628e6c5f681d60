//! One trajectory of a probe, in a process of its own: the uninterrupted one
//! from the initial state, or the one that resumes from the checkpoint.
//!
//! It writes no entry. It evaluates where a run would, because the selection
//! state is part of the state, and it goes on where a run would stop: what is
//! compared is what the run would have done next.

use std::path::PathBuf;

use ledger::reader::Reader;
use rustix::process::{Signal, set_parent_process_death_signal};
use schemas::body::ReplayedRun;
use schemas::contract::Contract;
use schemas::digest::Digest;
use schemas::ids::CheckpointId;
use schemas::state::StateClass;
use sha2::{Digest as _, Sha256};

use crate::checkpoint::locate::RecordedCheckpoint;
use crate::device;
use crate::engine::{Engine, EngineConfig};
use crate::identity;
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
use super::folder_below;
use super::state_bytes::StateBytes;
use super::transcript::{Opening, Transcript, TranscriptWriter};
use super::walk::{Setting, Trajectory, interrupted};
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
    history_below(reader, u64::MAX)
}

/// What happened to a ledger in the entries below a size, as somebody knew it who
/// had no more of them.
///
/// # Errors
/// When it cannot be read.
pub fn history_below(reader: &Reader, size: u64) -> Result<History, ProbeError> {
    let mut history = History::default();
    for entry in reader.entries(0) {
        let entry = entry?;
        if entry.index >= size {
            break;
        }
        history.observe(&entry);
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
    let records: Vec<RecordedCheckpoint> =
        records.into_iter().filter(|record| record.checkpoint == options.checkpoint).collect();
    for record in &records {
        folder_below(&ledger_folder, record)?;
    }
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
    let end_step = history.ordinary_end();
    let num_workers = resume.num_workers;
    let identity = &identity;
    let setting = Setting { console, end_step, frozen: &frozen, identity, interrupt, num_workers };
    rayon::scope(|_| match &options.against {
        None => reference(&setting, options, engine, &resume),
        Some(_) => resumed(&setting, options, engine, resume),
    })
}

/// The uninterrupted trajectory: every step from the initial state on, in one
/// go, without restoring anything.
fn reference(
    setting: &Setting<'_>,
    options: &TrajectoryOptions,
    engine: Engine,
    resume: &ResumeState,
) -> Result<(), ProbeError> {
    let contract = setting.contract();
    let selection = SelectionTracker::new(contract).ok_or_else(|| no_stream(contract))?;
    let mut trajectory = Trajectory::new(setting, engine, StateBytes::default(), selection);
    let mut lines = Sha256::new();
    let mut writer = None;
    let mut fork = None;
    let last = resume.step + options.num_steps;
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
            writer = Some(TranscriptWriter::create(&options.output, None, &opening)?);
        }
        if let (Some(writer), Some(offset)) = (&mut writer, step.checked_sub(resume.step)) {
            let is_after = offset > 0;
            let stop = trajectory.is_exhausted();
            writer.step(offset, state, done.records(stop).filter(|_| is_after))?;
        }
    }
    writer.map_or(Ok(()), TranscriptWriter::finish)?;
    fork.map_or(Ok(()), |fork| continuations::write(&fork, resume.step, &options.output))
}

/// The trajectory that goes on from the checkpoint, through the same restore as
/// a run, unless something is withheld.
fn resumed(
    setting: &Setting<'_>,
    options: &TrajectoryOptions,
    mut engine: Engine,
    resume: ResumeState,
) -> Result<(), ProbeError> {
    let (contract, plan) = (setting.contract(), setting.plan());
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
    let mut trajectory = Trajectory::new(setting, engine, left_out, selection);
    writer.step(0, &trajectory.state()?, None)?;
    let fork = continuations::test(contract).map(|_| trajectory.clone());
    for offset in 1..=options.num_steps {
        let done = trajectory.advance(first + offset, true, true, 0)?;
        if let Some(state) = &done.state {
            writer.step(offset, state, done.records(trajectory.is_exhausted()))?;
        }
    }
    writer.finish()?;
    fork.map_or(Ok(()), |fork| continuations::write(&fork, first, &options.output))
}

fn no_stream(contract: &Contract) -> ProbeError {
    refusal::Refusal::Unsupported { pointer: "/selection/stream", found: contract.selection.stream.clone() }
        .into()
}
