//! `trainer run`: starts a run under its frozen contract, or resumes it, and
//! leaves a complete record either way.
//!
//! The order is fixed: what can be known without the run's data (key, lock,
//! code, environment, plan) is checked first and leaves no trace, because a
//! binary that is not the contract's trainer has no business in its ledger.
//! From `attempt.start` on, everything that happens is recorded, and every way
//! out but a crash writes `attempt.end`.

pub mod attempt;
pub(crate) mod calendar;
pub mod conclude;
pub mod doubt;
pub mod error;
pub mod failpoint;
pub mod floors;
pub mod heart;
pub mod history;
pub mod inputs;
pub mod intervention;
pub mod progress;
mod records;
pub mod recovery;
pub mod refusal;
pub mod resume;
pub mod retire;
pub mod save;
pub mod saver;
pub mod segments;
pub mod select;
pub mod signals;
pub(crate) mod stored;
pub mod train;
pub mod warm_start;

pub use ledger::costs;

use std::io;
use std::path::{Path, PathBuf};

use ledger::FrozenContract;
use ledger::keys::{KeyRing, Role};
use ledger::reader::Reader;
use ledger::recorder::{Record, Recorder};
use schemas::body::{
    AttemptStartDet, AttemptStartObs, Body, ExecutedPlan, Halves, Outcome, RunStartDet, RunStartObs,
};
use schemas::contract::{Contract, Device, Dtype, PermittedRewrite, Recovery};

use crate::checkpoint::roster::Roster;
use crate::device;
use crate::engine::{Engine, EngineConfig};
use crate::faults::{self, Injector};
use crate::identity::{self, Identity};
use crate::store::working_folder;
use crate::workers::{Collective, Plan};

use attempt::Attempt;
use conclude::RunReport;
use costs::CostMeter;
use error::RunError;
use history::{History, PastAttempt};
use inputs::Places;
use intervention::Intervention;
use progress::Console;
use refusal::Refusal;
use resume::ResumeState;
use signals::Interrupt;
use train::{Loop, Trained};

/// Environment variable that names the key ring where `--keys` does not.
pub const KEYS_VARIABLE: &str = "LEDGER_KEYS";

/// Said where a run ends without another attempt.
const UNRECORDED: &str = "warning: no attempt starts, so that the intervention is not recorded";

/// What the command line says.
#[derive(Debug, Clone, Default)]
pub struct RunOptions {
    /// Folder of the data shards; the data manifest's own where `None`.
    pub data: Option<PathBuf>,
    /// Has to be the contract's, where given.
    pub device: Option<Device>,
    /// What a person did before this attempt.
    pub intervention: Option<Intervention>,
    /// Leaves out lines of steps and bars.
    pub is_quiet: bool,
    /// Key ring; see [`KEYS_VARIABLE`].
    pub keys: Option<PathBuf>,
    /// The run's ledger.
    pub ledger: PathBuf,
    /// Whether a run that recorded steps and has no checkpoint to go on from
    /// may start again from the initial state.
    pub may_restart: bool,
    /// Threads of tensor kernels, of all workers together; all processors where
    /// `None`.
    pub num_threads: Option<u32>,
    /// Processes that execute the attempt; the contract's number where `None`.
    pub num_workers: Option<u32>,
    /// What a worker executes; this program where `None`.
    pub worker_program: Option<PathBuf>,
}

/// What executes the updates of an attempt: [`train::train`], or a bench that
/// does other things between turns of the same loop.
pub type Driver<'a> =
    dyn FnMut(&mut Attempt, &mut Engine, &Loop<'_>, ResumeState) -> Result<Trained, RunError> + Send + 'a;

/// Everything about this process that the attempt needs.
struct Process<'a> {
    console: Console,
    costs: CostMeter,
    identity: Identity,
    interrupt: Interrupt,
    ledger_folder: PathBuf,
    num_workers: u32,
    options: &'a RunOptions,
}

/// Starts or resumes the run and goes on until it ends, is interrupted or
/// fails.
///
/// # Errors
/// When the run is refused, or its ledger cannot be read or written. A failure
/// that could be recorded is in the report.
pub fn run(options: &RunOptions) -> Result<RunReport, RunError> {
    run_with(options, &mut train::train)
}

