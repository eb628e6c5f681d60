//! Prints how often a segment challenge catches each forgery, beside the chance
//! that `ledger challenge` prints. `scripts/challenges` builds what it needs and
//! calls it; the forgeries are in `tests/src/challenges.rs`.

#![allow(clippy::print_stdout, reason = "the table is this program's result")]

use std::process::ExitCode;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use system_tests::challenges::{Forgery, forge, honest, measured, review};
use system_tests::programs::{LEDGER, run};
use validator::challenge::detection;

const HELP: &str = "\
Segment challenges over complete forged ledgers: the chance that is printed, and how often draws meet a forgery.

challenges [--drawn N] [--nonces N]

  --drawn N   segments of a draw [default: 1, 3 and 5]
  --nonces N  nonces over which it is measured [default: 100000]

Exit codes: 0 every forged segment is contradicted, no other is, and the measured rates are those printed;
1 something is not; 2 it could not run.";

/// Standard deviations that a measured rate may be off.
const MAX_DEVIATIONS: f64 = 4.0;

struct Arguments {
    drawn: Vec<u64>,
    num_nonces: u32,
}

fn arguments() -> Result<Option<Arguments>> {
    let mut parsed = Arguments { drawn: vec![1, 3, 5], num_nonces: 100_000 };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let mut value = || words.next().with_context(|| format!("{word} needs a value\nhint: --help"));
        match word.as_str() {
            "-h" | "--help" => return Ok(None),
            "--drawn" => parsed.drawn = vec![value()?.parse().context("--drawn needs a number")?],
            "--nonces" => parsed.num_nonces = value()?.parse().context("--nonces needs a number")?,
            _ => bail!("unknown argument {word}\nhint: --help"),
        }
    }
    ensure!(
        parsed.num_nonces > 0 && parsed.drawn.iter().all(|drawn| *drawn > 0),
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
    let honest = honest();
    let clean = review(honest.path(), &[])?;
    println!(
        "| run | audit | forged | of | drawn | caught, as printed | caught, over {} nonces |",
        arguments.num_nonces
    );
    println!("|---|---|---|---|---|---|---|");
    let mut holds = clean.contradicted.is_empty();
    println!(
        "| honest | {} | {} | {} | all | 0.0000 | 0.0000 |",
        audit(honest.path())?,
        clean.contradicted.len(),
        clean.num_segments
    );
    for forgery in Forgery::ALL {
        let forged = forge(&honest, forgery)?;
        let verdict = audit(forged.sealed.path())?;
        let reviewed = review(forged.sealed.path(), &[])?;
        holds &= reviewed.contradicted == forgery.forged();
        let num_forged = reviewed.contradicted.len() as u64;
        for drawn in &arguments.drawn {
            let printed = detection(reviewed.num_segments, num_forged, *drawn);
            let found = measured(&reviewed, *drawn, arguments.num_nonces);
            let deviation = (printed * (1.0 - printed) / f64::from(arguments.num_nonces)).sqrt();
            holds &= (found - printed).abs() <= MAX_DEVIATIONS * deviation;
            println!(
                "| {} | {verdict} | {num_forged} | {} | {drawn} | {printed:.4} | {found:.4} |",
                forgery.name(),
                reviewed.num_segments
            );
        }
    }
    Ok(holds)
}

/// The verdict of an audit, which sees none of it.
fn audit(folder: &std::path::Path) -> Result<String> {
    let report: Value = run(LEDGER, folder, &["audit", "run.db", "--json"]).json();
    Ok(report["verdict"].as_str().context("a verdict")?.to_owned())
}
