//! Loops that are not this project's, under the evidence profile `external-loop`:
//! a small one in Rust, which shows what an audit says of each thing that a loop
//! can do wrong, the burn example of `loops`, the PyTorch example through the
//! Python package, and the loop that `scripts/bench-recorders` times.

mod arithmetic;
mod bench;
mod burn;
mod pytorch;
mod readme;

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use system_tests::run_folder::RunFolder;

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

/// What the record of a killed loop says: from which checkpoint the next attempt has
/// to resume, and how many steps behind it are executed again. A loop goes on for as
/// long as the kill takes to arrive, which may be past another checkpoint.
fn resumable(folder: &RunFolder) -> Result<(String, u64)> {
    let entries = folder.entries();
    let step_of = |kind: &str| {
        let last = entries.iter().rfind(|entry| entry["kind"] == kind);
        last.with_context(|| format!("no entry of the kind {kind}"))
            .map(|entry| (entry, entry["step"].as_u64()))
    };
    let (checkpoint, saved) = step_of("checkpoint.validated")?;
    let (_, last) = step_of("step")?;
    let name = checkpoint["body"]["obs"]["checkpoint"].as_str().context("a checkpoint's name")?.to_owned();
    let (saved, last) = saved.zip(last).context("entries name their step")?;
    ensure!(last >= saved, "{name} is of step {saved}, and step {last} is the last");
    Ok((name, last - saved))
}

/// Codes of the rules that a report says failed.
fn failed(report: &Value) -> BTreeSet<String> {
    let rules = report["rules"].as_array().expect("a report lists its rules");
    let failed = rules.iter().filter(|rule| rule["status"] == "failed");
    failed.map(|rule| rule["code"].as_str().expect("a code").to_owned()).collect()
}
