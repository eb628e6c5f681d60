//! Values that contradict each other, promise nothing, or cannot be executed.

use ledger::keys::{KeyPair, Role};
use schemas::digest::Digest;
use serde_json::{Value, json};

use crate::fixture::{Fixture, lines, problems};

/// Changes one value; exactly the expected problems must follow.
#[track_caller]
fn check(pointer: &str, value: Value, expected: &[&str]) {
    check_all(&[(pointer, value)], expected);
}

#[track_caller]
fn check_all(changes: &[(&str, Value)], expected: &[&str]) {
    let mut fixture = Fixture::new();
    for (pointer, value) in changes {
        fixture.set(pointer, value.clone());
    }
    let found = lines(fixture.check());
    let found: Vec<&str> =
        found.iter().map(|line| line.strip_prefix("contract.json ").unwrap_or(line)).collect();
    assert_eq!(found, expected);
}

/// Only the pointers, where the message is a range.
#[track_caller]
pub(crate) fn check_pointers(changes: &[(&str, Value)], expected: &[&str]) {
    let mut fixture = Fixture::new();
    for (pointer, value) in changes {
        fixture.set(pointer, value.clone());
    }
    let found = lines(fixture.check());
    let found: Vec<&str> = found.iter().filter_map(|line| line.split([' ', ':']).nth(1)).collect();
    assert_eq!(found, expected);
}

#[test]
fn architecture() {
    check(
        "/architecture/num_kv_heads",
        json!(3),
        &["/architecture/num_kv_heads: is 3, which does not divide num_heads = 2"],
    );
    check(
        "/architecture/vocab_size",
        json!(257),
        &[
            "/architecture/vocab_size: is 257; expected 256",
            "parameters.json /parameters/0/shape: model.embed_tokens.weight: is [256, 8]; expected [257, 8]",
        ],
    );
    check(
        "/architecture/dropout",
        json!(1),
        &["/architecture/dropout: is 1.0; expected at least 0.0 and below 1.0"],
    );
    check(
        "/architecture/dropout",
        json!(-0.5),
        &["/architecture/dropout: is -0.5; expected at least 0.0 and below 1.0"],
    );
    check_pointers(&[("/architecture/rope_theta", json!(0))], &["/architecture/rope_theta"]);
    check_pointers(&[("/architecture/rms_norm_eps", json!(-1e-5))], &["/architecture/rms_norm_eps"]);
    check_pointers(&[("/architecture/hidden_size", json!(0))], &["/architecture/hidden_size"]);
    check_pointers(&[("/architecture/num_layers", json!(5000))], &["/architecture/num_layers"]);
    let mut fixture = Fixture::new();
    fixture.set("/architecture/head_dim", json!(5));
    assert_eq!(
        lines(fixture.check())[0],
        "contract.json /architecture/head_dim: is 5; expected an even number"
    );
    let mut fixture = Fixture::new();
    fixture.set("/architecture/context_length", json!(0));
    assert!(
        lines(fixture.check())
            .contains(&"contract.json /architecture/context_length: is 0; expected at least 1".to_owned())
    );
}

#[test]
fn batch_and_topology() {
    check(
        "/batch/global_examples",
        json!(8),
        &[
            "/batch/global_examples: is 8; expected 4 = microbatch_examples 2 x accumulation 2 x data_parallel 1",
        ],
    );
    check_all(
        &[("/batch/data_parallel", json!(2)), ("/batch/global_examples", json!(8))],
        &["/batch/data_parallel: is 2; expected 1, the value of /topology/workers"],
    );
    check_pointers(
        &[("/batch/microbatch_examples", json!(0))],
        &["/batch/microbatch_examples", "/batch/global_examples"],
    );
    check_pointers(&[("/topology/learners", json!(0))], &["/topology/learners"]);
    check("/topology/learners", json!(2), &["/topology/learners: is 2; expected 1"]);
    check_pointers(
        &[
            ("/topology/workers", json!(2)),
            ("/batch/data_parallel", json!(2)),
            ("/batch/accumulation", json!(1)),
        ],
        // The card is one worker's, and nothing says how two exchange.
        &["/distribution/communication", "/topology/collective", "/expected/communication_bytes_per_step"],
    );
    check_pointers(
        &[("/topology/permitted_rewrites", json!(["thread_count", "thread_count"]))],
        &["/topology/permitted_rewrites"],
    );
}

