//! Segment challenges by the real programs: honest runs are confirmed, whatever
//! happened to them, forged ones are caught as often as is printed, and documents
//! that were changed are refused.

use std::collections::BTreeSet;
use std::path::Path;

use schemas::digest::Digest;
use serde_json::{Value, json};
use system_tests::challenges::{
    self, Forgery, draw, execute, forge, honest, measured, replay, review, verify,
};
use system_tests::mutations::named::runs;
use system_tests::mutations::records::{self, Origin};
use system_tests::programs::{LEDGER, TRAINER, run};
use system_tests::run_folder::{RunFolder, flip_byte};
use validator::challenge::detection;

/// Nonces over which a chance is measured.
const NUM_NONCES: u32 = 5_000;
/// Segments of a draw whose chance is measured.
const NUM_DRAWN: u64 = 3;

fn report(ledger: &Path) -> Value {
    let folder = ledger.parent().expect("a ledger lies in a folder");
    run(LEDGER, folder, &["audit", "run.db", "--json"]).json()
}

#[test]
fn a_drawn_segment_is_confirmed_and_the_manifest_is_signed() {
    let trained = RunFolder::trained();
    let folder = trained.path();
    let drawn = draw(folder, 2, "challenge.json", &[]).expect_code(0).json();
    assert_eq!((drawn["num_segments"].as_u64(), drawn["drawn"].as_array().map(Vec::len)), (Some(4), Some(2)));
    // Anybody makes the same draw of the same head and nonce.
    let again = draw(folder, 2, "again.json", &[]).expect_code(0).json();
    assert_eq!(drawn, again);
    let _ = replay(folder, "challenge.json", "replay.json").expect_code(0);
    let witness = verify(folder, "challenge.json", "replay.json", &["--json"]).expect_code(0).json();
    assert_eq!(witness["outcome"], "consistent");
    assert_eq!(witness["detection"].as_array().map(Vec::len), Some(3), "{}", witness["detection"]);
    let spans = |name: &str| -> u64 {
        let of = |span: &Value| {
            span["to_step"].as_u64().expect("a step") - span["from_step"].as_u64().expect("a step")
        };
        witness[name].as_array().expect("spans").iter().map(of).sum()
    };
    // Every update is in one of them.
    assert_eq!((spans("verified"), spans("unverified")), (10, 10));
    assert_eq!(witness["states"].as_array().map(Vec::len), Some(5));
    assert_eq!(witness["batches"].as_array().map(Vec::len), Some(4));
    assert_eq!(witness["transition"]["replayed_with"]["num_workers"], 1);

    std::fs::write(folder.join("witness.json"), witness.to_string()).expect("writable");
    for (schema, file) in [
        ("segment-challenge", "challenge.json"),
        ("segment-replay", "replay.json"),
        ("training-witness", "witness.json"),
    ] {
        let _ = run(LEDGER, folder, &["schema", schema, "--check", file]).expect_code(0);
    }

    let _ = verify(folder, "challenge.json", "replay.json", &["--save"]).expect_code(0);
    let envelope: Value = serde_json::from_slice(
        &std::fs::read(folder.join("run.db.training-witness.dsse.json")).expect("saved"),
    )
    .expect("JSON");
    assert_eq!(
        envelope["payloadType"], "application/vnd.governed-ledger.training-witness+json",
        "{envelope:#}"
    );
    // The place beside the ledger is known by every name: only the contract's validator
    // signs there.
    let _ = run(LEDGER, folder, &["keygen", "--role", "validator", "--keys", "strangers"]).expect_code(0);
    let beside = ["--save-to", "./run.db.training-witness.dsse.json"];
    let stranger = [&beside[..], &["--keys", "strangers"]].concat();
    verify(folder, "challenge.json", "replay.json", &stranger).expect_complaint(
        2,
        "the contract names validator key",
        &["--save-to"],
    );
    let _ = verify(folder, "challenge.json", "replay.json", &beside).expect_code(0);
    // What lies beside a ledger changes nothing about its audit.
    assert_eq!(report(&trained.ledger())["verdict"], "accepted");
}