/// As [`run`], with another driver in the training loop's place. Everything
/// before and after it is what [`run`] does.
///
/// # Errors
/// As [`run`]; what the driver returns is concluded as if the loop had.
pub fn run_with(options: &RunOptions, drive: &mut Driver<'_>) -> Result<RunReport, RunError> {
    let costs = CostMeter::start();
    let interrupt = Interrupt::install().map_err(RunError::Process)?;
    failpoint::check_permission()?;

    // Key, lock, contract.
    let ledger_folder = folder_of(&options.ledger);
    let folder = key_folder(options.keys.as_deref(), &options.ledger);
    let key = KeyRing::open(&folder)?.get(Role::Trainer)?;
    let public = key.public_hex();
    let recorder = Recorder::open(&options.ledger, key)?;
    let frozen = recorder.contract().cloned();
    let frozen = frozen.ok_or_else(|| Refusal::NoContract { path: options.ledger.clone() })?;
    let contract = &frozen.contract;
    if contract.keys.trainer.public != public {
        let expected = contract.keys.trainer.public.clone();
        return Err(Refusal::Key { expected, actual: public, path: folder }.into());
    }

    // Code, environment, plan.
    let device = contract.plan.device;
    if let Some(asked) = options.device.filter(|asked| *asked != device) {
        return Err(Refusal::Device { expected: device, actual: asked }.into());
    }
    let identity = identity::identity(device);
    refusal::check_identity(contract, &identity)?;
    refusal::check_supported(contract)?;
    let num_workers = segments::num_workers(contract, options.num_workers)?;

    // What happened before.
    let reader = Reader::open(&options.ledger)?;
    let mut history = History { roster: Roster::new(&frozen), ..History::default() };
    for entry in reader.entries(0) {
        history.observe(&entry?);
    }
    let console = Console::new(options.is_quiet);
    if let Some(end) = &history.end {
        if options.intervention.is_some() {
            return Err(Refusal::Over { run: frozen.run.clone() }.into());
        }
        recorder.close()?;
        return Ok(RunReport::already_ended(&frozen, end));
    }
    refusal::check_links(contract, &history, &ledger_folder)?;
    if let Some(report) = conclude::end_after_last(&recorder, &frozen, &history)? {
        if options.intervention.is_some() {
            console.say(UNRECORDED);
        }
        recorder.close()?;
        return Ok(report);
    }
    if let Some(report) =
        refuse_by_history(&recorder, &frozen, &history, &console, options.intervention.is_some())?
    {
        recorder.close()?;
        return Ok(report);
    }
    let asked = threads_of_each(options.num_threads, history.num_threads, num_workers);
    if let Some(num_threads) = num_threads(contract, asked, history.num_threads)? {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(num_threads as usize);
        pool.build_global().map_err(|error| RunError::Process(io::Error::other(error)))?;
    }
    stored::make_available(&console, &frozen, &history, &ledger_folder)?;
    let resume = resume::decide(&frozen, &history, &ledger_folder)?;
    resume.check_restart(contract, &history, options.may_restart)?;
    if interrupt.is_set() {
        return Ok(RunReport::interrupted_early(&frozen, interrupt.received()));
    }
    let process = Process { console, costs, identity, interrupt, ledger_folder, num_workers, options };
    execute(process, recorder, &reader, &frozen, &history, resume, drive)
}

/// Folder of a ledger, to which the contract's paths are relative.
#[must_use]
pub fn folder_of(ledger: &Path) -> PathBuf {
    match ledger.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
        _ => PathBuf::from("."),
    }
}

/// Where the trainer key is: as said, else as [`KEYS_VARIABLE`] says, else
/// beside the ledger.
#[must_use]
pub fn key_folder(keys: Option<&Path>, ledger: &Path) -> PathBuf {
    keys.map(Path::to_owned)
        .or_else(|| std::env::var_os(KEYS_VARIABLE).map(PathBuf::from))
        .unwrap_or_else(|| folder_of(ledger).join("keys"))
}

/// Threads of one of several workers: its part of those that were asked for, or
/// of all processors where nobody said and no attempt was before.
fn threads_of_each(asked: Option<u32>, earlier: Option<u32>, num_workers: u32) -> Option<u32> {
    let all = || std::thread::available_parallelism().ok().and_then(|all| u32::try_from(all.get()).ok());
    let shared = match asked {
        None if num_workers == 1 || earlier.is_some() => return None,
        None => all().unwrap_or(1),
        Some(asked) => asked,
    };
    Some((shared / num_workers.max(1)).max(1))
}

/// Threads to run with: those of the command line, or of the attempts before
/// where the contract permits no other number; `None` for all processors.
pub(crate) fn num_threads(
    contract: &Contract,
    asked: Option<u32>,
    earlier: Option<u32>,
) -> Result<Option<u32>, Refusal> {
    let permits = contract.topology.permitted_rewrites.contains(&PermittedRewrite::ThreadCount);
    match (asked, earlier) {
        (Some(actual), Some(expected)) if actual != expected && !permits => {
            Err(Refusal::Threads { expected, actual })
        }
        (None, Some(earlier)) if !permits => Ok(Some(earlier)),
        (asked, _) => Ok(asked),
    }
}

