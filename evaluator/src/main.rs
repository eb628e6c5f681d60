//! The `evaluator` program. Results go to stdout, all else to stderr. Exit
//! code 0: done; 1: refused; 2: could not run.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "this module is the console")]

use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Mutex;

use clap::{Args, Parser, Subcommand};
use evaluator::{
    EvaluateError, Progress, QualifyOutcome, QualifyRequest, ValOutcome, ValRequest, qualify, val,
};
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;

/// Independent qualification with a forward pass of its own.
#[derive(Parser)]
#[command(version, about)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Recompute the val metric of every candidate, and sign the numbers.
    Val(ValArguments),
    /// Open the sealed set for the candidate that was handed off, and sign the result.
    Qualify(QualifyArguments),
}

#[derive(Args)]
struct Common {
    /// The run's ledger.
    #[arg(long)]
    ledger: PathBuf,
    /// Folder with the qualifier's keys [default: $LEDGER_KEYS, else keys/ beside the ledger].
    #[arg(long)]
    keys: Option<PathBuf>,
    /// Folder of the data shards [default: that of the data manifest].
    #[arg(long)]
    data: Option<PathBuf>,
    /// The qualifier's own ledger [default: qualification.db beside the run's].
    #[arg(long)]
    qualification: Option<PathBuf>,
    /// Where the signed statement goes.
    #[arg(long)]
    output: Option<PathBuf>,
    /// Threads [default: one for each processor]. The result does not depend on it.
    #[arg(long)]
    threads: Option<usize>,
    /// Print the result as JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
struct ValArguments {
    #[command(flatten)]
    common: Common,
}

#[derive(Args)]
struct QualifyArguments {
    /// The handoff that `ledger handoff` wrote [default: <ledger>.handoff.dsse.json].
    #[arg(long)]
    handoff: Option<PathBuf>,
    /// The sealed set [default: where the contract says].
    #[arg(long)]
    sealed: Option<PathBuf>,
    #[command(flatten)]
    common: Common,
}

impl Common {
    fn num_threads(&self) -> usize {
        let available = || std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        self.threads.unwrap_or_else(available)
    }
}

fn main() -> ExitCode {
    let result = match Arguments::parse().command {
        Command::Val(arguments) => run_val(arguments.common),
        Command::Qualify(arguments) => run_qualify(arguments),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let word = if error.exit_code() == 1 { "refused" } else { "error" };
            eprintln!("{word}: {error}");
            let mut source = error.source();
            while let Some(cause) = source {
                eprintln!("  because: {cause}");
                source = cause.source();
            }
            eprintln!("hint: {}", error.hint());
            ExitCode::from(error.exit_code())
        }
    }
}

/// One bar that changes its text with the phase; hidden without a terminal.
struct Console(Mutex<(String, ProgressBar)>);

impl Console {
    fn new() -> Self {
        let style = ProgressStyle::with_template("{msg:<40!} {bar:30} {pos}/{len} {eta}");
        let bar = ProgressBar::new(0).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        Self(Mutex::new((String::new(), bar)))
    }

    fn show(&self, progress: Progress<'_>) {
        let Ok(mut state) = self.0.lock() else { return };
        let (phase, bar) = &mut *state;
        if phase != progress.phase {
            progress.phase.clone_into(phase);
            bar.reset();
            bar.set_message(phase.clone());
            bar.set_length(progress.total);
        }
        // Threads report out of order; the bar never goes back.
        bar.set_position(progress.done.max(bar.position()));
    }

    fn finish(&self) {
        if let Ok(state) = self.0.lock() {
            state.1.finish_and_clear();
        }
    }
}

fn print_json(value: &impl Serialize) {
    match serde_json::to_string(value) {
        Ok(text) => println!("{text}"),
        Err(error) => eprintln!("error: the result cannot be spelled as JSON: {error}"),
    }
}

fn run_val(common: Common) -> Result<(), EvaluateError> {
    let console = Console::new();
    let request = ValRequest {
        num_threads: common.num_threads(),
        data: common.data,
        keys: common.keys,
        ledger: common.ledger,
        output: common.output,
        qualification: common.qualification,
    };
    let outcome = val(&request, &|progress| console.show(progress));
    console.finish();
    let outcome = outcome?;
    if common.json {
        print_json(&outcome);
    } else {
        print_val(&outcome);
    }
    Ok(())
}

fn print_val(outcome: &ValOutcome) {
    println!("val numbers of run {}, by the evaluator's own forward pass", outcome.run);
    for result in &outcome.results {
        let numbers = &result.numbers;
        println!(
            "  {}  step {:>6}  {} {:.6} bits per byte  ({} targets)",
            result.candidate, numbers.step, numbers.stream, numbers.value.0, numbers.num_tokens
        );
    }
    println!("independence: {} ({})", outcome.independence.status, outcome.independence.reason);
    println!("Wrote {}", outcome.output.display());
}

/// Where `ledger handoff` puts it.
fn default_handoff(ledger: &Path) -> PathBuf {
    let mut path = ledger.as_os_str().to_owned();
    path.push(".handoff.dsse.json");
    path.into()
}

fn run_qualify(arguments: QualifyArguments) -> Result<(), EvaluateError> {
    let console = Console::new();
    let common = arguments.common;
    let request = QualifyRequest {
        num_threads: common.num_threads(),
        data: common.data,
        handoff: arguments.handoff.unwrap_or_else(|| default_handoff(&common.ledger)),
        keys: common.keys,
        ledger: common.ledger,
        output: common.output,
        qualification: common.qualification,
        sealed: arguments.sealed,
    };
    let outcome = qualify(&request, &|progress| console.show(progress));
    console.finish();
    let outcome = outcome?;
    let earlier = outcome.predicate.num_earlier_openings;
    if earlier > 0 {
        eprintln!(
            "WARNING: this sealed set had been opened {earlier} time(s) before; it is recorded, and the result is not that of a first opening"
        );
    }
    if let Some(reason) = &outcome.overlap_not_measured {
        eprintln!("warning: overlap with train and val was not measured: {reason}");
    }
    if common.json {
        print_json(&outcome);
    } else {
        print_qualify(&outcome);
    }
    Ok(())
}

fn print_qualify(outcome: &QualifyOutcome) {
    let predicate = &outcome.predicate;
    let result = &predicate.result;
    println!("{} of run {} (step {})", predicate.candidate, predicate.run, predicate.step);
    println!("  {:.6} bits per byte on {} targets of the opened set", result.value.0, result.num_tokens);
    println!("  opened set {}", result.plaintext);
    match &result.overlap {
        Some(overlap) => {
            println!(
                "  overlap: {} of {} sampled spans ({})",
                overlap.num_shared, overlap.num_spans, overlap.method
            );
        }
        None => println!("  overlap: not measured"),
    }
    println!("  opening number {} of this sealed set in this ledger", predicate.num_earlier_openings + 1);
    println!("independence: {} ({})", predicate.independence.status, predicate.independence.reason);
    println!("This holds for the opened set alone.");
    println!("Wrote {}", outcome.output.display());
}
