//! Plans of faults: what a contract may plan against its own run.

use serde_json::{Value, json};

use crate::fixture::{Fixture, lines};

fn fault(fault: &str, phase: &str, step: u64) -> Value {
    json!({"fault": fault, "phase": phase, "seed": "7", "step": step, "worker": null})
}

fn at_worker(planned: Value, worker: u32) -> Value {
    let mut planned = planned;
    planned["worker"] = json!(worker);
    planned
}

/// Problems of the plan alone, without their file.
fn problems(plan: &[Value], changes: &[(&str, Value)]) -> Vec<String> {
    let mut fixture = Fixture::new();
    for (pointer, value) in changes {
        fixture.set(pointer, value.clone());
    }
    fixture.set("/faults/plan", json!(plan));
    let checked = fixture.check();
    if checked.is_ok() {
        return Vec::new();
    }
    let lines = lines(checked);
    let of_plan = lines.iter().filter_map(|line| line.strip_prefix("contract.json "));
    of_plan.filter(|line| line.starts_with("/faults")).map(str::to_owned).collect()
}

#[track_caller]
fn refused(planned: Value, changes: &[(&str, Value)], expected: &[&str]) {
    assert_eq!(problems(&[planned], changes), expected);
}

#[track_caller]
fn accepted(planned: Value, changes: &[(&str, Value)]) {
    refused(planned, changes, &[]);
}

fn plateau() -> Value {
    json!({"group": "matrices", "shape": {
        "kind": "plateau", "cooldown": 0, "factor": 0.5, "floor": 1e-5, "min_delta": 0.01, "patience": 1,
        "rate": 0.01, "stream": "val"
    }})
}

#[test]
fn every_family_is_accepted_where_the_run_has_what_it_strikes() {
    let stream =
        [("/dropout_draws", json!({"scheme": "philox_stream/1"})), ("/architecture/dropout", json!(0.1))];
    let watching = [("/schedule/0", plateau())];
    let scaled = [
        ("/numerics/compute_dtype", json!("f16")),
        (
            "/numerics/loss_scaler",
            json!({"backoff": 0.5, "growth": 2.0, "growth_interval": 100, "initial": 1024.0}),
        ),
    ];
    for phase in ["before_forward", "after_backward"] {
        accepted(fault("worker_loss", phase, 1), &[]);
    }
    for phase in ["shard_written", "staged", "renamed"] {
        accepted(fault("checkpoint_write_interruption", phase, 0), &[]);
        accepted(fault("checkpoint_write_interruption", phase, 20), &[]);
    }
    for phase in ["staged", "validated"] {
        accepted(fault("single_shard_corruption", phase, 5), &[]);
    }
    for (name, changes) in [
        ("data_cursor_rewind", &[][..]),
        ("data_cursor_skip", &[]),
        ("rng_state_loss", &stream),
        ("scheduler_state_loss", &watching),
        ("loss_scaler_loss", &scaled),
        ("precision_policy_change", &[]),
    ] {
        accepted(fault(name, "before_forward", 2), changes);
        accepted(fault(name, "restore", 15), changes);
    }
    accepted(fault("precision_policy_change", "after_update", 20), &[]);
    accepted(fault("stale_or_delayed_gradient", "before_exchange", 2), &[]);
    accepted(fault("validation_leakage_in_selection", "evaluation", 10), &[]);
    accepted(fault("validation_leakage_in_selection", "selection", 20), &[]);
    let workers = [("/topology/workers", json!(2))];
    for planned in [
        at_worker(fault("worker_loss", "before_forward", 3), 1),
        at_worker(fault("collective_timeout", "after_backward", 3), 1),
        at_worker(fault("stale_or_delayed_gradient", "in_exchange", 2), 1),
        fault("stale_or_delayed_gradient", "before_exchange", 2),
        fault("topology_change", "restore", 5),
    ] {
        accepted(planned, &workers);
    }
}

#[test]
fn a_phase_of_another_family_is_refused() {
    refused(
        fault("data_cursor_skip", "staged", 5),
        &[],
        &["/faults/plan/0/phase: is staged; data_cursor_skip has before_forward, restore"],
    );
}