#[test]
fn stopping_rules_that_never_fire() {
    check("/stopping/step", json!(0), &["/stopping/step: is 0: the rule fires before the first update"]);
    check(
        "/stopping/step",
        json!(21),
        &["/stopping/step: is 21, beyond /budget/max_steps = 20: the rule never fires"],
    );
    let patience = |max_step: u64, min_delta: f64, patience: u64, stream: &str| json!({"kind": "patience", "max_step": max_step, "min_delta": min_delta, "patience": patience, "stream": stream});
    let needs =
        "/state_classes: selection_state is not captured, and stopping by patience counts evaluations";
    check(
        "/stopping",
        patience(20, 1e300, 2, "val"),
        &["/stopping/min_delta: is 1e300; expected at least 0.0 and below 8.0", needs],
    );
    check(
        "/stopping",
        patience(20, -0.1, 2, "val"),
        &["/stopping/min_delta: is -0.1; expected at least 0.0 and below 8.0", needs],
    );
    check(
        "/stopping",
        patience(20, 0.1, 5, "val"),
        &["/stopping/patience: is 5 evaluations of 5 steps, which do not fit before max_step = 20", needs],
    );
    check(
        "/stopping",
        patience(30, 0.1, 0, "test"),
        &[
            "/stopping/max_step: is 30, beyond /budget/max_steps = 20: the rule never fires",
            "/stopping/patience: is 0; expected at least 1",
            "/stopping/stream: \"test\" is no stream; there are [\"val\"]",
            needs,
        ],
    );
}

#[test]
fn budgets_that_end_before_the_rule() {
    check_pointers(
        &[("/budget/max_attempts", json!(0)), ("/budget/max_wall_s", json!(0))],
        &["/budget/max_attempts", "/budget/max_wall_s"],
    );
    check_pointers(&[("/budget/max_steps", json!(0))], &["/budget/max_steps", "/stopping/step"]);
    // 19 steps of 4 examples are 4 epochs of 18 with 77 + 57 targets, and 4 more.
    check(
        "/budget/max_tokens",
        json!(540),
        &["/budget/max_tokens: is 540, and step 20 is reached after at least 540"],
    );
    let mut fixture = Fixture::new();
    fixture.set("/budget/max_tokens", json!(541));
    fixture.check().expect("it may be reached");
}

#[test]
fn rates() {
    check(
        "/schedule/0/group",
        json!("heads"),
        &[
            "/schedule/0/group: \"heads\" is no group of the policy card",
            "/schedule: has no rate for group \"matrices\" of the policy card",
        ],
    );
    check(
        "/schedule/2/group",
        json!("matrices"),
        &[
            "/schedule/2/group: \"matrices\" is scheduled twice",
            "/schedule: has no rate for group \"vectors\" of the policy card",
        ],
    );
    check_pointers(
        &[("/schedule/0/shape", json!({"kind": "constant", "rate": 0}))],
        &["/schedule/0/shape/rate"],
    );
    check_pointers(
        &[("/schedule/0/shape/peak", json!(-1))],
        &["/schedule/0/shape/peak", "/schedule/0/shape/floor"],
    );
    check_pointers(&[("/schedule/0/shape/floor", json!(1))], &["/schedule/0/shape/floor"]);
    check_pointers(&[("/schedule/0/shape/warmup_steps", json!(20))], &["/schedule/0/shape/warmup_steps"]);
}

