//! Carries out every forgery against a run that a witness saw, prints who refuses
//! it, and compares with what each line has to be. `scripts/witness` builds what it
//! needs and calls it; forgeries and expectations are in `tests/src/witnesses.rs`.

#![allow(clippy::print_stdout, reason = "the table is this program's result")]

use std::process::ExitCode;

use anyhow::Result;
use system_tests::witnesses::{Line, expected, table};

fn main() -> ExitCode {
    match print() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::from(2)
        }
    }
}

/// Prints the table; whether each line of it is what it has to be.
fn print() -> Result<bool> {
    let (lines, expected) = (table()?, expected());
    println!("| what was done | witness | audit | rules about witnesses |\n|---|---|---|---|");
    for line in &lines {
        println!("{}", row(line));
    }
    let mut holds = lines.len() == expected.len();
    for (line, expected) in lines.iter().zip(&expected) {
        if line != expected {
            holds = false;
            println!("WRONG: the line of {:?} has to be {}", line.forgery, row(expected));
        }
    }
    if lines.len() != expected.len() {
        println!("WRONG: {} lines, and there have to be {}", lines.len(), expected.len());
    }
    Ok(holds)
}

fn row(line: &Line) -> String {
    let rules = if line.rules.is_empty() { "none".to_owned() } else { line.rules.join(", ") };
    format!("| {} | {} | {} | {rules} |", line.forgery, line.witness, line.verdict)
}
