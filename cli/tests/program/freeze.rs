//! `ledger freeze`: what it prints. Everything that it refuses is tested in
//! the crate `ledger`.

use serde_json::{Value, json};

use crate::folder::Folder;

#[test]
fn a_contract_is_frozen_once() {
    let folder = Folder::with_contract();
    let finished = folder.run(&["freeze", "run/contract.json"]).expect(0);
    let lines: Vec<&str> = finished.stdout.lines().collect();
    assert_eq!(lines.len(), 3, "{}", finished.stdout);
    assert!(lines[1].starts_with("contract  sha256:"), "{}", lines[1]);
    assert_eq!(lines[2], "ledger    run/run.db");
    let contract = lines[1].trim_start_matches("contract  sha256:");
    assert!(lines[0].starts_with(&format!("run       {}-", &contract[..16])), "{}", lines[0]);
    assert!(finished.stderr.ends_with("next: trainer run --ledger run/run.db\n"), "{}", finished.stderr);
    let before = folder.read("run/run.db");
    let finished = folder.run(&["freeze", "run/contract.json"]).expect(2);
    finished.expect_lines(&["error: run/run.db exists and is never overwritten"]);
    assert_eq!(folder.read("run/run.db"), before);
    // Another ledger of the same contract is another run.
    let other =
        folder.run(&["freeze", "run/contract.json", "--output", "run/other.db", "--json"]).expect(0).json();
    assert_eq!(other["format"], json!("ledger-freeze/1"));
    assert_eq!(other["contract"], json!(format!("sha256:{contract}")));
    assert_ne!(other["run"].as_str(), lines[0].strip_prefix("run       "));
}

#[test]
fn problems_are_listed_with_place_and_hint() {
    let folder = Folder::with_contract();
    folder.edit_contract(|contract| {
        contract["batch"]["global_examples"] = json!(5);
        contract["colour"] = json!("blue");
        contract["update"]["card"]["path"] = json!("none.json");
    });
    let finished = folder.run(&["freeze", "run/contract.json"]).expect(1);
    assert_eq!(finished.stdout, "");
    let text = String::from_utf8(folder.read("run/contract.json")).expect("text");
    let place = |needle: &str| {
        let line = text.lines().position(|line| line.contains(needle)).expect("in the text");
        let column = text.lines().nth(line).and_then(|line| line.find(": ")).expect("a member") + 2;
        format!("run/contract.json:{}:{}", line + 1, column + 1)
    };
    finished.expect_lines(&[
        &format!("error: {} /colour: unknown member", place("\"colour\"")),
        &format!(
            "error: {} /batch/global_examples: is 5; expected 4 = microbatch_examples 2 x accumulation 2 x data_parallel 1",
            place("\"global_examples\"")
        ),
        &format!("error: {} /update/card/path: run/none.json does not exist", place("\"none.json\"")),
        "hint: change one of the four so that the product holds",
        "run/contract.json is not frozen: 3 problems",
    ]);
    assert!(!folder.path("run/run.db").exists());
    let json = folder.run(&["freeze", "run/contract.json", "--json"]).expect(1).json();
    assert_eq!(json["frozen"], json!(false));
    let pointers: Vec<&Value> =
        json["problems"].as_array().expect("a list").iter().map(|problem| &problem["pointer"]).collect();
    assert_eq!(pointers, ["/colour", "/update/card/path", "/batch/global_examples"]);
}

#[test]
fn text_that_is_no_contract() {
    let folder = Folder::with_contract();
    let text = String::from_utf8(folder.read("run/contract.json")).expect("text");
    folder.write(
        "run/contract.json",
        text.replacen("\"initializer_std\": 0.02", "\"initializer_std\": NaN", 1).as_bytes(),
    );
    let finished = folder.run(&["freeze", "run/contract.json"]).expect(1);
    assert!(
        finished.stderr.contains("/architecture/initializer_std: NaN is not a JSON number"),
        "{}",
        finished.stderr
    );
    folder.write("run/contract.json", text.replacen('{', "{\"name\": \"x\", \"name\": \"y\",", 1).as_bytes());
    let finished = folder.run(&["freeze", "run/contract.json"]).expect(1);
    assert!(
        finished.stderr.contains("contract.json:1:15 /name: duplicate key \"name\""),
        "{}",
        finished.stderr
    );
    let finished = folder.run(&["freeze", "run/none.json"]).expect(2);
    finished.expect_lines(&[
        "error: cannot read the contract run/none.json: No such file or directory (os error 2)",
        "hint: name a contract file; `ledger init` makes one",
    ]);
}

#[test]
fn a_contract_without_keys_gets_them_at_the_freeze() {
    let folder = Folder::with_contract();
    folder.edit_contract(|contract| contract["keys"] = Value::Null);
    // What was sealed is sealed to the recipient of the first keys, which the
    // freeze cannot see; the keys are new.
    let finished = folder.run(&["freeze", "run/contract.json", "--keys", "new-keys"]).expect(0);
    assert!(
        finished.stderr.contains("Made keys for owner, trainer, validator, qualifier in new-keys"),
        "{}",
        finished.stderr
    );
    let shown = folder.run(&["show", "run/run.db", "--json"]).expect(0).json();
    let public: Value = serde_json::from_slice(&folder.read("new-keys/trainer.pub")).expect("JSON");
    assert_eq!(shown["contract"]["keys"]["trainer"]["public"], public["public"]);
}

#[test]
fn the_owners_key_must_be_at_hand() {
    let folder = Folder::with_contract();
    let finished = folder.run(&["freeze", "run/contract.json", "--keys", "nowhere"]).expect(2);
    assert!(finished.stderr.contains("nowhere"), "{}", finished.stderr);
    assert!(finished.stderr.contains("hint: `ledger keygen` makes keys"), "{}", finished.stderr);
    let _ = folder.run(&["keygen", "--keys", "other"]).expect(0);
    let finished = folder.run(&["freeze", "run/contract.json", "--keys", "other"]).expect(1);
    assert!(finished.stderr.contains("/keys/owner/public: is "), "{}", finished.stderr);
    std::fs::remove_file(folder.path("other/owner.key")).expect("removed");
    let finished = folder.run_with(&["freeze", "run/contract.json"], &[("LEDGER_KEYS", "other")]).expect(2);
    assert!(finished.stderr.contains("no owner key at other/owner.key"), "{}", finished.stderr);
    assert!(!folder.path("run/run.db").exists());
}