#[test]
fn evaluation_and_selection() {
    check(
        "/evaluation/streams",
        json!([]),
        &[
            "/evaluation/streams: is empty",
            "/selection/stream: \"val\" is no stream; there are []",
            "/quality_target/stream: \"val\" is no stream; there are []",
        ],
    );
    check(
        "/evaluation/streams/0/split",
        json!("train"),
        &[
            "/selection/stream: \"val\" is measured on the train split; expected val",
            "/quality_target/stream: \"val\" is measured on the train split; expected val",
        ],
    );
    check(
        "/evaluation/streams/0/split",
        json!("qualification"),
        &[
            "/evaluation/streams/0/split: is \"qualification\"; expected \"val\" or \"train\"",
            "/selection/stream: \"val\" is measured on the qualification split; expected val",
            "/quality_target/stream: \"val\" is measured on the qualification split; expected val",
        ],
    );
    check(
        "/selection/stream",
        json!("test"),
        &["/selection/stream: \"test\" is no stream; there are [\"val\"]"],
    );
    check_pointers(
        &[("/evaluation/streams/0/every_steps", json!(0))],
        &["/evaluation/streams/0/every_steps"],
    );
    check_pointers(
        &[("/evaluation/streams/0/direction", json!("maximize"))],
        &["/evaluation/streams/0/direction"],
    );
    check(
        "/evaluation/streams/0/view",
        json!("averages"),
        &[
            "/evaluation/streams/0/view: is \"averages\", and the contract keeps none",
            "/selection/stream: \"val\" is measured on averaged parameters, and a candidate is the model shard",
            "/quality_target/stream: \"val\" is measured on averaged parameters, and a candidate is the model shard",
        ],
    );
    check(
        "/evaluation/streams/0/num_examples",
        json!(8),
        &["/evaluation/streams/0/num_examples: is 8; the val split has 7"],
    );
    check_pointers(
        &[("/evaluation/streams/0/num_examples", json!(0))],
        &["/evaluation/streams/0/num_examples"],
    );
    let second = json!({
        "direction": "minimize", "every_steps": 5, "metric": "bits_per_byte", "name": "val", "num_examples": null,
        "split": "train", "view": "current"
    });
    let mut fixture = Fixture::new();
    fixture.contract["evaluation"]["streams"].as_array_mut().expect("a list").push(second);
    assert_eq!(
        lines(fixture.check()),
        ["contract.json /evaluation/streams/1/name: \"val\" is the name of an earlier stream"]
    );
    check(
        "/evaluation/streams/0/every_steps",
        json!(7),
        &["/selection/family: checkpoints come every 5 steps and \"val\" every 7: they hardly ever meet"],
    );
    let mut fixture = Fixture::new();
    fixture.set("/evaluation/streams/0/every_steps", json!(10));
    fixture.check().expect("a multiple is fine");
}

#[test]
fn quality_targets_that_cannot_be_missed() {
    check(
        "/quality_target/threshold",
        json!(8),
        &[
            "/quality_target/threshold: is 8; expected above 0 and below 8, which a model that knows nothing reaches",
        ],
    );
    check_pointers(&[("/quality_target/threshold", json!(0))], &["/quality_target/threshold"]);
    check_pointers(&[("/quality_target/derivation", json!(""))], &["/quality_target/derivation"]);
    check_pointers(&[("/quality_target/stream", json!("test"))], &["/quality_target/stream"]);
    let slow = json!({
        "direction": "minimize", "every_steps": 3, "metric": "bits_per_byte", "name": "slow", "num_examples": null,
        "split": "val", "view": "current"
    });
    let mut fixture = Fixture::new();
    fixture.contract["evaluation"]["streams"].as_array_mut().expect("a list").push(slow);
    fixture.set("/quality_target/stream", json!("slow"));
    assert_eq!(
        lines(fixture.check()),
        [
            "contract.json /quality_target/stream: \"slow\" has no value at every candidate's step (every 5 steps)"
        ]
    );
    let mut fixture = Fixture::new();
    fixture.set("/quality_target", Value::Null);
    fixture.check().expect("no target is claimed");
}

