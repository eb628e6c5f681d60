//! Runs whose saved state is odd without anybody lying: the trainer says so, and
//! the audit finds the same from the bytes.

use serde_json::{Value, json};
use system_tests::run_folder::RunFolder;

fn rule<'a>(report: &'a Value, code: &str) -> &'a Value {
    report["rules"].as_array().into_iter().flatten().find(|rule| rule["code"] == code).expect("a rule")
}

fn findings<'a>(report: &'a Value, code: &str) -> Vec<&'a Value> {
    report["findings"].as_array().into_iter().flatten().filter(|finding| finding["code"] == code).collect()
}

/// A bound on gradients so small that their squares vanish in binary32: second
/// moments stay empty, and only decay moves the model.
fn clip_to_nothing(run: &RunFolder) {
    let mut path = String::new();
    run.edit_contract(|contract| {
        path = contract["update"]["card"]["path"].as_str().expect("a path").to_owned();
        contract["update"]["card"]["digest"] = Value::Null;
        contract["update"]["card"]["num_bytes"] = Value::Null;
    });
    let path = run.path().join(path);
    let mut card: Value =
        serde_json::from_slice(&std::fs::read(&path).expect("a card")).expect("the card is JSON");
    assert_eq!(card["clipping"]["kind"], "global_norm", "{card:#}");
    card["clipping"]["max_norm"] = json!(1e-30);
    std::fs::write(&path, serde_json::to_vec(&card).expect("JSON is written")).expect("writable");
}

#[test]
fn empty_moments_are_on_record_and_found_in_the_bytes() {
    let run = RunFolder::tiny();
    clip_to_nothing(&run);
    let _ = run.freeze().expect_code(0);
    let _ = run.train().expect_code(0);
    let odd: Vec<Value> = run.entries().into_iter().filter(|entry| entry["kind"] == "anomaly").collect();
    let saved = run.entries().iter().filter(|entry| entry["kind"] == "checkpoint.validated").count();
    let of_moments = odd.iter().filter(|entry| entry["body"]["det"]["name"] == "zero_moments");
    assert_eq!(of_moments.count(), saved - 1, "at every checkpoint but that of step 0");
    let report = run.report();
    assert_eq!(report["verdict"], "accepted", "{report:#}");
    assert_eq!(rule(&report, "GL640")["status"], "passed", "{report:#}");
    assert_eq!(findings(&report, "GL642").len(), saved - 1, "{report:#}");
    assert!(findings(&report, "GL642").iter().all(|finding| finding["severity"] == "warning"));
}

#[test]
fn an_ordinary_run_has_nothing_odd() {
    let run = RunFolder::trained();
    assert!(run.entries().iter().all(|entry| entry["kind"] != "anomaly"));
    let report = run.report();
    for code in ["GL640", "GL641", "GL642", "GL643", "GL645"] {
        assert_eq!(rule(&report, code)["status"], "passed", "{report:#}");
        assert!(findings(&report, code).is_empty(), "{report:#}");
    }
    assert_eq!(rule(&report, "GL644")["status"], "not_applicable");
}
