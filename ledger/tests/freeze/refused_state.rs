//! Components that hold state: what they are made of, and the classes that they
//! bring with them.

use serde_json::{Value, json};

use crate::fixture::{Fixture, lines};

/// Changes values; exactly the expected problems must follow, in any order.
#[track_caller]
fn check(changes: &[(&str, Value)], expected: &[&str]) {
    let mut fixture = Fixture::new();
    for (pointer, value) in changes {
        fixture.set(pointer, value.clone());
    }
    let found = lines(fixture.check());
    let mut found: Vec<&str> =
        found.iter().map(|line| line.strip_prefix("contract.json ").unwrap_or(line)).collect();
    let mut expected = expected.to_vec();
    found.sort_unstable();
    expected.sort_unstable();
    assert_eq!(found, expected);
}

/// Freezes after changes.
#[track_caller]
fn accepted(changes: &[(&str, Value)]) {
    let mut fixture = Fixture::new();
    for (pointer, value) in changes {
        fixture.set(pointer, value.clone());
    }
    let found = fixture.check();
    assert!(found.is_ok(), "{:?}", lines(found));
}

fn captured(class: &str) -> Value {
    json!({"class": class, "not_applicable": null})
}

fn with_averages(decay: f64, first_step: u64) -> [(&'static str, Value); 2] {
    [
        ("/averages", json!({"decay": decay, "first_step": first_step, "order": "after_update"})),
        ("/state_classes/10", captured("averages")),
    ]
}

#[test]
fn averages() {
    accepted(&with_averages(0.999, 1));
    accepted(&with_averages(0.5, 20));
    check(
        &with_averages(1.0, 1),
        &["/averages/decay: is 1.0; expected above 0 and below 1, also when it is rounded to binary32"],
    );
    // Rounds to one in binary32: the average would never move.
    check(
        &with_averages(0.999_999_999, 1),
        &[
            "/averages/decay: is 0.999999999; expected above 0 and below 1, also when it is rounded to binary32",
        ],
    );
    check(&with_averages(0.5, 0), &["/averages/first_step: is 0; expected 1 to 20, the last step"]);
    check(&with_averages(0.5, 21), &["/averages/first_step: is 21; expected 1 to 20, the last step"]);
    check(
        &with_averages(0.5, 1)[..1],
        &["/state_classes: averages is not captured, and /averages keeps averaged parameters"],
    );
}

fn with_plateau(changes: &Value) -> [(&'static str, Value); 2] {
    let mut shape = json!({
        "kind": "plateau", "cooldown": 0, "factor": 0.5, "floor": 0.0, "min_delta": 0.0, "patience": 1,
        "rate": 0.001, "stream": "val"
    });
    for (name, value) in changes.as_object().expect("members") {
        shape[name] = value.clone();
    }
    [("/schedule/0/shape", shape), ("/state_classes/2", captured("scheduler"))]
}

#[test]
fn a_plateau() {
    accepted(&with_plateau(&json!({})));
    check(
        &with_plateau(&json!({}))[..1],
        &["/state_classes/2/not_applicable: scheduler: the reason is not true of this contract"],
    );
    check(&with_plateau(&json!({"stream": "test"})), &["/schedule/0/shape/stream: \"test\" is no stream"]);
    check(
        &with_plateau(&json!({"floor": 0.001})),
        &["/schedule/0/shape/floor: is 0.001; expected 0 to below the rate, 0.001"],
    );
    // Evaluations come every 5 of 20 steps.
    check(
        &with_plateau(&json!({"patience": 3})),
        &[
            "/schedule/0/shape/patience: is 3, so that the rate falls after step 20 at the earliest, and step 20 is the last",
        ],
    );
}

#[test]
fn a_stream_of_dropout_masks() {
    let draws = || ("/dropout_draws", json!({"scheme": "philox_stream/1"}));
    accepted(&[draws(), ("/state_classes/3", captured("rng_cpu"))]);
    check(&[draws()], &["/state_classes/3/not_applicable: rng_cpu: the reason is not true of this contract"]);
    let device = json!({"class": "rng_device", "not_applicable": "counter_based_randomness"});
    check(
        &[draws(), ("/state_classes/3", captured("rng_cpu")), ("/state_classes/4", device)],
        &["/state_classes/4/not_applicable: rng_device: the reason is not true of this contract"],
    );
    check(
        &[draws(), ("/state_classes/3", captured("rng_cpu")), ("/architecture/dropout", json!(0.0))],
        &[
            "/dropout_draws/scheme: is \"philox_stream/1\", and /architecture/dropout is 0, so that nothing is ever drawn",
        ],
    );
}

#[test]
fn a_shuffle_buffer() {
    let order = |size: u64| ("/order", json!({"scheme": "shuffle_buffer/1", "size": size}));
    accepted(&[order(2), ("/state_classes/7", captured("sampler"))]);
    check(
        &[order(2)],
        &["/state_classes/7/not_applicable: sampler: the reason is not true of this contract"],
    );
    for size in [1, 65_537] {
        check(
            &[order(size), ("/state_classes/7", captured("sampler"))],
            &[&format!("/order/size: is {size}; expected 2 to 65536")],
        );
    }
}
