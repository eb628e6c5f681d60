//! `trainer checkpoint` and `trainer resume --explain`: what a ledger and its
//! checkpoint store say of each other.
//!
//! All but `prune` and `fetch` read a private copy of the ledger and change nothing. Paths
//! are relative to the ledger's folder, so that a run's folder can be moved or
//! copied and looked at elsewhere. Nothing here judges a run: that is the
//! validator's, from the same files.

mod diff;
mod difference;
mod explain;
mod fetch;
mod init_from;
mod inspect;
mod list;
mod open;
mod opened;
mod places;
mod prune;
mod verify;

use std::path::PathBuf;

use clap::{Args, Subcommand};

use crate::cli::Failure;

/// Exit code where something differs or is missing.
const EXIT_FINDINGS: u8 = 1;

#[derive(Debug, Args)]
pub(crate) struct CheckpointArguments {
    #[command(subcommand)]
    command: CheckpointCommand,
}

#[derive(Debug, Subcommand)]
enum CheckpointCommand {
    /// List every checkpoint that the ledger knows, in numeric order.
    ///
    /// Stages come from the entries: what was not validated is in flight, whatever lies in the
    /// store. Exit codes: 0 done, 2 could not run.
    List(LedgerArguments),
    /// Show a checkpoint's manifest by state class: shards, tensors, digests.
    ///
    /// Exit codes: 0 done, 2 could not run.
    Inspect(InspectArguments),
    /// Open one tensor alone: prove that it is the one that the ledger committed to.
    ///
    /// Needs a contract with a state tree. The proof is checked with
    /// `ledger challenge run.db --opening FILE`. Exit codes: 0 done, 2 could not run.
    Open(OpenArguments),
    /// Read checkpoints again and compare every digest with what was recorded.
    ///
    /// Exit codes: 0 all as recorded, 1 something differs, 2 could not run.
    Verify(VerifyArguments),
    /// Compare two checkpoints by state class, and name the first difference of each.
    ///
    /// Exit codes: 0 equal, 1 different, 2 could not run.
    Diff(DiffArguments),
    /// Fetch checkpoints from a store by URL, compared with the record.
    ///
    /// They then lie where `ledger audit`, `evaluator` and a resume look for them. Exit codes:
    /// 0 all are there, 1 one is missing in the store or differs, 2 could not run.
    Fetch(FetchArguments),
    /// Retire what the contract's policy lets go; each retirement is an entry.
    ///
    /// Exit codes: 0 done, 1 a file could not be removed, 2 could not run.
    Prune(PruneArguments),
}

#[derive(Debug, Args)]
struct LedgerArguments {
    /// The run's ledger.
    #[arg(long, value_name = "FILE")]
    ledger: PathBuf,
    /// Print the result as JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
struct InspectArguments {
    /// Name of the checkpoint, as `list` prints it.
    checkpoint: String,
    #[command(flatten)]
    common: LedgerArguments,
}

#[derive(Debug, Args)]
struct OpenArguments {
    /// Name of the checkpoint, as `list` prints it.
    checkpoint: String,
    /// Name of the tensor, or of a shard without tensors, as `inspect` prints it.
    tensor: String,
    /// File name of the shard, where several have a tensor of this name.
    #[arg(long, value_name = "NAME")]
    shard: Option<String>,
    /// The file to make with the proof; never overwritten.
    #[arg(long, value_name = "FILE")]
    output: PathBuf,
    /// A file to make with the tensor's elements, little-endian and row-major; never overwritten.
    #[arg(long, value_name = "FILE")]
    tensor_to: Option<PathBuf>,
    #[command(flatten)]
    common: LedgerArguments,
}

#[derive(Debug, Args)]
struct VerifyArguments {
    /// Name of the checkpoint, as `list` prints it.
    #[arg(required_unless_present = "all", conflicts_with = "all")]
    checkpoint: Option<String>,
    /// Every checkpoint that was committed and not given up.
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    common: LedgerArguments,
}

#[derive(Debug, Args)]
struct FetchArguments {
    /// Name of the checkpoint, as `list` prints it.
    #[arg(required_unless_present = "all", conflicts_with = "all")]
    checkpoint: Option<String>,
    /// Every checkpoint that was committed and not given up; of retired ones what stays.
    #[arg(long)]
    all: bool,
    /// Folder in which each gets a folder of its own [default: `checkpoints` beside the ledger].
    #[arg(long, value_name = "DIR")]
    to: Option<PathBuf>,
    #[command(flatten)]
    common: LedgerArguments,
}

#[derive(Debug, Args)]
struct DiffArguments {
    /// Name of a checkpoint of the ledger, or a checkpoint's folder.
    a: String,
    /// The other one.
    b: String,
    /// The run's ledger, where a name is given.
    #[arg(long, value_name = "FILE")]
    ledger: Option<PathBuf>,
    /// Print the result as JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
struct PruneArguments {
    /// Only say what would go, and why the rest stays.
    #[arg(long)]
    dry_run: bool,
    /// Folder of the trainer key [default: $LEDGER_KEYS, else `keys` beside the ledger].
    #[arg(long, value_name = "DIR")]
    keys: Option<PathBuf>,
    #[command(flatten)]
    common: LedgerArguments,
}

#[derive(Debug, Args)]
pub(crate) struct ResumeArguments {
    /// Say from where the next attempt would go on, and change nothing; `trainer run` resumes.
    /// A checkpoint that only a store by URL has is fetched to be looked at.
    #[arg(long, required = true)]
    explain: bool,
    #[command(flatten)]
    common: LedgerArguments,
}

pub(crate) use init_from::{InitFromArguments, run as init_from};

pub(crate) fn checkpoint(arguments: &CheckpointArguments) -> Result<u8, Failure> {
    match &arguments.command {
        CheckpointCommand::List(arguments) => list::run(arguments),
        CheckpointCommand::Inspect(arguments) => inspect::run(arguments),
        CheckpointCommand::Open(arguments) => open::run(arguments),
        CheckpointCommand::Verify(arguments) => verify::run(arguments),
        CheckpointCommand::Fetch(arguments) => fetch::run(arguments),
        CheckpointCommand::Diff(arguments) => diff::run(arguments),
        CheckpointCommand::Prune(arguments) => prune::run(arguments),
    }
}

pub(crate) fn resume(arguments: &ResumeArguments) -> Result<u8, Failure> {
    explain::run(&arguments.common)
}