/// Changes a document, and says what comparing it gives.
fn changed(folder: &Path, name: &str, change: impl FnOnce(&mut Value)) -> (i32, String) {
    let original = std::fs::read(folder.join(name)).expect("written");
    let mut value: Value = serde_json::from_slice(&original).expect("JSON");
    let before = value.clone();
    change(&mut value);
    assert_ne!(value, before, "the change acts");
    let bytes = ledger::canonical::entry_json(&value).expect("canonical");
    std::fs::write(folder.join(name), bytes).expect("writable");
    let finished = verify(folder, "challenge.json", "replay.json", &[]);
    std::fs::write(folder.join(name), original).expect("writable");
    (finished.code, format!("{}{}", finished.stdout, finished.stderr))
}

#[test]
fn what_was_changed_in_a_replay_or_a_challenge_is_named() {
    let run = RunFolder::trained();
    let folder = run.path();
    let _ = draw(folder, 1, "challenge.json", &[]).expect_code(0);
    let _ = replay(folder, "challenge.json", "replay.json").expect_code(0);
    let _ = verify(folder, "challenge.json", "replay.json", &[]).expect_code(0);

    // Of the replay: each part contradicts the record.
    let end = "/segments/0/end";
    for (pointer, value) in [
        ("/segments/0/steps/1/det/credit/backpropagation/loss", json!(1.5)),
        ("/segments/0/steps/0/det/draws/0/ids", json!(format!("blake3:{}", "0".repeat(64)))),
        ("/segments/0/steps/4/evaluations/0/value", json!(1.5)),
        ("/segments/0/end/classes/0/digest", json!(format!("blake3:{}", "0".repeat(64)))),
        ("/segments/0/end/shards/1/digest", json!(format!("blake3:{}", "0".repeat(64)))),
    ] {
        let (code, said) = changed(folder, "replay.json", |replay| {
            *replay.pointer_mut(pointer).unwrap_or_else(|| panic!("no {pointer}")) = value;
        });
        assert_eq!(code, 1, "{pointer}: {said}");
        assert!(said.contains("CONTRADICTED") && said.contains("recorded"), "{pointer}: {said}");
    }
    // An execution that is not there confirms nothing.
    for change in [
        (|replay: &mut Value| *replay.pointer_mut("/segments/0/end").expect("an end") = Value::Null)
            as fn(&mut Value),
        |replay| replay["segments"][0]["failure"] = json!("a disk was full"),
        |replay| {
            let steps = replay.pointer_mut("/segments/0/steps").and_then(Value::as_array_mut);
            let _ = steps.expect("steps").pop();
        },
    ] {
        let (code, said) = changed(folder, "replay.json", change);
        assert_eq!(code, 4, "{end}: {said}");
        assert!(said.contains("not compared"), "{said}");
    }
    // Of another challenge, run or code it is no replay of this one.
    for (pointer, value) in [
        ("/challenge", json!(format!("sha256:{}", "0".repeat(64)))),
        ("/run", json!("0123456789abcdef-0123456789abcdef")),
        ("/code/digest", json!(format!("sha256:{}", "0".repeat(64)))),
        ("/plan/compiler/backend", json!("another 1.0")),
        ("/segments/0/number", json!(77)),
    ] {
        let (code, said) = changed(folder, "replay.json", |replay| {
            *replay.pointer_mut(pointer).unwrap_or_else(|| panic!("no {pointer}")) = value;
        });
        assert_eq!(code, 1, "{pointer}: {said}");
        assert!(said.contains("is not of this challenge"), "{pointer}: {said}");
    }
    // A challenge is what its head and nonce give, and nothing else.
    for (pointer, value) in [
        ("/nonce", json!("ff".repeat(32))),
        ("/num_segments", json!(5)),
        ("/drawn/0/number", json!(77)),
        ("/drawn/0/start/checkpoint", json!("s00000000-a9")),
    ] {
        let (code, said) = changed(folder, "challenge.json", |challenge| {
            *challenge.pointer_mut(pointer).unwrap_or_else(|| panic!("no {pointer}")) = value;
        });
        assert_eq!(code, 1, "{pointer}: {said}");
        // Another nonce may happen to draw the same segment.
        assert!(said.contains("give") || said.contains("is not of this challenge"), "{pointer}: {said}");
    }
    let (code, said) = changed(folder, "challenge.json", |challenge| challenge["head"]["size"] = json!(3));
    assert_eq!(code, 2, "{said}");
    // In another form it is none, for who executes it and for who compares.
    let mut bytes = std::fs::read(folder.join("challenge.json")).expect("written");
    bytes.push(b'\n');
    std::fs::write(folder.join("line.json"), bytes).expect("writable");
    let executed = replay(folder, "line.json", "other.json");
    executed.expect_complaint(2, "line.json", &["cannot be used", "bytes follow the value"]);
    assert!(!folder.join("other.json").exists());
    verify(folder, "line.json", "replay.json", &[]).expect_complaint(2, "line.json", &["is not a challenge"]);
    // And a head that its trainer did not sign binds nothing.
    let other = RunFolder::trained();
    let foreign = other.path().join("run.db.head").to_string_lossy().into_owned();
    let refused = draw(folder, 1, "foreign.json", &["--head", &foreign]);
    refused.expect_complaint(2, "run.db.head", &["the head is of"]);
    let refused = draw(folder, 99, "many.json", &[]);
    refused.expect_complaint(2, "99 segments", &["4 can be executed"]);
}

