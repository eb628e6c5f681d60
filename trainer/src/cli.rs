//! The command line of `trainer`. Results go to standard output, everything
//! else to standard error; exit codes are a promise that `docs/ERRORS.md` states.

mod probe;
mod replay;

use std::error::Error;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand, ValueEnum};
use ledger::strict::{self, ParseOptions};
use schemas::body::Outcome;
use schemas::contract::{Architecture, Device};
use schemas::policy_card::PolicyCard;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::commands;
use crate::device;
use crate::identity;
use crate::model::{freeze, manifest};
use crate::run::error::{RunError, chain};
use crate::run::intervention::Intervention;
use crate::run::{self, RunOptions};
use crate::workers;

/// Exit code of everything that could not run.
const EXIT_COULD_NOT_RUN: u8 = 2;

/// Largest document that is read, in bytes.
const MAX_DOCUMENT_BYTES: u64 = 16 << 20;

/// Longest text of an intervention in bytes; it goes into two entries.
const MAX_SAID_BYTES: usize = 4096;

/// Trains one run under its frozen contract.
#[derive(Debug, Parser)]
#[command(name = "trainer", version, about, max_term_width = 100)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Start a run, or resume it where it stopped.
    ///
    /// Exit codes: 0 the run completed (or had ended before); 1 it did not
    /// complete and the ledger says why; 2 it was refused or could not run;
    /// 129, 130, 143 a signal ended the attempt cleanly.
    Run(RunArguments),
    /// Look at checkpoints, compare them, and retire what the contract lets go.
    Checkpoint(commands::CheckpointArguments),
    /// Say from where the next attempt would go on, and why.
    ///
    /// Exit codes: 0 it would start, 1 nothing can be resumed from, 2 could not run.
    Resume(commands::ResumeArguments),
    /// Start a new run from the weights of another run's checkpoint: prepare its contract.
    ///
    /// Copies the checkpoint's model shard beside the contract and fills the
    /// contract's lineage block with digests. This is a warm start and no
    /// resume: nothing but weights is taken over, and the new run has its own
    /// record. Freeze the contract next.
    ///
    /// Exit codes: 0 prepared, 2 it was refused or could not run.
    InitFrom(commands::InitFromArguments),
    /// Show that a checkpoint continues its run, or which state it lacks.
    ///
    /// Resumes the checkpoint in a fresh process, runs some updates, and
    /// compares every state class with a separately executed, uninterrupted
    /// trajectory; then again with everything but the model left out, which has
    /// to differ. Each is on record with its raw distances, and where the
    /// contract's resume class is met the checkpoint becomes resume-qualified.
    ///
    /// Exit codes: 0 it became resume-qualified (or the one control that was
    /// asked for is explained); 1 it did not, and the result says why; 2 it was
    /// refused or could not run; 129, 130, 143 a signal ended it.
    Probe(probe::ProbeArguments),
    /// Execute the segments that a reviewer drew again, and write what came out.
    ///
    /// Needs no key and changes nothing of the run. What it writes is compared by
    /// `ledger challenge run.db --verify CHALLENGE REPLAY`; it shows something
    /// only where the reviewer ran it, on a machine of their own.
    ///
    /// Exit codes: 0 every segment was executed; 1 some could not be, and the
    /// file says why; 2 it was refused or could not run; 129, 130, 143 a signal
    /// ended it, and nothing was written.
    Replay(replay::ReplayArguments),
    /// One trajectory of a probe.
    #[command(hide = true)]
    Trajectory(probe::TrajectoryArguments),
    /// One worker of a run, for the process that records.
    #[command(hide = true)]
    Worker(WorkerArguments),
    /// Print code, environment and plan as a contract freezes them.
    Identity(IdentityArguments),
    /// Print the parameter manifest of an architecture and a policy card, with what `--freeze` names frozen.
    Parameters(ParametersArguments),
}

