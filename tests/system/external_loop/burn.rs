//! The burn example of the crate `loops`: killed, resumed, audited, and compared
//! with a run of the same contract that nothing befell.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use system_tests::graph::lock_file;
use system_tests::programs::{Finished, example, finish};
use system_tests::run_folder::RunFolder;
use system_tests::workspace_root;

use super::{failed, kill_at, resumable};

const RUNTIME: &str = "Rust";

/// The files of the example, in ascending order.
const SOURCES: [&str; 3] = ["main.rs", "model.rs", "state.rs"];

/// Files of a checkpoint whose bytes are the loop's.
const STATE: [&str; 2] = ["model.safetensors", "optimizer.safetensors"];

/// Many more steps than a kill needs to arrive; and each is on the disk before the
/// next one is made, so that some are executed again.
const LONG: [&str; 5] = [
    "/budget/max_steps=120",
    "/checkpoints/every_steps=20",
    "/durability/max_unsynced_steps=1",
    "/evaluation/streams/0/every_steps=20",
    "/stopping/step=120",
];

/// Where the long run is killed: ten steps behind a checkpoint, and as many before
/// the next one.
const KILLED_AT: &str = "step     70";

fn sources() -> Vec<PathBuf> {
    let folder = workspace_root().join("loops/examples/burn_loop");
    SOURCES.iter().map(|name| folder.join(name)).collect()
}

/// A frozen run of files that call themselves the example, under burn's card.
fn frozen(sources: &[PathBuf], changes: &[&str]) -> Result<RunFolder> {
    // As it was compiled in: a version that the example does not name is refused.
    let packages = lock_file()?;
    let flex = packages.iter().find(|package| package.name == "burn-flex").context("burn-flex is locked")?;
    let backend = format!("burn-flex {}", flex.version);
    let folder = RunFolder::external_of(sources, &backend, RUNTIME, changes);
    let card = workspace_root().join("examples/burn/policy-card.json");
    std::fs::copy(card, folder.path().join("policy-card.json"))?;
    let _ = folder.freeze().expect_code(0);
    Ok(folder)
}

fn command(folder: &RunFolder, further: &[&str]) -> Command {
    let mut command = Command::new(example("burn_loop"));
    command.arg("run.db").args(further).current_dir(folder.path()).stdin(Stdio::null());
    command.env_remove("LEDGER_KEYS");
    command
}

fn train(folder: &RunFolder, further: &[&str]) -> Finished {
    finish(command(folder, further))
}

/// A file of a checkpoint.
fn saved(folder: &RunFolder, checkpoint: &str, name: &str) -> Result<Vec<u8>> {
    let path = Path::new("checkpoints").join(checkpoint).join(name);
    std::fs::read(folder.path().join(&path)).with_context(|| path.display().to_string())
}

/// What a report says of a rule.
fn status<'a>(report: &'a Value, code: &str) -> &'a Value {
    let rules = report["rules"].as_array().expect("a report lists its rules");
    let rule = rules.iter().find(|rule| rule["code"] == code).expect("the rule is listed");
    &rule["status"]
}

#[test]
fn a_burn_loop_that_is_killed_and_resumed_ends_at_the_bits_of_one_that_was_not() -> Result<()> {
    let folder = frozen(&sources(), &LONG)?;
    let twin = folder.copy();
    kill_at(command(&folder, &[]), KILLED_AT)?;
    let (checkpoint, num_again) = resumable(&folder)?;
    let text = folder.audit(&[]).expect_code(4).stdout;
    assert!(text.starts_with("incomplete (external-loop): "), "{text}");
    let finished = train(&folder, &[]).expect_code(0);
    assert!(finished.stdout.contains(&format!("attempt 2 resumes from {checkpoint}\n")), "{finished}");
    assert!(finished.stdout.contains("finished at step 120"), "{finished}");

    let _ = train(&twin, &[]).expect_code(0);
    for name in STATE {
        let resumed = saved(&folder, "s00000120-a2", name)?;
        assert!(resumed == saved(&twin, "s00000120-a1", name)?, "{name} differs");
        assert!(resumed != saved(&folder, &checkpoint, name)?, "{name} never changed");
    }

    // Somebody else's forward pass gives the numbers of the loop.
    let _ = folder.evaluator_command("val", &["--ledger", "run.db"]).expect_code(0);
    let report = folder.report();
    assert_eq!(report["verdict"], "accepted", "{report:#}");
    assert_eq!(report["profile"], "external-loop");
    assert_eq!(report["selection_basis"], "evaluator");
    assert_eq!(report["denominators"]["attempted"], 2);
    let executed = report["denominators"]["steps_executed"].as_u64().context("a count")?;
    assert_eq!(executed, 120 + num_again, "steps behind {checkpoint} were executed again");
    // Moments and norms are those of the card's constants, which are burn's.
    for code in ["GL205", "GL415", "GL416"] {
        assert_eq!(status(&report, code), "passed", "{code}: {report:#}");
    }
    let text = folder.audit(&[]).expect_code(0).stdout;
    assert!(text.starts_with("accepted (external-loop): "), "{text}");

    // It learned something.
    let entries = folder.entries();
    let evaluations = entries.iter().filter(|entry| entry["kind"] == "eval");
    let values: Vec<f64> = evaluations.filter_map(|entry| entry["body"]["det"]["value"].as_f64()).collect();
    let (first, last) = values.first().zip(values.last()).context("evaluations")?;
    assert!(*last < first - 0.25, "bits per byte: {values:?}");

    // The same command again records nothing more.
    train(&folder, &[]).expect_code(1).expect_message(&["is over", "hint:"]);
    assert_eq!(folder.entries().len(), entries.len());
    Ok(())
}

