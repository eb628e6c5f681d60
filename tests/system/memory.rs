//! Memory of an audit, by the program: it does not grow with the steps. What it
//! grows with are checkpoints, of which rules keep facts to the end, and the
//! longest stretch between two, whose steps could still be executed again.

use std::fs;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::json;
use system_tests::programs::{LEDGER, command};
use system_tests::run_folder::RunFolder;

/// How often the peak is read: it is of the process, so that only what is taken
/// within the last such moment could be missed.
const EVERY: Duration = Duration::from_millis(1);

/// A trained run of the smallest model, saved three times whatever its length.
fn trained(num_steps: u64) -> RunFolder {
    let run = RunFolder::smallest();
    run.edit_contract(|contract| {
        for pointer in ["/budget/max_steps", "/stopping/step"] {
            *contract.pointer_mut(pointer).expect("the contract has it") = json!(num_steps);
        }
        for pointer in ["/checkpoints/every_steps", "/evaluation/streams/0/every_steps"] {
            *contract.pointer_mut(pointer).expect("the contract has it") = json!(num_steps / 2);
        }
    });
    let _ = run.freeze().expect_code(0);
    let _ = run.train().expect_code(0);
    run
}

/// Peak of resident memory of an audit that accepts, in bytes (`VmHWM` of proc(5)).
fn peak_bytes(run: &RunFolder) -> Result<u64> {
    let mut audit = command(LEDGER, run.path(), &["audit", "run.db"]);
    let mut audit = audit.stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
    let status = format!("/proc/{}/status", audit.id());
    let mut peak_kib = 0;
    let exit = loop {
        if let Some(exit) = audit.try_wait()? {
            break exit;
        }
        // Of a process that has ended and was not waited for it has no such line.
        let text = fs::read_to_string(&status)?;
        let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:")?.strip_suffix("kB"));
        if let Some(line) = line {
            peak_kib = line.trim().parse::<u64>().context("a count of KiB")?;
        }
        std::thread::sleep(EVERY);
    };
    ensure!(exit.success(), "the audit ended with {exit}");
    ensure!(peak_kib > 0, "the audit ended before its memory was read");
    Ok(peak_kib * 1024)
}

#[test]
fn an_audit_of_fifty_times_the_steps_takes_no_more_memory() -> Result<()> {
    let (short, long) = (trained(200), trained(10_000));
    let size = |run: &RunFolder| -> Result<u64> { Ok(fs::metadata(run.ledger())?.len()) };
    let num_bytes = size(&long)?.saturating_sub(size(&short)?);
    let more = peak_bytes(&long)?.saturating_sub(peak_bytes(&short)?);
    // Entries that were kept would take at least what they are stored in.
    assert!(num_bytes > 10 << 20, "{num_bytes} bytes of entries are too few to be seen");
    assert!(more < num_bytes / 3, "{more} bytes more for {num_bytes} bytes of entries");
    Ok(())
}
