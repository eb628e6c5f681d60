//! The real runs that named mutations are made of, by the real programs.
//!
//! Each is the preset `tiny` with what some rule looks at: workers, f16, a
//! stream of masks, averages, frozen parameters, retirements, probes. Nothing is
//! copied from a fixture, so that what a mutation changes is what programs write.

use serde_json::{Value, json};

use crate::mutations::records::Origin;
use crate::programs::{self, TRAINER};
use crate::run_folder::RunFolder;
use crate::witnesses;

/// Starts of the trainer that a run with faults is given.
const MAX_STARTS: usize = 4;

/// Seeds of the statistical run's test.
const SEEDS: [&str; 4] = ["7", "11", "13", "18446744073709551615"];

/// One process, two val streams of which one decides the quality target, state
/// digests between checkpoints, and the evaluator's own numbers.
pub const VALUED: Origin = Origin { make: valued, name: "valued" };

/// Probed with its controls, and handed off.
pub const HANDED: Origin = Origin { make: handed, name: "handed" };

/// Killed by its own plan, and recovered by a person who says what they did.
pub const RECOVERED: Origin = Origin { make: recovered, name: "recovered" };

/// A moved cursor that the trainer saw; what was in doubt is quarantined.
pub const ROLLED_BACK: Origin = Origin { make: rolled_back, name: "rolled-back" };

/// Plateaus, a shuffle buffer, a stream of masks, and averages.
pub const STATEFUL: Origin = Origin { make: || of(stateful), name: "stateful" };

/// Binary16 with a loss scaler, saved inside of accumulation windows.
pub const HALF: Origin = Origin { make: || of(half), name: "half" };

/// Two workers with streams of masks.
pub const WORKERS: Origin = Origin { make: workers, name: "workers" };

/// Some parameters frozen.
pub const FROZEN: Origin = Origin { make: frozen, name: "frozen" };

/// Checkpoints retired; and a plateau that never falls.
pub const RETIRED: Origin = Origin { make: || of(retired), name: "retired" };

/// A tree over the tensors of every checkpoint.
pub const TREE: Origin =
    Origin { make: || of(|contract| contract["state_tree"] = json!({"scheme": "tensors/1"})), name: "tree" };

/// Ended by patience; its last state is the only candidate.
pub const PATIENT: Origin = Origin { make: || of(patient), name: "patient" };

/// A statistical claim, probed.
pub const STATISTICAL: Origin = Origin { make: statistical, name: "statistical" };

/// Weights of another run.
pub const WARM: Origin = Origin { make: warm, name: "warm" };

/// Seen by a witness of its contract before its first step and behind its end.
pub const WITNESSED: Origin = Origin { make: witnessed, name: "witnessed" };

/// A run of one attempt under the contract of the preset `tiny`, changed.
fn of(edit: fn(&mut Value)) -> RunFolder {
    let run = RunFolder::tiny();
    run.edit_contract(edit);
    let _ = run.freeze().expect_code(0);
    let _ = run.train().expect_code(0);
    run
}

fn valued() -> RunFolder {
    let run = of(|contract| {
        contract["state_digest_every_steps"] = json!(3);
        let mut stream = contract["evaluation"]["streams"][0].clone();
        stream["name"] = json!("target");
        stream["num_examples"] = json!(8);
        contract["evaluation"]["streams"].as_array_mut().expect("streams").push(stream);
        contract["quality_target"] =
            json!({"derivation": "any model that learnt something", "stream": "target", "threshold": 7.5});
    });
    let _ = run.evaluator_command("val", &["--ledger", "run.db"]).expect_code(0);
    run
}

/// The checkpoint of the selected candidate.
fn selected(run: &RunFolder) -> String {
    let entries = run.entries();
    let entry = entries.iter().find(|entry| entry["kind"] == "candidate.selected").expect("a selection");
    entry["body"]["obs"]["checkpoint"].as_str().expect("a name").to_owned()
}

fn probe(run: &RunFolder, further: &[&str]) {
    let checkpoint = selected(run);
    let fixed = ["probe", "--ledger", "run.db", "--quiet", "--checkpoint", &checkpoint];
    let arguments = [&fixed, further].concat();
    let _ = programs::run(TRAINER, run.path(), &arguments).expect_code(0);
}

fn handed() -> RunFolder {
    let run = of(|contract| {
        contract["checkpoints"]["candidate_stage"] = json!("resume_qualified");
    });
    probe(&run, &["--controls"]);
    let _ = run.ledger_command("handoff", &["--on-trainer-numbers"]).expect_code(0);
    // The validator's key signed report and handoff, and no attacker here has
    // it; the entry that speaks of them stays.
    for name in ["run.db.handoff.dsse.json", "run.db.report.dsse.json"] {
        std::fs::remove_file(run.path().join(name)).expect("`ledger handoff` wrote it");
    }
    run
}

fn planned(fault: &str, phase: &str, step: u64) -> Value {
    json!([{"fault": fault, "phase": phase, "seed": "7", "step": step, "worker": null}])
}

/// Starts the trainer until the run has ended; every start but the first says
/// what a person did before.
fn finish(run: &RunFolder) {
    let told =
        ["run", "--ledger", "run.db", "--intervention", "looked at the machine", "--operator-minutes", "5"];
    for start in 0..MAX_STARTS {
        let arguments = if start == 0 { &told[..3] } else { &told[..] };
        let finished = programs::run(TRAINER, run.path(), arguments);
        if finished.code == 0 {
            return;
        }
    }
    panic!("the run does not end: {:#?}", run.entries().last());
}

