//! Prints how often a segment challenge catches each forgery, beside the chance
//! that `ledger challenge` prints. `scripts/challenges` builds what it needs and
//! calls it; the forgeries are in `tests/src/challenges.rs`.

#![allow(clippy::print_stdout, reason = "the table is this program's result")]

use std::process::ExitCode;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use system_tests::challenges::{Forgery, execute, forge, honest, measured, review};
use system_tests::programs::{LEDGER, run};

const HELP: &str = "\
Segment challenges over complete forged ledgers: the chance that is printed, and how often draws meet a forgery.

challenges [--drawn N] [--executed N] [--nonces N]

  --drawn N     segments of a draw [default: 1, 3 and 5]
  --executed N  draws of each kind that are executed and compared [default: 24]
  --nonces N    nonces over which it is measured how often draws meet a forged segment [default: 100000]

Exit codes: 0 an audit accepts every run, every forged segment is contradicted and no other is, in the draws that
are executed too, and the measured rates are those that the manifests print; 1 something is not so; 2 it could not
run.";

/// The verdict of an audit on every one of them.
const ACCEPTED: &str = "accepted";

/// Standard deviations that a measured rate may be off.
const MAX_DEVIATIONS: f64 = 4.0;

struct Arguments {
    drawn: Vec<u64>,
    num_executed: u32,
    num_nonces: u32,
}

fn arguments() -> Result<Option<Arguments>> {
    let mut parsed = Arguments { drawn: vec![1, 3, 5], num_executed: 24, num_nonces: 100_000 };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let mut value = || words.next().with_context(|| format!("{word} needs a value\nhint: --help"));
        match word.as_str() {
            "-h" | "--help" => return Ok(None),
            "--drawn" => parsed.drawn = vec![value()?.parse().context("--drawn needs a number")?],
            "--executed" => parsed.num_executed = value()?.parse().context("--executed needs a number")?,
            "--nonces" => parsed.num_nonces = value()?.parse().context("--nonces needs a number")?,
            _ => bail!("unknown argument {word}\nhint: --help"),
        }
    }
    ensure!(
        parsed.num_executed > 0 && parsed.num_nonces > 0 && parsed.drawn.iter().all(|drawn| *drawn > 0),
        "numbers above 0 are needed"
    );
    Ok(Some(parsed))
}

fn main() -> ExitCode {
    let done = arguments().and_then(|parsed| match parsed {
        Some(arguments) => table(&arguments),
        None => {
            println!("{HELP}");
            Ok(true)
        }
    });
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::from(2)
        }
    }
}

/// Prints the table; whether everything in it is as it should be.
fn table(arguments: &Arguments) -> Result<bool> {
    let Arguments { drawn, num_executed, num_nonces } = arguments;
    let honest = honest();
    let (clean, verdict) = (review(honest.path(), &[])?, audit(honest.path())?);
    println!(
        "| run | audit | forged | of | drawn | caught, as printed | met, over {num_nonces} nonces | caught, executed |"
    );
    println!("|---|---|---|---|---|---|---|---|");
    let mut holds = clean.contradicted.is_empty() && verdict == ACCEPTED;
    let num_contradicted = clean.contradicted.len();
    println!(
        "| honest | {verdict} | {num_contradicted} | {} | all | | | {} of 1 |",
        clean.num_segments,
        u32::from(num_contradicted > 0)
    );
    for forgery in Forgery::ALL {
        let forged = forge(&honest, forgery)?;
        let verdict = audit(forged.sealed.path())?;
        let reviewed = review(forged.sealed.path(), &[])?;
        holds &= reviewed.contradicted == forgery.forged() && verdict == ACCEPTED;
        let (num_forged, num_segments) = (reviewed.contradicted.len(), reviewed.num_segments);
        for drawn in drawn {
            let executed = execute(forged.sealed.path(), &reviewed, *drawn, *num_executed)?;
            let printed = executed.printed;
            let found = measured(&reviewed, *drawn, *num_nonces);
            let deviation = (printed * (1.0 - printed) / f64::from(*num_nonces)).sqrt();
            holds &= (found - printed).abs() <= MAX_DEVIATIONS * deviation && executed.wrong.is_empty();
            println!(
                "| {} | {verdict} | {num_forged} | {num_segments} | {drawn} | {printed:.4} | {found:.4} | {} of {num_executed} |",
                forgery.name(),
                executed.num_caught,
            );
            for wrong in &executed.wrong {
                println!("WRONG: {wrong}");
            }
        }
    }
    Ok(holds)
}

/// The verdict of an audit, which has to see none of it.
fn audit(folder: &std::path::Path) -> Result<String> {
    let report: Value = run(LEDGER, folder, &["audit", "run.db", "--json"]).json();
    Ok(report["verdict"].as_str().context("a verdict")?.to_owned())
}
