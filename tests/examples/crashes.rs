//! Makes crash trials and prints a table of them. `scripts/crashes` builds what
//! it needs and calls it; the trials are in `tests/src/crashes/`.

#![allow(clippy::print_stdout, reason = "the table is this program's result")]

use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context, Result, bail};
use system_tests::crashes::{self, Baseline, Kind, disk, points, table, trial};

/// Trials where nothing else is asked for.
const NUM_TRIALS: u64 = 500;

const HELP: &str = "\
Crash trials: what a killed, cut or failing trainer had acknowledged has to be there.

crashes [--trials N] [--seed N] [--kind KIND]... [--jobs N] [--json]

  --trials N   trials over all kinds, and what it takes to kill, to stop and to send each signal at
               every crash point [default: 500]
  --seed N     decides when and how [default: 1]
  --kind KIND  only this kind; may be repeated
  --jobs N     trials at a time [default: 2]
  --json       the table as JSON

Exit codes: 0 everything holds; 1 something does not; 2 it could not run.";

struct Arguments {
    is_json: bool,
    kinds: Vec<Kind>,
    num_jobs: usize,
    num_trials: u64,
    seed: u64,
}

fn arguments() -> Result<Option<Arguments>> {
    let mut parsed =
        Arguments { is_json: false, kinds: Vec::new(), num_jobs: 2, num_trials: NUM_TRIALS, seed: 1 };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let mut value = || words.next().with_context(|| format!("{word} needs a value\nhint: --help"));
        match word.as_str() {
            "-h" | "--help" => return Ok(None),
            "--json" => parsed.is_json = true,
            "--trials" => parsed.num_trials = value()?.parse().context("--trials needs a number")?,
            "--seed" => parsed.seed = value()?.parse().context("--seed needs a number")?,
            "--jobs" => parsed.num_jobs = value()?.parse().context("--jobs needs a number")?,
            "--kind" => {
                let name = value()?;
                let names: Vec<&str> = Kind::all().into_iter().map(Kind::name).collect();
                let kind = Kind::all().into_iter().find(|kind| kind.name() == name);
                parsed.kinds.push(
                    kind.with_context(|| format!("no kind {name}\nhint: one of {}", names.join(", ")))?,
                );
            }
            _ => bail!("unknown argument {word}\nhint: --help"),
        }
    }
    if parsed.kinds.is_empty() {
        parsed.kinds = Kind::all();
    }
    Ok(Some(parsed))
}

/// As [`disk::tears_logs`], and says where less is asked for.
fn tears_logs() -> Result<bool> {
    let tears_logs = disk::tears_logs()?;
    if !tears_logs {
        eprintln!("note: this system writes a log back whole; no cut has to leave a database in part");
    }
    Ok(tears_logs)
}

fn run() -> Result<bool> {
    let Some(arguments) = arguments()? else {
        println!("{HELP}");
        return Ok(true);
    };
    let baseline = Baseline::new()?;
    if !baseline.is_instrumented
        && let Some(kind) = arguments.kinds.iter().find(|kind| kind.needs_points())
    {
        bail!("{} needs a trainer with crash points\nhint: scripts/crashes builds one", kind.name());
    }
    let num_points = baseline.points().len() as u64;
    let trials = trial::plan(arguments.num_trials, &arguments.kinds, arguments.seed, num_points);
    let (num_made, num_trials) = (AtomicUsize::new(0), trials.len());
    let made = crashes::make(&baseline, trials, arguments.num_jobs, &|one| {
        let number = num_made.fetch_add(1, Ordering::SeqCst) + 1;
        let verdict = if one.outcome.holds(one.trial.kind) { "holds" } else { "DOES NOT HOLD" };
        eprintln!(
            "{number}/{num_trials} {} {verdict} in {:.1} s: {}",
            one.trial.kind.name(),
            one.duration.as_secs_f64(),
            one.outcome.what
        );
    });
    // A point of the sources that no trial came to would be tried in vain.
    let points = points::places()?.into_keys().collect();
    let mut missing = Vec::new();
    for kind in arguments.kinds.iter().filter(|_| baseline.is_instrumented) {
        let untried = table::untried(&made, *kind, &points);
        missing.extend(untried.iter().map(|place| format!("{}: nothing happened at {place}", kind.name())));
    }
    if baseline.is_instrumented {
        missing.extend(table::unseen_losses(&made, tears_logs)?);
    }
    if arguments.is_json {
        println!("{:#}", table::json(&made, (arguments.seed, baseline.is_instrumented), &missing));
    } else {
        print!("{}", table::text(&made));
    }
    for failure in table::failures(&made) {
        eprintln!("error: {failure}");
    }
    for place in &missing {
        eprintln!("error: {place}");
    }
    Ok(table::holds(&made) && missing.is_empty())
}

fn main() -> ExitCode {
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::from(2)
        }
    }
}