#[test]
fn checkpoints_that_this_edition_cannot_keep() {
    check_pointers(
        &[
            ("/checkpoints/every_steps", json!(0)),
            ("/checkpoints/candidate_stage", json!("durably_committed")),
            ("/checkpoints/store", json!("s3://name:secret@bucket/run")),
            ("/checkpoints/after_microbatches", json!(1)),
        ],
        &[
            "/checkpoints/every_steps",
            "/checkpoints/candidate_stage",
            "/checkpoints/after_microbatches",
            "/checkpoints/store",
        ],
    );
    check_pointers(&[("/checkpoints/candidate_stage", json!("staged"))], &["/checkpoints/candidate_stage"]);
    let urls = ["file:///var/store", "gs://bucket", "s3://", "s3://bucket/run?region=x", "s3://bucket/run/"];
    for store in ["/var/store", "../store", "", "."].into_iter().chain(urls) {
        check_pointers(&[("/checkpoints/store", json!(store))], &["/checkpoints/store"]);
    }
    check_pointers(&[("/checkpoints/store", json!("data"))], &["/checkpoints/store"; 3]);
    let mut fixture = Fixture::new();
    fixture.set("/checkpoints/store", json!("s3://bucket/team/runs"));
    fixture.check().expect("a bucket and a prefix");
}

#[test]
fn resume_tolerances_that_nothing_exceeds() {
    let bounded = |absolute: f64, relative: f64| json!({"class": "operation_order_bounded", "tolerance": {"max_absolute": absolute, "max_relative": relative}});
    check(
        "/resume/tolerance",
        json!({"max_absolute": 0, "max_relative": 0}),
        &["/resume/tolerance: is given, and the class is bitwise"],
    );
    check(
        "/resume",
        json!({"class": "operation_order_bounded", "tolerance": null}),
        &["/resume/tolerance: is null, and the class is operation_order_bounded"],
    );
    check(
        "/resume",
        bounded(1e-6, 1.0),
        &[
            "/resume/tolerance/max_relative: is 1.0; expected at least 0 and below 1.0: a bound that nothing exceeds is vacuous",
        ],
    );
    check_pointers(&[("/resume", bounded(1e300, 1e-6))], &["/resume/tolerance/max_absolute"]);
    check_pointers(&[("/resume", bounded(-1e-6, 1e-6))], &["/resume/tolerance/max_absolute"]);
    check("/resume", bounded(0.0, 0.0), &["/resume/tolerance: both bounds are 0, which is equality"]);
    check(
        "/numerics/determinism",
        json!("operation_order_bounded"),
        &["/resume/class: Bitwise is a stronger claim than /numerics/determinism, OperationOrderBounded"],
    );
}

#[test]
fn numerics_and_plan() {
    let mut half = Fixture::new();
    half.set("/numerics/compute_dtype", json!("bf16"));
    half.check().expect("matrix products in bfloat16 are executed on the CPU");
    check_pointers(&[("/numerics/compute_dtype", json!("f16"))], &["/numerics/loss_scaler"]);
    check_pointers(&[("/numerics/parameter_dtype", json!("f16"))], &["/numerics/parameter_dtype"]);
    check_pointers(&[("/numerics/accumulation_dtype", json!("bf16"))], &["/numerics/accumulation_dtype"]);
    let scaler = json!({"backoff": 0.5, "growth": 2, "growth_interval": 2000, "initial": 65536});
    check_pointers(
        &[("/numerics/loss_scaler", scaler)],
        &["/numerics/loss_scaler", "/state_classes/5/not_applicable"],
    );
    let scaler = json!({"backoff": 1, "growth": 0.5, "growth_interval": 0, "initial": 0});
    check_pointers(
        &[
            ("/numerics/loss_scaler", scaler),
            ("/numerics/compute_dtype", json!("f16")),
            ("/state_classes/5/not_applicable", Value::Null),
        ],
        &[
            "/numerics/loss_scaler/growth_interval",
            "/numerics/loss_scaler/backoff",
            "/numerics/loss_scaler/growth",
            "/numerics/loss_scaler/initial",
        ],
    );
    let scaler = json!({"backoff": 0.5, "growth": 3, "growth_interval": 1, "initial": 65536});
    check_pointers(
        &[
            ("/numerics/loss_scaler", scaler),
            ("/numerics/compute_dtype", json!("f16")),
            ("/state_classes/5/not_applicable", Value::Null),
        ],
        &["/numerics/loss_scaler/growth"],
    );
    check(
        "/plan/autotune",
        json!(true),
        &["/plan/autotune: is true, and /numerics/determinism claims the same bits"],
    );
    check_pointers(&[("/plan/cpu_features", json!(["fma", "avx"]))], &["/plan/cpu_features"]);
    check_pointers(&[("/plan/backend", json!(""))], &["/plan/backend"]);
    check_pointers(&[("/code/features", json!(["flex", "flex"]))], &["/code/features"]);
    check_pointers(&[("/code/digest", json!(format!("blake3:{}", "00".repeat(32))))], &["/code/digest"]);
    check_pointers(&[("/environment/rustc", json!(""))], &["/environment/rustc"]);
    check(
        "/expected/memory_bytes",
        json!(1000),
        &["/expected/memory_bytes: is 1000; parameters, gradients and moments alone take 51840"],
    );
}

