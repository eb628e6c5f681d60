//! One file a command.

mod audit;
pub(crate) mod bundle;
mod campaign;
pub(crate) mod challenge;
mod coverage;
pub(crate) mod diff;
mod export;
mod export_format;
mod export_mlflow;
mod freeze;
mod get;
mod handoff;
mod import;
mod init;
mod keygen;
mod list;
pub(crate) mod proof;
mod query;
mod rule;
mod schema;
mod seal;
mod serve;
mod show;
mod tiles;
pub(crate) mod trust;
mod verify_head;
pub(crate) mod witness;

pub(crate) use campaign::CAMPAIGN_HINT;

use std::path::Path;

use ledger::reader::Reader;

use crate::arguments::Command;
use crate::failure::{Failure, OrFail};

/// Refuses a ledger that is not there, before anything else is missed.
pub(crate) fn require_ledger(path: &Path) -> Result<(), Failure> {
    if path.exists() {
        return Ok(());
    }
    Err(Failure::new(
        format!("there is no ledger at {}", path.display()),
        "name the file that `ledger freeze` made, by default run.db",
    ))
}

/// Program and version, for the record.
pub(crate) const TOOL: &str = concat!("ledger ", env!("CARGO_PKG_VERSION"));

/// Runs a command; the exit code, or why there is none.
pub(crate) fn run(command: Command) -> Result<u8, Failure> {
    match command {
        Command::Init(arguments) => init::run(&arguments),
        Command::Keygen(arguments) => keygen::run(&arguments),
        Command::Seal(arguments) => seal::run(&arguments),
        Command::Freeze(arguments) => freeze::run(&arguments),
        Command::Show(arguments) => show::run(&arguments),
        Command::List(arguments) => list::run(&arguments),
        Command::Get(arguments) => get::run(&arguments),
        Command::Query(arguments) => query::run(&arguments),
        Command::VerifyHead(arguments) => verify_head::run(&arguments),
        Command::Export(arguments) => export::run(&arguments),
        Command::Import(arguments) => import::run(&arguments),
        Command::Proof(arguments) => proof::run(&arguments),
        Command::Witness(arguments) => witness::run(&arguments.command),
        Command::Bundle(arguments) => bundle::run(&arguments),
        Command::Audit(arguments) => audit::run(&arguments),
        Command::Challenge(arguments) => challenge::run(&arguments),
        Command::Rule(arguments) => rule::run(&arguments),
        Command::Rules(arguments) if arguments.coverage => coverage::run(&arguments),
        Command::Rules(arguments) => rule::run_all(&arguments),
        Command::Trust(arguments) => trust::run(&arguments),
        Command::Diff(arguments) => diff::run(&arguments),
        Command::Handoff(arguments) => handoff::run(&arguments),
        Command::Campaign(arguments) => campaign::run(&arguments.command),
        Command::Serve(arguments) => serve::run(arguments),
        Command::Schema(arguments) => schema::run(&arguments),
    }
}

/// Opens a ledger for reading.
fn open_ledger(path: &Path) -> Result<Reader, Failure> {
    bundle::refuse_bundle(path)?;
    Reader::open(path).or_hint("name the file that `ledger freeze` made, by default run.db")
}