#[derive(Debug, Args)]
struct RunArguments {
    /// The run's ledger, made by `ledger freeze`.
    #[arg(long, value_name = "FILE")]
    ledger: PathBuf,
    /// Folder of the trainer key [default: $LEDGER_KEYS, else `keys` beside the ledger].
    #[arg(long, value_name = "DIR")]
    keys: Option<PathBuf>,
    #[arg(long, value_enum, help = device_help("Device; has to be the contract's"))]
    device: Option<DeviceArgument>,
    /// Threads of tensor kernels, of all workers together [default: those of earlier attempts, else all processors].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    threads: Option<u16>,
    /// Processes that execute the attempt [default: the contract's number].
    ///
    /// Another number needs the contract's permission (`worker_count`) and has to
    /// divide the microbatches of a global batch. It gives the same bits, and
    /// begins a new segment on record.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    workers: Option<u16>,
    /// Folder of the data shards [default: that of the data manifest].
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// What a person did since the last attempt, such as "replaced the disk"; goes on record.
    #[arg(long, value_name = "TEXT", value_parser = said)]
    intervention: Option<String>,
    /// Minutes of a person's time that it took; charged to the run.
    #[arg(long, value_name = "N", requires = "intervention")]
    operator_minutes: Option<u32>,
    /// Start again from the initial state where steps were recorded and no checkpoint is left.
    #[arg(long)]
    restart: bool,
    /// Print the result as JSON.
    #[arg(long)]
    json: bool,
    /// Leave out the line of each step.
    #[arg(long)]
    quiet: bool,
}

#[derive(Debug, Args)]
struct WorkerArguments {
    /// Process that started it.
    #[arg(long, value_name = "PID")]
    parent: u32,
}

#[derive(Debug, Args)]
struct IdentityArguments {
    #[arg(long, value_enum, default_value_t = DeviceArgument::Cpu, help = device_help("Device of the plan"))]
    device: DeviceArgument,
    /// Print JSON, as a contract holds it.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
struct ParametersArguments {
    /// JSON file with the contract's `architecture`.
    #[arg(long, value_name = "FILE")]
    architecture: PathBuf,
    /// JSON file with the policy card.
    #[arg(long, value_name = "FILE")]
    card: PathBuf,
    /// Name of a parameter that no update may change, with `*` for any characters; may be repeated.
    ///
    /// A frozen parameter keeps its initial values: no gradient, no decay, no
    /// moments. Checkpoints store these parameters once, in a file of their own.
    #[arg(long, value_name = "PATTERN")]
    freeze: Vec<String>,
}

/// Says which devices were compiled in; others are refused by name.
fn device_help(what: &str) -> String {
    format!("{what}. Compiled into this program: {}", device::names().join(", "))
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum DeviceArgument {
    Cpu,
    Wgpu,
    Cuda,
}

impl From<DeviceArgument> for Device {
    fn from(argument: DeviceArgument) -> Self {
        match argument {
            DeviceArgument::Cpu => Self::Cpu,
            DeviceArgument::Wgpu => Self::Wgpu,
            DeviceArgument::Cuda => Self::Cuda,
        }
    }
}

/// Runs the program and gives its exit code.
#[must_use]
pub fn main() -> ExitCode {
    tracing_subscriber::fmt()
        .with_env_filter(tracing_subscriber::EnvFilter::from_default_env())
        .with_writer(std::io::stderr)
        .init();
    let arguments = Arguments::parse();
    let result = match arguments.command {
        Command::Run(arguments) => run_command(&arguments),
        Command::Checkpoint(arguments) => commands::checkpoint(&arguments),
        Command::Resume(arguments) => commands::resume(&arguments),
        Command::InitFrom(arguments) => commands::init_from(&arguments),
        Command::Probe(arguments) => probe::probe_command(&arguments),
        Command::Replay(arguments) => replay::replay_command(&arguments),
        Command::Trajectory(arguments) => probe::trajectory_command(&arguments),
        Command::Worker(arguments) => match workers::process::run(arguments.parent) {
            Ok(()) => Ok(0),
            Err(error) => Err(Failure::new(&error)),
        },
        Command::Identity(arguments) => identity_command(&arguments),
        Command::Parameters(arguments) => parameters_command(&arguments),
    };
    match result {
        Ok(code) => ExitCode::from(code),
        Err(Failure { message, hint }) => {
            say(&format!("error: {message}"));
            if let Some(hint) = hint {
                say(&format!("hint: {hint}"));
            }
            ExitCode::from(EXIT_COULD_NOT_RUN)
        }
    }
}

/// What a person is told when a command could not run.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) message: String,
    pub(crate) hint: Option<&'static str>,
}

impl Failure {
    fn new(error: &dyn Error) -> Self {
        Self { message: chain(error), hint: None }
    }
}

impl From<RunError> for Failure {
    fn from(error: RunError) -> Self {
        Self { message: chain(&error), hint: error.hint() }
    }
}

pub(crate) fn say(line: &str) {
    // A closed standard error changes nothing about the result.
    let _ = writeln!(std::io::stderr().lock(), "{line}");
}

pub(crate) fn print(text: &[u8]) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    out.write_all(text).and_then(|()| out.flush()).map_err(|error| Failure::new(&error))
}