#[test]
fn files_that_are_not_those_on_record_confirm_nothing() {
    let run = RunFolder::trained();
    let folder = run.path();
    let _ = draw(folder, 4, "challenge.json", &[]).expect_code(0);
    let _ = replay(folder, "challenge.json", "replay.json").expect_code(0);
    flip_byte(&folder.join("checkpoints/s00000010-a1/optimizer.safetensors"), 2000);
    let compared = verify(folder, "challenge.json", "replay.json", &["--json"]).expect_code(4).json();
    let outcomes: Vec<(u64, &str)> = compared["results"]
        .as_array()
        .expect("results")
        .iter()
        .map(|result| {
            (result["number"].as_u64().expect("a number"), result["outcome"].as_str().expect("an outcome"))
        })
        .collect();
    for (number, outcome) in outcomes {
        // It lies at the end of segment 1 and at the beginning of segment 2.
        let expected = if number == 1 || number == 2 { "incomplete" } else { "consistent" };
        assert_eq!(outcome, expected, "segment {number}");
    }
    // A draw that was not compared in full meets nothing with any chance.
    assert_eq!(compared["detection"], json!([]));
    let told = verify(folder, "challenge.json", "replay.json", &[]).expect_code(4).stdout;
    assert!(told.contains("no chance of meeting") && !told.contains("with probability"), "{told}");
    // The trainer does not go on from it either, and says so.
    let again = replay(folder, "challenge.json", "again.json").expect_code(1);
    assert!(again.stderr.contains("segment 2 was not executed"), "{again}");
    // Nor does it follow a link out of a folder that others made, or wait for a pipe.
    let model = folder.join("checkpoints/s00000015-a1/model.safetensors");
    std::fs::rename(&model, folder.join("elsewhere")).expect("renamed");
    std::os::unix::fs::symlink(folder.join("elsewhere"), &model).expect("a link");
    let linked = replay(folder, "challenge.json", "linked.json").expect_code(1);
    let is_refused = |said: &str| linked.stderr.contains(said);
    assert!(is_refused("segment 3 was not executed") && is_refused("symbolic link"), "{linked}");
    std::fs::remove_file(&model).expect("removed");
    let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
    rustix::fs::mkfifoat(rustix::fs::CWD, &model, mode).expect("a pipe");
    let waited = replay(folder, "challenge.json", "pipe.json").expect_code(1);
    assert!(waited.stderr.contains("no regular file"), "{waited}");
    // A whole checkpoint by a link is no part of the folder either.
    std::fs::remove_file(&model).expect("removed");
    std::fs::rename(folder.join("elsewhere"), &model).expect("renamed");
    let checkpoint = folder.join("checkpoints/s00000000-a1");
    std::fs::rename(&checkpoint, folder.join("moved")).expect("renamed");
    std::os::unix::fs::symlink(folder.join("moved"), &checkpoint).expect("a link");
    let moved = replay(folder, "challenge.json", "moved.json").expect_code(1);
    let is_refused = |said: &str| moved.stderr.contains(said);
    assert!(is_refused("segment 0 was not executed") && is_refused("symbolic link"), "{moved}");
    // A file that is there is kept.
    replay(folder, "challenge.json", "again.json").expect_complaint(2, "again.json", &["not overwritten"]);
}