#[test]
fn what_the_trainer_of_this_edition_does_not_do() {
    check(
        "/credit",
        json!({"rule": "evolution", "antithetic": true, "population": 8, "rank": null}),
        &["/credit/rule: is \"evolution\"; expected \"backpropagation\""],
    );
    check_pointers(&[("/floors/free_disk_bytes", json!(1_u64 << 51))], &["/floors/free_disk_bytes"]);
    check_pointers(&[("/floors/free_memory_bytes", json!(1_u64 << 51))], &["/floors/free_memory_bytes"]);
    check_pointers(&[("/durability/max_unsynced_ms", json!(0))], &["/durability/max_unsynced_ms"]);
    check_pointers(
        &[("/durability/max_unsynced_steps", json!(1_000_000))],
        &["/durability/max_unsynced_steps"],
    );
    check_pointers(&[("/state_digest_every_steps", json!(0))], &["/state_digest_every_steps"]);
}

#[test]
fn state_classes() {
    let mut fixture = Fixture::new();
    fixture.contract["state_classes"].as_array_mut().expect("a list").remove(6);
    assert_eq!(lines(fixture.check()), ["contract.json /state_classes: does not account for data_cursor"]);
    let mut fixture = Fixture::new();
    fixture.contract["state_classes"].as_array_mut().expect("a list").swap(0, 1);
    assert_eq!(
        lines(fixture.check()),
        ["contract.json /state_classes/1/class: model does not belong after optimizer"]
    );
    check(
        "/state_classes/0/not_applicable",
        json!("function_of_step"),
        &["/state_classes/0/not_applicable: model cannot be left out for this reason"],
    );
    check(
        "/state_classes/3/not_applicable",
        json!("no_loss_scaling"),
        &["/state_classes/3/not_applicable: rng_cpu cannot be left out for this reason"],
    );
    check(
        "/state_classes/3/not_applicable",
        Value::Null,
        &[
            "/state_classes/3/not_applicable: rng_cpu is declared captured, and the trainer of this edition has no such state",
        ],
    );
    check(
        "/state_classes/10",
        json!({"class": "averages", "not_applicable": null}),
        &[
            "/state_classes/10/not_applicable: averages is declared captured, and the trainer of this edition has no such state",
        ],
    );
    check(
        "/checkpoints/mid_accumulation",
        json!("save_gradients"),
        &["/state_classes/10/not_applicable: accumulated_gradients: the reason is not true of this contract"],
    );
}

#[test]
fn authority_and_claims() {
    check(
        "/purpose/authority/expires",
        json!("2026-11-28"),
        &["/purpose/authority/expires: ended on 2026-11-28; today is 2026-11-29"],
    );
    check(
        "/data/expires",
        json!("2026-02-30"),
        &["/data/expires: \"2026-02-30\" is no day; expected YYYY-MM-DD"],
    );
    let mut fixture = Fixture::new();
    fixture.set("/purpose/authority/expires", json!("2026-11-29")).set("/data/expires", Value::Null);
    fixture.check().expect("the last day counts");
    check_pointers(
        &[
            ("/purpose/authority/non_authorities", json!([])),
            ("/nonclaims", json!(["", "x"])),
            ("/residuals/0/owner", json!(" ")),
            ("/retention/days", json!(0)),
            ("/data/terms", json!("")),
            ("/data/admitted_license_classes", json!([])),
        ],
        &[
            "/purpose/authority/non_authorities",
            "/nonclaims/0",
            "/residuals/0/owner",
            "/retention/days",
            "/data/terms",
            "/data/admitted_license_classes",
            "/shards/0/license_class",
            "/shards/1/license_class",
            "/shards/2/license_class",
        ],
    );
    check_pointers(&[("/nonclaims", json!([]))], &["/nonclaims"]);
    check("/ruleset/edition", json!("2027.1"), &["/ruleset/edition: is \"2027.1\"; expected \"2026.1\""]);
    let extension = |critical: bool| json!({"critical": critical, "name": "org.example.x", "schema_digest": format!("sha256:{}", "00".repeat(32)), "value": {}});
    check(
        "/extensions",
        json!([extension(true)]),
        &["/extensions/0: \"org.example.x\" is critical and not known to this version"],
    );
    check_pointers(&[("/extensions", json!([extension(false), extension(false)]))], &["/extensions/1/name"]);
}

