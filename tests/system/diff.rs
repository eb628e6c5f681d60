//! `ledger diff` over real contracts and real runs.

use serde_json::{Value, json};
use system_tests::forgery::Forgery;
use system_tests::programs::{Finished, LEDGER, run};
use system_tests::run_folder::RunFolder;

/// `ledger diff` in a run's folder.
fn diff(folder: &RunFolder, arguments: &[&str]) -> Finished {
    run(LEDGER, folder.path(), &[&["diff"], arguments].concat())
}

/// Fields of one part that are not the same, with their status.
fn different(report: &Value, part: &str) -> Vec<(String, String)> {
    let fields = report[part]["fields"].as_array().expect("fields");
    let text = |field: &Value, name: &str| field[name].as_str().expect("a text").to_owned();
    let changed = fields.iter().filter(|field| field["status"] != "same");
    changed.map(|field| (text(field, "pointer"), text(field, "status"))).collect()
}

fn pairs(expected: &[(&str, &str)]) -> Vec<(String, String)> {
    expected.iter().map(|(pointer, status)| ((*pointer).to_owned(), (*status).to_owned())).collect()
}

#[test]
fn a_contract_and_what_ran_under_it() {
    let folder = RunFolder::trained();
    let report = diff(&folder, &["run.db", "run.db", "--json"]).expect_code(0).json();
    assert_eq!(report["format"], "ledger-diff/1");
    assert_eq!(report["same_or_declared"], true);
    for part in ["contract", "ran"] {
        assert_eq!(different(&report, part), [], "{part}");
        assert!(report[part]["num_same"].as_u64() > Some(15), "{part}: {}", report[part]["num_same"]);
    }
    // The file as the person wrote it leaves digests and sizes to the freeze.
    let report = diff(&folder, &["contract.json", "run.db", "--json"]).expect_code(0).json();
    let filled = different(&report, "contract");
    assert!(filled.len() >= 10, "{filled:?}");
    for (pointer, status) in &filled {
        assert!(pointer.ends_with("/digest") || pointer.ends_with("/num_bytes"), "{pointer}");
        assert_eq!(status, "declared", "{pointer}");
    }
    assert!(report["ran"]["num_same"].as_u64() > Some(10));
    let text = diff(&folder, &["contract.json", "run.db"]).expect_code(0).stdout;
    assert!(text.contains("declared, 0 undeclared") && text.contains("what ran in B"), "{text}");
}

#[test]
fn every_field_of_two_contracts() {
    let folder = RunFolder::trained();
    folder.edit_contract(|contract| {
        contract["seeds"]["data_order"] = json!("4711");
        contract["code"]["version"] = json!("0.0.0");
    });
    let report = diff(&folder, &["contract.json", "run.db", "--json"]).expect_code(1).json();
    let undeclared = [("/code/version", "undeclared"), ("/seeds/data_order", "undeclared")];
    let found = different(&report, "contract").into_iter().filter(|(_, status)| status == "undeclared");
    assert_eq!(found.collect::<Vec<_>>(), pairs(&undeclared));
    // What ran is another version than this file asks for; its seed no entry states.
    assert_eq!(different(&report, "ran"), pairs(&undeclared[..1]));
    let silent = report["ran"]["not_stated"].as_array().expect("a list");
    assert!(silent.contains(&json!("/seeds/data_order")), "{silent:?}");
    let text = diff(&folder, &["contract.json", "run.db"]).expect_code(1).stdout;
    assert!(text.contains("undeclared /seeds/data_order: \"4711\" -> "), "{text}");
}

#[test]
fn a_segment_with_another_number_of_workers_is_declared() {
    let folder = RunFolder::frozen();
    let contract = |workers: u32, data_parallel: u32| {
        let copy = folder.copy();
        copy.edit_contract(|contract| {
            contract["topology"]["workers"] = json!(workers);
            contract["batch"]["data_parallel"] = json!(data_parallel);
        });
        copy
    };
    let twice = contract(2, 2);
    std::fs::copy(twice.contract(), folder.path().join("two.json")).expect("a copy");
    let report = diff(&folder, &["contract.json", "two.json", "--json"]).expect_code(1).json();
    let places = ["/batch/data_parallel", "/topology/workers"];
    assert_eq!(different(&report, "contract"), pairs(&places.map(|place| (place, "undeclared"))));
    assert_eq!(report["ran"], Value::Null, "nothing ran in two files");
    folder.edit_contract(|contract| contract["topology"]["permitted_rewrites"] = json!(["worker_count"]));
    std::fs::copy(folder.contract(), folder.path().join("one.json")).expect("a copy");
    twice.edit_contract(|contract| contract["topology"]["permitted_rewrites"] = json!(["worker_count"]));
    std::fs::copy(twice.contract(), folder.path().join("two.json")).expect("a copy");
    let report = diff(&folder, &["one.json", "two.json", "--json"]).expect_code(0).json();
    assert_eq!(different(&report, "contract"), pairs(&places.map(|place| (place, "declared"))));
}

/// What an entry says ran, and no contract allows.
#[test]
fn another_build_ran() {
    let folder = RunFolder::trained();
    let mut forgery = Forgery::open(&folder.ledger()).expect("a ledger");
    let start = forgery.first("attempt.start").expect("an attempt");
    start["body"]["det"]["code"]["version"] = json!("9.9.9");
    start["body"]["obs"]["plan"]["instrumentation"] = json!(["failpoints"]);
    let keys = ledger::keys::KeyRing::open(&folder.path().join("keys")).expect("keys");
    forgery.seal(Some(&keys)).expect("a forged ledger");
    let report = diff(&folder, &["run.db", "run.db", "--json"]).expect_code(1).json();
    assert_eq!(different(&report, "contract"), []);
    let expected =
        [("/code/version", "undeclared"), ("attempt.start /body/obs/plan/instrumentation", "undeclared")];
    assert_eq!(different(&report, "ran"), pairs(&expected));
}

#[test]
fn what_cannot_be_compared_is_named() {
    let folder = RunFolder::frozen();
    let check = |arguments: &[&str], place: &str, words: &[&str]| {
        diff(&folder, arguments).expect_complaint(2, place, words);
    };
    check(&["contract.json", "nothing.db"], "nothing.db", &["reading"]);
    std::fs::write(folder.path().join("letter.json"), "{\"format\":\"letter/1\"}").expect("a letter");
    check(&["contract.json", "letter.json"], "letter.json", &["letter/1", "no contract"]);
    check(&["contract.json", "contract.json", "--ran"], "contract.json", &["nothing ran"]);
    std::fs::write(folder.path().join("broken.json"), "{\"a\":1,\"a\":2}").expect("a broken file");
    check(&["broken.json", "run.db"], "broken.json", &["duplicate"]);
}
