//! `show`, `list`, `get`, `query`, `verify-head`, `export`.

use serde_json::{Value, json};

use crate::folder::Folder;

#[test]
fn show_answers_which_version_which_data_which_order() {
    let folder = Folder::frozen();
    let contract = folder.contract();
    let shown = folder.run(&["show", "run/run.db"]).expect(0).stdout;
    let manifest: Value = serde_json::from_slice(&folder.read("run/data/manifest.json")).expect("JSON");
    let digest = |path: &str| format!("blake3:{}", blake3::hash(&folder.read(path)).to_hex());
    for expected in [
        contract["code"]["digest"].as_str().expect("a digest"),
        "\n  features     none\n",
        "keyed_permutation/1 with seed 1",
        &digest("run/data/manifest.json"),
        &digest("run/data/train.examples"),
        &digest("run/policy-card.json"),
        manifest["shards"][0]["digest"].as_str().expect("a digest"),
        manifest["shards"][1]["digest"].as_str().expect("a digest"),
        "4 examples a step: 2 x 2 accumulated x 1 workers",
        "What happened (0 steps on record)",
    ] {
        assert!(shown.contains(expected), "{expected} is not in\n{shown}");
    }
    let json = folder.run(&["show", "run/run.db", "--json"]).expect(0).json();
    assert_eq!((&json["format"], &json["schema_version"]), (&json!("ledger-show/1"), &json!(1)));
    assert_eq!(json["contract"]["code"], contract_without_comments(&contract)["code"]);
    assert_eq!(json["num_entries"], json!(1));
}

#[test]
fn show_lists_the_features_of_the_code() {
    let folder = Folder::with_contract();
    folder.edit_contract(|contract| contract["code"]["features"] = json!(["cuda", "wgpu"]));
    let _ = folder.run(&["freeze", "run/contract.json"]).expect(0);
    let shown = folder.run(&["show", "run/run.db"]).expect(0).stdout;
    assert!(shown.contains("\n  features     cuda, wgpu\n"), "{shown}");
}

fn contract_without_comments(contract: &Value) -> Value {
    let options = ledger::strict::ParseOptions::without_comments();
    ledger::strict::parse(contract.to_string().as_bytes(), options).expect("JSON")
}

#[test]
fn entries_are_listed_and_fetched() {
    let folder = Folder::frozen();
    let listed = folder.run(&["list", "run/run.db", "--json"]).expect(0).stdout;
    let got = folder.run(&["get", "run/run.db", "0", "--json"]).expect(0).stdout;
    assert_eq!(listed, got);
    let entry: Value = serde_json::from_str(&got).expect("JSON");
    assert_eq!(entry["kind"], json!("contract.frozen"));
    let text = folder.run(&["list", "run/run.db"]).expect(0).stdout;
    assert!(text.starts_with("      0  contract.frozen"), "{text}");
    for arguments in
        [["--kind", "step"], ["--attempt", "1"], ["--step", "3"], ["--from", "1"], ["--limit", "0"]]
    {
        let finished = folder.run(&[&["list", "run/run.db"], &arguments[..]].concat()).expect(0);
        assert_eq!(finished.stdout, "", "{arguments:?}");
    }
    let finished = folder.run(&["list", "run/run.db", "--kind", "steps"]).expect(2);
    assert!(
        finished.stderr.starts_with("error: there is no kind \"steps\"\nhint: kinds are contract.frozen, ")
    );
    let finished = folder.run(&["get", "run/run.db", "1"]).expect(2);
    assert!(finished.stderr.contains("run/run.db has no entry 1; it holds 1"), "{}", finished.stderr);
}

#[test]
fn queries_read_and_nothing_else() {
    let folder = Folder::frozen();
    let query = |sql: &str| folder.run(&["query", "run/run.db", "--sql", sql]);
    let sql = "SELECT seq, kind FROM entry";
    assert_eq!(query(sql).expect(0).stdout, "seq\tkind\n0\tcontract.frozen\n");
    let json = folder.run(&["query", "run/run.db", "--sql", sql, "--json"]).expect(0).json();
    assert_eq!(json["rows"], json!([[0, "contract.frozen"]]));
    let before = folder.read("run/run.db");
    for sql in [
        "DELETE FROM entries",
        "UPDATE entries SET leaf = x''",
        "DROP TABLE heads",
        "ATTACH 'x' AS y",
        "SELECT 1; SELECT 2",
        "nonsense",
    ] {
        let finished = query(sql).expect(2);
        assert!(finished.stderr.contains("hint: read with one SELECT"), "{sql}: {}", finished.stderr);
    }
    assert_eq!(folder.read("run/run.db"), before);
    let endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n";
    let finished = folder.run(&["query", "run/run.db", "--max-time", "1", "--sql", endless]).expect(2);
    assert!(finished.stderr.contains("took longer than 1000 ms"), "{}", finished.stderr);
}

