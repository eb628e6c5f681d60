//! `ledger init`.

use serde_json::{Value, json};

use crate::folder::Folder;

#[test]
fn the_folder_has_everything_but_the_plaintext() {
    let folder = Folder::empty();
    let finished = folder.run(&["init", "--lipsum", "--preset", "tiny", "--output", "run"]).expect(0);
    assert_eq!(finished.stdout, "run/contract.json\n");
    assert!(
        finished
            .stderr
            .contains("Made keys for owner, trainer, validator, qualifier in run/keys (mode 0600).")
    );
    assert!(finished.stderr.ends_with("next: ledger freeze run/contract.json\n"), "{}", finished.stderr);
    for path in [
        "contract.json",
        "data/manifest.json",
        "data/train.examples",
        "data/val.examples",
        "keys/owner.key",
        "keys/qualifier.age-identity",
        "parameters.json",
        "policy-card.json",
        "qualification.age",
    ] {
        assert!(folder.path("run").join(path).is_file(), "{path}");
    }
    let contract = folder.contract();
    for block in ["", "/architecture", "/code", "/data", "/keys", "/purpose", "/selection"] {
        let comment = contract.pointer(block).map(|block| &block["$comment"]);
        assert!(comment.is_some_and(Value::is_string), "{block} has no comment");
    }
    assert_eq!(contract["name"], json!("run"));
    let finished = folder.run(&["init", "--check", "run/contract.json"]).expect(0);
    assert_eq!(finished.stdout, "run/contract.json: nothing is wrong\n");
}

#[test]
fn several_workers_share_the_presets_batch_and_can_be_frozen() {
    let folder = Folder::empty();
    let arguments = ["init", "--lipsum", "--preset", "tiny", "--output", "run", "--workers", "2"];
    folder.run(&[&arguments[..], &["--set", "/topology/collective/timeout_ms=9000"]].concat()).expect(0);
    let contract = folder.contract();
    assert_eq!(contract["batch"]["data_parallel"], json!(2));
    assert_eq!(contract["topology"]["workers"], json!(2));
    assert_eq!(contract["topology"]["collective"]["timeout_ms"], json!(9000));
    assert!(contract["expected"]["communication_bytes_per_step"].as_u64().is_some_and(|bytes| bytes > 0));
    let card: Value = serde_json::from_slice(&folder.read("run/policy-card.json")).expect("JSON");
    assert_eq!(card["distribution"]["communication"], json!("all_reduce"));
    folder.run(&["init", "--check", "run/contract.json"]).expect(0);
    let finished = folder.run(&["init", "--lipsum", "--output", "other", "--workers", "63"]).expect(2);
    assert!(finished.stderr.contains("cannot be shared evenly"), "{}", finished.stderr);
}

#[test]
fn what_is_built_is_the_same_for_the_same_text() {
    let (one, other) = (Folder::with_contract(), Folder::with_contract());
    for path in
        ["run/data/manifest.json", "run/data/train.examples", "run/data/val.examples", "run/parameters.json"]
    {
        assert_eq!(one.read(path), other.read(path), "{path}");
    }
    assert_ne!(one.read("run/keys/owner.pub"), other.read("run/keys/owner.pub"));
}

