//! Whole ledgers in the place of others, and whole runs at another time.

use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use system_tests::programs::{self, LEDGER, TRAINER};
use system_tests::run_folder::RunFolder;
use system_tests::witnesses::{self, WitnessServer};

use super::{Attacked, Kept};

pub(super) fn by_a_stranger() -> Result<Attacked> {
    let first = RunFolder::trained();
    let kept = Kept::of(&first)?;
    let stranger = RunFolder::trained();
    ensure!(
        first.entries()[0]["actor"] != stranger.entries()[0]["actor"],
        "the stranger has the owner's key"
    );
    Ok(Attacked::new(stranger, kept))
}

pub(super) fn by_its_makers() -> Result<Attacked> {
    let first = RunFolder::tiny();
    let again = first.copy();
    for run in [&first, &again] {
        let _ = run.freeze().expect_code(0);
        let _ = run.train().expect_code(0);
    }
    let kept = Kept::of(&first)?;
    let digest = |run: &RunFolder| run.entries()[0]["body"]["det"]["digest"].clone();
    ensure!(digest(&first) == digest(&again), "another contract was frozen");
    Ok(Attacked::new(again, kept))
}

/// The copy has the same run identifier, and another history.
pub(super) fn one_freeze_run_twice() -> Result<Attacked> {
    let run = RunFolder::frozen();
    let twin = run.copy();
    let _ = run.train().expect_code(0);
    let _ = twin.train().expect_code(0);
    let identifier = |run: &RunFolder| -> Value { run.entries()[0]["run"].clone() };
    ensure!(identifier(&run) == identifier(&twin), "two runs");
    ensure!(run.entries() != twin.entries(), "one history");
    let kept = Kept::of(&run)?;
    // With a witness, who is shown one of them first.
    let (first, server) = witnesses::frozen()?;
    let _ = witnesses::add(&first, &server, &[]).expect_code(0);
    let second = first.copy();
    for folder in [&first, &second] {
        let _ = folder.train().expect_code(0);
    }
    let _ = witnesses::add(&first, &server, &[]).expect_code(0);
    let refused = witnesses::add(&second, &server, &[]);
    ensure!(refused.code == 1, "the witness cosigned two histories: {refused}");
    Ok(Attacked { witnessed: Some(second), ..Attacked::new(run, kept) })
}

/// Freezes and trains with a clock that stands a year back.
pub(super) fn dated_back() -> Result<Attacked> {
    let run = RunFolder::tiny();
    for act in DATED {
        with_clock_back(&run, act)?;
    }
    let kept = Kept::of(&run)?;
    // The witness has a clock of its own.
    let witnessed = RunFolder::tiny();
    let server = WitnessServer::start(&witnessed)?;
    witnesses::name(&witnessed, &server);
    for act in DATED {
        with_clock_back(&witnessed, act)?;
        let _ = witnesses::add(&witnessed, &server, &[]).expect_code(0);
    }
    Ok(Attacked { witnessed: Some(witnessed), ..Attacked::new(run, kept) })
}

/// Freeze and training.
const DATED: [(&str, [&str; 3]); 2] =
    [(LEDGER, ["freeze", "contract.json", "--json"]), (TRAINER, ["run", "--ledger", "run.db"])];

fn with_clock_back(run: &RunFolder, (name, arguments): (&str, [&str; 3])) -> Result<()> {
    let mut command = Command::new("faketime");
    command.args(["-f", "-365d"]).arg(programs::program(name)).args(arguments);
    command.current_dir(run.path()).env("FAKETIME_DONT_FAKE_MONOTONIC", "1").env_remove("LEDGER_KEYS");
    let output = command.output().context("faketime is not installed\nhint: apt-get install faketime")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{name} with another clock: {said}");
    Ok(())
}
