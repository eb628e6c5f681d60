//! Each family of planned faults once, through every program: it fires, the
//! trainer recovers to the bits of the run without it, and the audit finds it
//! where the trainer does not look. `scripts/faults` is the whole matrix.

use serde_json::{Value, json};
use system_tests::programs::{self, Finished, TRAINER};
use system_tests::run_folder::RunFolder;

/// Last step of a run, and the interval of its checkpoints and evaluations.
const LAST: u64 = 15;
const EVERY: u64 = 5;

/// Rules that read the plan, or repeat what the trainer said: no evidence that
/// the audit found anything by itself.
const OF_THE_PLAN: [&str; 3] = ["GL707", "GL710", "GL711"];

/// Starts that a run is given.
const MAX_STARTS: usize = 6;

/// The family that the evaluator's own numbers tell of.
const LEAKAGE: &str = "validation_leakage_in_selection";

/// A family where it acts, and who is to find it.
struct Case {
    fault: &'static str,
    phase: &'static str,
    step: u64,
    variant: Variant,
    shows: Shows,
}

/// What the contract has that a fault can strike.
#[derive(Clone, Copy, PartialEq)]
enum Variant {
    Plain,
    Stream,
    Plateau,
    Scaler,
}

/// Who finds a fault whose detectors are off.
#[derive(Clone, Copy, PartialEq)]
enum Shows {
    /// The audit.
    Audit,
    /// The trainer still: what cannot be read, or who is gone.
    Trainer,
    /// A resume probe alone.
    Probe,
}

fn case(fault: &'static str, phase: &'static str, step: u64) -> Case {
    Case { fault, phase, step, variant: Variant::Plain, shows: Shows::Audit }
}

/// Declares a state class as captured.
fn capture(contract: &mut Value, class: &str) {
    let classes = contract["state_classes"].as_array_mut().expect("a list");
    let declared = classes.iter_mut().find(|declared| declared["class"] == class);
    declared.expect("it is declared")["not_applicable"] = Value::Null;
}

fn frozen(variant: Variant, plan: &Value, is_alone: bool) -> RunFolder {
    let run = RunFolder::tiny();
    run.edit_contract(|contract| {
        contract["budget"]["max_attempts"] = json!(10);
        contract["budget"]["max_steps"] = json!(LAST);
        contract["stopping"]["step"] = json!(LAST);
        contract["checkpoints"]["every_steps"] = json!(EVERY);
        contract["evaluation"]["streams"][0]["every_steps"] = json!(EVERY);
        contract["faults"]["plan"] = plan.clone();
        if is_alone {
            contract["faults"]["detection"] = json!("validator_alone");
        }
        match variant {
            Variant::Plain => {}
            Variant::Stream => {
                contract["dropout_draws"] = json!({"scheme": "philox_stream/1"});
                capture(contract, "rng_cpu");
            }
            Variant::Plateau => {
                let stream = contract["evaluation"]["streams"][0]["name"].clone();
                for group in contract["schedule"].as_array_mut().expect("groups") {
                    group["shape"] = json!({
                        "kind": "plateau", "cooldown": 0, "factor": 0.5, "floor": 1e-5, "min_delta": 7.0,
                        "patience": 0, "rate": 0.003, "stream": stream
                    });
                }
                capture(contract, "scheduler");
            }
            Variant::Scaler => {
                contract["numerics"]["compute_dtype"] = json!("f16");
                contract["numerics"]["loss_scaler"] =
                    json!({"backoff": 0.5, "growth": 2, "growth_interval": 3, "initial": 1024});
                capture(contract, "loss_scaler");
            }
        }
    });
    let _ = run.freeze().expect_code(0);
    run
}

/// Starts the trainer until the run has ended.
fn finish(run: &RunFolder) {
    for _ in 0..MAX_STARTS {
        let finished = run.train();
        if count(run, "run.end") == 1 {
            return;
        }
        assert_ne!(finished.code, 0, "{finished}");
    }
    panic!("the run does not end: {:#?}", run.entries().last());
}

fn count(run: &RunFolder, kind: &str) -> usize {
    run.entries().iter().filter(|entry| entry["kind"] == kind).count()
}

/// Causes that entries of a kind name.
fn causes(run: &RunFolder) -> Vec<String> {
    let entries = run.entries();
    let observed = entries.iter().filter(|entry| entry["kind"] == "fault.observed");
    observed.filter_map(|entry| entry["body"]["det"]["cause"].as_str().map(str::to_owned)).collect()
}

/// Model and classes of the last checkpoint, and the projection.
fn identity(run: &RunFolder, report: &Value) -> [Value; 3] {
    let entries = run.entries();
    let last = entries.iter().rfind(|entry| entry["kind"] == "checkpoint.durably_committed");
    let det = &last.expect("a run commits checkpoints")["body"]["det"];
    [det["model"].clone(), det["classes"].clone(), report["projection"].clone()]
}

fn plan(case: &Case) -> Value {
    let item = |fault, phase, step| json!({"fault": fault, "phase": phase, "seed": "7", "step": step, "worker": null});
    json!([item(case.fault, case.phase, case.step)])
}

/// What the audit itself names as a cause.
fn found(report: &Value) -> Vec<&str> {
    let findings = report["findings"].as_array().into_iter().flatten();
    let own = findings.filter(|finding| OF_THE_PLAN.iter().all(|code| finding["code"] != *code));
    own.filter_map(|finding| finding["cause"].as_str()).collect()
}

