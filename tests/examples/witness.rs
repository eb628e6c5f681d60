//! Carries out every forgery against a run that a witness saw, and prints who
//! refuses it. `scripts/witness` builds what it needs and calls it.

#![allow(clippy::print_stdout, reason = "the table is this program's result")]

use anyhow::Result;
use system_tests::witnesses::table;

fn main() -> Result<()> {
    println!("| what was done | witness | audit | rules about witnesses |\n|---|---|---|---|");
    for line in table()? {
        let rules = if line.rules.is_empty() { "none".to_owned() } else { line.rules.join(", ") };
        println!("| {} | {} | {} | {rules} |", line.forgery, line.witness, line.verdict);
    }
    Ok(())
}
