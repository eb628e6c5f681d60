//! `trainer probe`, and the hidden subcommand that it starts for each
//! trajectory.

use std::path::PathBuf;

use clap::Args;
use schemas::ids::CheckpointId;
use schemas::state::StateClass;
use serde::Deserialize;
use serde::de::IntoDeserializer;
use serde::de::value::{Error as ValueError, StrDeserializer};

use super::{Failure, print, print_json, say};
use crate::probe::error::ProbeError;
use crate::probe::trajectory::{self, TrajectoryOptions};
use crate::probe::{self, Controls, ProbeOptions};
use crate::run::error::chain;

#[derive(Debug, Args)]
pub(super) struct ProbeArguments {
    /// The run's ledger. The run may be over, or between two attempts.
    #[arg(long, value_name = "FILE")]
    ledger: PathBuf,
    /// The checkpoint, as `ledger show` names it: `s00000100-a1`.
    #[arg(long, value_name = "ID")]
    checkpoint: String,
    /// Updates after the checkpoint; 2 or more [default: those of the contract's
    /// equivalence test, else 4].
    #[arg(long, value_name = "K")]
    steps: Option<u64>,
    /// Make one control only: leave this state class at its initial value.
    #[arg(long, value_name = "CLASS", value_parser = state_class, conflicts_with = "controls")]
    withhold: Option<StateClass>,
    /// Besides the cold control, leave each captured class out in turn.
    #[arg(long)]
    controls: bool,
    /// Folder of the trainer key [default: $LEDGER_KEYS, else `keys` beside the ledger].
    #[arg(long, value_name = "DIR")]
    keys: Option<PathBuf>,
    /// Threads of tensor kernels [default: those of the attempts, else all processors].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    threads: Option<u16>,
    /// Folder of the data shards [default: that of the data manifest].
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Where to keep states while they are compared: K + 1 of the reference,
    /// and what differs of a resumed trajectory [default: beside the ledger].
    #[arg(long, value_name = "DIR")]
    scratch: Option<PathBuf>,
    /// Print the result as JSON.
    #[arg(long)]
    json: bool,
    /// Leave out the line of each step.
    #[arg(long)]
    quiet: bool,
}

#[derive(Debug, Args)]
pub(super) struct TrajectoryArguments {
    #[arg(long)]
    ledger: PathBuf,
    #[arg(long)]
    checkpoint: String,
    #[arg(long)]
    steps: u64,
    #[arg(long)]
    threads: u32,
    #[arg(long)]
    output: PathBuf,
    #[arg(long)]
    against: Option<PathBuf>,
    #[arg(long, value_parser = state_class)]
    withhold: Vec<StateClass>,
    #[arg(long)]
    data: Option<PathBuf>,
    #[arg(long)]
    quiet: bool,
}

/// A state class by its name in JSON.
fn state_class(text: &str) -> Result<StateClass, String> {
    let deserializer: StrDeserializer<'_, ValueError> = text.into_deserializer();
    StateClass::deserialize(deserializer).map_err(|error| error.to_string())
}

pub(super) fn probe_command(arguments: &ProbeArguments) -> Result<u8, Failure> {
    let controls = match (arguments.withhold, arguments.controls) {
        (Some(class), _) => Controls::Only(class),
        (None, true) => Controls::Each,
        (None, false) => Controls::Cold,
    };
    let options = ProbeOptions {
        checkpoint: CheckpointId(arguments.checkpoint.clone()),
        controls,
        data: arguments.data.clone(),
        is_quiet: arguments.quiet,
        keys: arguments.keys.clone(),
        ledger: arguments.ledger.clone(),
        num_steps: arguments.steps,
        num_threads: arguments.threads.map(u32::from),
        scratch: arguments.scratch.clone(),
    };
    let report = match probe::probe(&options) {
        Ok(report) => report,
        Err(error) => return failed(&error),
    };
    if arguments.json {
        print_json(&report)?;
    } else {
        print(report.text().as_bytes())?;
    }
    Ok(report.exit_code)
}

pub(super) fn trajectory_command(arguments: &TrajectoryArguments) -> Result<u8, Failure> {
    let options = TrajectoryOptions {
        against: arguments.against.clone(),
        checkpoint: CheckpointId(arguments.checkpoint.clone()),
        data: arguments.data.clone(),
        is_quiet: arguments.quiet,
        ledger: arguments.ledger.clone(),
        num_steps: arguments.steps,
        num_threads: arguments.threads,
        output: arguments.output.clone(),
        withheld: arguments.withhold.clone(),
    };
    match trajectory::run(&options) {
        Ok(()) => Ok(0),
        Err(error) => failed(&error),
    }
}

/// A signal has an exit code of its own.
fn failed(error: &ProbeError) -> Result<u8, Failure> {
    if let ProbeError::Interrupted { .. } = error {
        say(&format!("error: {}", chain(error)));
        return Ok(error.exit_code());
    }
    Err(Failure { message: chain(error), hint: error.hint() })
}
