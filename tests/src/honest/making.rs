//! How each run of the honest corpus is made, by the programs and what befalls
//! them. Each function looks at the record afterwards: a kill that came too late
//! or a scale that did not overflow would make a run of another kind.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::dump;
use crate::programs::{self, LEDGER, TRAINER, exit_code};
use crate::run_folder::RunFolder;

/// Pause between two looks into a ledger that is being written.
const POLL_EVERY: Duration = Duration::from_millis(2);

/// Longest wait for an entry on a busy machine; it takes a second.
const MAX_WAIT: Duration = Duration::from_secs(300);

/// Runs that may be over before they are interrupted.
const MAX_TRIES: usize = 5;

/// Updates of a run that is interrupted.
const LONG: u64 = 400;

/// Wall time that [`budget_stopped`] is given, in seconds.
const BUDGET_S: u64 = 2;

/// Updates that nobody makes in that time.
const ENDLESS: u64 = 100_000;

fn of_kind<'a>(entries: &'a [Value], kind: &'a str) -> impl Iterator<Item = &'a Value> {
    entries.iter().filter(move |entry| entry["kind"] == kind)
}

fn outcomes(run: &RunFolder, kind: &str) -> Vec<String> {
    let entries = run.entries();
    let outcome = |entry: &Value| entry["body"]["det"]["outcome"].as_str().unwrap_or_default().to_owned();
    of_kind(&entries, kind).map(outcome).collect()
}

pub(super) fn quick_start() -> RunFolder {
    let run = RunFolder::trained();
    let _ = run.evaluator_command("val", &["--ledger", "run.db"]).expect_code(0);
    let _ = run.audit(&["--save"]).expect_code(0);
    let _ = run.ledger_command("handoff", &[]).expect_code(0);
    let handoff = ["--ledger", "run.db", "--handoff", "run.db.handoff.dsse.json"];
    let _ = run.evaluator_command("qualify", &handoff).expect_code(0);
    run
}

/// Waits until so many entries of a kind are on record. The trainer writes
/// meanwhile, so that a look may find a ledger that cannot be read.
#[track_caller]
fn wait_for(run: &RunFolder, kind: &str, wanted: usize) {
    let started = Instant::now();
    let is_there = |entries: Vec<Value>| of_kind(&entries, kind).count() >= wanted;
    while !dump::entries(&run.ledger()).is_ok_and(is_there) {
        assert!(started.elapsed() < MAX_WAIT, "no {wanted} entries of kind {kind} after {MAX_WAIT:?}");
        std::thread::sleep(POLL_EVERY);
    }
}

/// Kills an attempt in the middle; false when it ended before.
fn is_killed_after(run: &RunFolder, num_checkpoints: usize) -> bool {
    let mut child = programs::start(TRAINER, run.path(), &["run", "--ledger", "run.db"]);
    wait_for(run, "checkpoint.validated", num_checkpoints);
    child.kill().expect("a child can be killed");
    exit_code(child.wait().expect("a killed child can be waited for")) == 128 + 9
}

pub(super) fn killed_and_resumed() -> RunFolder {
    for _ in 0..MAX_TRIES {
        let run = RunFolder::long(LONG);
        let _ = run.freeze().expect_code(0);
        if !(is_killed_after(&run, 3) && is_killed_after(&run, 8)) {
            continue;
        }
        let _ = run.train().expect_code(0);
        let entries = run.entries();
        let reasons: Vec<&Value> =
            of_kind(&entries, "attempt.start").map(|entry| &entry["body"]["det"]["reason"]).collect();
        assert_eq!(reasons, ["start", "resume", "resume"]);
        assert_eq!(outcomes(&run, "run.end"), ["completed"]);
        return run;
    }
    panic!("the run was over {MAX_TRIES} times before it was killed");
}

fn planned(fault: &str, phase: &str, step: u64) -> Value {
    json!({"fault": fault, "phase": phase, "seed": "7", "step": step, "worker": null})
}

/// The process is gone before the last step, and the contract allows no other: the
/// run ends without an attempt that could do what is due at a last step.
pub(super) fn failed() -> RunFolder {
    let run = RunFolder::tiny();
    run.edit_contract(|contract| {
        contract["budget"]["max_attempts"] = json!(1);
        contract["faults"]["plan"] = json!([planned("worker_loss", "after_backward", 12)]);
    });
    let _ = run.freeze().expect_code(0);
    let _ = run.train().expect_code(128 + 9);
    let _ = run.train().expect_code(1);
    assert_eq!(outcomes(&run, "run.end"), ["budget_exhausted"]);
    assert!(outcomes(&run, "attempt.end").is_empty(), "nobody saw the attempt end");
    assert_eq!(of_kind(&run.entries(), "candidate.selected").count(), 0);
    run
}

/// The trainer finds its cursor at another place, and the policy is to refuse.
pub(super) fn refused() -> RunFolder {
    let run = RunFolder::tiny();
    run.edit_contract(|contract| {
        contract["faults"]["recovery"] = json!("refuse");
        contract["faults"]["plan"] = json!([planned("data_cursor_rewind", "before_forward", 7)]);
    });
    let _ = run.freeze().expect_code(0);
    let _ = run.train().expect_code(1);
    let _ = run.train();
    assert_eq!(outcomes(&run, "attempt.end"), ["failed"]);
    assert_eq!(outcomes(&run, "run.end"), ["refused"]);
    run
}