fn is_rejected(report: &Value) -> bool {
    report["verdict"] == "rejected" || report["verdict"] == "tampered"
}

/// The run without a fault, and its report: it raises nothing.
fn twin(variant: Variant) -> (RunFolder, Value) {
    let run = frozen(variant, &json!([]), false);
    finish(&run);
    let report = run.report();
    assert_eq!(report["verdict"], "accepted", "{:#}", report["findings"]);
    assert_eq!(count(&run, "fault.observed"), 0);
    assert!(found(&report).is_empty(), "{:#}", report["findings"]);
    (run, report)
}

/// A probe of the last checkpoint.
fn probe(run: &RunFolder) -> Finished {
    let last = format!("s{LAST:08}-a1");
    let arguments = ["probe", "--ledger", "run.db", "--checkpoint", &last, "--steps", "2", "--quiet"];
    programs::run(TRAINER, run.path(), &arguments)
}

/// Neither a probe nor the evaluator's own numbers say anything of the run
/// without a fault, where they are to tell of one.
#[track_caller]
fn check_control(cases: &[Case], twin: &RunFolder) {
    if cases.iter().any(|case| case.shows == Shows::Probe) {
        let _ = probe(twin).expect_code(0);
    }
    if cases.iter().any(|case| case.fault == LEAKAGE) {
        let _ = twin.evaluator_command("val", &["--ledger", "run.db"]).expect_code(0);
    }
    let report = twin.report();
    assert_eq!(report["verdict"], "accepted", "{:#}", report["findings"]);
    assert!(found(&report).is_empty(), "{:#}", report["findings"]);
}

#[track_caller]
fn check(cases: &[Case]) {
    let variant = cases.first().expect("a case").variant;
    let (twin, expected) = twin(variant);
    let expected = identity(&twin, &expected);
    check_control(cases, &twin);
    for case in cases {
        let name = format!("{} {} step {}", case.fault, case.phase, case.step);
        // With detectors: seen, attributed, recovered.
        let run = frozen(variant, &plan(case), false);
        finish(&run);
        assert_eq!(count(&run, "fault.injected"), 1, "{name}: it fired");
        assert!(causes(&run).iter().all(|cause| cause == case.fault), "{name}: {:?}", causes(&run));
        assert!(!causes(&run).is_empty(), "{name}: the trainer saw it");
        let report = run.report();
        assert_eq!(report["verdict"], "accepted", "{name}: {:#}", report["findings"]);
        assert_eq!(identity(&run, &report), expected, "{name}: recovered to the twin's bits");

        // Without: the damage goes into the record.
        let run = frozen(variant, &plan(case), true);
        finish(&run);
        assert_eq!(count(&run, "fault.injected"), 1, "{name}: it fired");
        if case.fault == LEAKAGE {
            let _ = run.evaluator_command("val", &["--ledger", "run.db"]);
        }
        let report = run.report();
        match case.shows {
            Shows::Trainer => assert!(causes(&run).contains(&case.fault.to_owned()), "{name}"),
            Shows::Audit => {
                assert!(causes(&run).is_empty(), "{name}: nobody else looked");
                assert!(is_rejected(&report), "{name}: {report:#}");
                assert!(found(&report).contains(&case.fault), "{name}: {:#}", report["findings"]);
            }
            Shows::Probe => {
                assert!(causes(&run).is_empty(), "{name}: nobody else looked");
                assert!(!is_rejected(&report), "{name}: not a probe alone tells: {:#}", report["findings"]);
                let probed = probe(&run);
                assert!(matches!(probed.code, 0 | 1), "{name}: {probed}");
                assert!(probed.code == 1 || is_rejected(&run.report()), "{name}: {probed}");
            }
        }
        for cause in found(&report) {
            assert_eq!(cause, case.fault, "{name}: {:#}", report["findings"]);
        }
    }
}

#[test]
fn who_is_gone_and_what_cannot_be_read_is_seen_in_any_case() {
    let shows = Shows::Trainer;
    check(&[
        Case { shows, ..case("worker_loss", "after_backward", 7) },
        Case { shows, ..case("checkpoint_write_interruption", "renamed", 10) },
        Case { shows, ..case("single_shard_corruption", "staged", 5) },
    ]);
}

#[test]
fn a_moved_cursor_and_old_gradients_are_found_by_trainer_and_audit() {
    check(&[
        case("data_cursor_rewind", "before_forward", 7),
        case("data_cursor_skip", "before_forward", 12),
        case("stale_or_delayed_gradient", "before_exchange", 8),
    ]);
}

#[test]
fn lost_state_of_components_is_found_by_trainer_and_audit() {
    check(&[Case { variant: Variant::Stream, ..case("rng_state_loss", "before_forward", 7) }]);
    check(&[Case { variant: Variant::Plateau, ..case("scheduler_state_loss", "before_forward", 7) }]);
    check(&[Case { variant: Variant::Scaler, ..case("loss_scaler_loss", "before_forward", 9) }]);
}

#[test]
fn another_precision_is_found_by_the_trainer_and_by_a_probe() {
    check(&[Case { shows: Shows::Probe, ..case("precision_policy_change", "before_forward", 7) }]);
}

#[test]
fn leaks_into_the_selection_are_found_by_trainer_and_audit() {
    check(&[case(LEAKAGE, "evaluation", 10), case(LEAKAGE, "selection", LAST)]);
}
