//! Runs that save beside training, through every program: killed on the way, and
//! still accepted, with the projection of a run that waits for each save.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use system_tests::dump;
use system_tests::programs::{self, TRAINER};
use system_tests::run_folder::RunFolder;

/// Pause between two looks into a ledger.
const POLL_EVERY: Duration = Duration::from_millis(1);

/// Longest wait for a checkpoint; it takes a fraction of a second.
const MAX_WAIT: Duration = Duration::from_secs(120);

const NUM_STEPS: u64 = 200;

fn count(entries: &[Value], kind: &str) -> usize {
    entries.iter().filter(|entry| entry["kind"] == kind).count()
}

/// A run of [`NUM_STEPS`] steps, saved at every 20th, under the smallest policy.
fn frozen(mode: &str) -> RunFolder {
    let run = RunFolder::long(NUM_STEPS);
    run.edit_contract(|contract| {
        contract["budget"]["max_attempts"] = 20.into();
        contract["checkpoints"]["mode"] = mode.into();
        contract["checkpoints"]["keep"] =
            json!({"kind": "chosen", "best": 1, "every_steps": null, "last": 1, "pinned": [60]});
    });
    let _ = run.freeze().expect_code(0);
    run
}

/// Kills the trainer as soon as so many saves were requested: beside the last,
/// where it is quick enough.
fn kill_after(run: &RunFolder, num_requested: usize) {
    let mut child = programs::start(TRAINER, run.path(), &["run", "--ledger", "run.db"]);
    let started = Instant::now();
    // The trainer writes meanwhile, so that a look may find what cannot be read.
    let is_there = |entries: Vec<Value>| count(&entries, "checkpoint.requested") >= num_requested;
    while !dump::entries(&run.ledger()).is_ok_and(is_there) {
        assert!(started.elapsed() < MAX_WAIT, "no {num_requested} saves after {MAX_WAIT:?}");
        std::thread::sleep(POLL_EVERY);
    }
    child.kill().expect("a child can be killed");
    let _ = child.wait().expect("a killed child can be waited for");
}

fn accepted(run: &RunFolder) -> Value {
    let report = run.report();
    assert_eq!(report["verdict"], "accepted", "{:#}", report["findings"]);
    let rules = report["rules"].as_array().expect("rules");
    let rule = rules.iter().find(|rule| rule["code"] == "GL612").expect("it is in the catalogue");
    assert_eq!(rule["status"], "passed");
    assert!(report["projection"].is_string(), "a complete run has a projection");
    report
}

#[test]
fn an_asynchronous_run_is_accepted_with_the_projection_of_a_synchronous_one() {
    let synchronous = frozen("synchronous");
    let _ = synchronous.train().expect_code(0);
    let expected = accepted(&synchronous)["projection"].clone();
    let run = frozen("asynchronous");
    let _ = run.train().expect_code(0);
    assert_eq!(accepted(&run)["projection"], expected);

    let struck = frozen("asynchronous");
    for num_requested in [4, 7, 11] {
        kill_after(&struck, num_requested);
        // What a kill leaves is unfinished and nothing worse.
        let report = struck.report();
        assert_eq!(report["verdict"], "incomplete", "{:#}", report["findings"]);
    }
    let _ = struck.train().expect_code(0);
    assert!(count(&struck.entries(), "attempt.start") >= 3, "the kills struck");
    assert_eq!(accepted(&struck)["projection"], expected);

    // Every candidate is recomputed, and one is handed off and qualified.
    let _ = struck.evaluator_command("val", &["--ledger", "run.db"]).expect_code(0);
    let _ = struck.audit(&["--save"]).expect_code(0);
    let _ = struck.ledger_command("handoff", &[]).expect_code(0);
    let handoff = ["--ledger", "run.db", "--handoff", "run.db.handoff.dsse.json"];
    let _ = struck.evaluator_command("qualify", &handoff).expect_code(0);
}
