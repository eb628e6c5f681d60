//! A run with components that hold state, as users have them: rates that go by
//! evaluations, a shuffle buffer, a stream of dropout masks, averaged weights.
//! What the trainer does and what the validator derives are written twice, and
//! meet here.

use serde_json::{Value, json};
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