#[test]
fn ones_own_text_is_split_sealed_and_given_a_baseline() {
    let folder = Folder::empty();
    let line = |number: usize| format!("Line {number} of a text that says {} things.\n", number * number);
    folder.write("own.txt", (0..400).map(line).collect::<String>().as_bytes());
    let arguments = [
        "init",
        "--text",
        "own.txt",
        "--preset",
        "tiny",
        "--output",
        "run",
        "--baseline",
        "--source",
        "my desk",
        "--license",
        "yellow",
        "--name",
        "mine",
        "--set",
        "/seeds/dropout=\"77\"",
        "--set",
        "/nonclaims/-=\"That it rhymes.\"",
        "--json",
    ];
    let finished = folder.run(&arguments).expect(0);
    assert_eq!(finished.json()["ok"], json!(true));
    let contract = folder.contract();
    assert_eq!(contract["name"], json!("mine"));
    assert_eq!(contract["seeds"]["dropout"], json!("77"));
    assert_eq!(contract["nonclaims"].as_array().map(Vec::len), Some(3));
    assert_eq!(contract["data"]["admitted_license_classes"], json!(["yellow"]));
    let threshold = contract["quality_target"]["threshold"].as_f64().expect("a baseline");
    assert!((0.1..6.0).contains(&threshold), "{threshold} bits per byte");
    let manifest: Value = serde_json::from_slice(&folder.read("run/data/manifest.json")).expect("JSON");
    assert_eq!(manifest["shards"][0]["source"], json!("my desk"));
    assert_eq!(manifest["shards"][0]["license_class"], json!("yellow"));
    // The sealed part is the end of the text, and its plaintext is in no file of the folder.
    let text = folder.read("own.txt");
    let shards = manifest["shards"].as_array().expect("a list");
    let num_open: u64 = shards.iter().filter_map(|shard| shard["num_bytes"].as_u64()).sum();
    let held_out = &text[usize::try_from(num_open).expect("small")..];
    let expected = format!("blake3:{}", blake3::hash(held_out).to_hex());
    assert_eq!(contract["qualification"]["plaintext"], json!(expected));
}

#[test]
fn files_of_each_split_may_be_named() {
    let folder = Folder::empty();
    for name in ["a", "b", "c", "d"] {
        folder.write(name, format!("The text of {name} is a text of its own.\n").repeat(20).as_bytes());
    }
    let arguments = [
        "init",
        "--train",
        "a",
        "b",
        "--val",
        "c",
        "--qualification",
        "d",
        "--preset",
        "tiny",
        "--output",
        "run",
    ];
    let _ = folder.run(&arguments).expect(0);
    let manifest: Value = serde_json::from_slice(&folder.read("run/data/manifest.json")).expect("JSON");
    let splits: Vec<&Value> =
        manifest["shards"].as_array().expect("a list").iter().map(|shard| &shard["split"]).collect();
    assert_eq!(splits, ["train", "train", "val"]);
    let expected = format!("blake3:{}", blake3::hash(&folder.read("d")).to_hex());
    assert_eq!(folder.contract()["qualification"]["plaintext"], json!(expected));
    let finished = folder.run(&["init", "--train", "a", "--val", "c", "--output", "x"]).expect(2);
    assert!(finished.stderr.contains("--qualification"), "{}", finished.stderr);
}

#[test]
fn a_folder_that_is_not_empty_is_left_alone() {
    let folder = Folder::with_contract();
    let before = folder.read("run/contract.json");
    let finished = folder.run(&["init", "--lipsum", "--output", "run"]).expect(2);
    finished.expect_lines(&["error: run is not empty", "hint: name a new folder with --output"]);
    assert_eq!(folder.read("run/contract.json"), before);
}

#[test]
fn edits_that_cannot_be_made_are_refused() {
    let folder = Folder::empty();
    let init =
        |edit: &str| folder.run(&["init", "--lipsum", "--output", edit.trim_matches('/'), "--set", edit]);
    let finished = init("/name=unquoted").expect(2);
    assert!(
        finished.stderr.starts_with("error: --set /name=unquoted: \"unquoted\" is not JSON"),
        "{}",
        finished.stderr
    );
    // What an edit makes wrong is refused with its pointer, and the folder can be corrected.
    let arguments =
        ["init", "--lipsum", "--preset", "tiny", "--output", "run", "--set", "/batch/accumulation=3"];
    let finished = folder.run(&arguments).expect(1);
    assert!(finished.stderr.contains("/batch/global_examples: is 4; expected 6"), "{}", finished.stderr);
    assert!(folder.path("run/contract.json").exists());
}

