//! The program `ledger`: makes a contract, freezes it, shows and queries a
//! ledger, audits it, hands a candidate off.
//!
//! It owns the command line and nothing else. Entries are written by the
//! crate `ledger`, verdicts come from `validator`; no command here computes
//! one, and no command deletes or overwrites what it did not make.
//!
//! Results go to stdout, everything else to stderr. Exit codes are a promise
//! (`docs/ERRORS.md`): 0 done, 1 findings, 2 could not run; `audit` has its own.

mod arguments;
mod campaign_arguments;
mod commands;
mod export_arguments;
mod external_loop;
mod failure;
mod inputs;
mod key_folder;
mod membership;
mod output;
mod preset;
mod scratch;
mod template;
mod trainer_program;
mod workers;

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    tracing_subscriber::fmt()
        .with_env_filter(tracing_subscriber::EnvFilter::from_default_env())
        .with_writer(std::io::stderr)
        .init();
    let arguments = arguments::Arguments::parse();
    match commands::run(arguments.command) {
        Ok(code) => ExitCode::from(code),
        Err(failure) => ExitCode::from(failure.report()),
    }
}