/// Whoever recorded a run chose what its manifests say, and a file may be as long
/// as that without having been written.
#[test]
fn a_checkpoint_that_is_larger_than_any_state_of_the_contract_is_not_read() {
    const HUGE_BYTES: u64 = 1 << 40;
    let run = RunFolder::trained();
    let folder = run.path();
    let checkpoint = folder.join("checkpoints/s00000005-a1");
    let path = checkpoint.join("manifest.json");
    let mut manifest: Value =
        serde_json::from_slice(&std::fs::read(&path).expect("a manifest")).expect("JSON");
    let classes = manifest["classes"].as_array_mut().expect("classes").iter_mut();
    let mut shards = classes.flat_map(|class| class["shards"].as_array_mut().expect("shards"));
    let shard = shards.find(|shard| shard["path"] == "model.safetensors").expect("a shard of weights");
    shard["num_bytes"] = json!(HUGE_BYTES);
    let bytes = ledger::canonical::entry_json(&manifest).expect("canonical");
    std::fs::write(&path, &bytes).expect("written");
    let model = std::fs::OpenOptions::new().write(true).open(checkpoint.join("model.safetensors"));
    model.and_then(|model| model.set_len(HUGE_BYTES)).expect("a file with nothing behind its end");
    let mut forgery = system_tests::forgery::Forgery::open(&run.ledger()).expect("a ledger");
    let mut committed =
        forgery.entries.iter_mut().filter(|entry| entry["kind"] == "checkpoint.durably_committed");
    let entry =
        committed.find(|entry| entry["body"]["obs"]["checkpoint"] == "s00000005-a1").expect("an entry");
    let digest = Digest::blake3(*blake3::hash(&bytes).as_bytes());
    entry["body"]["obs"]["manifest"] = serde_json::to_value(digest).expect("text");
    let keys = ledger::keys::KeyRing::open(&folder.join("keys")).expect("the run's keys");
    forgery.seal(Some(&keys)).expect("sealed");

    let _ = draw(folder, 4, "challenge.json", &[]).expect_code(0);
    let refused = replay(folder, "challenge.json", "replay.json").expect_code(1);
    for words in
        ["segment 1 was not executed", "its files have 1099511", "a state of this contract has at most"]
    {
        assert!(refused.stderr.contains(words), "{words:?} was not said\n{refused}");
    }
    // The others are.
    for number in [0, 2, 3] {
        assert!(!refused.stderr.contains(&format!("segment {number} was not executed")), "{refused}");
    }
}

/// The signed notes of a head file, each with the empty line behind it, and its size.
fn notes(folder: &Path) -> Vec<(String, u64)> {
    let text = std::fs::read_to_string(folder.join("run.db.head")).expect("a head file");
    // An empty line stands before the signatures of a note, and behind them.
    let parts: Vec<&str> = text.split("\n\n").collect();
    let note = |pair: &[&str]| {
        let size = pair[0].lines().nth(1).and_then(|size| size.parse().ok()).expect("a size");
        (format!("{}\n\n{}\n\n", pair[0], pair[1]), size)
    };
    parts.chunks_exact(2).map(note).collect()
}

#[test]
fn a_head_that_was_kept_is_the_only_one_that_counts() {
    let run = RunFolder::trained();
    let folder = run.path();
    let _ = draw(folder, 1, "challenge.json", &[]).expect_code(0);
    let _ = replay(folder, "challenge.json", "replay.json").expect_code(0);
    let all = notes(folder);
    let [(early, _), .., (last, _)] = all.as_slice() else { panic!("one head only: {all:?}") };
    let compared = |kept: &str| {
        std::fs::write(folder.join("kept.head"), kept).expect("writable");
        verify(folder, "challenge.json", "replay.json", &["--head", "kept.head"])
    };
    let _ = compared(last).expect_code(0);
    let _ = compared(&format!("{early}{last}")).expect_code(0);
    // The ledger and its own head file have the challenge's head; the reviewer's has
    // not, and it may be one that was made until its draw was agreeable.
    compared(early).expect_complaint(2, "kept.head", &["does not have the challenge's head"]);
    compared("").expect_complaint(2, "kept.head", &["does not have the challenge's head"]);
    let _ = verify(folder, "challenge.json", "replay.json", &[]).expect_code(0);
}

