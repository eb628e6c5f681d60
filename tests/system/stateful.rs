//! A run with components that hold state, as users have them: rates that go by
//! evaluations, a shuffle buffer, a stream of dropout masks, averaged weights.
//! What the trainer does and what the validator derives are written twice, and
//! meet here.

use std::time::Duration;

use serde_json::{Value, json};
use system_tests::programs::{self, TRAINER};
use system_tests::run_folder::RunFolder;

fn capture(contract: &mut Value, class: &str) {
    let classes = contract["state_classes"].as_array_mut().expect("a list");
    for declared in classes.iter_mut().filter(|declared| declared["class"] == class) {
        declared["not_applicable"] = Value::Null;
    }
}

/// Every component that holds state, in one contract, saved at every step.
fn stateful(contract: &mut Value) {
    contract["architecture"]["dropout"] = json!(0.1);
    contract["dropout_draws"] = json!({"scheme": "philox_stream/1"});
    contract["order"] = json!({"scheme": "shuffle_buffer/1", "size": 7});
    contract["averages"] = json!({"decay": 0.9, "first_step": 3, "order": "after_update"});
    contract["checkpoints"]["every_steps"] = json!(1);
    contract["evaluation"]["streams"][0]["every_steps"] = json!(2);
    let mut stream = contract["evaluation"]["streams"][0].clone();
    let name = stream["name"].clone();
    stream["name"] = json!("averaged");
    stream["view"] = json!("averages");
    contract["evaluation"]["streams"].as_array_mut().expect("a list").push(stream);
    let shape = json!({
        "kind": "plateau", "cooldown": 1, "factor": 0.5, "floor": 0.00001, "min_delta": 0.2, "patience": 0,
        "rate": 0.003, "stream": name
    });
    for schedule in contract["schedule"].as_array_mut().expect("a list") {
        schedule["shape"] = shape.clone();
    }
    for class in ["scheduler", "rng_cpu", "sampler"] {
        capture(contract, class);
    }
    let classes = contract["state_classes"].as_array_mut().expect("a list");
    let at =
        classes.iter().position(|declared| declared["class"] == "accumulated_gradients").expect("declared");
    classes.insert(at, json!({"class": "averages", "not_applicable": null}));
}

#[test]
fn components_that_hold_state_are_derived_again_by_the_validator() {
    let run = RunFolder::tiny();
    run.edit_contract(stateful);
    let _ = run.freeze().expect_code(0);
    let _ = run.train().expect_code(0);
    let report = run.report();
    assert_eq!(report["verdict"], "accepted", "{report:#}");
    let rules = report["rules"].as_array().expect("a list");
    for code in ["GL303", "GL401", "GL504", "GL603", "GL604", "GL605", "GL607", "GL611"] {
        let rule = rules.iter().find(|rule| rule["code"] == code).expect("a rule");
        assert_eq!(rule["status"], "passed", "{rule:#}");
        assert!(rule["num_checked"].as_u64() > Some(0), "{rule:#}");
    }
    let rates: Vec<f64> = run
        .entries()
        .iter()
        .filter(|entry| entry["kind"] == "step")
        .filter_map(|entry| entry["body"]["det"]["updates"][0]["learning_rate"].as_f64())
        .collect();
    assert!(rates.last() < rates.first(), "the plateau acts: {rates:?}");
}

#[test]
fn a_state_class_that_such_a_component_holds_cannot_be_left_out() {
    let reasons = [
        ("scheduler", "function_of_step"),
        ("rng_cpu", "counter_based_randomness"),
        ("sampler", "function_of_position"),
    ];
    for (class, reason) in reasons {
        let run = RunFolder::tiny();
        run.edit_contract(|contract| {
            stateful(contract);
            let classes = contract["state_classes"].as_array_mut().expect("a list");
            let declared = classes.iter_mut().find(|declared| declared["class"] == class).expect("declared");
            declared["not_applicable"] = json!(reason);
        });
        let refused = run.freeze().expect_code(1);
        assert!(refused.stderr.contains(&format!("{class}: the reason is not true")), "{refused}");
    }
}

/// Binary16 whose first scales overflow, saved inside of accumulation windows.
fn half(contract: &mut Value) {
    stateful(contract);
    let count = contract["batch"]["global_examples"].as_u64().expect("a count");
    contract["batch"]["accumulation"] = json!(count);
    contract["batch"]["microbatch_examples"] = json!(1);
    contract["checkpoints"]["mid_accumulation"] = json!("save_gradients");
    contract["checkpoints"]["after_microbatches"] = json!(count - 1);
    contract["numerics"]["compute_dtype"] = json!("f16");
    contract["numerics"]["loss_scaler"] =
        json!({"backoff": 0.5, "growth": 2, "growth_interval": 2, "initial": 16_777_216});
    capture(contract, "loss_scaler");
    capture(contract, "accumulated_gradients");
    contract["state_digest_every_steps"] = json!(2);
}

