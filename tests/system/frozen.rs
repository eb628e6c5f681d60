//! A run that freezes parameters, through every program: stored once, audited,
//! evaluated and handed off from two files, wherever its folder is copied to.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};
use system_tests::programs;
use system_tests::run_folder::{RunFolder, flip_byte};

const FROZEN: &str = "model-frozen.safetensors";
const INDEX: &str = "model.safetensors.index.json";

const PATTERNS: [&str; 2] = ["model.embed_tokens.weight", "*.mlp.*"];

fn trained() -> RunFolder {
    let run = RunFolder::tiny();
    run.freeze_parameters(&PATTERNS);
    let _ = run.freeze().expect_code(0);
    let _ = run.train().expect_code(0);
    run
}

/// Names of the checkpoints, in order.
fn checkpoints(run: &RunFolder) -> Vec<String> {
    let committed = run.entries().into_iter().filter(|entry| entry["kind"] == "checkpoint.durably_committed");
    committed.map(|entry| entry["body"]["obs"]["checkpoint"].as_str().expect("a name").to_owned()).collect()
}

fn status(report: &Value, code: &str) -> Value {
    let mut rules = report["rules"].as_array().into_iter().flatten();
    rules.find(|rule| rule["code"] == code).expect("the rule is in the report")["status"].clone()
}

fn accepted(report: &Value) {
    assert_eq!(report["verdict"], "accepted", "{:#}", report["findings"]);
    for code in ["GL110", "GL409", "GL604", "GL605", "GL613"] {
        assert_eq!(status(report, code), "passed", "{code}");
    }
}

fn is_one_file(run: &Path, names: &[String]) -> bool {
    let inode = |name: &String| {
        let path = run.join("checkpoints").join(name).join(FROZEN);
        std::fs::metadata(path).expect("a shard").ino()
    };
    names.iter().all(|name| inode(name) == inode(&names[0]))
}

#[test]
fn a_run_with_frozen_parameters_is_accepted_handed_off_and_qualified() {
    let run = trained();
    let names = checkpoints(&run);
    assert!(names.len() >= 3, "{names:?}");
    assert!(is_one_file(run.path(), &names), "they share one file");
    accepted(&run.report());

    // The evaluator builds the model from both files.
    let _ = run.evaluator_command("val", &["--ledger", "run.db"]).expect_code(0);
    let _ = run.audit(&["--save"]).expect_code(0);
    assert_eq!(run.report()["selection_basis"], "evaluator");
    let handed = run.ledger_command("handoff", &["--json"]).expect_code(0).json();
    let subjects = handed["subject"].as_array().expect("subjects");
    let mut files: Vec<&str> =
        subjects.iter().filter_map(|subject| subject["name"].as_str()?.rsplit('/').next()).collect();
    files.sort_unstable();
    assert_eq!(files, ["config.json", FROZEN, "model-trainable.safetensors", INDEX]);
    let handoff = ["--ledger", "run.db", "--handoff", "run.db.handoff.dsse.json"];
    let result = run.evaluator_command("qualify", &handoff).expect_code(0);
    assert!(!result.stdout.is_empty());
    accepted(&run.report());

    // Without one of the files nobody evaluates it.
    let copy = run.copy();
    let selected = subjects[0]["name"].as_str().and_then(|name| name.rsplit_once('/')).expect("a path").0;
    flip_byte(&copy.path().join(selected).join(FROZEN), 4000);
    let arguments = ["--ledger", "run.db", "--handoff", "run.db.handoff.dsse.json"];
    copy.evaluator_command("qualify", &arguments).expect_complaint(1, FROZEN, &["index"]);
}

#[test]
fn copies_of_the_folder_are_accepted_with_second_names_and_without() {
    let run = trained();
    let names = checkpoints(&run);
    let source = run.path().display().to_string();
    for (script, shares) in [
        ("cp -a \"$0/.\" \"$1\"", true),
        ("tar -C \"$0\" -cf - . | tar -C \"$1\" -xf -", true),
        ("cp -r \"$0/.\" \"$1\"", false),
    ] {
        let target = tempfile::tempdir().expect("a folder");
        let status = Command::new("sh").args(["-c", script, &source]).arg(target.path()).status();
        assert!(status.expect("sh runs").success(), "{script}");
        assert_eq!(is_one_file(target.path(), &names), shares, "{script}");
        let report =
            programs::run(programs::LEDGER, target.path(), &["audit", "run.db", "--output-format", "json"]);
        accepted(&report.expect_code(0).json());
    }
}

/// One damaged file is damage to every checkpoint that has it, and the audit
/// names each.
#[test]
fn a_flipped_byte_of_the_shared_file_is_found_in_every_checkpoint() {
    let run = trained();
    let names = checkpoints(&run);
    flip_byte(&run.path().join("checkpoints").join(&names[1]).join(FROZEN), 5000);
    let report = run.report();
    assert_eq!(report["verdict"], "tampered");
    for code in ["GL110", "GL409"] {
        let found: Vec<&Value> = report["findings"]
            .as_array()
            .expect("findings")
            .iter()
            .filter(|finding| finding["code"] == code && finding["severity"] == "error")
            .collect();
        for name in &names {
            let is_named = found.iter().any(|finding| {
                let location = finding["location"].as_str().unwrap_or_default();
                location.contains(name.as_str()) && location.contains(FROZEN)
            });
            assert!(is_named, "{code} says nothing of {name}: {found:#?}");
        }
    }
    // A copy of the file in its place is as good as the file.
    flip_byte(&run.path().join("checkpoints").join(&names[1]).join(FROZEN), 5000);
    accepted(&run.report());
}

#[test]
fn what_cannot_be_frozen_is_refused_with_what_there_is() {
    let run = RunFolder::tiny();
    run.freeze_parameters(&PATTERNS);
    let arguments = ["parameters", "--architecture", "architecture.json", "--card"];
    let contract: Value =
        serde_json::from_slice(&std::fs::read(run.contract()).expect("a contract")).expect("JSON");
    let card = contract["update"]["card"]["path"].as_str().expect("a path");
    let freeze = |pattern: &str| {
        let arguments = [&arguments[..], &[card, "--freeze", pattern]].concat();
        programs::run(programs::TRAINER, run.path(), &arguments)
    };
    freeze("model.embed.weight").expect_complaint(
        2,
        "--freeze",
        &["model.embed.weight", "lm_head.weight to model.norm.weight"],
    );
    freeze("*").expect_complaint(2, "--freeze", &["every parameter", "freeze fewer"]);
    let frozen = freeze("*.mlp.*").expect_code(0).json();
    let statuses: Vec<&Value> = frozen["parameters"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|parameter| &parameter["status"])
        .collect();
    assert!(statuses.contains(&&json!("frozen")) && statuses.contains(&&json!("trainable")));
}
