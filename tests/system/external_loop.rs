//! Loops that are not this project's, under the evidence profile `external-loop`:
//! a small one in Rust, which shows what an audit says of each thing that a loop
//! can do wrong, the burn example of `loops`, and the PyTorch example through the
//! Python package.

mod arithmetic;
mod burn;
mod pytorch;

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

/// The signal that nothing can catch.
const SIGKILL: i32 = 9;

/// Runs a loop until it prints a line that begins with `line`, and kills it there.
fn kill_at(mut command: Command, line: &str) -> Result<()> {
    let mut child = command.stdout(Stdio::piped()).spawn()?;
    let output = BufReader::new(child.stdout.take().context("its output")?);
    let mut has_come = false;
    for printed in output.lines() {
        if printed?.starts_with(line) {
            has_come = true;
            // SIGKILL: nothing of the process runs any more.
            child.kill()?;
            break;
        }
    }
    let status = child.wait()?;
    let is_killed = status.signal() == Some(SIGKILL);
    ensure!(has_come && is_killed, "{line:?} never came, or the process was not killed: {status}");
    Ok(())
}

/// Codes of the rules that a report says failed.
fn failed(report: &Value) -> BTreeSet<String> {
    let rules = report["rules"].as_array().expect("a report lists its rules");
    let failed = rules.iter().filter(|rule| rule["status"] == "failed");
    failed.map(|rule| rule["code"].as_str().expect("a code").to_owned()).collect()
}