pub(crate) fn print_json<T: Serialize>(value: &T) -> Result<(), Failure> {
    let mut bytes = ledger::canonical::entry_json(value).map_err(|error| Failure::new(&error))?;
    bytes.push(b'\n');
    print(&bytes)
}

fn run_command(arguments: &RunArguments) -> Result<u8, Failure> {
    if let Some(asked) = arguments.device {
        device::check_compiled_in(asked.into()).map_err(|error| Failure::from(RunError::from(error)))?;
    }
    let report = run::run(&RunOptions {
        data: arguments.data.clone(),
        device: arguments.device.map(Device::from),
        intervention: arguments
            .intervention
            .clone()
            .map(|action| Intervention { action, operator_minutes: arguments.operator_minutes }),
        is_quiet: arguments.quiet,
        keys: arguments.keys.clone(),
        ledger: arguments.ledger.clone(),
        may_restart: arguments.restart,
        num_threads: arguments.threads.map(u32::from),
        num_workers: arguments.workers.map(u32::from),
        worker_program: None,
    })?;
    if matches!(report.outcome, Outcome::Failed | Outcome::Refused) && report.exit_code != 0 {
        say(&format!("error: {}", report.reason));
    }
    if let Some(hint) = &report.hint {
        say(&format!("hint: {hint}"));
    }
    if arguments.json {
        print_json(&report)?;
    } else {
        print(report.text().as_bytes())?;
    }
    Ok(report.exit_code)
}

/// A text that says something and fits an entry.
fn said(text: &str) -> Result<String, String> {
    match text.trim() {
        "" => Err("it says nothing".to_owned()),
        said if said.len() > MAX_SAID_BYTES => Err(format!("it has more than {MAX_SAID_BYTES} bytes")),
        said => Ok(said.to_owned()),
    }
}

fn identity_command(arguments: &IdentityArguments) -> Result<u8, Failure> {
    let asked = arguments.device.into();
    device::check_compiled_in(asked).map_err(|error| Failure::from(RunError::from(error)))?;
    let identity = identity::identity(asked);
    if arguments.json {
        print_json(&identity)?;
        return Ok(0);
    }
    let text = format!(
        "code         {}\nfeatures     {}\nversion      {} {}\nrustc        {}\nsystem       {} {}\nbackend      {}\nCPU features {}\ndevices      {}\n",
        identity.code.digest,
        if identity.code.features.is_empty() { "none".to_owned() } else { identity.code.features.join(", ") },
        identity.code.package,
        identity.code.version,
        identity.environment.rustc,
        identity.environment.operating_system,
        identity.environment.architecture,
        identity.plan.backend,
        identity.plan.cpu_features.join(", "),
        device::names().join(", "),
    );
    print(text.as_bytes())?;
    Ok(0)
}

fn parameters_command(arguments: &ParametersArguments) -> Result<u8, Failure> {
    let architecture: Architecture = read_document(&arguments.architecture)?;
    let card: PolicyCard = read_document(&arguments.card)?;
    let mut manifest = manifest::parameters(&architecture, &card).map_err(|error| Failure::new(&error))?;
    freeze::freeze(&mut manifest, &arguments.freeze).map_err(|error| Failure {
        message: format!("--freeze: {error}"),
        hint: Some("without --freeze the manifest lists the name of every parameter"),
    })?;
    let bytes = ledger::canonical::entry_json(&manifest).map_err(|error| Failure::new(&error))?;
    print(&bytes)?;
    Ok(0)
}

/// Reads a JSON document strictly; `$comment` members are dropped, as a freeze
/// drops them.
fn read_document<T: DeserializeOwned>(path: &Path) -> Result<T, Failure> {
    let failed = |error: &dyn Error| Failure {
        message: format!("{}: {}", path.display(), chain(error)),
        hint: Some("the contract reference in the documentation gives the shape"),
    };
    let size = fs::metadata(path).map_err(|error| failed(&error))?.len();
    if size > MAX_DOCUMENT_BYTES {
        let message =
            format!("{}: {size} bytes, a document has at most {MAX_DOCUMENT_BYTES}", path.display());
        return Err(Failure { message, hint: None });
    }
    let bytes = fs::read(path).map_err(|error| failed(&error))?;
    let value = strict::parse(&bytes, ParseOptions::without_comments()).map_err(|error| failed(&error))?;
    serde_json::from_value(value).map_err(|error| failed(&error))
}
