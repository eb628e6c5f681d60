//! Contracts of several workers: what is frozen, and what is refused.

use serde_json::{Value, json};

use crate::fixture::{Fixture, lines};
use crate::refused_content::check_pointers;

/// Bytes that are more than the fixture's gradients.
const TRAFFIC: u64 = 50_000_000;

/// The changes that make the fixture's contract one of two workers.
fn changes() -> Vec<(&'static str, Value)> {
    vec![
        ("/batch/accumulation", json!(1)),
        ("/batch/data_parallel", json!(2)),
        ("/topology/workers", json!(2)),
        (
            "/topology/collective",
            json!({"heartbeat_ms": 500, "replica_digest_every_steps": 10, "timeout_ms": 30_000}),
        ),
        ("/expected/communication_bytes_per_step", json!(TRAFFIC)),
    ]
}

fn fixture(further: &[(&str, Value)]) -> Fixture {
    let mut fixture = Fixture::new();
    for (pointer, value) in changes() {
        // `set` changes what is there; this is not there at first.
        if pointer == "/topology/collective" {
            fixture.contract["topology"]["collective"] = value;
        } else {
            fixture.set(pointer, value);
        }
    }
    for (pointer, value) in further {
        fixture.set(pointer, value.clone());
    }
    fixture.edit_file("policy.json", |card| card["distribution"]["communication"] = json!("all_reduce"));
    fixture
}

/// Messages, without the contract's name.
fn found(fixture: &Fixture) -> Vec<String> {
    let checked = fixture.check();
    let lines = if checked.is_ok() { Vec::new() } else { lines(checked) };
    lines.iter().map(|line| line.strip_prefix("contract.json ").unwrap_or(line).to_owned()).collect()
}

#[track_caller]
fn check(further: &[(&str, Value)], expected: &[&str]) {
    let found = found(&fixture(further));
    let matches = found.iter().zip(expected).all(|(line, beginning)| line.starts_with(beginning));
    assert!(found.len() == expected.len() && matches, "{found:#?}");
}

#[test]
fn several_workers_are_frozen() {
    let frozen = fixture(&[]).check().expect("nothing is wrong");
    assert_eq!(frozen.contract.topology.workers, 2);
    assert!(frozen.contract.topology.collective.is_some());
}

#[test]
fn another_number_is_permitted_under_a_claim_that_allows_it() {
    let bounded = json!({
        "class": "operation_order_bounded", "tolerance": {"max_absolute": 1e-5, "max_relative": 1e-4},
    });
    let rewrites = json!(["thread_count", "worker_count"]);
    check(&[("/topology/permitted_rewrites", rewrites.clone()), ("/resume", bounded.clone())], &[]);
    check(&[("/topology/permitted_rewrites", rewrites.clone())], &["/resume/class: is \"bitwise\""]);
    // With one worker there is no collective that others could use.
    check_pointers(
        &[("/topology/permitted_rewrites", rewrites.clone()), ("/resume", bounded.clone())],
        &["/topology/permitted_rewrites"],
    );
    let twice = json!(["worker_count", "worker_count"]);
    check(
        &[("/topology/permitted_rewrites", twice), ("/resume", bounded)],
        &["/topology/permitted_rewrites: names a rewrite twice"],
    );
}

#[test]
fn streams_of_masks_belong_to_a_number_of_workers() {
    let mut fixture = fixture(&[
        ("/topology/permitted_rewrites", json!(["worker_count"])),
        (
            "/resume",
            json!({
                "class": "operation_order_bounded",
                "tolerance": {"max_absolute": 1e-5, "max_relative": 1e-4},
            }),
        ),
    ]);
    fixture.contract["dropout_draws"] = json!({"scheme": "philox_stream/1"});
    fixture.set("/architecture/dropout", json!(0.1));
    for class in fixture.contract["state_classes"].as_array_mut().expect("a list") {
        match class["class"].as_str() {
            Some("rng_cpu") => class["not_applicable"] = Value::Null,
            Some("rng_device") => class["not_applicable"] = json!("no_device_randomness"),
            _ => {}
        }
    }
    let refused = found(&fixture);
    assert_eq!(refused.len(), 1, "{refused:#?}");
    assert!(refused[0].starts_with("/dropout_draws/scheme: is \"philox_stream/1\""), "{refused:#?}");
    fixture.set("/topology/permitted_rewrites", json!([]));
    assert_eq!(found(&fixture), [""; 0]);
}