fn recovered() -> RunFolder {
    let run = RunFolder::tiny();
    run.edit_contract(|contract| contract["faults"]["plan"] = planned("worker_loss", "before_forward", 8));
    let _ = run.freeze().expect_code(0);
    finish(&run);
    run
}

fn rolled_back() -> RunFolder {
    let run = RunFolder::tiny();
    run.edit_contract(|contract| {
        contract["faults"]["recovery"] = json!("roll_back");
        contract["faults"]["plan"] = planned("data_cursor_rewind", "before_forward", 12);
    });
    let _ = run.freeze().expect_code(0);
    finish(&run);
    run
}

/// Declares state classes as captured.
fn capture(contract: &mut Value, classes: &[&str]) {
    for declared in contract["state_classes"].as_array_mut().expect("a list") {
        if classes.iter().any(|class| declared["class"] == *class) {
            declared["not_applicable"] = Value::Null;
        }
    }
}

fn stateful(contract: &mut Value) {
    contract["dropout_draws"] = json!({"scheme": "philox_stream/1"});
    contract["order"] = json!({"scheme": "shuffle_buffer/1", "size": 7});
    contract["averages"] = json!({"decay": 0.9, "first_step": 3, "order": "after_update"});
    // The rule on averages follows them from one saved step to the next.
    contract["checkpoints"]["every_steps"] = json!(1);
    contract["budget"]["max_steps"] = json!(8);
    contract["stopping"]["step"] = json!(8);
    contract["evaluation"]["streams"][0]["every_steps"] = json!(2);
    let mut stream = contract["evaluation"]["streams"][0].clone();
    let name = stream["name"].clone();
    (stream["name"], stream["view"]) = (json!("averaged"), json!("averages"));
    contract["evaluation"]["streams"].as_array_mut().expect("a list").push(stream);
    for schedule in contract["schedule"].as_array_mut().expect("a list") {
        schedule["shape"] = json!({
            "kind": "plateau", "cooldown": 1, "factor": 0.5, "floor": 0.00001, "min_delta": 0.2,
            "patience": 0, "rate": 0.003, "stream": name
        });
    }
    capture(contract, &["scheduler", "rng_cpu", "sampler"]);
    let classes = contract["state_classes"].as_array_mut().expect("a list");
    let at = classes.iter().position(|declared| declared["class"] == "accumulated_gradients");
    classes.insert(at.expect("declared"), json!({"class": "averages", "not_applicable": null}));
}

fn half(contract: &mut Value) {
    let count = contract["batch"]["global_examples"].as_u64().expect("a count");
    contract["batch"]["accumulation"] = json!(count);
    contract["batch"]["microbatch_examples"] = json!(1);
    contract["checkpoints"]["mid_accumulation"] = json!("save_gradients");
    contract["checkpoints"]["after_microbatches"] = json!(count - 1);
    contract["numerics"]["compute_dtype"] = json!("f16");
    // So large that the first steps overflow and are skipped.
    contract["numerics"]["loss_scaler"] =
        json!({"backoff": 0.5, "growth": 2, "growth_interval": 3, "initial": 16_777_216});
    capture(contract, &["loss_scaler", "accumulated_gradients"]);
}

fn workers() -> RunFolder {
    let run = RunFolder::by_workers(2, &[]);
    run.edit_contract(|contract| {
        contract["dropout_draws"] = json!({"scheme": "philox_stream/1"});
        contract["topology"]["collective"]["replica_digest_every_steps"] = json!(5);
        capture(contract, &["rng_cpu"]);
    });
    let _ = run.freeze().expect_code(0);
    let _ = run.train().expect_code(0);
    run
}

fn frozen() -> RunFolder {
    let run = RunFolder::tiny();
    run.freeze_parameters(&["model.embed_tokens.weight", "*.mlp.*"]);
    let _ = run.freeze().expect_code(0);
    let _ = run.train().expect_code(0);
    run
}

fn retired(contract: &mut Value) {
    contract["checkpoints"]["keep"] =
        json!({"kind": "chosen", "best": 1, "every_steps": null, "last": 1, "pinned": []});
    // It would fall, and does not: every evaluation improves.
    contract["schedule"][2]["shape"] = json!({
        "kind": "plateau", "cooldown": 0, "factor": 0.5, "floor": 0.00001, "min_delta": 0.0, "patience": 1,
        "rate": 0.003, "stream": "val"
    });
    capture(contract, &["scheduler"]);
}

fn patient(contract: &mut Value) {
    contract["selection"]["family"] = json!("final_only");
    contract["stopping"] =
        json!({"kind": "patience", "max_step": 20, "min_delta": 5.0, "patience": 3, "stream": "val"});
}

fn statistical() -> RunFolder {
    let run = of(|contract| {
        contract["resume"] = json!({
            "class": "statistical",
            "test": {
                "alpha": 0.05, "margin": 0.0001, "metric": "training_loss", "num_steps": 3,
                "seeds": SEEDS, "varies": ["data_order", "dropout"],
            },
            "tolerance": null,
        });
    });
    probe(&run, &[]);
    run
}

fn warm() -> RunFolder {
    let source = of(|_| {});
    let run = RunFolder::tiny();
    let (ledger, checkpoint) = (source.ledger().display().to_string(), selected(&source));
    let arguments =
        ["init-from", "--ledger", &ledger, "--checkpoint", &checkpoint, "--contract", "contract.json"];
    let _ = programs::run(TRAINER, run.path(), &arguments).expect_code(0);
    let _ = run.freeze().expect_code(0);
    let _ = run.train().expect_code(0);
    run
}

fn witnessed() -> RunFolder {
    // What the witness said lies beside the ledger; it need not serve any longer.
    let (run, _) = witnesses::trained().expect("the witness serves");
    run
}