/// Ends a run that its own contract does not allow to go on: no attempt is
/// left, or the recovery policy is to refuse every second one.
fn refuse_by_history(
    recorder: &Recorder,
    frozen: &FrozenContract,
    history: &History,
    console: &Console,
    has_intervention: bool,
) -> Result<Option<RunReport>, RunError> {
    let contract = &frozen.contract;
    let struck: Vec<&PastAttempt> = history.vanished().collect();
    let num_attempts = u32::try_from(history.attempts.len()).unwrap_or(u32::MAX);
    let max_attempts = contract.budget.max_attempts;
    let (outcome, refusal) = match history.attempts.last() {
        Some(past) if contract.faults.recovery == Recovery::Refuse => {
            (Outcome::Refused, Refusal::Recovery { attempt: past.attempt })
        }
        _ if num_attempts >= max_attempts => (Outcome::BudgetExhausted, Refusal::Attempts { max_attempts }),
        _ => return Ok(None),
    };
    for past in struck {
        recorder.append(Record::new(recovery::vanished(past, history)).step(past.last_step))?;
    }
    if has_intervention {
        console.say(UNRECORDED);
    }
    console.say(&format!("Ending run {}: {refusal}", frozen.run));
    conclude::end_without_attempt(recorder, frozen, history, outcome, &refusal).map(Some)
}

/// One attempt, from its first entry to its last.
fn execute(
    process: Process<'_>,
    recorder: Recorder,
    reader: &Reader,
    frozen: &FrozenContract,
    history: &History,
    resume: ResumeState,
    drive: &mut Driver<'_>,
) -> Result<RunReport, RunError> {
    announce(&process.console, frozen, history, &resume);
    let number = history.next_attempt();
    let (reason, resumed_from) = resume.reason(history);
    if !history.has_started {
        let det = RunStartDet { contract: frozen.digest };
        let obs = RunStartObs { tool: identity::tool() };
        recorder.append(Record::new(Body::RunStart(Box::new(Halves { det, obs }))))?;
    }
    let det = AttemptStartDet {
        attempt: number,
        code: process.identity.code.clone(),
        contract: frozen.digest,
        from_step: resume.step,
        reason,
        resumed_from,
    };
    let compute_dtype = frozen.contract.numerics.compute_dtype;
    let obs = attempt_observations(&process.identity, compute_dtype, process.num_workers);
    let entered = segments::enter(frozen, history, process.num_workers, resume.step)?;
    let body = Body::AttemptStart(Box::new(Halves { det, obs }));
    let mut roster = history.roster.clone();
    roster.observe(Some(number), Some(resume.step), &body);
    recorder.append_durable(Record::new(body).attempt(number).step(resume.step))?;
    failpoint::pass("attempt.started");

    let Process { console, costs, identity, interrupt, ledger_folder, num_workers, options } = process;
    let from = (resume.step, resume.counters);
    let in_segment = (number, entered.segment);
    let mut attempt = Attempt::new(in_segment, from, recorder, roster, costs, console);
    for (segment, body) in entered.starts {
        let Body::SegmentStart(halves) = &body else { continue };
        attempt.record_of(halves.det.from_step, body, None, Some(segment))?;
    }
    let places = Places { data: options.data.as_deref(), ledger: &ledger_folder };
    let given = Given {
        identity: &identity,
        interrupt: &interrupt,
        intervention: options.intervention.as_ref(),
        num_workers,
        program: options.worker_program.as_deref(),
    };
    let result = work(&mut attempt, reader, frozen, history, resume, places, given, drive);
    conclude::conclude(attempt, frozen, history, &ledger_folder, result)
}

/// What an attempt executes with.
#[derive(Debug, Clone, Copy)]
struct Given<'a> {
    identity: &'a Identity,
    interrupt: &'a Interrupt,
    intervention: Option<&'a Intervention>,
    num_workers: u32,
    program: Option<&'a Path>,
}