#[test]
fn a_burn_loop_that_forgets_its_moments_ends_at_other_bits_and_is_rejected() -> Result<()> {
    let folder = frozen(&sources(), &LONG)?;
    let twin = folder.copy();
    kill_at(command(&folder, &[]), KILLED_AT)?;
    let (checkpoint, _) = resumable(&folder)?;
    let finished = train(&folder, &["--forget-moments"]).expect_code(0);
    assert!(finished.stdout.contains(&format!("attempt 2 resumes from {checkpoint}\n")), "{finished}");
    let _ = train(&twin, &[]).expect_code(0);
    for name in STATE {
        assert!(saved(&folder, "s00000120-a2", name)? != saved(&twin, "s00000120-a1", name)?, "{name}");
    }
    let report = folder.report();
    assert_eq!(report["verdict"], "rejected", "{report:#}");
    let failed = failed(&report);
    for code in ["GL205", "GL415"] {
        assert!(failed.contains(code), "{code} is not among {failed:?}");
    }
    // The other one is accepted, so that nothing else is wrong with the contract.
    assert_eq!(twin.report()["verdict"], "accepted");
    Ok(())
}

#[test]
fn a_burn_loop_that_was_stopped_between_checkpoints_goes_on() -> Result<()> {
    let folder = frozen(&sources(), &[])?;
    let stopped = train(&folder, &["--stop-after", "7"]).expect_code(0);
    assert!(stopped.stdout.contains("stopped at step 7"), "{stopped}");
    assert!(!stopped.stdout.contains("finished"), "{stopped}");
    let resumed = train(&folder, &[]).expect_code(0);
    assert!(resumed.stdout.contains("attempt 2 resumes from s00000005-a1"), "{resumed}");
    let entries = folder.entries();
    let ends = entries.iter().filter(|entry| entry["kind"] == "attempt.end");
    let outcomes: Vec<&str> = ends.filter_map(|entry| entry["body"]["det"]["outcome"].as_str()).collect();
    assert_eq!(outcomes, ["interrupted", "completed"]);
    let report = folder.report();
    assert_eq!(report["verdict"], "accepted", "{report:#}");
    Ok(())
}

#[test]
fn a_program_of_other_sources_than_were_frozen_records_nothing() -> Result<()> {
    let other = tempfile::tempdir()?;
    let mut files = sources();
    let changed = other.path().join("state.rs");
    let text = std::fs::read_to_string(files.pop().context("the last file")?)?;
    let (from, to) = ("with_weight_decay(0.0)", "with_weight_decay(0.5)");
    ensure!(text.matches(from).count() == 1, "{from:?} does not occur once");
    std::fs::write(&changed, text.replace(from, to))?;
    for (files, words) in [
        ([files.clone(), vec![changed]].concat(), "this program was compiled from another"),
        (files, "and this program was compiled from"),
    ] {
        let folder = frozen(&files, &[])?;
        train(&folder, &[]).expect_code(1).expect_message(&[words, "hint:"]);
        assert_eq!(folder.entries().len(), 1, "the freeze alone");
    }
    Ok(())
}

#[test]
fn the_help_of_the_burn_loop_says_how_a_run_of_it_is_made() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut command = Command::new(example("burn_loop"));
    command.arg("--help").current_dir(folder.path()).stdin(Stdio::null());
    let help = finish(command).expect_code(0).stdout;
    for words in ["ledger init", "policy-card.json", "--stop-after", "--forget-moments", "Exit codes"] {
        assert!(help.contains(words), "{words:?} is not in the help\n{help}");
    }
}
