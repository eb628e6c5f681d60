//! A worker that stands still as a whole, which no planned fault makes: the
//! stalls that are injected go on giving signs of life.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use system_tests::crashes::process::Process;
use system_tests::crashes::workers;
use system_tests::run_folder::RunFolder;

/// Longest time between two signs of life. It is more than a worker that was told
/// to leave may take until it is killed, which is on record as a wait too.
const HEARTBEAT_MS: u64 = 3_500;
/// How long a worker may be silent: twice as long, since no more than half of it is
/// taken for a wait before the one on record.
const TIMEOUT_MS: u64 = 7_000;
/// How long the workers run before one is stopped: its last sign of life, which
/// came with its start, is then almost a whole [`HEARTBEAT_MS`] old.
const BEFORE_STOP: Duration = Duration::from_millis(2_800);
/// Steps of the run: many times what is executed until then.
const NUM_STEPS: u64 = 100_000;

#[test]
fn a_worker_that_is_stopped_is_late_by_the_record_alone() -> Result<()> {
    let changes = [
        format!("/topology/collective/heartbeat_ms={HEARTBEAT_MS}"),
        format!("/topology/collective/timeout_ms={TIMEOUT_MS}"),
        format!("/budget/max_steps={NUM_STEPS}"),
        format!("/stopping/step={NUM_STEPS}"),
    ];
    let run = RunFolder::by_workers(2, &changes.each_ref().map(String::as_str));
    let _ = run.freeze().expect_code(0);
    let mut process = Process::start(run.path(), &[], &[])?;
    // One is the freeze's, one of the attempt's start, and one behind the workers'.
    ensure!(process.wait_for_notes(3)?, "the run was over at once");
    std::thread::sleep(BEFORE_STOP);
    let worker = *workers::children(process.id()).first().context("it has a worker")?;
    let worker = Pid::from_raw(i32::try_from(worker)?).context("a process id")?;
    kill_process(worker, Signal::STOP)?;
    let ended = process.finish()?;
    assert_eq!(ended.code, 1, "{}", ended.said);
    assert!(ended.said.contains("worker 1 is late"), "{}", ended.said);

    let report = run.report();
    let findings = report["findings"].as_array().context("findings")?;
    let stops: Vec<&Value> = findings.iter().filter(|finding| finding["code"] == "GL230").collect();
    let [stop] = stops.as_slice() else { panic!("{stops:#?}") };
    assert_eq!(stop["severity"], "note", "{stop:#}");
    assert_eq!(stop["cause"], "collective_timeout", "{stop:#}");
    Ok(())
}