#[test]
fn heads_are_checked_against_entries() {
    let folder = Folder::frozen();
    let json = folder.run(&["verify-head", "run/run.db", "--json"]).expect(0).json();
    assert_eq!((&json["size"], &json["role"]), (&json!(1), &json!("owner")));
    let text = folder.run(&["verify-head", "run/run.db"]).expect(0).stdout;
    assert!(text.contains(json["root"].as_str().expect("a root")), "{text}");
    // The head of another run, and a head with a changed byte.
    let other = Folder::frozen();
    let head = other.path("run/run.db.head");
    let finished = folder
        .run(&["verify-head".as_ref(), "run/run.db".as_ref(), "--head".as_ref(), head.as_os_str()])
        .expect(1);
    assert!(finished.stderr.starts_with("error: run/run.db: the head is of "), "{}", finished.stderr);
    let mut note = folder.read("run/run.db.head");
    let at = note.len() - 8;
    note[at] ^= 1;
    folder.write("changed.head", &note);
    let _ = folder.run(&["verify-head", "run/run.db", "--head", "changed.head"]).expect(1);
    // A key that the reviewer does not trust.
    let _ = folder.run(&["keygen", "--keys", "other"]).expect(0);
    let public: Value = serde_json::from_slice(&folder.read("other/owner.pub")).expect("JSON");
    folder.write("trust.json", json!({"owner": public["public"]}).to_string().as_bytes());
    let _ = folder.run(&["verify-head", "run/run.db", "--trust", "trust.json"]).expect(1);
    folder.write("trust.json", b"{\"owner\": \"short\"}");
    let finished = folder.run(&["verify-head", "run/run.db", "--trust", "trust.json"]).expect(2);
    assert!(finished.stderr.contains("/owner is not 64 lower-case hex digits"), "{}", finished.stderr);
    std::fs::remove_file(folder.path("run/run.db.head")).expect("removed");
    let finished = folder.run(&["verify-head", "run/run.db"]).expect(2);
    assert!(
        finished.stderr.contains("hint: name a head that was kept with --head FILE"),
        "{}",
        finished.stderr
    );
}

#[test]
fn an_export_is_checked_without_the_ledger() {
    let folder = Folder::frozen();
    let _ = folder.run(&["export", "run/run.db", "--output", "export"]).expect(0);
    let keys = &folder.contract()["keys"];
    let trust = json!({"owner": keys["owner"]["public"], "trainer": keys["trainer"]["public"]});
    folder.write("trust.json", trust.to_string().as_bytes());
    let check = || folder.run(&["export", "--check", "export", "--trust", "trust.json"]);
    assert!(check().expect(0).stdout.contains("entries  1\n"));
    let entries = folder.read("export/entries.jsonl");
    let mut changed = entries;
    let at = changed.len() / 2;
    changed[at] ^= 1;
    folder.write("export/entries.jsonl", &changed);
    let finished = check().expect(1);
    assert!(finished.stderr.starts_with("error: export: "), "{}", finished.stderr);
    let _ = folder.run(&["export", "run/run.db", "--output", "export"]).expect(2);
    let _ = folder.run(&["export", "run/run.db"]).expect(2);
}

#[test]
fn a_file_that_is_no_ledger_is_named() {
    let folder = Folder::empty();
    folder.write("letter.db", b"Dear reader, this is a letter and no ledger.");
    let _ = folder.run(&["keygen"]).expect(0);
    for arguments in [
        vec!["show", "letter.db"],
        vec!["list", "letter.db"],
        vec!["get", "letter.db", "0"],
        vec!["query", "letter.db", "--sql", "SELECT 1"],
        vec!["verify-head", "letter.db"],
        vec!["export", "letter.db", "--output", "out"],
    ] {
        let finished = folder.run(&arguments).expect(2);
        assert!(finished.stderr.contains("letter.db"), "{arguments:?}: {}", finished.stderr);
        assert!(finished.stderr.contains("\nhint: "), "{arguments:?}: {}", finished.stderr);
        let missing: Vec<&str> =
            arguments.iter().map(|word| if *word == "letter.db" { "none.db" } else { word }).collect();
        let finished = folder.run(&missing).expect(2);
        assert!(finished.stderr.contains("none.db"), "{missing:?}: {}", finished.stderr);
    }
    assert_eq!(folder.read("letter.db"), b"Dear reader, this is a letter and no ledger.");
}

#[test]
fn a_reader_that_leaves_early_is_no_error() {
    use std::process::{Command, Stdio};
    let folder = Folder::frozen();
    let mut child = Command::new(env!("CARGO_BIN_EXE_ledger"))
        .args(["get", "run/run.db", "0"])
        .current_dir(folder.path("."))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    drop(child.stdout.take());
    let output = child.wait_with_output().expect("it ends");
    assert_eq!((output.status.code(), String::from_utf8_lossy(&output.stderr).as_ref()), (Some(0), ""));
}