/// Everything between `attempt.start` and `attempt.end`.
#[allow(clippy::too_many_arguments, reason = "each is one thing that the attempt was given")]
fn work(
    attempt: &mut Attempt,
    reader: &Reader,
    frozen: &FrozenContract,
    history: &History,
    resume: ResumeState,
    places: Places<'_>,
    given: Given<'_>,
    drive: &mut Driver<'_>,
) -> Result<Trained, RunError> {
    let contract = &frozen.contract;
    let Given { identity, interrupt, num_workers, .. } = given;
    attempt.faults = Injector::open(frozen, reader)?;
    if let Some(said) = given.intervention {
        intervention::record(attempt, resume.step, said)?;
    }
    let store = places.ledger.join(working_folder(&contract.checkpoints.store));
    recovery::record(attempt, history, &resume, frozen, &store, reader)?;
    stored::clean(attempt, history, frozen);
    retire::finish(attempt, frozen, places.ledger)?;

    let loaded = inputs::load(contract, reader, places, &attempt.console, interrupt)?;
    let Some(loaded) = loaded else {
        return Ok(Trained::interrupted(interrupt.received()));
    };
    let device = device::open(contract.plan.device)?;
    let num_parameters = num_elements(&loaded.parameters);
    let mut engine = Engine::initial(EngineConfig {
        contract,
        card: &loaded.card,
        parameters: &loaded.parameters,
        train: loaded.train,
        val: loaded.val,
        device,
    })?;
    warm_start::apply(&mut engine, loaded.weights.as_deref())?;
    resume.restore(&mut engine, contract, &identity.plan)?;
    if let Some(collective) = contract.topology.collective.as_ref().filter(|_| num_workers > 1) {
        let plan = Plan {
            card: &loaded.card,
            collective,
            contract,
            data: &loaded.data,
            detects: attempt.detects(),
            folder: &loaded.folder,
            keeps_last: attempt.faults.is_some(),
            num_threads: u32::try_from(rayon::current_num_threads()).unwrap_or(u32::MAX),
            num_workers,
            parameters: &loaded.parameters,
            program: given.program.map(Path::to_owned),
        };
        attempt.console.say(&format!("Starting {} workers beside this one", num_workers - 1));
        let started = Collective::start(&plan, &engine, interrupt.flag())?;
        let Some(started) = started else { return Ok(Trained::interrupted(interrupt.received())) };
        attempt.collective = Some(started);
    }
    if attempt.faults.is_some() && resume.checkpoint.is_some() {
        faults::restored(attempt, &mut engine, contract, resume.step)?;
    }
    let context = Loop {
        frozen,
        history,
        interrupt,
        ledger_folder: places.ledger,
        num_parameters,
        num_workers,
        plan: &identity.plan,
    };
    // The loop runs on one of the pool's own threads. From outside, every kernel
    // would put this thread to sleep and wake another: 2,000 context switches a
    // step at the demo's size, against 80, and a sixth of the time.
    rayon::scope(|_| drive(attempt, &mut engine, &context, resume))
}

fn num_elements(parameters: &schemas::parameters::ParameterManifest) -> u64 {
    let stored = parameters.parameters.iter().filter(|declaration| declaration.tied_to.is_none());
    stored.map(|declaration| declaration.shape.iter().product::<u64>()).sum()
}

fn attempt_observations(identity: &Identity, compute_dtype: Dtype, num_workers: u32) -> AttemptStartObs {
    let num_threads = u32::try_from(rayon::current_num_threads()).unwrap_or(u32::MAX);
    AttemptStartObs {
        cpu: identity::cpu_model(),
        environment: identity.environment.clone(),
        host: ledger::keys::host_identity(),
        plan: executed_plan(identity, compute_dtype, num_threads, num_workers),
        process: std::process::id(),
        total_memory_bytes: costs::total_memory_bytes(),
    }
}

/// The plan of processes with so many threads each, whose engines compute in the
/// contract's dtype or would have refused the contract.
pub(crate) fn executed_plan(
    identity: &Identity,
    compute_dtype: Dtype,
    num_threads: u32,
    num_workers: u32,
) -> ExecutedPlan {
    ExecutedPlan {
        compiler: identity.plan.clone(),
        compute_dtype,
        instrumentation: failpoint::instrumentation(),
        num_threads,
        num_workers,
    }
}

/// Says loudly whether the run starts, resumes or starts again.
fn announce(console: &Console, frozen: &FrozenContract, history: &History, resume: &ResumeState) {
    let (name, run, attempt) = (&frozen.contract.name, &frozen.run, history.next_attempt());
    for unusable in &resume.unusable {
        let reason = error::chain(&unusable.error);
        console.say(&format!("WARNING: checkpoint {} cannot be used: {reason}", unusable.record.checkpoint));
    }
    for known in &resume.doubtful {
        let (checkpoint, reason) = (&known.record.checkpoint, known.reason());
        console.say(&format!("Checkpoint {checkpoint} is in doubt and is quarantined: {reason}"));
    }
    if let Some(checkpoint) = &resume.unqualified {
        console
            .say(&format!("Checkpoint {checkpoint} is newer, and not resume-qualified; it is passed over"));
    }
    for past in history.vanished() {
        console.say(&format!("Attempt {} vanished after step {}", past.attempt, past.last_step));
    }
    console.say(&match &resume.checkpoint {
        Some(located) => format!(
            "RESUMING run {run} ({name}) from checkpoint {} (step {}), attempt {attempt}",
            located.record.checkpoint, resume.step
        ),
        None if history.attempts.is_empty() => match warm_start::describe(&frozen.contract) {
            Some(source) => format!("Starting run {run} ({name}) from {source}, attempt {attempt}"),
            None => format!("Starting run {run} ({name}), attempt {attempt}"),
        },
        None => format!(
            "RESTARTING run {run} ({name}) from the initial state, since no checkpoint can be used, attempt \
             {attempt}"
        ),
    });
}