#[test]
fn witnesses_that_could_not_be_asked() {
    let hint = |pointer: &str, value: &Value| {
        let mut fixture = Fixture::new();
        fixture.set(pointer, value.clone());
        let found = problems(fixture.check());
        assert_eq!(found.len(), 1, "{found:?}");
        found[0].hint.clone()
    };
    assert!(hint("/keys/witness_quorum", &json!(1)).contains("`ledger witness add`"));
    check("/keys/witness_quorum", json!(1), &["/keys/witness_quorum: is 1; 0 witnesses are named"]);
    let public = |seed| KeyPair::from_seed(Role::Witness, &[seed; 32], Digest::sha256([0; 32])).public_hex();
    let witness = json!([{"name": "w", "public": public(9)}]);
    check_all(
        &[("/keys/witnesses", witness.clone()), ("/keys/witness_quorum", json!(2))],
        &["/keys/witness_quorum: is 2; 1 witnesses are named"],
    );
    check(
        "/keys/witnesses",
        witness.clone(),
        &["/keys/witness_quorum: is 0 although witnesses are named: nothing would be asked of them"],
    );
    let named = json!([{"name": "a b", "public": public(9)}, {"name": "a b", "public": public(8)}]);
    check_all(
        &[("/keys/witnesses", named), ("/keys/witness_quorum", json!(1))],
        &[
            "/keys/witnesses/0/name: \"a b\" is no name of a key",
            "/keys/witnesses/1/name: \"a b\" is no name of a key",
            "/keys/witnesses/1/name: \"a b\" is the name of an earlier witness",
        ],
    );
    // A contract that can be kept is frozen.
    let mut fixture = Fixture::new();
    fixture.set("/keys/witnesses", witness).set("/keys/witness_quorum", json!(1));
    assert!(fixture.check().is_ok());
}

#[test]
fn keys_that_cannot_check_each_other() {
    let mut fixture = Fixture::new();
    let trainer = fixture.contract["keys"]["trainer"].clone();
    fixture.set("/keys/qualifier", trainer.clone()).set("/keys/validator", trainer);
    assert_eq!(
        lines(fixture.check()),
        [
            "contract.json /keys/validator/public: is the key of trainer too",
            "contract.json /keys/qualifier/public: is the key of validator too",
        ]
    );
    check("/keys/owner/public", json!("AB"), &["/keys/owner/public: \"AB\" is not 64 lower-case hex digits"]);
    // y = 2 is no point; y = 1 is the neutral element.
    check(
        "/keys/owner/public",
        json!(format!("02{}", "00".repeat(31))),
        &["/keys/owner/public: is no point of the curve"],
    );
    check(
        "/keys/owner/public",
        json!(format!("01{}", "00".repeat(31))),
        &["/keys/owner/public: is a key of small order, which verifies forgeries"],
    );
    check_pointers(&[("/keys/qualifier_recipient", json!("age1short"))], &["/keys/qualifier_recipient"]);
    let mut fixture = Fixture::new();
    let owner = fixture.contract["keys"]["owner"]["public"].clone();
    fixture.set("/keys/witnesses", json!([{"name": "w", "public": owner}]));
    assert_eq!(
        lines(fixture.check()),
        [
            "contract.json /keys/witnesses/0/public: is the key of owner too",
            "contract.json /keys/witness_quorum: is 0 although witnesses are named: nothing would be asked of them",
        ]
    );
}
