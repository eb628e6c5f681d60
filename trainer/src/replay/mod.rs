//! `trainer replay`: executes the segments of a challenge again, each from its
//! own checkpoint, and writes what came out (`docs/FORMAT.md`, "Segment
//! challenges").
//!
//! It is for a reviewer's machine: it reads a private copy of the ledger, needs
//! no key, records nothing and changes no file of the run. It judges nothing; what
//! it writes is compared by the validator. A segment is restored through the code
//! that an ordinary resume takes, into an engine of its own, and one process
//! executes the microbatches of all workers. What the record says of the run is
//! read below the challenge's head, since a later attempt may have executed the same
//! updates otherwise: behind it only which states are still there and which update
//! was the run's last.

mod challenge;
mod error;
mod report;
mod room;
mod segment;

use std::fs;
use std::path::{Path, PathBuf};

use ledger::reader::Reader;
use schemas::challenge::{Challenge, MAX_REPLAY_BYTES, REPLAY_FORMAT, Replay, ReplayedSegment, Segment};
use schemas::digest::Digest;

use crate::device;
use crate::engine::{Engine, EngineConfig};
use crate::identity::{self, Identity};
use crate::probe::error::ProbeError;
use crate::probe::trajectory;
use crate::probe::walk::Setting;
use crate::run::error::{RunError, chain};
use crate::run::history::History;
use crate::run::inputs::{self, Places};
use crate::run::progress::Console;
use crate::run::signals::Interrupt;
use crate::run::{self, failpoint, folder_of, refusal, warm_start};

pub use error::ReplayError;
pub use report::ReplayReport;

use room::Room;

/// Name of the replay where the command line names none.
const DEFAULT_NAME: &str = "replay.json";

/// What the command line says.
#[derive(Debug, Clone)]
pub struct ReplayOptions {
    /// The challenge.
    pub challenge: PathBuf,
    /// Folder of the data shards; the data manifest's own where `None`.
    pub data: Option<PathBuf>,
    /// Leaves out lines of steps.
    pub is_quiet: bool,
    /// The run's ledger.
    pub ledger: PathBuf,
    /// Threads of tensor kernels; as for a run.
    pub num_threads: Option<u32>,
    /// The file to make; `replay.json` beside the challenge where `None`.
    pub output: Option<PathBuf>,
}

/// Executes every segment of a challenge and writes what came out.
///
/// # Errors
/// When the challenge is not of this ledger, the contract's code or inputs are
/// not at hand, the file cannot be written, or a signal came. A segment that
/// cannot be executed is no error: the file says why.
pub fn replay(options: &ReplayOptions) -> Result<ReplayReport, ReplayError> {
    let interrupt = Interrupt::install().map_err(RunError::Process)?;
    failpoint::check_permission()?;
    let output = options.output.clone().unwrap_or_else(|| options.challenge.with_file_name(DEFAULT_NAME));
    if output.exists() {
        return Err(ReplayError::Exists { path: output });
    }
    let (challenge, challenge_digest) = challenge::read(&options.challenge)?;
    let reader = Reader::open(&options.ledger)?;
    let frozen = reader.contract()?;
    challenge::check(&options.challenge, &challenge, &reader, &frozen)?;
    let contract = &frozen.contract;
    let identity = identity::identity(contract.plan.device);
    refusal::check_identity(contract, &identity)?;
    refusal::check_supported(contract)?;
    let whole = trajectory::history(&reader)?;
    let history = trajectory::history_below(&reader, challenge.head.size)?;
    let asked = run::num_threads(contract, options.num_threads, history.num_threads)?;
    if let Some(num_threads) = asked {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(num_threads as usize);
        pool.build_global().map_err(|error| RunError::Process(std::io::Error::other(error)))?;
    }
    let console = Console::new(options.is_quiet);
    let folder = folder_of(&options.ledger);
    let places = Places { data: options.data.as_deref(), ledger: &folder };
    let loaded = inputs::load(contract, &reader, places, &console, &interrupt)?;
    let Some(loaded) = loaded else {
        return Err(ReplayError::Interrupted { signal: interrupt.received() });
    };
    drop(reader);
    let mut initial = Engine::initial(EngineConfig {
        contract,
        card: &loaded.card,
        parameters: &loaded.parameters,
        train: loaded.train,
        val: loaded.val,
        device: device::open(contract.plan.device)?,
    })?;
    warm_start::apply(&mut initial, loaded.weights.as_deref())?;
    let setting = Setting {
        console,
        end_step: whole.ordinary_end(),
        frozen: &frozen,
        identity: &identity,
        interrupt,
        num_workers: contract.topology.workers,
    };
    // On one of the pool's own threads, as everything of an engine.
    let (copy, within) = (initial.clone(), &setting);
    let max_checkpoint_bytes = rayon::scope(move |_| segment::max_checkpoint_bytes(&copy, within))?;
    let process =
        Process { folder: &folder, history: &history, max_checkpoint_bytes, setting, whole: &whole };
    let replay = process.execute(&challenge, challenge_digest, &initial)?;
    write(&output, &replay)?;
    Ok(ReplayReport::new(&challenge, &replay, output))
}