#[test]
fn a_step_that_the_place_never_comes_to_is_refused() {
    let step = |name: &str, phase: &str, step: u64, says: &str| {
        refused(
            fault(name, phase, step),
            &[],
            &[&format!("/faults/plan/0/step: is {step}; expected {says}")],
        );
    };
    step("worker_loss", "before_forward", 21, "at most 20, the run's last step");
    step("worker_loss", "before_forward", 0, "at least 1 at before_forward");
    step("data_cursor_rewind", "before_forward", 1, "at least 2 at before_forward");
    step("stale_or_delayed_gradient", "before_exchange", 1, "at least 2 at before_exchange");
    step("data_cursor_skip", "restore", 7, "a step before 20 that is checkpointed");
    step("data_cursor_skip", "restore", 20, "a step before 20 that is checkpointed");
    step("single_shard_corruption", "staged", 6, "a step that is checkpointed");
    step("validation_leakage_in_selection", "evaluation", 6, "a step at which \"val\" is evaluated");
    step(
        "validation_leakage_in_selection",
        "selection",
        15,
        "20, the last step of a run that stops \"at_step\"",
    );
}

#[test]
fn a_selection_with_nothing_else_to_choose_is_refused() {
    refused(
        fault("validation_leakage_in_selection", "selection", 20),
        &[("/selection/family", json!("final_only"))],
        &["/faults/plan/0/phase: is selection, and the run has one candidate at most"],
    );
}

#[test]
fn a_family_whose_part_the_run_does_not_have_is_refused() {
    let lacks = |name: &str, says: &str| {
        let expected = format!("/faults/plan/0/fault: is {name}, and {says}: it would strike nothing");
        refused(fault(name, "before_forward", 2), &[], &[&expected]);
    };
    lacks("rng_state_loss", "masks of dropout are functions of coordinates");
    lacks("scheduler_state_loss", "every schedule is a function of the step");
    lacks("loss_scaler_loss", "there is no loss scaler");
}

#[test]
fn faults_between_workers_need_them() {
    for (name, phase) in [
        ("collective_timeout", "before_forward"),
        ("topology_change", "before_forward"),
        ("stale_or_delayed_gradient", "in_exchange"),
    ] {
        let expected = format!("/faults/plan/0/fault: is {name} at {phase}, and /topology/workers is 1");
        refused(fault(name, phase, 2), &[], &[&expected]);
    }
    refused(
        at_worker(fault("worker_loss", "before_forward", 2), 1),
        &[],
        &["/faults/plan/0/worker: is 1, and /topology/workers is 1"],
    );
    let workers = [("/topology/workers", json!(2))];
    refused(
        fault("collective_timeout", "before_forward", 2),
        &workers,
        &["/faults/plan/0/worker: names the process that records; expected 1 to 1"],
    );
    refused(
        fault("worker_loss", "after_backward", 2),
        &workers,
        &["/faults/plan/0/worker: names the process that records, which has no place of its own there"],
    );
    refused(
        at_worker(fault("data_cursor_skip", "before_forward", 2), 1),
        &workers,
        &["/faults/plan/0/worker: is 1; data_cursor_skip strikes the process that records"],
    );
}

#[test]
fn a_fault_is_planned_once() {
    let planned = fault("worker_loss", "before_forward", 3);
    let plan = [planned.clone(), fault("worker_loss", "before_forward", 4), at_worker(planned, 0)];
    assert_eq!(problems(&plan, &[]), ["/faults/plan/2: is the fault of item 0 at the same place"]);
}

#[test]
fn detection_is_left_to_the_validator_only_beside_a_plan() {
    let changes = [("/faults/detection", json!("validator_alone"))];
    assert_eq!(
        problems(&[], &changes),
        ["/faults/detection: turns the trainer's detectors off, and no fault is planned"]
    );
    accepted(fault("worker_loss", "before_forward", 3), &changes);
}

#[test]
fn one_thing_happens_between_workers_in_an_update() {
    let workers = [("/topology/workers", json!(4)), ("/batch/data_parallel", json!(4))];
    let message = "strikes between workers in the update that item 0 strikes";
    let meets = |plan: &[Value]| problems(plan, &workers).iter().any(|problem| problem.contains(message));
    let loss = |step, worker| at_worker(fault("worker_loss", "before_forward", step), worker);
    let late = |step, worker| at_worker(fault("collective_timeout", "after_backward", step), worker);
    assert!(meets(&[loss(3, 1), late(3, 1)]));
    assert!(meets(&[fault("topology_change", "before_forward", 3), late(3, 2)]));
    assert!(!meets(&[loss(3, 1), late(3, 2)]));
    assert!(!meets(&[loss(3, 1), late(4, 1)]));
}
