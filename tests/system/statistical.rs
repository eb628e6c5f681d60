//! Statistical resume probes through every program: what the trainer measured
//! over repeated seeds, the validator derives again, examples included. And a
//! run that goes on from qualified checkpoints only.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use system_tests::dump;
use system_tests::programs::{self, TRAINER, run};
use system_tests::run_folder::{RunFolder, flip_byte};

/// Pause between two looks into a ledger.
const POLL_EVERY: Duration = Duration::from_millis(1);

/// Longest wait for a checkpoint; it takes a fraction of a second.
const MAX_WAIT: Duration = Duration::from_secs(120);

/// A test of four seeds over three updates.
fn claim(contract: &mut Value) {
    contract["resume"] = json!({
        "class": "statistical",
        "test": {
            "alpha": 0.05, "margin": 0.0001, "metric": "training_loss", "num_steps": 3,
            "seeds": ["7", "11", "13", "18446744073709551615"], "varies": ["data_order", "dropout"],
        },
        "tolerance": null,
    });
    contract["checkpoints"]["candidate_stage"] = "resume_qualified".into();
}

/// The same over a shuffle buffer and a stream of masks, whose state goes on.
fn stateful(contract: &mut Value) {
    claim(contract);
    contract["architecture"]["dropout"] = json!(0.1);
    contract["dropout_draws"] = json!({"scheme": "philox_stream/1"});
    contract["order"] = json!({"scheme": "shuffle_buffer/1", "size": 7});
    for declared in contract["state_classes"].as_array_mut().expect("a list") {
        if declared["class"] == "rng_cpu" || declared["class"] == "sampler" {
            declared["not_applicable"] = Value::Null;
        }
    }
}

fn rule<'a>(report: &'a Value, code: &str) -> &'a Value {
    let mut rules = report["rules"].as_array().into_iter().flatten();
    rules.find(|rule| rule["code"] == code).expect("the rule is in the report")
}

/// The checkpoint of the selected candidate.
fn selected(folder: &RunFolder) -> String {
    let entries = folder.entries();
    let entry = entries.iter().find(|entry| entry["kind"] == "candidate.selected").expect("a selection");
    entry["body"]["obs"]["checkpoint"].as_str().expect("a name").to_owned()
}

fn probed(contract: fn(&mut Value)) -> RunFolder {
    let folder = RunFolder::tiny();
    folder.edit_contract(contract);
    let _ = folder.freeze().expect_code(0);
    let _ = folder.train().expect_code(0);
    assert_eq!(rule(&folder.report(), "GL623")["status"], "not_applicable");
    let checkpoint = selected(&folder);
    let arguments = ["probe", "--ledger", "run.db", "--quiet", "--checkpoint", &checkpoint];
    let finished = run(TRAINER, folder.path(), &arguments).expect_code(0);
    assert!(finished.stdout.contains("equivalent within ±0.0001 at alpha 0.05"), "{finished}");
    folder
}

#[test]
fn what_was_measured_over_repeated_seeds_is_derived_again_and_handed_off() {
    for contract in [claim, stateful] {
        let folder = probed(contract);
        let report = folder.report();
        assert_eq!(report["verdict"], "accepted", "{:#}", report["findings"]);
        for (code, num_checked) in [("GL620", 4), ("GL622", 1), ("GL623", 2)] {
            let rule = rule(&report, code);
            assert_eq!(
                (&rule["status"], &rule["num_checked"]),
                (&"passed".into(), &num_checked.into()),
                "{rule:#}"
            );
        }
        let _ = folder.ledger_command("handoff", &["--on-trainer-numbers"]).expect_code(0);
    }
}

#[test]
fn an_attempt_goes_on_from_the_qualified_checkpoint_and_an_audit_accepts_that() {
    let uninterrupted = RunFolder::long(300);
    let _ = uninterrupted.freeze().expect_code(0);
    let _ = uninterrupted.train().expect_code(0);
    let folder = RunFolder::long(300);
    folder.edit_contract(|contract| contract["faults"]["recovery"] = "restart_from_last_qualified".into());
    let _ = folder.freeze().expect_code(0);
    let mut child = programs::start(TRAINER, folder.path(), &["run", "--ledger", "run.db"]);
    let started = Instant::now();
    let is_there = |entries: Vec<Value>| {
        entries.iter().filter(|entry| entry["kind"] == "checkpoint.validated").count() >= 4
    };
    while !dump::entries(&folder.ledger()).is_ok_and(is_there) {
        assert!(started.elapsed() < MAX_WAIT, "no checkpoints after {MAX_WAIT:?}");
        std::thread::sleep(POLL_EVERY);
    }
    child.kill().expect("a child can be killed");
    let _ = child.wait().expect("a killed child can be waited for");

    // Nothing is qualified, so that nothing is gone on from.
    let _ = folder.train().expect_code(2);
    let arguments = ["probe", "--ledger", "run.db", "--quiet", "--checkpoint", "s00000020-a1"];
    let _ = run(TRAINER, folder.path(), &arguments).expect_code(0);
    // One that is passed over has rotted: an audit would read it, so that it is given up.
    flip_byte(&folder.path().join("checkpoints/s00000040-a1/optimizer.safetensors"), 2000);
    let _ = folder.train().expect_code(0);
    let entries = folder.entries();
    let given_up: Vec<&Value> =
        entries.iter().filter(|entry| entry["kind"] == "checkpoint.quarantined").collect();
    assert_eq!(given_up.len(), 1, "{given_up:#?}");
    assert_eq!(given_up[0]["body"]["obs"]["checkpoint"], "s00000040-a1");
    let resumed = entries.iter().rfind(|entry| entry["kind"] == "attempt.start").expect("an attempt");
    assert_eq!(resumed["body"]["det"]["resumed_from"]["step"], 20, "{resumed:#}");
    let report = folder.report();
    assert_eq!(report["verdict"], "accepted", "{:#}", report["findings"]);
    assert_eq!(rule(&report, "GL203")["status"], "passed");
    let model = |folder: &RunFolder| {
        let entries = folder.entries();
        let last = entries.iter().rfind(|entry| entry["kind"] == "checkpoint.durably_committed");
        last.expect("a checkpoint")["body"]["det"]["model"].clone()
    };
    assert_eq!(model(&folder), model(&uninterrupted));
}