#[test]
fn a_collective_that_finds_nothing_is_refused() {
    let collective = |heartbeat_ms: u64, every: u64, timeout_ms: u64| json!({"heartbeat_ms": heartbeat_ms, "replica_digest_every_steps": every, "timeout_ms": timeout_ms});
    let checked = |value: Value, expected: &[&str]| check(&[("/topology/collective", value)], expected);
    checked(collective(1, 1, 2), &[]);
    checked(
        collective(500, 10, 0),
        &[
            "/topology/collective/timeout_ms: is 0; expected 1 to 3600000",
            "/topology/collective/heartbeat_ms: is 500; expected at least 1 and below timeout_ms, 0",
        ],
    );
    checked(collective(500, 10, 3_600_001), &["/topology/collective/timeout_ms: is 3600001"]);
    checked(collective(500, 10, 500), &["/topology/collective/heartbeat_ms: is 500"]);
    checked(collective(0, 10, 500), &["/topology/collective/heartbeat_ms: is 0"]);
    checked(collective(100, 0, 500), &["/topology/collective/replica_digest_every_steps"]);
    checked(
        collective(100, 1_000_000_000, 500),
        &["/topology/collective/replica_digest_every_steps: is 1000000000; expected at most "],
    );
    // One worker has nobody to exchange with, and several have to say how.
    let mut alone = Fixture::new();
    alone.contract["topology"]["collective"] = collective(500, 10, 30_000);
    assert_eq!(found(&alone), ["/topology/collective: is there, and there is one worker"]);
    let mut silent = fixture(&[]);
    silent.contract["topology"].as_object_mut().expect("an object").remove("collective");
    assert_eq!(found(&silent), ["/topology/collective: is missing, and there are 2 workers"]);
}

#[test]
fn what_several_workers_cannot_do_is_refused() {
    check(
        &[
            ("/topology/workers", json!(65)),
            ("/batch/data_parallel", json!(65)),
            ("/batch/global_examples", json!(130)),
        ],
        &["/topology/workers: is 65; expected at most 64"],
    );
    let mut windows = fixture(&[("/checkpoints/mid_accumulation", json!("save_gradients"))]);
    for class in windows.contract["state_classes"].as_array_mut().expect("a list") {
        if class["class"] == "accumulated_gradients" {
            class["not_applicable"] = Value::Null;
        }
    }
    let refused = found(&windows);
    assert!(
        refused
            .iter()
            .any(|line| line.starts_with("/checkpoints/mid_accumulation: is \"save_gradients\", and")),
        "{refused:#?}"
    );
    // The card says what workers exchange.
    let silent = fixture(&[]);
    silent.edit_file("policy.json", |card| card["distribution"]["communication"] = json!("none"));
    assert_eq!(
        lines(silent.check()),
        ["policy.json /distribution/communication: is \"none\"; expected \"all_reduce\" for 2 workers"]
    );
}

#[test]
fn less_traffic_than_the_gradients_alone_is_refused() {
    check(
        &[("/expected/communication_bytes_per_step", json!(0))],
        &["/expected/communication_bytes_per_step: is 0; the sums of gradients that a worker sends"],
    );
    let least = found(&fixture(&[("/expected/communication_bytes_per_step", json!(0))]));
    let least: u64 = least[0].rsplit(' ').next().and_then(|number| number.parse().ok()).expect("a number");
    assert!(least > 0 && least < TRAFFIC, "{least}");
    check(
        &[("/expected/communication_bytes_per_step", json!(least))],
        &["/expected/communication_bytes_per_step"],
    );
    check(&[("/expected/communication_bytes_per_step", json!(least + 1))], &[]);
}
