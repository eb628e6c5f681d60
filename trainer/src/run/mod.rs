//! `trainer run`: starts a run under its frozen contract, or resumes it, and
//! leaves a complete record either way.
//!
//! The order is fixed: what can be known without the run's data (key, lock,
//! code, environment, plan) is checked first and leaves no trace, because a
//! binary that is not the contract's trainer has no business in its ledger.
//! From `attempt.start` on, everything that happens is recorded, and every way
//! out but a crash writes `attempt.end`.

pub mod attempt;
mod calendar;
pub mod charges;
pub mod conclude;
pub mod costs;
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
pub mod select;
pub mod signals;
pub(crate) mod stored;
pub mod train;
pub mod warm_start;

use std::io;
use std::path::{Path, PathBuf};

use ledger::FrozenContract;
use ledger::keys::{KeyRing, Role};
use ledger::reader::Reader;
use ledger::recorder::{Record, Recorder};
use schemas::body::{
    AttemptStartDet, AttemptStartObs, Body, ExecutedPlan, Halves, Nothing, Outcome, RunStartDet, RunStartObs,
    SegmentStartDet,
};
use schemas::contract::{Contract, Device, Dtype, PermittedRewrite, Recovery};

use crate::checkpoint::roster::Roster;
use crate::device;
use crate::engine::{Engine, EngineConfig};
use crate::faults::{self, Injector};
use crate::identity::{self, Identity};
use crate::store::working_folder;

use attempt::{Attempt, SEGMENT};
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
    /// Threads of tensor kernels; all processors where `None`.
    pub num_threads: Option<u32>,
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
    if let Some(report) =
        refuse_by_history(&recorder, &frozen, &history, &console, options.intervention.is_some())?
    {
        recorder.close()?;
        return Ok(report);
    }
    if let Some(num_threads) = num_threads(contract, options.num_threads, history.num_threads)? {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(num_threads as usize);
        pool.build_global().map_err(|error| RunError::Process(io::Error::other(error)))?;
    }
    stored::make_available(&console, &frozen, &history, &ledger_folder)?;
    let resume = resume::decide(&frozen, &history, &ledger_folder)?;
    resume.check_restart(contract, &history, options.may_restart)?;
    if interrupt.is_set() {
        return Ok(RunReport::interrupted_early(&frozen, interrupt.received()));
    }
    let process = Process { console, costs, identity, interrupt, ledger_folder, options };
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
        console.say("warning: no attempt starts, so that the intervention is not recorded");
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
    let obs = attempt_observations(&process.identity, frozen.contract.numerics.compute_dtype);
    let body = Body::AttemptStart(Box::new(Halves { det, obs }));
    let mut roster = history.roster.clone();
    roster.observe(Some(number), Some(resume.step), &body);
    recorder.append_durable(Record::new(body).attempt(number).step(resume.step))?;
    failpoint::pass("attempt.started");

    let Process { console, costs, identity, interrupt, ledger_folder, options } = process;
    let from = (resume.step, resume.counters);
    let mut attempt = Attempt::new(number, from, recorder, roster, costs, console);
    let places = Places { data: options.data.as_deref(), ledger: &ledger_folder };
    let said = options.intervention.as_ref();
    let result =
        work(&mut attempt, reader, frozen, history, resume, places, &identity, &interrupt, said, drive);
    conclude::conclude(attempt, frozen, history, &ledger_folder, result)
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
    identity: &Identity,
    interrupt: &Interrupt,
    intervention: Option<&Intervention>,
    drive: &mut Driver<'_>,
) -> Result<Trained, RunError> {
    let contract = &frozen.contract;
    attempt.faults = Injector::open(frozen, reader)?;
    if !history.has_segment {
        attempt.record(0, first_segment(frozen))?;
    }
    if let Some(said) = intervention {
        intervention::record(attempt, resume.step, said)?;
    }
    let store = places.ledger.join(working_folder(&contract.checkpoints.store));
    recovery::record(attempt, history, &resume, &frozen.run, &store, reader)?;
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
    if attempt.faults.is_some() && resume.checkpoint.is_some() {
        faults::restored(attempt, &mut engine, contract, resume.step)?;
    }
    let context = Loop {
        frozen,
        history,
        interrupt,
        ledger_folder: places.ledger,
        num_parameters,
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

fn first_segment(frozen: &FrozenContract) -> Body {
    let det = SegmentStartDet {
        adjudication: None,
        from_step: 0,
        identity: frozen.digest,
        parent: None,
        segment: SEGMENT,
    };
    Body::SegmentStart(Box::new(Halves { det, obs: Nothing {} }))
}

fn attempt_observations(identity: &Identity, compute_dtype: Dtype) -> AttemptStartObs {
    let num_threads = u32::try_from(rayon::current_num_threads()).unwrap_or(u32::MAX);
    AttemptStartObs {
        cpu: identity::cpu_model(),
        environment: identity.environment.clone(),
        host: ledger::keys::host_identity(),
        plan: executed_plan(identity, compute_dtype, num_threads),
        process: std::process::id(),
        total_memory_bytes: costs::total_memory_bytes(),
    }
}

/// The plan of a process with so many threads, whose engine computes in the
/// contract's dtype or would have refused the contract.
pub(crate) fn executed_plan(identity: &Identity, compute_dtype: Dtype, num_threads: u32) -> ExecutedPlan {
    ExecutedPlan {
        compiler: identity.plan.clone(),
        compute_dtype,
        instrumentation: failpoint::instrumentation(),
        num_threads,
        // This process executes every microbatch itself.
        num_workers: 1,
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
