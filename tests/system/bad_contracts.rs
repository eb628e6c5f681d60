//! Contracts that are not frozen: each refusal names file, place and remedy,
//! and leaves everything as it was.

use serde_json::{Value, json};
use system_tests::dump;
use system_tests::run_folder::RunFolder;

/// A contract that has something wrong with it: what was found, not a failure
/// to look.
const REFUSED: i32 = 1;

/// A ledger that is there already is not looked at, and not replaced.
const COULD_NOT_RUN: i32 = 2;

/// Freezes, and expects a refusal that says each of `words` and changes no file.
#[track_caller]
fn check_refused(run: &RunFolder, words: &[&str]) {
    let before = dump::files(run.path()).expect("the folder can be read");
    run.freeze().expect_complaint(REFUSED, "contract.json", words);
    let after = dump::files(run.path()).expect("the folder can be read");
    assert_eq!(before, after, "a refused freeze changed files");
    assert!(!run.ledger().exists());
}

/// The same for a change of the parsed contract.
#[track_caller]
fn check_edit(edit: impl FnOnce(&mut Value), words: &[&str]) {
    let run = RunFolder::tiny();
    run.edit_contract(edit);
    check_refused(&run, words);
}

/// The same for a change of the contract's text.
#[track_caller]
fn check_text(edit: impl FnOnce(String) -> String, words: &[&str]) {
    let run = RunFolder::tiny();
    // Written again, so that the text has one known form.
    run.edit_contract(|_| ());
    let text = std::fs::read_to_string(run.contract()).expect("a contract");
    let edited = edit(text.clone());
    assert_ne!(text, edited, "the edit found its place");
    std::fs::write(run.contract(), edited).expect("the contract can be written");
    check_refused(&run, words);
}

#[test]
fn duplicate_keys() {
    check_text(|text| text.replacen('{', "{\"name\": \"another\",", 1), &["duplicate", "/name", "line"]);
}

#[test]
fn not_a_number() {
    check_text(
        |text| text.replacen("\"initializer_std\": 0.02", "\"initializer_std\": NaN", 1),
        &["NaN", "line"],
    );
}

#[test]
fn beyond_every_double() {
    check_text(
        |text| text.replacen("\"initializer_std\": 0.02", "\"initializer_std\": 1e999", 1),
        &["1e999", "line"],
    );
}

#[test]
fn unknown_field() {
    check_edit(|contract| contract["colour"] = "blue".into(), &["colour", "unknown"]);
}

#[test]
fn missing_field() {
    let remove = |contract: &mut Value| {
        contract.as_object_mut().expect("an object").remove("nonclaims");
    };
    check_edit(remove, &["nonclaims", "missing"]);
}

#[test]
fn wrong_digest() {
    let wrong = format!("blake3:{}", "00".repeat(32));
    let edit = |contract: &mut Value| contract["data"]["manifest"]["digest"] = wrong.as_str().into();
    check_edit(edit, &["/data/manifest", &wrong, "manifest.json"]);
}

#[test]
fn missing_file() {
    let run = RunFolder::tiny();
    let mut path = String::new();
    run.edit_contract(|contract| {
        path = contract["data"]["manifest"]["path"].as_str().unwrap_or_default().into();
    });
    std::fs::remove_file(run.path().join(&path)).expect("the manifest is there");
    check_refused(&run, &["/data/manifest", &path]);
}

#[test]
fn path_that_leaves_the_folder() {
    check_edit(
        |contract| contract["data"]["manifest"]["path"] = "../manifest.json".into(),
        &["/data/manifest", ".."],
    );
}

#[test]
fn tolerance_that_nothing_exceeds() {
    let edit = |contract: &mut Value| {
        contract["resume"] = json!({
            "class": "operation_order_bounded",
            "tolerance": { "max_absolute": 1e300, "max_relative": 1e300 }
        });
    };
    check_edit(edit, &["/resume/tolerance", "vacuous"]);
}

#[test]
fn stopping_rule_that_never_fires() {
    let edit = |contract: &mut Value| {
        let beyond = contract["budget"]["max_steps"].as_u64().expect("a budget") + 1;
        contract["stopping"] = json!({ "kind": "at_step", "step": beyond });
    };
    check_edit(edit, &["/stopping"]);
}

#[test]
fn batch_arithmetic_that_does_not_add_up() {
    let edit = |contract: &mut Value| {
        let wrong = contract["batch"]["global_examples"].as_u64().expect("a batch") + 1;
        contract["batch"]["global_examples"] = wrong.into();
    };
    check_edit(edit, &["/batch"]);
}

#[test]
fn selection_by_anything_but_val() {
    let edit = |contract: &mut Value| contract["evaluation"]["streams"][0]["split"] = "train".into();
    check_edit(edit, &["val"]);
}

#[test]
fn a_quorum_of_witnesses_that_nobody_could_reach() {
    let edit = |contract: &mut Value| contract["keys"]["witness_quorum"] = json!(1);
    check_edit(edit, &["/keys/witness_quorum", "0 witnesses are named", "ledger witness add"]);
}

#[test]
fn campaign_that_is_not_at_hand() {
    let edit = |contract: &mut Value| {
        contract["membership"] = json!({
            "kind": "campaign", "arm": "a", "campaign": "0123456789abcdef-0123456789abcdef",
            "preregistration": {"digest": null, "num_bytes": null, "path": "preregistration.json"},
            "rescue_level": 0, "trial": 1
        });
    };
    check_edit(edit, &["/membership/preregistration/path", "does not exist"]);
}

#[test]
fn a_frozen_run_is_not_frozen_over() {
    let run = RunFolder::frozen();
    let before = dump::files(run.path()).expect("the folder can be read");
    run.freeze().expect_complaint(COULD_NOT_RUN, "run.db", &["exists", "never overwritten"]);
    assert_eq!(before, dump::files(run.path()).expect("the folder can be read"));
}