#[test]
fn a_run_is_confirmed_as_it_stood_at_an_early_head() {
    let run = (runs::RECOVERED.make)();
    let folder = run.path();
    let entries = run.entries();
    let mut starts = entries.iter().filter(|entry| entry["kind"] == "attempt.start");
    let restart = starts.nth(1).and_then(|entry| entry["index"].as_u64()).expect("a restart");
    let all = notes(folder);
    let (early, size) = all.iter().rev().find(|(_, size)| *size <= restart).expect("a head before it");
    std::fs::write(folder.join("early.head"), early).expect("writable");
    let reviewed = review(folder, &["--head", "early.head"]).expect("a review");
    assert_eq!(reviewed.size, *size);
    assert_eq!(reviewed.witness["outcome"], "consistent", "{:#}", reviewed.witness["results"]);
    let whole = num_available(folder);
    assert!(whole > reviewed.num_segments, "the run went on: {whole}");
}

/// How many segments can be drawn below the newest head.
fn num_available(folder: &Path) -> u64 {
    let drawn = draw(folder, 1, "whole.json", &[]).expect_code(0).json();
    drawn["num_segments"].as_u64().expect("a number")
}

/// Draws every segment of a run, and expects none to be contradicted.
fn confirm(origin: Origin, between: &str) -> Value {
    let run = (origin.make)();
    let reviewed = review(run.path(), &["--between", between]).expect("a review");
    let witness = reviewed.witness;
    assert_eq!(witness["outcome"], "consistent", "{}: {witness:#}", origin.name);
    assert!(reviewed.num_segments >= 1, "{}", origin.name);
    witness
}

#[test]
fn runs_with_state_of_their_own_are_confirmed() {
    for origin in [runs::STATEFUL, runs::HALF, runs::FROZEN, runs::PATIENT] {
        let witness = confirm(origin, "adjacent");
        assert_eq!(witness["unverified"], json!([]), "{}: {witness:#}", origin.name);
    }
}

#[test]
fn runs_of_several_workers_are_confirmed_by_one_process() {
    for origin in [records::SHARED, runs::WORKERS] {
        let witness = confirm(origin, "adjacent");
        assert_eq!(witness["unverified"], json!([]), "{}", origin.name);
        assert_eq!(witness["transition"]["replayed_with"]["num_workers"], 1);
    }
}

#[test]
fn killed_runs_are_confirmed_and_retired_states_are_named() {
    let witness = confirm(records::EVENTFUL, "adjacent");
    assert_eq!(witness["last_step"], 20, "it was killed and went on to its end");
    let witness = confirm(runs::RETIRED, "adjacent");
    let unverified = witness["unverified"].as_array().expect("spans");
    assert!(unverified.iter().any(|span| span["reason"] == "start_retired"), "{unverified:#?}");
    assert!(unverified.iter().all(|span| span["reason"] != "not_drawn"), "{unverified:#?}");
    // Over retired states nothing is left out.
    let witness = confirm(runs::RETIRED, "resumable");
    assert_eq!(witness["unverified"], json!([]), "{witness:#}");
    let verified = witness["verified"].as_array().expect("spans");
    assert_eq!(verified, &[json!({"from_step": 0, "to_step": witness["last_step"]})]);
    let _ = confirm(runs::RECOVERED, "resumable");
}