/// What all segments share.
struct Process<'a> {
    /// Folder that paths of checkpoints are relative to.
    folder: &'a Path,
    /// Below the challenge's head.
    history: &'a History,
    /// No checkpoint of the contract is larger; a larger one is not read.
    max_checkpoint_bytes: u64,
    setting: Setting<'a>,
    /// Of all entries, those behind the head too.
    whole: &'a History,
}

impl Process<'_> {
    /// Executes every segment. `initial` stands at the initial state; each segment
    /// gets a clone, which goes on by itself.
    fn execute(
        &self,
        challenge: &Challenge,
        challenge_digest: Digest,
        initial: &Engine,
    ) -> Result<Replay, ReplayError> {
        let mut segments = Vec::new();
        let mut room = Room::new(MAX_REPLAY_BYTES);
        for (place, drawn) in (1..).zip(&challenge.drawn) {
            self.setting.console.say(&format!(
                "Segment {} ({place} of {}): steps {} to {} from {}",
                drawn.number,
                challenge.drawn.len(),
                drawn.start.step + 1,
                drawn.end.step,
                drawn.start.checkpoint
            ));
            segments.push(self.segment(drawn, initial.clone(), &mut room)?);
        }
        let Identity { code, environment, .. } = self.setting.identity.clone();
        let num_threads = u32::try_from(rayon::current_num_threads()).unwrap_or(u32::MAX);
        let compute_dtype = self.setting.contract().numerics.compute_dtype;
        Ok(Replay {
            challenge: challenge_digest,
            code,
            environment,
            format: REPLAY_FORMAT.to_owned(),
            // One process executes every microbatch.
            plan: run::executed_plan(self.setting.identity, compute_dtype, num_threads, 1),
            run: self.setting.frozen.run.clone(),
            segments,
            tool: identity::tool(),
        })
    }

    /// One segment; why not, where something keeps it from being executed.
    fn segment(
        &self,
        drawn: &Segment,
        engine: Engine,
        room: &mut Room,
    ) -> Result<ReplayedSegment, ReplayError> {
        // On one of the pool's own threads, as a run is: see `run::work`.
        let done = match rayon::scope(|_| segment::execute(self, engine, drawn, room)) {
            Ok(done) => done,
            Err(ReplayError::Probe(error)) => match *error {
                ProbeError::Interrupted { signal } => return Err(ReplayError::Interrupted { signal }),
                error => segment::failed(drawn, chain(&error)),
            },
            Err(error) => return Err(error),
        };
        if let Some(failure) = &done.failure {
            let line = format!("warning: segment {} was not executed: {failure}", drawn.number);
            self.setting.console.say(&line);
        }
        Ok(done)
    }
}

/// Writes the replay, whole or not at all, and over nothing.
fn write(path: &Path, replay: &Replay) -> Result<(), ReplayError> {
    let failed = |source| ReplayError::Write { path: path.to_owned(), source };
    let bytes =
        ledger::canonical::entry_json(replay).map_err(|error| failed(std::io::Error::other(error)))?;
    if bytes.len() as u64 > MAX_REPLAY_BYTES {
        return Err(ReplayError::TooLarge { limit: MAX_REPLAY_BYTES });
    }
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".part-{}", std::process::id()));
    let part = path.with_file_name(name);
    let written = fs::write(&part, bytes).and_then(|()| fs::File::open(&part)?.sync_all()).and_then(|()| {
        // It was not there before the segments were executed.
        if path.exists() { Err(std::io::ErrorKind::AlreadyExists.into()) } else { fs::rename(&part, path) }
    });
    if written.is_err() {
        // What is left of it is of no use to anybody.
        let _ = fs::remove_file(&part);
    }
    written.map_err(failed)
}
