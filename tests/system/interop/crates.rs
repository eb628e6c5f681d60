//! Research objects, loaded by `rocrate` and checked by `roc-validator`.

use serde_json::Value;
use system_tests::honest::Honest;
use system_tests::interop::{Said, ask};
use system_tests::run_folder::RunFolder;

use super::{candidate, tampered};

const METADATA: &str = "ro-crate-metadata.json";

fn make(run: &RunFolder) {
    let _ = run.ledger_command("export", &["--format", "ro-crate"]).expect_code(0);
}

fn load(run: &RunFolder) -> Said {
    ask(&["crate", &run.path().to_string_lossy()])
}

fn status(said: &Value, action: &str) -> String {
    said["actions"][action]["status"].as_str().unwrap_or_default().to_owned()
}

#[test]
fn every_attempt_is_an_action_and_only_the_one_that_ended_well_is_completed() {
    let run = Honest::KilledAndResumed.make();
    make(&run);
    let said = load(&run).taken();
    assert_eq!(said["actions"].as_object().map(serde_json::Map::len), Some(4), "{said}");
    for action in ["#attempt-1", "#attempt-2"] {
        assert_eq!(status(&said, action), "FailedActionStatus", "{said}");
        let error = said["actions"][action]["error"].as_str().expect("it says why");
        assert!(error.contains("no terminal entry"), "{error}");
    }
    for action in ["#attempt-3", "#audit"] {
        assert_eq!(status(&said, action), "CompletedActionStatus", "{said}");
        assert_eq!(said["actions"][action]["error"], Value::Null);
    }
    let files = said["files"].to_string();
    let folder = candidate(&run);
    for file in ["run.db", "run.db.head", &format!("{folder}/"), &format!("{folder}/model.safetensors")] {
        assert!(files.contains(&format!("\"{file}\"")), "{file} is not in the crate: {files}");
    }
    // What is only recommended and the record does not have: the time at which a
    // killed process or the audit ended, and addresses of people.
    let recommendations = said["recommendations"].as_array().expect("a list");
    for text in recommendations.iter().filter_map(Value::as_str) {
        let known = ["have an endTime", "SHOULD have a URL"].iter().any(|known| text.contains(known));
        assert!(known, "{text}");
    }
    let metadata = std::fs::read(run.path().join(METADATA)).expect("the metadata");
    let metadata: Value = serde_json::from_slice(&metadata).expect("JSON");
    let graph = metadata["@graph"].as_array().expect("entities");
    let entity = |id: &str| graph.iter().find(|entity| entity["@id"] == id).expect("it is there");
    let verdict = entity("#verdict");
    assert_eq!(verdict["value"], "accepted");
    let profile = verdict["valueReference"]["@id"].as_str().expect("a reference");
    assert_eq!(entity(profile)["value"], "native", "a verdict has its profile beside it");
    let of_selected = |entity: &&Value| {
        entity["description"].as_str().is_some_and(|text| text.ends_with("The selected candidate."))
    };
    assert_eq!(graph.iter().filter(of_selected).count(), 1);
    assert_eq!(run.report()["verdict"], "accepted", "a research object changes nothing of the run");
}

#[test]
fn the_audit_of_a_run_that_is_not_accepted_is_a_failed_action() {
    let trained = RunFolder::trained();
    for (run, verdict) in [(RunFolder::frozen(), "incomplete"), (tampered(&trained), "tampered")] {
        make(&run);
        let said = load(&run).taken();
        assert_eq!(status(&said, "#audit"), "FailedActionStatus", "{said}");
        assert_eq!(said["actions"]["#audit"]["error"], format!("verdict: {verdict}"));
    }
}

#[test]
fn a_crate_is_of_the_runs_folder_and_a_changed_one_is_refused() {
    let run = RunFolder::trained();
    let elsewhere = run.ledger_command("export", &["--format", "ro-crate", "--output", "elsewhere"]);
    elsewhere.expect_complaint(2, "elsewhere", &["is not the run's folder"]);
    make(&run);
    let path = run.path().join(METADATA);
    let first = std::fs::read_to_string(&path).expect("the metadata");
    run.ledger_command("export", &["--format", "ro-crate"]).expect_complaint(
        2,
        METADATA,
        &["not overwritten"],
    );
    std::fs::remove_file(&path).expect("removed");
    make(&run);
    assert_eq!(std::fs::read_to_string(&path).expect("the metadata"), first, "the same bytes");
    // Controls: no descriptor, an action without a program, a file that is gone.
    let check = |from: &str, to: &str, words: &str| {
        assert!(first.contains(from), "the metadata does not say {from:?}");
        std::fs::write(&path, first.replace(from, to)).expect("written");
        load(&run).refused(words);
    };
    check("\"@id\": \"ro-crate-metadata.json\"", "\"@id\": \"other.json\"", "rocrate");
    check("\"instrument\"", "\"instrumentOf\"", "MUST have an instrument");
    check("wfrun/process", "wfrun/other", "versioned permalink of the profile");
}