#[test]
fn within_bounds_small_differences_pass_and_large_ones_do_not() {
    let run = RunFolder::tiny();
    run.edit_contract(|contract| {
        contract["resume"] = json!({
            "class": "operation_order_bounded", "tolerance": {"max_absolute": 1e-6, "max_relative": 1e-6}
        });
    });
    let _ = run.freeze().expect_code(0);
    let _ = run.train().expect_code(0);
    let folder = run.path();
    let _ = draw(folder, 1, "challenge.json", &[]).expect_code(0);
    let _ = replay(folder, "challenge.json", "replay.json").expect_code(0);
    let compared = verify(folder, "challenge.json", "replay.json", &["--json"]).expect_code(0).json();
    assert_eq!(compared["comparison"]["class"], "operation_order_bounded");
    let scaled = |by: f64| {
        changed(folder, "replay.json", |replay| {
            let loss = "/segments/0/steps/1/det/credit/backpropagation/loss";
            let loss = replay.pointer_mut(loss).expect("a loss");
            *loss = json!(loss.as_f64().expect("a number") * by);
        })
    };
    assert_eq!(scaled(1.0 + 1e-8).0, 0);
    assert_eq!(scaled(1.0 + 1e-4).0, 1);
    // Ids are exact in every class.
    let (code, said) = changed(folder, "replay.json", |replay| {
        replay["segments"][0]["steps"][0]["det"]["draws"][0]["ids"] =
            json!(format!("blake3:{}", "0".repeat(64)));
    });
    assert_eq!(code, 1, "{said}");
    // Another state is judged by how far it is said to be.
    let moved = |distance: f64| {
        changed(folder, "replay.json", |replay| {
            let end = &mut replay["segments"][0]["end"];
            let other = json!(format!("blake3:{}", "0".repeat(64)));
            end["classes"][0]["digest"] = other.clone();
            let of_class = &mut end["distances"][0];
            of_class["resumed"] = other;
            of_class["distance"]["max_absolute_beyond_relative"] = json!(distance);
        })
    };
    assert_eq!(moved(1e-7).0, 0);
    assert_eq!(moved(1e-3).0, 1);
}

/// The heart of it: complete forged ledgers that an audit accepts, each segment
/// executed again, and the chance of meeting a forged one beside what is printed.
#[test]
fn forgeries_are_caught_where_drawn_as_often_as_is_printed() {
    let honest = honest();
    let clean = review(honest.path(), &[]).expect("a review");
    assert_eq!(clean.contradicted, BTreeSet::new(), "an honest run is confirmed");
    for forgery in Forgery::ALL {
        let name = forgery.name();
        let forged = forge(&honest, forgery).expect("a forgery");
        let audited = report(&forged.sealed.ledger());
        assert_eq!(audited["verdict"], "accepted", "{name}: {:#}", audited["findings"]);
        let reviewed = review(forged.sealed.path(), &[]).expect("a review");
        assert_eq!(reviewed.contradicted, forgery.forged(), "{name}: {:#}", reviewed.witness["results"]);
        assert_eq!(reviewed.witness["outcome"], "contradicted");
        // Some draws by the programs, from the nonce to the manifest.
        let executed = execute(forged.sealed.path(), &reviewed, NUM_DRAWN, 6).expect("draws");
        assert_eq!(executed.wrong, Vec::<String>::new(), "{name}");
        let num_forged = reviewed.contradicted.len() as u64;
        let expected = detection(reviewed.num_segments, num_forged, NUM_DRAWN);
        assert!((executed.printed - expected).abs() < 1e-12, "{name}: {} is printed", executed.printed);
        let deviation = (expected * (1.0 - expected) / f64::from(NUM_NONCES)).sqrt();
        let found = measured(&reviewed, NUM_DRAWN, NUM_NONCES);
        assert!((found - expected).abs() < 4.0 * deviation, "{name}: {found}, and {expected} is printed");
    }
}

fn with_tree() -> RunFolder {
    let run = RunFolder::tiny();
    run.edit_contract(|contract| {
        contract["state_tree"] = json!({"scheme": "tensors/1"});
        contract["state_digest_every_steps"] = json!(5);
    });
    let _ = run.freeze().expect_code(0);
    let _ = run.train().expect_code(0);
    run
}