#[test]
fn a_bad_input_leaves_no_trace_and_the_corrected_command_succeeds() {
    let folder = Folder::empty();
    folder.write("one-line.txt", b"one long line without an end");
    folder.write("a", b"A text.\n");
    folder.write("empty", b"");
    let _ = folder.run(&["keygen", "--keys", "damaged", "--role", "owner"]).expect(0);
    folder.write("damaged/owner.pub", b"no key");
    let _ = folder.run(&["keygen", "--keys", "half", "--role", "qualifier"]).expect(0);
    std::fs::remove_file(folder.path("half/qualifier.pub")).expect("removed");
    let cases: [(&[&str], &str); 9] = [
        (&["--text", "own.txt"], "error: cannot read own.txt: No such file or directory"),
        (&["--text", "one-line.txt"], "error: one-line.txt has no line break to cut at"),
        (
            &["--train", "a", "none", "--val", "a", "--qualification", "a"],
            "error: cannot read none: No such file or directory",
        ),
        (&["--train", "a", "--val", "empty", "--qualification", "a"], "error: the val split has no example"),
        (
            &["--lipsum", "--set", "/architecture/context_length=0"],
            "error: a context of 0 tokens gives no windows",
        ),
        (&["--lipsum", "--set", "/keys/none/x=1"], "error: --set /keys/none/x=1: the contract has nothing"),
        (
            &["--lipsum", "--baseline", "--set", "/evaluation/streams/0/num_examples=0"],
            "error: the stream val has no example",
        ),
        (&["--lipsum", "--keys", "damaged"], "error: damaged/owner.pub is not a key file"),
        (&["--lipsum", "--keys", "half"], "error: half/qualifier.key exists"),
    ];
    let init = |arguments: &[&str]| {
        folder.run(&[&["init", "--preset", "tiny", "--output", "run"], arguments].concat())
    };
    for (arguments, expected) in cases {
        let finished = init(arguments).expect(2);
        assert!(finished.stderr.starts_with(expected), "{arguments:?}: {}", finished.stderr);
        assert!(finished.stderr.contains("\nhint: "), "{arguments:?}: {}", finished.stderr);
        assert!(!folder.path("run").exists(), "{arguments:?}: a folder was made");
    }
    for path in ["damaged/trainer.pub", "half/owner.pub"] {
        assert!(!folder.path(path).exists(), "{path} was made");
    }
    let line = |number: usize| format!("Line {number} of a text that says {} things.\n", number * number);
    folder.write("own.txt", (0..400).map(line).collect::<String>().as_bytes());
    let _ = init(cases[0].0).expect(0);
    assert!(folder.path("run/contract.json").is_file());
}

#[test]
fn a_trainer_that_is_missing_or_fails_is_named() {
    let folder = Folder::empty();
    let arguments =
        ["init", "--lipsum", "--preset", "tiny", "--output", "run", "--trainer", "no-such-trainer"];
    let finished = folder.run(&arguments).expect(2);
    assert!(
        finished.stderr.contains("error: running no-such-trainer: No such file or directory"),
        "{}",
        finished.stderr
    );
    assert!(finished.stderr.contains("hint: build it with `cargo build -p trainer`"), "{}", finished.stderr);
    assert!(!folder.path("run").exists(), "nothing was begun");
    // One that knows who it is, and not the model.
    let data = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/program/data");
    let script = format!(
        "#!/bin/sh\n[ \"$1\" = identity ] && exec cat '{data}/identity.json'\necho 'error: no such model' >&2\nexit 2\n"
    );
    folder.write("trainer", script.as_bytes());
    let finished = folder.run(&["init", "--lipsum", "--preset", "tiny", "--output", "run"]).expect(2);
    assert!(finished.stderr.contains("ended with exit status: 2: no such model"), "{}", finished.stderr);
    assert!(!folder.path("run").exists(), "nothing was begun");
    folder.write("trainer", b"#!/bin/sh\necho 'error: out of order' >&2\nexit 2\n");
    let finished = folder.run(&["init", "--lipsum", "--preset", "tiny", "--output", "other"]).expect(2);
    assert!(finished.stderr.contains("ended with exit status: 2: out of order"), "{}", finished.stderr);
}
