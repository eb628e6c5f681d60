//! The floor of free memory in the middle of a run: the attempt ends cleanly, and
//! goes on to the same bits once there is memory again.
//!
//! The trainer is given a `/proc/meminfo` of the test's own, in a mount namespace:
//! what is really available on a machine that does other things too changes by
//! more than a test could take. Mounting needs root; without it the test fails.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::process::Signal;
use serde_json::Value;
use system_tests::crashes::process::{Ended, Process};
use system_tests::dump;
use system_tests::run_folder::RunFolder;

/// Updates of the run. It is saved before the first and behind the last alone, so
/// that in between memory is looked at for its own sake and not for a save.
const NUM_STEPS: u64 = 600;

/// The contract's floor, and what is available above and below it.
const FLOOR_BYTES: u64 = 512 << 20;
const PLENTY_KIB: u64 = 4 << 20;
const LITTLE_KIB: u64 = 256 << 10;

/// Longer than the pause between two looks of the trainer, which goes by a clock
/// that does not stop with the process.
const PAUSE: Duration = Duration::from_millis(1500);

/// The field of `/proc/meminfo` that the floor is compared with.
const AVAILABLE: &str = "MemAvailable:";

/// Puts a file in the place of `/proc/meminfo` for what follows.
const UNDER: &str = r#"mount --bind "$0" /proc/meminfo && exec "$@""#;

/// The system's own, but for what is available.
fn set_available(meminfo: &Path, num_kib: u64) -> Result<()> {
    let text = std::fs::read_to_string("/proc/meminfo")?;
    let num_lines = text.lines().filter(|line| line.starts_with(AVAILABLE)).count();
    ensure!(num_lines == 1, "the system does not say what is available:\n{text}");
    let mut changed = String::new();
    for line in text.lines() {
        if line.starts_with(AVAILABLE) {
            changed.push_str(&format!("{AVAILABLE}   {num_kib} kB\n"));
        } else {
            changed.push_str(&format!("{line}\n"));
        }
    }
    Ok(std::fs::write(meminfo, changed)?)
}

fn start(run: &RunFolder, meminfo: &Path) -> Result<Process> {
    let meminfo = meminfo.to_str().context("a path in UTF-8")?;
    Process::start(run.path(), &["unshare", "--mount", "sh", "-c", UNDER, meminfo], &[])
}

fn num_steps(entries: &[Value]) -> u64 {
    entries.iter().filter(|entry| entry["kind"] == "step").count() as u64
}

/// Lets the run come to where some update is durable, and stops it.
fn stand_in_the_middle(run: &RunFolder, process: &mut Process) -> Result<u64> {
    loop {
        ensure!(process.stop()?, "the run was over, or `unshare --mount` was refused: this test needs root");
        let num_steps = num_steps(&dump::entries(&run.ledger())?);
        if num_steps > 0 {
            return Ok(num_steps);
        }
        process.send(Signal::CONT)?;
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// What the last attempt says of its end, which is the ledger's last entry.
fn check_left_at_floor(run: &RunFolder, ended: &Ended) -> Result<u64> {
    ensure!(ended.code == 1, "it ended with {}: {}", ended.code, ended.said);
    let entries = run.entries();
    let last = entries.last().context("a ledger has entries")?;
    ensure!(last["kind"] == "attempt.end", "the last entry is {}", last["kind"]);
    let body = &last["body"];
    ensure!(body["det"]["outcome"] == "floor_reached", "{body}");
    let expected = format!("memory: {} bytes are available, the floor is {FLOOR_BYTES}", LITTLE_KIB << 10);
    ensure!(body["obs"]["reason"] == expected.as_str(), "{body}");
    body["det"]["last_step"].as_u64().context("a step")
}

/// What decides whether two runs are the same.
fn identity(run: &RunFolder) -> Result<[Value; 3]> {
    let _ = run.audit(&[]).expect_code(0);
    let entries = run.entries();
    let last = entries.iter().rfind(|entry| entry["kind"] == "checkpoint.durably_committed");
    let det = &last.context("a checkpoint")?["body"]["det"];
    Ok([det["model"].clone(), det["classes"].clone(), run.report()["projection"].clone()])
}

#[test]
fn memory_that_runs_out_in_the_middle_ends_the_attempt_and_the_run_goes_on_to_the_same_bits() -> Result<()> {
    let num_steps = NUM_STEPS.to_string();
    let of_all = [
        "/budget/max_steps",
        "/stopping/step",
        "/checkpoints/every_steps",
        "/evaluation/streams/0/every_steps",
    ];
    let mut changes: Vec<String> = of_all.iter().map(|pointer| format!("{pointer}={num_steps}")).collect();
    changes.push(format!("/floors/free_memory_bytes={FLOOR_BYTES}"));
    let run = RunFolder::with(&changes.iter().map(String::as_str).collect::<Vec<_>>());
    let _ = run.freeze().expect_code(0);

    let meminfo = tempfile::NamedTempFile::new()?;
    set_available(meminfo.path(), PLENTY_KIB)?;
    let uninterrupted = run.copy();
    let ended = start(&uninterrupted, meminfo.path())?.finish()?;
    ensure!(ended.code == 0, "an uninterrupted run ended with {}: {}", ended.code, ended.said);

    // The memory goes while it stands still behind some update.
    let mut process = start(&run, meminfo.path())?;
    let stood_at = stand_in_the_middle(&run, &mut process)?;
    set_available(meminfo.path(), LITTLE_KIB)?;
    std::thread::sleep(PAUSE);
    process.send(Signal::CONT)?;
    let last_step = check_left_at_floor(&run, &process.finish()?)?;
    assert!((stood_at..NUM_STEPS).contains(&last_step), "it stood at {stood_at} and left at {last_step}");

    // No memory is back: the next attempt makes no step. Nothing was saved in
    // between, so that it begins where the first did.
    let again = check_left_at_floor(&run, &start(&run, meminfo.path())?.finish()?)?;
    assert_eq!(again, 0);

    set_available(meminfo.path(), PLENTY_KIB)?;
    let ended = start(&run, meminfo.path())?.finish()?;
    ensure!(ended.code == 0, "the last attempt ended with {}: {}", ended.code, ended.said);
    let entries = run.entries();
    let count = |kind: &str| entries.iter().filter(|entry| entry["kind"] == kind).count();
    assert_eq!((count("attempt.start"), count("run.end"), count("fault.observed")), (3, 1, 0));
    assert_eq!(identity(&run)?, identity(&uninterrupted)?);
    Ok(())
}