#[test]
fn one_tensor_is_opened_alone_and_no_other_in_its_place() {
    const TENSOR: &str = "model.norm.weight";
    let folder = with_tree();
    let path = folder.path();
    let report = folder.report();
    assert_eq!(report["verdict"], "accepted", "{:#}", report["findings"]);
    let rules = report["rules"].as_array().expect("rules");
    let tree = rules.iter().find(|rule| rule["code"] == "GL614").expect("the rule");
    assert_eq!(tree["status"], "passed");
    // A probe and a challenge have roots to compare too.
    let probe = ["probe", "--ledger", "run.db", "--quiet", "--checkpoint", "s00000010-a1"];
    let _ = run(TRAINER, path, &probe).expect_code(0);
    assert_eq!(folder.report()["verdict"], "accepted");
    let reviewed = review(path, &[]).expect("a review");
    assert_eq!(reviewed.witness["outcome"], "consistent");
    assert!(reviewed.witness["states"][0]["state_root"].is_string());

    let open = |tensor: &str, further: &[&str]| {
        let fixed = ["checkpoint", "open", "s00000010-a1", tensor, "--ledger", "run.db"];
        run(TRAINER, path, &[&fixed, further].concat())
    };
    let _ = open(TENSOR, &["--output", "opening.json", "--tensor-to", "tensor.bin"]).expect_code(0);
    let check = |opening: &str, tensor: &str| {
        run(LEDGER, path, &["challenge", "run.db", "--opening", opening, "--tensor", tensor, "--json"])
    };
    let opened = check("opening.json", "tensor.bin").expect_code(0).json();
    assert_eq!(
        (opened["leaf"]["name"].as_str(), opened["compared_bytes"].as_bool()),
        (Some(TENSOR), Some(true))
    );
    // The checkpoint itself is not needed.
    std::fs::rename(path.join("checkpoints"), path.join("elsewhere")).expect("renamed");
    let _ = check("opening.json", "tensor.bin").expect_code(0);
    std::fs::rename(path.join("elsewhere"), path.join("checkpoints")).expect("renamed");

    flip_byte(&path.join("tensor.bin"), 0);
    check("opening.json", "tensor.bin").expect_complaint(1, "opening.json", &["the leaf names"]);
    flip_byte(&path.join("tensor.bin"), 0);
    let bytes = std::fs::read(path.join("opening.json")).expect("written");
    let original: Value = serde_json::from_slice(&bytes).expect("JSON");
    for (pointer, value, word) in [
        ("/leaf/name", json!("lm_head.weight"), "leads to"),
        ("/leaf/digest", json!(format!("blake3:{}", "0".repeat(64))), "leads to"),
        ("/leaf_index", json!(0), "leads to"),
        ("/num_leaves", json!(1), "does not fit"),
        ("/proof/0", json!(format!("sha256:{}", "0".repeat(64))), "leads to"),
        ("/step", json!(5), "commits"),
        ("/entry", json!(1), "commits no checkpoint"),
    ] {
        let mut other = original.clone();
        *other.pointer_mut(pointer).unwrap_or_else(|| panic!("no {pointer}")) = value;
        let bytes = ledger::canonical::entry_json(&other).expect("canonical");
        std::fs::write(path.join("other.json"), bytes).expect("writable");
        check("other.json", "tensor.bin").expect_complaint(1, "other.json", &[word]);
    }
    // A shard without tensors opens too, and what is not there does not.
    let _ = open("topology.json", &["--output", "topology.opening.json"]).expect_code(0);
    open("no.such.tensor", &["--output", "none.json"]).expect_complaint(
        2,
        "no.such.tensor",
        &["has no tensor"],
    );
    // A device has no end, and a checkpoint by a link is no part of the run.
    check("opening.json", "/dev/zero").expect_complaint(2, "/dev/zero", &["not a regular file"]);
    let checkpoint = path.join("checkpoints/s00000010-a1");
    std::fs::rename(&checkpoint, path.join("moved")).expect("renamed");
    std::os::unix::fs::symlink(path.join("moved"), &checkpoint).expect("a link");
    let linked = open(TENSOR, &["--output", "linked.json"]);
    linked.expect_complaint(2, "s00000010-a1", &["is a symbolic link", "an audit reads none"]);
    assert!(!path.join("linked.json").exists());
    let plain = RunFolder::trained();
    let refused = run(
        TRAINER,
        plain.path(),
        &["checkpoint", "open", "s00000010-a1", TENSOR, "--ledger", "run.db", "--output", "o.json"],
    );
    refused.expect_complaint(2, "root of a state tree", &["state_tree"]);
}

#[test]
fn a_claim_that_one_execution_says_nothing_of_is_refused() {
    let run = (runs::STATISTICAL.make)();
    draw(run.path(), 1, "challenge.json", &[]).expect_complaint(1, "run.db", &["statistical"]);
    assert!(!run.path().join("challenge.json").exists());
    assert_eq!(challenges::NONCE.len(), 64);
}
