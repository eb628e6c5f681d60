//! Runs that retire checkpoints, through every program: killed on the way, and
//! still accepted, evaluated, handed off and qualified.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use system_tests::dump;
use system_tests::programs::{self, Finished, TRAINER};
use system_tests::run_folder::RunFolder;

/// Pause between two looks into a ledger.
const POLL_EVERY: Duration = Duration::from_millis(1);

/// Longest wait for a checkpoint; it takes a fraction of a second.
const MAX_WAIT: Duration = Duration::from_secs(120);

const NUM_STEPS: u64 = 200;

fn of_kind<'a>(entries: &'a [Value], kind: &'a str) -> impl Iterator<Item = &'a Value> {
    entries.iter().filter(move |entry| entry["kind"] == kind)
}

fn count(entries: &[Value], kind: &str) -> usize {
    of_kind(entries, kind).count()
}

/// A run of [`NUM_STEPS`] steps, saved at every 20th, under the smallest policy.
fn frozen() -> RunFolder {
    let run = RunFolder::long(NUM_STEPS);
    run.edit_contract(|contract| {
        contract["budget"]["max_attempts"] = 20.into();
        contract["checkpoints"]["keep"] =
            json!({"kind": "chosen", "best": 1, "every_steps": null, "last": 1, "pinned": [60]});
    });
    let _ = run.freeze().expect_code(0);
    run
}

/// Kills the trainer as soon as so many checkpoints are validated.
fn kill_after(run: &RunFolder, num_validated: usize) {
    let mut child = programs::start(TRAINER, run.path(), &["run", "--ledger", "run.db"]);
    let started = Instant::now();
    // The trainer writes meanwhile, so that a look may find what cannot be read.
    let is_there = |entries: Vec<Value>| count(&entries, "checkpoint.validated") >= num_validated;
    while !dump::entries(&run.ledger()).is_ok_and(is_there) {
        assert!(started.elapsed() < MAX_WAIT, "no {num_validated} checkpoints after {MAX_WAIT:?}");
        std::thread::sleep(POLL_EVERY);
    }
    child.kill().expect("a child can be killed");
    let _ = child.wait().expect("a killed child can be waited for");
}

fn checkpoint(run: &RunFolder, arguments: &[&str]) -> Finished {
    let arguments = [&["checkpoint"], arguments, &["--ledger", "run.db"]].concat();
    programs::run(TRAINER, run.path(), &arguments)
}

fn accepted(run: &RunFolder) -> Value {
    let report = run.report();
    assert_eq!(report["verdict"], "accepted", "{:#}", report["findings"]);
    let rules = report["rules"].as_array().expect("rules");
    let rule = rules.iter().find(|rule| rule["code"] == "GL610").expect("it is in the catalogue");
    assert_eq!(rule["status"], "passed");
    report
}

fn has(report: &Value, code: &str) -> bool {
    report["findings"]
        .as_array()
        .expect("findings")
        .iter()
        .any(|found| found["code"] == code && found["severity"] == "error")
}

#[test]
fn a_run_that_was_killed_and_retired_checkpoints_is_accepted_and_qualified() {
    let run = frozen();
    for num_validated in [3, 5, 8] {
        kill_after(&run, num_validated);
    }
    let _ = run.train().expect_code(0);
    let entries = run.entries();
    assert!(count(&entries, "attempt.start") >= 3, "the kills struck");
    assert!(count(&entries, "checkpoint.retired") >= 2, "checkpoints were retired");
    let _ = accepted(&run);

    // Every candidate is recomputed, those of retired checkpoints too.
    let _ = run.evaluator_command("val", &["--ledger", "run.db"]).expect_code(0);
    let numbers = dump::entries(&run.path().join("qualification.db")).expect("a ledger");
    let selected = of_kind(&entries, "candidate.selected").next().expect("a selection");
    assert_eq!(json!(count(&numbers, "qualification.val")), selected["body"]["det"]["num_candidates"]);
    let _ = run.audit(&["--save"]).expect_code(0);
    assert_eq!(run.report()["selection_basis"], "evaluator");
    let _ = run.ledger_command("handoff", &[]).expect_code(0);
    let handoff = ["--ledger", "run.db", "--handoff", "run.db.handoff.dsse.json"];
    let _ = run.evaluator_command("qualify", &handoff).expect_code(0);

    // There is nothing left to prune, and what is there is as recorded.
    let pruned = checkpoint(&run, &["prune", "--json"]).expect_code(0).json();
    assert_eq!(pruned["retired"], json!([]));
    let _ = checkpoint(&run, &["verify", "--all"]).expect_code(0);
    let _ = accepted(&run);

    // What is gone without a retirement is found, and so is a lost manifest.
    let retired = of_kind(&entries, "checkpoint.retired").next().expect("retired");
    let name = retired["body"]["obs"]["checkpoint"].as_str().expect("a name");
    let copy = run.copy();
    let manifest = copy.path().join("checkpoints").join(name).join("manifest.json");
    std::fs::remove_file(manifest).expect("it was kept");
    assert!(has(&copy.report(), "GL610"));
    let copy = run.copy();
    let shard = copy.path().join("checkpoints/s00000000-a1/optimizer.safetensors");
    std::fs::remove_file(shard).expect("the initial state is kept");
    let report = copy.report();
    assert!(has(&report, "GL610") && has(&report, "GL110"));
}

/// A person who prunes after the run's end does what the run would have done.
#[test]
fn pruning_after_the_end_is_an_entry_that_the_audit_accepts() {
    let run = frozen();
    let _ = run.train().expect_code(0);
    let before = run.entries().len();
    let dry = checkpoint(&run, &["prune", "--dry-run", "--json"]).expect_code(0).json();
    assert_eq!(dry["retired"], json!([]), "the run left nothing to retire");
    assert_eq!(run.entries().len(), before);
    // A file that a crash left is removed, without another entry.
    let retired = run.entries();
    let name =
        of_kind(&retired, "checkpoint.retired").next().expect("retired")["body"]["obs"]["checkpoint"].clone();
    let name = name.as_str().expect("a name");
    let left = run.path().join("checkpoints").join(name).join("optimizer.safetensors");
    std::fs::write(&left, "left by a crash").expect("the folder is writable");
    assert!(has(&run.report(), "GL110"), "what lies there is not what was committed");
    let pruned = checkpoint(&run, &["prune", "--json"]).expect_code(0).json();
    assert_eq!(pruned["unfinished"][0]["checkpoint"], name);
    assert!(!left.exists());
    assert_eq!(run.entries().len(), before);
    let _ = accepted(&run);
}