#[test]
fn scales_skipped_steps_and_windows_are_derived_again_by_the_validator() {
    let run = RunFolder::tiny();
    run.edit_contract(half);
    let _ = run.freeze().expect_code(0);
    let _ = run.train().expect_code(0);
    let report = run.report();
    assert_eq!(report["verdict"], "accepted", "{report:#}");
    let rules = report["rules"].as_array().expect("a list");
    let codes =
        ["GL205", "GL405", "GL601", "GL604", "GL605", "GL607", "GL608", "GL611", "GL630", "GL631", "GL632"];
    for code in codes {
        let rule = rules.iter().find(|rule| rule["code"] == code).expect("a rule");
        assert_eq!(rule["status"], "passed", "{rule:#}");
        assert!(rule["num_checked"].as_u64() > Some(0), "{rule:#}");
    }
    let entries = run.entries();
    let steps = entries.iter().filter(|entry| entry["kind"] == "step");
    let skipped: Vec<bool> =
        steps.map(|entry| entry["body"]["det"]["overflow"]["skipped"] == json!(true)).collect();
    assert!(skipped[0] && skipped.iter().any(|skipped| !skipped), "{skipped:?}");
    let inside = run.path().join("checkpoints/s00000002-a1/accumulated_gradients.json");
    let inside: Value = serde_json::from_slice(&std::fs::read(inside).expect("saved")).expect("JSON");
    assert!(inside["microbatches"].as_u64() > Some(0), "{inside}");
}

/// Four microbatches an update; so long that three signals come before its end, on a
/// machine that is busy with something else too.
fn interruptible() -> RunFolder {
    let run = RunFolder::long(800);
    run.edit_contract(|contract| {
        let count = contract["batch"]["global_examples"].as_u64().expect("a count").max(4);
        contract["batch"] = json!({
            "accumulation": count, "data_parallel": 1, "global_examples": count, "microbatch_examples": 1
        });
        contract["checkpoints"]["mid_accumulation"] = json!("save_gradients");
        capture(contract, "accumulated_gradients");
        contract["budget"]["max_attempts"] = json!(20);
    });
    let _ = run.freeze().expect_code(0);
    run
}

fn count(run: &RunFolder, kind: &str) -> usize {
    run.entries().iter().filter(|entry| entry["kind"] == kind).count()
}

/// What a signal saves where the attempt stands is no part of the projection,
/// and the audit accepts it.
#[test]
fn a_run_that_signals_ended_inside_of_windows_is_accepted() {
    let whole = interruptible();
    let _ = whole.train().expect_code(0);
    let run = interruptible();
    for _ in 0..3 {
        let steps_before = count(&run, "step");
        let mut child = programs::start(TRAINER, run.path(), &["run", "--ledger", "run.db"]);
        while count(&run, "step") < steps_before + 7 {
            assert!(child.try_wait().expect("the state of a child").is_none(), "it ended too early");
            std::thread::sleep(Duration::from_millis(5));
        }
        // Steps are seen when they are durable, often at a save; a few updates
        // later the attempt is elsewhere.
        std::thread::sleep(Duration::from_millis(100));
        let kill =
            std::process::Command::new("sh").args(["-c", &format!("kill -TERM {}", child.id())]).status();
        assert!(kill.expect("a shell").success());
        let status = child.wait().expect("a child can be waited for");
        assert_eq!(programs::exit_code(status), 143);
    }
    let is_off_schedule = |entry: &&Value| {
        let step = entry["body"]["det"]["step"].as_u64().unwrap_or(0);
        entry["kind"] == "checkpoint.validated" && !step.is_multiple_of(20)
    };
    assert!(run.entries().iter().any(|entry| is_off_schedule(&entry)), "a signal saved where it came");
    let _ = run.train().expect_code(0);
    let (whole, report) = (whole.report(), run.report());
    assert_eq!(report["verdict"], "accepted", "{report:#}");
    assert_eq!(whole["verdict"], "accepted", "{whole:#}");
    assert!(report["projection"].is_string() && report["projection"] == whole["projection"]);
    for code in ["GL601", "GL504", "GL632"] {
        let mut rules = report["rules"].as_array().expect("a list").iter();
        let rule = rules.find(|rule| rule["code"] == code).expect("a rule");
        assert_eq!(rule["status"], "passed", "{rule:#}");
    }
}
