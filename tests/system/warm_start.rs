//! `trainer init-from`, from one run to another: prepared, frozen, trained,
//! audited, handed off; and what is refused on the way.

use std::path::Path;

use serde_json::Value;
use system_tests::programs::{Finished, TRAINER, run};
use system_tests::run_folder::RunFolder;

fn init_from(source: &RunFolder, checkpoint: &str, target: &Path, further: &[&str]) -> Finished {
    let ledger = source.ledger().to_string_lossy().into_owned();
    let fixed = ["init-from", "--ledger", &ledger, "--checkpoint", checkpoint, "--contract", "contract.json"];
    let arguments: Vec<&str> = fixed.into_iter().chain(further.iter().copied()).collect();
    run(TRAINER, target, &arguments)
}

/// Name and step of the last checkpoint.
fn last_checkpoint(source: &RunFolder) -> (String, u64) {
    let entries = source.entries();
    let entry = entries.iter().rfind(|entry| entry["kind"] == "checkpoint.validated").expect("a checkpoint");
    let name = entry["body"]["obs"]["checkpoint"].as_str().expect("a name").to_owned();
    (name, entry["step"].as_u64().expect("a step"))
}

fn file(run: &RunFolder, checkpoint: &str, name: &str) -> Vec<u8> {
    std::fs::read(run.path().join("checkpoints").join(checkpoint).join(name)).expect("saved")
}

fn status(report: &Value, code: &str) -> String {
    let mut rules = report["rules"].as_array().into_iter().flatten();
    let rule = rules.find(|rule| rule["code"] == code).expect("the rule is in the report");
    rule["status"].as_str().expect("a status").to_owned()
}

#[test]
fn a_run_takes_weights_over_and_says_from_where() {
    let source = RunFolder::trained();
    let (checkpoint, step) = last_checkpoint(&source);
    let target = RunFolder::tiny();
    // A candidate's name does as well.
    let prepared = init_from(&source, &format!("candidate-{checkpoint}"), target.path(), &["--json"]);
    let prepared = prepared.expect_code(0).json();
    assert_eq!(prepared["next"], "ledger freeze contract.json");
    let again = init_from(&source, &checkpoint, target.path(), &[]);
    again.expect_complaint(2, "contract.json", &["/initialization", "already"]);

    let _ = target.freeze().expect_code(0);
    let trained = target.train().expect_code(0);
    assert!(
        trained.stderr.contains(&format!("from weights of checkpoint {checkpoint} (step {step})")),
        "{trained}"
    );
    let model = file(&source, &checkpoint, "model.safetensors");
    assert!(file(&target, "s00000000-a1", "model.safetensors") == model, "step 0 is the source's checkpoint");
    assert!(file(&source, "s00000000-a1", "model.safetensors") != model, "which its own step 0 is not");
    let optimizer = |run: &RunFolder, name: &str| file(run, name, "optimizer.safetensors");
    assert!(
        optimizer(&target, "s00000000-a1") == optimizer(&source, "s00000000-a1"),
        "empty, as at any start"
    );

    let report = target.report();
    assert_eq!(report["verdict"], "accepted", "{report:#}");
    assert_eq!(status(&report, "GL646"), "passed");
    assert_eq!(status(&report, "GL408"), "not_applicable");
    let notes =
        report["findings"].as_array().into_iter().flatten().filter(|finding| finding["code"] == "GL646");
    assert_eq!(notes.count(), 1, "that the source is not looked at is said: {report:#}");
    let shown = target.ledger_command("show", &[]).expect_code(0);
    assert!(shown.stdout.contains("Where it starts") && shown.stdout.contains(&checkpoint), "{shown}");

    // What follows an accepted audit does not know the difference.
    let _ = target.evaluator_command("val", &["--ledger", "run.db"]).expect_code(0);
    let _ = target.audit(&["--save"]).expect_code(0);
    let _ = target.ledger_command("handoff", &[]).expect_code(0);

    // A byte of the weights, after all is over.
    let path = target.path().join(format!("initial-{checkpoint}.safetensors"));
    let mut bytes = std::fs::read(&path).expect("copied");
    *bytes.last_mut().expect("not empty") ^= 1;
    std::fs::write(&path, &bytes).expect("writable");
    let report = target.report();
    assert_eq!(status(&report, "GL646"), "failed", "{report:#}");
    std::fs::remove_file(&path).expect("there");
    let report = target.report();
    assert_eq!(status(&report, "GL646"), "not_evaluated", "{report:#}");
    assert_ne!(report["verdict"], "accepted");
}

#[test]
fn what_cannot_be_a_start_is_refused_by_name() {
    let source = RunFolder::trained();
    let (checkpoint, _) = last_checkpoint(&source);
    let target = RunFolder::tiny();
    init_from(&source, "s99999999-a1", target.path(), &[]).expect_complaint(2, "s99999999-a1", &["knows no"]);
    assert!(!std::fs::read_to_string(target.contract()).expect("there").contains("initialization\": {"));

    // Another architecture: names and shapes.
    target.edit_contract(|contract| contract["architecture"]["intermediate_size"] = 40.into());
    let refused = init_from(&source, &checkpoint, target.path(), &[]);
    refused.expect_complaint(2, "model.layers.0.mlp.down_proj.weight", &["another architecture", "[16, 40]"]);
    target.edit_contract(|contract| contract["architecture"]["tied_embeddings"] = false.into());
    let refused = init_from(&source, &checkpoint, target.path(), &[]);
    refused.expect_complaint(2, "lm_head.weight", &["is missing"]);
    assert!(
        std::fs::read_dir(target.path())
            .expect("a folder")
            .flatten()
            .all(|item| { !item.file_name().to_string_lossy().starts_with("initial-") }),
        "nothing was copied"
    );

    // A shard that is not what the source's ledger holds.
    let torn = source.copy();
    let path = torn.path().join("checkpoints").join(&checkpoint).join("model.safetensors");
    let mut bytes = std::fs::read(&path).expect("saved");
    *bytes.last_mut().expect("not empty") ^= 1;
    std::fs::write(&path, &bytes).expect("writable");
    let fresh = RunFolder::tiny();
    init_from(&torn, &checkpoint, fresh.path(), &[]).expect_complaint(
        2,
        "model.safetensors",
        &["expected", "found"],
    );

    // A contract that is changed behind the command's back.
    let _ = init_from(&source, &checkpoint, fresh.path(), &[]).expect_code(0);
    fresh.edit_contract(|contract| {
        contract["initialization"]["lineage"]["run"] = "somebody-else".into();
        contract["initialization"]["lineage"]["step"] = 7.into();
    });
    let refused = fresh.freeze().expect_code(1);
    assert!(refused.stderr.contains("/initialization/lineage/run"), "{refused}");
}
