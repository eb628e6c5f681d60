//! Tries every mutation of the suites and prints the kill table, with every
//! documented survivor by name and reason.
//! `scripts/mutations` builds what it needs and calls it; the suites are in
//! `tests/src/mutations/`.

#![allow(clippy::print_stdout, reason = "the table is this program's result")]

use std::collections::BTreeSet;
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context, Result, bail};
use system_tests::mutations::generated::{self, expected};
use system_tests::mutations::{Judged, Records, Suite, run, suites, table};

const HELP: &str = "\
Mutations of real runs: each has to be killed by the audit, or to survive for a documented reason.

mutations [--suite NAME]... [--only TEXT] [--jobs N] [--list] [--update] [--json]

  --suite NAME  only this suite; may be repeated
  --only TEXT   only mutations whose name contains it
  --jobs N      audits at a time [default: 2]
  --list        every mutation with its outcome and killers
  --update      write the table of expected killers of the generated suite
  --json        the table as JSON

Exit codes: 0 everything holds; 1 something does not; 2 it could not run.";

#[derive(Default)]
struct Arguments {
    is_json: bool,
    is_list: bool,
    is_update: bool,
    num_jobs: usize,
    only: Option<String>,
    suites: Vec<String>,
}

fn arguments() -> Result<Option<Arguments>> {
    let mut parsed = Arguments { num_jobs: 2, ..Arguments::default() };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let mut value = || words.next().with_context(|| format!("{word} needs a value\nhint: --help"));
        match word.as_str() {
            "-h" | "--help" => return Ok(None),
            "--json" => parsed.is_json = true,
            "--list" => parsed.is_list = true,
            "--update" => parsed.is_update = true,
            "--jobs" => parsed.num_jobs = value()?.parse().context("--jobs needs a number")?,
            "--only" => parsed.only = Some(value()?),
            "--suite" => parsed.suites.push(value()?),
            _ => bail!("unknown argument {word}\nhint: --help"),
        }
    }
    if parsed.is_update && parsed.only.is_some() {
        bail!("--update writes the whole table, and --only leaves a part of it out");
    }
    Ok(Some(parsed))
}

/// The suites that were asked for.
fn chosen(names: &[String]) -> Result<Vec<Suite>> {
    let known: Vec<&str> = suites().iter().map(|suite| suite.name).collect();
    if let Some(unknown) = names.iter().find(|name| !known.contains(&name.as_str())) {
        bail!("no suite {unknown}\nhint: one of {}", known.join(", "));
    }
    let is_chosen = |suite: &Suite| names.is_empty() || names.iter().any(|name| name == suite.name);
    Ok(suites().into_iter().filter(is_chosen).collect())
}

fn try_all() -> Result<bool> {
    let Some(arguments) = arguments()? else {
        println!("{HELP}");
        return Ok(true);
    };
    let records = Records::default();
    let suites = chosen(&arguments.suites)?;
    let mut mutations = Vec::new();
    for suite in &suites {
        eprintln!("Making the runs of suite {}", suite.name);
        mutations.extend(run::of_suite(&records, suite)?);
    }
    if let Some(only) = &arguments.only {
        mutations.retain(|mutation| mutation.name.contains(only));
    }
    if mutations.is_empty() {
        bail!("there is no such mutation\nhint: --list names them");
    }
    let is_whole = arguments.only.is_none() && suites.iter().any(|suite| suite.name == generated::NAME);
    let stale = if is_whole && !arguments.is_update { generated::stale(&mutations)? } else { Vec::new() };
    let (num_tried, num_mutations) = (AtomicUsize::new(0), mutations.len());
    let tried = run::run(&records, &mutations, arguments.num_jobs, &|_| {
        let number = num_tried.fetch_add(1, Ordering::Relaxed) + 1;
        if number.is_multiple_of(100) || number == num_mutations {
            eprintln!("Tried {number} of {num_mutations} mutations");
        }
    });
    if arguments.is_update {
        let of_generated: Vec<_> = tried.iter().filter(|one| one.suite == generated::NAME).cloned().collect();
        expected::write(&of_generated)?;
        eprintln!("Wrote {}", expected::path().display());
    }
    if arguments.is_list {
        for one in &tried {
            let killers: Vec<String> = one.killers().into_iter().collect();
            eprintln!("{} / {}: {:?} {}", one.suite, one.name, one.outcome, killers.join(" "));
        }
    }
    let has_to_count: BTreeSet<&'static str> =
        suites.iter().filter(|suite| suite.has_to_count).map(|suite| suite.name).collect();
    let mut failures = table::failures(&tried, &has_to_count);
    failures.extend(stale.iter().map(|name| format!("{}: nothing is called {name:?}", generated::NAME)));
    let rows = table::rows(&tried);
    if is_whole {
        let num_counted: usize =
            rows.iter().filter(|row| row.suite == generated::NAME).map(|row| row.num_counted).sum();
        failures.extend(generated::too_few(num_counted));
        let of_suite = tried.iter().filter(|one| one.suite == generated::NAME);
        let counted = of_suite.filter(|one| one.judged.as_ref().is_some_and(Judged::counts));
        failures.extend(generated::kinds::wrong(counted.map(|one| one.name.as_str())));
    }
    if arguments.is_json {
        println!("{:#}", table::json(&rows, &failures));
    } else {
        print!("{}", table::text(&rows));
    }
    for failure in &failures {
        eprintln!("error: {failure}");
    }
    Ok(failures.is_empty())
}

fn main() -> ExitCode {
    match try_all() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::from(2)
        }
    }
}
