//! `trainer replay`.

use std::path::PathBuf;

use clap::Args;

use super::{Failure, print, print_json, say};
use crate::replay::{self, ReplayError, ReplayOptions};
use crate::run::error::chain;

#[derive(Debug, Args)]
pub(super) struct ReplayArguments {
    /// The run's ledger.
    #[arg(long, value_name = "FILE")]
    ledger: PathBuf,
    /// What `ledger challenge --segments` wrote.
    #[arg(long, value_name = "FILE")]
    challenge: PathBuf,
    /// The file to make; never overwritten [default: `replay.json` beside the challenge].
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Threads of tensor kernels [default: those of the attempts, else all processors].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    threads: Option<u16>,
    /// Folder of the data shards [default: that of the data manifest].
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Print the result as JSON.
    #[arg(long)]
    json: bool,
    /// Leave out the line of each step.
    #[arg(long)]
    quiet: bool,
}

pub(super) fn replay_command(arguments: &ReplayArguments) -> Result<u8, Failure> {
    let options = ReplayOptions {
        challenge: arguments.challenge.clone(),
        data: arguments.data.clone(),
        is_quiet: arguments.quiet,
        ledger: arguments.ledger.clone(),
        num_threads: arguments.threads.map(u32::from),
        output: arguments.output.clone(),
    };
    let report = match replay::replay(&options) {
        Ok(report) => report,
        Err(error @ ReplayError::Interrupted { .. }) => {
            say(&format!("error: {}", chain(&error)));
            return Ok(error.exit_code());
        }
        Err(error) => return Err(Failure { message: chain(&error), hint: error.hint() }),
    };
    if arguments.json {
        print_json(&report)?;
    } else {
        print(report.text().as_bytes())?;
        let (ledger, challenge) = (arguments.ledger.display(), arguments.challenge.display());
        say(&format!("next: ledger challenge {ledger} --verify {challenge} {}", report.output.display()));
    }
    Ok(report.exit_code())
}
