//! The quality target of a competence run, derived by a program that shares no
//! code with the one that wrote it. An audit only compares with the threshold,
//! so an easy one would be accepted, and met.

use std::path::Path;
use std::process::{Command, Stdio};

use system_tests::programs::{self, Finished, LEDGER};
use system_tests::run_folder::{RunFolder, flip_byte};
use system_tests::workspace_root;
use tempfile::TempDir;

/// Runs one of `scripts/` on a folder.
fn script(name: &str, folder: &Path) -> Finished {
    let mut command = Command::new("python3");
    command.arg(workspace_root().join("scripts").join(name)).arg(folder).stdin(Stdio::null());
    programs::finish(command)
}

/// A tiny contract whose target is the score of the 3-gram model.
fn with_baseline() -> TempDir {
    let folder = TempDir::with_prefix("governed-ledger-").expect("a temporary folder");
    let output = folder.path().to_string_lossy().into_owned();
    let arguments = ["init", "--lipsum", "--preset", "tiny", "--baseline", "--output", &output];
    let _ = programs::run(LEDGER, folder.path(), &arguments).expect_code(0);
    folder
}

fn freeze(folder: &Path) {
    let _ = programs::run(LEDGER, folder, &["freeze", "contract.json"]).expect_code(0);
}

#[test]
fn the_target_of_init_is_derived_from_the_frozen_shards() {
    let folder = with_baseline();
    freeze(folder.path());
    let finished = script("quality-target", folder.path()).expect_code(0);
    let numbers: Vec<f64> = finished
        .stdout
        .lines()
        .filter_map(|line| line.split_once(": "))
        .filter_map(|(_, value)| value.split_whitespace().next()?.parse().ok())
        .collect();
    let [score, threshold] = numbers[..] else { panic!("two numbers were to be printed\n{finished}") };
    assert!((1.0..8.0).contains(&score) && (score - threshold).abs() < 1e-9 * score, "{finished}");

    // Of a text that changed nothing is said; where it is restored all is well.
    let shard = folder.path().join("data/shards/train-000.txt");
    flip_byte(&shard, 100);
    script("quality-target", folder.path()).expect_code(1).expect_message(&["train-000.txt", "was frozen"]);
    flip_byte(&shard, 100);
    let _ = script("quality-target", folder.path()).expect_code(0);
}

#[test]
fn a_run_without_a_target_has_none_that_is_derived() {
    let run = RunFolder::frozen();
    script("quality-target", run.path()).expect_code(1).expect_message(&["no quality target"]);
    let empty = TempDir::with_prefix("governed-ledger-").expect("a temporary folder");
    script("quality-target", empty.path())
        .expect_code(2)
        .expect_message(&["run.db", "hint: name the folder"]);
}

/// A threshold that any model meets, under the derivation that `init` wrote:
/// freeze and audit take it, and the summary does not.
#[test]
fn an_easy_target_is_met_and_counts_for_nothing() {
    let run = RunFolder::tiny();
    let derivation = "Interpolated byte 3-gram model (Witten-Bell) fitted on the train split.";
    run.edit_contract(|contract| {
        contract["quality_target"] =
            serde_json::json!({"derivation": derivation, "stream": "val", "threshold": 7.9});
    });
    let _ = run.freeze().expect_code(0);
    let _ = run.train().expect_code(0);
    let _ = run.evaluator_command("val", &["--ledger", "run.db"]).expect_code(0);
    let _ = run.audit(&["--save"]).expect_code(0);
    assert_eq!(run.report()["target_met"], true, "the audit compares with what was frozen");
    let _ = run.ledger_command("handoff", &[]).expect_code(0);
    let handoff = ["--ledger", "run.db", "--handoff", "run.db.handoff.dsse.json"];
    let _ = run.evaluator_command("qualify", &handoff).expect_code(0);

    let finished = script("quality-target", run.path()).expect_code(1);
    assert!(finished.stdout.contains("7.9"), "{finished}");
    finished.expect_message(&["is not the score of the 3-gram model", "hint:"]);
    let finished = script("summarize-run", run.path()).expect_code(1);
    assert!(finished.stdout.contains("| target, as frozen | 7.9000 bits per byte |"), "{finished}");
    assert!(
        finished.stdout.contains("| target met | NO: it is not the score of the 3-gram model |"),
        "{finished}"
    );
    finished.expect_message(&["meeting it shows nothing"]);
}
