//! Memory of an audit, by the program: it does not grow with the steps. What it
//! grows with are checkpoints, of which rules keep facts to the end, and the
//! longest stretch between two, whose steps could still be executed again.

use std::fs;
use std::io::Read as _;
use std::process::{Child, Stdio};

use anyhow::{Context, Result, ensure};
use serde_json::json;
use system_tests::programs::{LEDGER, command};
use system_tests::run_folder::RunFolder;

/// The most that a pipe holds unless somebody asks for more (pipe(7)).
const PIPE_BYTES: usize = 64 << 10;

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

/// Peak of resident memory of an audit that accepts, in bytes.
fn peak_bytes(run: &RunFolder) -> Result<u64> {
    let mut audit = command(LEDGER, run.path(), &["audit", "run.db", "--output-format", "sarif"]);
    let mut audit = audit.stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
    let read = peak_of(&mut audit);
    let exit = audit.wait()?;
    ensure!(exit.success(), "the audit ended with {exit}");
    read
}

/// `VmHWM` of proc(5), read once, when the report has begun and nobody reads on:
/// the audit is over then, and its program is not, since no pipe holds a report
/// with the text of every rule.
fn peak_of(audit: &mut Child) -> Result<u64> {
    let mut report = audit.stdout.take().context("its report comes through a pipe")?;
    report.read_exact(&mut [0]).context("the audit ended without a report")?;
    let status = fs::read_to_string(format!("/proc/{}/status", audit.id()))?;
    let mut rest = Vec::new();
    report.read_to_end(&mut rest)?;
    ensure!(rest.len() > PIPE_BYTES, "a pipe holds a report of {} bytes", rest.len());
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")?.strip_suffix("kB"));
    let peak_kib: u64 = line.context("a program that runs has a peak")?.trim().parse()?;
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