pub(super) fn budget_stopped() -> RunFolder {
    let run = RunFolder::long(ENDLESS);
    run.edit_contract(|contract| contract["budget"]["max_wall_s"] = json!(BUDGET_S));
    let _ = run.freeze().expect_code(0);
    let finished = run.train().expect_code(1);
    assert!(finished.stdout.contains("out of budget"), "{finished}");
    assert_eq!(outcomes(&run, "run.end"), ["budget_exhausted"]);
    run
}

/// A run of two workers under a contract that the changes make.
#[track_caller]
fn by_two(changes: &[&str]) -> RunFolder {
    let run = RunFolder::by_workers(2, changes);
    let _ = run.freeze().expect_code(0);
    run
}

pub(super) fn data_parallel() -> RunFolder {
    let run = by_two(&[]);
    let _ = run.train().expect_code(0);
    let entries = run.entries();
    let plan = &of_kind(&entries, "attempt.start").next().expect("an attempt")["body"]["obs"]["plan"];
    assert_eq!(plan["num_workers"], 2, "{plan:#}");
    run
}

pub(super) fn multi_segment() -> RunFolder {
    let (max_steps, step) = (format!("/budget/max_steps={LONG}"), format!("/stopping/step={LONG}"));
    let changes = [
        "/topology/permitted_rewrites=[\"worker_count\"]",
        "/resume={\"class\":\"operation_order_bounded\",\"tolerance\":{\"max_absolute\":1e-5,\"max_relative\":1e-4}}",
        "/checkpoints/every_steps=20",
        "/evaluation/streams/0/every_steps=20",
        &max_steps,
        &step,
    ];
    for _ in 0..MAX_TRIES {
        let run = by_two(&changes);
        let is_interrupted = [("2", 3), ("1", 8)].into_iter().all(|(workers, num_checkpoints)| {
            let arguments = ["run", "--ledger", "run.db", "--workers", workers];
            let mut child = programs::start(TRAINER, run.path(), &arguments);
            wait_for(&run, "checkpoint.validated", num_checkpoints);
            let process = rustix::process::Pid::from_child(&child);
            rustix::process::kill_process(process, rustix::process::Signal::TERM).expect("a signal");
            exit_code(child.wait().expect("a child can be waited for")) == 128 + 15
        });
        if !is_interrupted {
            continue;
        }
        let _ = run.train().expect_code(0);
        let entries = run.entries();
        let adjudications: Vec<&Value> =
            of_kind(&entries, "segment.start").map(|entry| &entry["body"]["det"]["adjudication"]).collect();
        assert_eq!(adjudications, [&Value::Null, &json!("worker_count: 1"), &json!("worker_count: 2")]);
        return run;
    }
    panic!("the run was over {MAX_TRIES} times before a signal came");
}

/// Declares a state class as captured.
fn capture(contract: &mut Value, class: &str) {
    let classes = contract["state_classes"].as_array_mut().expect("a list");
    let declared = classes.iter_mut().find(|declared| declared["class"] == class);
    declared.expect("it is declared")["not_applicable"] = Value::Null;
}

pub(super) fn skipped_steps() -> RunFolder {
    let run = RunFolder::tiny();
    run.edit_contract(|contract| {
        contract["numerics"]["compute_dtype"] = json!("f16");
        contract["numerics"]["loss_scaler"] =
            json!({"backoff": 0.5, "growth": 2, "growth_interval": 3, "initial": 16_777_216});
        capture(contract, "loss_scaler");
    });
    let _ = run.freeze().expect_code(0);
    let _ = run.train().expect_code(0);
    let entries = run.entries();
    let is_skipped = |entry: &&Value| entry["body"]["det"]["overflow"]["skipped"] == json!(true);
    let (num_steps, num_skipped) =
        (of_kind(&entries, "step").count(), of_kind(&entries, "step").filter(is_skipped).count());
    assert!((1..num_steps).contains(&num_skipped), "{num_skipped} of {num_steps} steps were skipped");
    run
}

pub(super) fn faults_recovered() -> RunFolder {
    let plan = [
        planned("single_shard_corruption", "staged", 5),
        planned("data_cursor_rewind", "before_forward", 7),
        planned("checkpoint_write_interruption", "renamed", 10),
        planned("stale_or_delayed_gradient", "before_exchange", 12),
        planned("worker_loss", "after_backward", 17),
    ];
    let run = RunFolder::tiny();
    run.edit_contract(|contract| {
        contract["budget"]["max_attempts"] = json!(12);
        contract["faults"]["plan"] = json!(plan);
    });
    let _ = run.freeze().expect_code(0);
    for _ in 0..12 {
        let _ = run.train();
        if !outcomes(&run, "run.end").is_empty() {
            break;
        }
    }
    let entries = run.entries();
    assert_eq!(of_kind(&entries, "fault.injected").count(), plan.len(), "each fault fired");
    assert!(of_kind(&entries, "fault.recovered").count() >= 4, "most of them ended an attempt");
    assert_eq!(outcomes(&run, "run.end"), ["completed"]);
    run
}

/// Exports the ledger of a run, removes it and makes it again of the export.
///
/// # Panics
/// When one of the programs fails.
#[track_caller]
pub fn export_and_import(run: &RunFolder) {
    let _ = run.ledger_command("export", &["--output", "export"]).expect_code(0);
    for suffix in ["", "-wal", "-shm", ".head", ".lock"] {
        let path = dump::with_suffix(&run.ledger(), suffix);
        if path.exists() {
            std::fs::remove_file(&path).expect("a file of the ledger can be removed");
        }
    }
    let _ = programs::run(LEDGER, run.path(), &["import", "export"]).expect_code(0);
    std::fs::remove_dir_all(run.path().join("export")).expect("the export can be removed");
}
