//! The table of what kills each generated mutation: `generated.tsv`.
//!
//! A line is the mutation's name, a tab, and the codes of the rules that killed
//! it when the table was written, separated by blanks. Mutations that do not
//! count, and survivors, are not in it.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::PathBuf;

use anyhow::{Context, Result};

use super::super::run::{Outcome, Tried};

/// Codes by the mutation's name.
pub type Table = BTreeMap<String, Vec<String>>;

/// Where the table is.
#[must_use]
pub fn path() -> PathBuf {
    crate::workspace_root().join("tests/src/mutations/generated/generated.tsv")
}

/// Reads the table.
///
/// # Errors
/// When it cannot be read, or a line has no tab.
pub fn read() -> Result<Table> {
    let path = path();
    let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    let mut table = Table::new();
    for (number, line) in (1..).zip(text.lines()) {
        let parts = line.split_once('\t').with_context(|| format!("{}:{number}: no tab", path.display()))?;
        table.insert(parts.0.to_owned(), parts.1.split_whitespace().map(str::to_owned).collect());
    }
    Ok(table)
}

/// Writes the table from what was tried: every mutation that was killed and not
/// said to survive.
///
/// # Errors
/// When the file cannot be written.
pub fn write(tried: &[Tried]) -> Result<()> {
    let mut text = String::new();
    for one in tried.iter().filter(|one| matches!(one.outcome, Outcome::Killed | Outcome::KilledByOthers)) {
        let killers: Vec<String> = one.killers().into_iter().collect();
        writeln!(text, "{}\t{}", one.name, killers.join(" "))?;
    }
    std::fs::write(path(), text).with_context(|| path().display().to_string())
}
