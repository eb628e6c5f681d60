//! Ledgers, keys, data and checkpoints that are not what they should be: each
//! message names file, place and remedy, and nothing is lost.

use std::path::{Path, PathBuf};
use std::time::Duration;

use ledger::keys::{KeyRing, Role};
use ledger::recorder::{Record, Recorder};
use schemas::body::{AmendmentDet, Body, Halves, Nothing};
use system_tests::dump;
use system_tests::forgery::{Forgery, past_triggers};
use system_tests::honest::Honest;
use system_tests::programs::{self, Finished, LEDGER, TRAINER};
use system_tests::run_folder::{RunFolder, flip_byte};

const COULD_NOT_RUN: i32 = 2;
const TAMPERED: i32 = 3;

/// Updates of a run that is interrupted.
const NUM_STEPS: u64 = 400;

/// Digests of everything but SQLite's index of the WAL and the lock, which
/// hold no content.
fn content(folder: &Path) -> Vec<(PathBuf, blake3::Hash)> {
    let files = dump::files(folder).expect("the folder can be read");
    let name = |path: &Path| path.to_string_lossy().into_owned();
    files
        .into_iter()
        .filter(|(path, _)| !name(path).ends_with("-shm") && !name(path).ends_with(".lock"))
        .collect()
}

/// Runs, and expects a complaint about `place` with each of `words`, and no
/// changed file.
#[track_caller]
fn check(
    run: &RunFolder,
    action: impl FnOnce(&RunFolder) -> Finished,
    code: i32,
    place: &str,
    words: &[&str],
) {
    let before = content(run.path());
    let finished = action(run);
    finished.expect_complaint(code, place, words);
    assert_eq!(before, content(run.path()), "files changed\n{finished}");
}

#[test]
fn not_a_database() {
    let run = RunFolder::frozen();
    std::fs::write(run.ledger(), "this is a letter and not a ledger").expect("a file");
    check(&run, |run| run.audit(&[]), TAMPERED, "run.db", &["not a SQLite database", "this is a letter"]);
    check(&run, RunFolder::train, COULD_NOT_RUN, "run.db", &["not a ledger", "bytes"]);
}

#[test]
fn truncated() {
    let run = RunFolder::trained();
    let bytes = std::fs::read(run.ledger()).expect("a ledger");
    let num_left = bytes.len() / 2;
    std::fs::write(run.ledger(), &bytes[..num_left]).expect("a shorter ledger");
    check(&run, |run| run.audit(&[]), TAMPERED, "run.db", &["damaged"]);
    let sizes = format!("{num_left} of {} bytes", bytes.len());
    check(&run, RunFolder::train, COULD_NOT_RUN, "run.db", &["truncated", &sizes]);
}

#[test]
fn missing() {
    let run = RunFolder::tiny();
    check(&run, |run| run.audit(&[]), COULD_NOT_RUN, "run.db", &["there is no ledger"]);
    check(&run, RunFolder::train, COULD_NOT_RUN, "run.db", &["no ledger"]);
}

#[test]
fn behind_its_external_head() {
    let run = RunFolder::frozen();
    let early = std::fs::read(run.ledger()).expect("a ledger");
    let _ = run.train().expect_code(0);
    let num_entries = run.entries().len();
    std::fs::write(run.ledger(), early).expect("the older ledger");
    for suffix in ["-wal", "-shm"] {
        let path = dump::with_suffix(&run.ledger(), suffix);
        if path.exists() {
            std::fs::remove_file(path).expect("the file can be removed");
        }
    }
    check(&run, |run| run.audit(&[]), TAMPERED, "run.db.head", &["behind a signed head", "1 entries"]);
    let signed = format!("signed over {num_entries}");
    check(&run, RunFolder::train, COULD_NOT_RUN, "run.db.head", &["behind", "1 entries", &signed]);
}

#[test]
fn of_a_newer_format() {
    let run = RunFolder::frozen();
    let connection = rusqlite::Connection::open(run.ledger()).expect("a database");
    connection
        .execute_batch("PRAGMA user_version = 2; PRAGMA wal_checkpoint(TRUNCATE)")
        .expect("a newer version");
    drop(connection);
    check(&run, RunFolder::train, COULD_NOT_RUN, "run.db", &["layout 2", "this version writes 1"]);
    // What an audit cannot read it cannot tell from a ledger that was cut
    // behind its signed head.
    check(&run, |run| run.audit(&[]), TAMPERED, "run.db", &["newer layout", "user_version 1"]);
}

#[test]
fn held_by_another_writer() {
    let run = RunFolder::frozen();
    let keys = KeyRing::open(&run.path().join("keys")).expect("the run's keys");
    let key = keys.get(Role::Trainer).expect("the trainer's key");
    let held = Recorder::open(&run.ledger(), key).expect("the first writer");
    let holder = std::process::id().to_string();
    run.train().expect_complaint(COULD_NOT_RUN, "run.db", &["being written by", &holder]);
    // The first writer is not disturbed.
    held.close().expect("the first writer closes");
    let _ = run.train().expect_code(0);
    let _ = run.audit(&[]).expect_code(0);
}

#[test]
fn data_that_changed_after_the_freeze() {
    let run = RunFolder::frozen();
    let shard = train_shard(&run);
    let original = std::fs::read(&shard).expect("a train shard");
    flip_byte(&shard, 1000);
    let name = shard.file_name().expect("a name").to_string_lossy().into_owned();
    let words = ["changed after the freeze", "expected blake3:", "found blake3:"];
    run.train().expect_complaint(COULD_NOT_RUN, &name, &words);
    assert!(!run.entries().iter().any(|entry| entry["kind"] == "step"), "it did not train on other data");
    // The data can be put back, and the refused attempt stays on record.
    std::fs::write(&shard, &original).expect("the data can be put back");
    let _ = run.train().expect_code(0);
    let report = run.report();
    assert_eq!(report["verdict"], "accepted", "{:#}", report["findings"]);
    assert_eq!(report["denominators"]["attempted"], 2);
    assert_eq!(report["denominators"]["failed"], 1);
    flip_byte(&shard, 1000);
    check(&run, |run| run.audit(&[]), TAMPERED, &name, &["GL108", "changed since the freeze"]);
}

fn train_shard(run: &RunFolder) -> PathBuf {
    let text = std::fs::read(run.contract()).expect("a contract");
    let contract: serde_json::Value = serde_json::from_slice(&text).expect("JSON");
    let manifest = run.path().join(contract["data"]["manifest"]["path"].as_str().expect("a path"));
    let text = std::fs::read(&manifest).expect("a manifest");
    let value: serde_json::Value = serde_json::from_slice(&text).expect("JSON");
    let shards = value["shards"].as_array().expect("shards");
    let shard = shards.iter().find(|shard| shard["split"] == "train").expect("a train shard");
    manifest.with_file_name(shard["path"].as_str().expect("a path"))
}

#[test]
fn another_trainer_s_key() {
    let run = RunFolder::frozen();
    let other = RunFolder::tiny();
    let (expected, given) = (trainer_key(&run), trainer_key(&other));
    let name = "trainer.key";
    std::fs::copy(other.path().join("keys").join(name), run.path().join("keys").join(name))
        .expect("another key");
    check(&run, RunFolder::train, COULD_NOT_RUN, "run.db", &[&expected, &given]);
}

/// Identifier of the trainer's key.
fn trainer_key(run: &RunFolder) -> String {
    let keys = KeyRing::open(&run.path().join("keys")).expect("the run's keys");
    keys.get(Role::Trainer).expect("the trainer's key").id().to_string()
}

#[test]
fn no_key() {
    let run = RunFolder::frozen();
    std::fs::remove_file(run.path().join("keys").join("trainer.key")).expect("the key is there");
    check(&run, RunFolder::train, COULD_NOT_RUN, "trainer.key", &["keygen"]);
}

/// A run that was killed after a checkpoint was validated.
fn interrupted() -> RunFolder {
    let run = RunFolder::long(NUM_STEPS);
    let _ = run.freeze().expect_code(0);
    let mut child = programs::start(TRAINER, run.path(), &["run", "--ledger", "run.db"]);
    let has_progress = |run: &RunFolder| {
        let entries = run.entries();
        entries.iter().filter(|entry| entry["kind"] == "checkpoint.validated").count() >= 2
    };
    while !has_progress(&run) {
        assert!(child.try_wait().expect("the state of a child").is_none(), "it ended too early");
        std::thread::sleep(Duration::from_millis(5));
    }
    child.kill().expect("a child can be killed");
    child.wait().expect("a killed child can be waited for");
    run
}

#[test]
fn corrupted_checkpoint_shard() {
    let run = interrupted();
    let entries = run.entries();
    let committed = entries.iter().rfind(|entry| entry["kind"] == "checkpoint.durably_committed");
    let obs = &committed.expect("a committed checkpoint")["body"]["obs"];
    let folder = run.path().join(obs["path"].as_str().expect("a path"));
    flip_byte(&folder.join("optimizer.safetensors"), 4000);
    // It goes on from an older one, warns, and the record says so.
    let finished = run.train().expect_code(0);
    let words = ["warning", "optimizer.safetensors", "expected blake3:", "found blake3:"];
    finished.expect_message(&words);
    finished.expect_message(&[obs["checkpoint"].as_str().expect("an id")]);
    let entries = run.entries();
    assert!(entries.iter().any(|entry| entry["kind"] == "fault.observed"), "the fault is recorded");
    let uninterrupted = RunFolder::long(NUM_STEPS);
    let _ = uninterrupted.freeze().expect_code(0);
    let _ = uninterrupted.train().expect_code(0);
    // Seeds and data are those of the preset, so this is the same trajectory.
    assert_eq!(last_model(&run), last_model(&uninterrupted));
}

fn last_model(run: &RunFolder) -> serde_json::Value {
    let entries = run.entries();
    let last = entries.iter().rfind(|entry| entry["kind"] == "checkpoint.durably_committed");
    last.expect("a committed checkpoint")["body"]["det"]["model"].clone()
}

#[test]
fn a_report_that_shows_a_cut_is_not_replaced() {
    let run = RunFolder::frozen();
    let keys = KeyRing::open(&run.path().join("keys")).expect("the run's keys");
    let trainer = keys.get(Role::Trainer).expect("a key");
    let recorder = Recorder::open(&run.ledger(), trainer).expect("nobody else writes");
    let det = AmendmentDet { amends: 0, statement: "one".to_owned() };
    let record = Record::new(Body::Amendment(Box::new(Halves { det, obs: Nothing {} })));
    recorder.append_durable(record).expect("one more entry");
    recorder.close().expect("the ledger is released");
    let saved = run.audit(&["--save"]);
    assert!(saved.stderr.contains("into run.db.report.dsse.json"), "{saved}");
    let path = run.path().join("run.db.report.dsse.json");
    let report = std::fs::read(&path).expect("a report");

    let mut forgery = Forgery::open(&run.ledger()).expect("a ledger");
    forgery.entries.truncate(1);
    forgery.seal(Some(&keys)).expect("written");
    let _ = run.audit(&[]).expect_code(TAMPERED);
    for arguments in [&["--save"][..], &["--save-to", "./run.db.report.dsse.json"]] {
        let refused = run.audit(arguments);
        refused.expect_complaint(COULD_NOT_RUN, "run.db", &["is left as it is", "GL111", "--save-to FILE"]);
        assert!(refused.stdout.starts_with("tampered"), "the verdict is printed: {refused}");
        assert_eq!(std::fs::read(&path).expect("a report"), report);
    }
    let _ = run.audit(&["--save-to", "new.json"]).expect_code(TAMPERED);
    let _ = run.audit(&[]).expect_code(TAMPERED);
}

#[test]
fn a_report_of_a_run_that_cannot_be_read_does_not_lie_beside_it() {
    let run = RunFolder::frozen();
    past_triggers(&run.ledger(), |connection| {
        Ok(connection.execute_batch("UPDATE entries SET entry = x'7b7d' WHERE seq = 0")?)
    })
    .expect("written");
    let named = run.path().join("keys/../run.db.report.dsse.json").to_string_lossy().into_owned();
    for arguments in [&["--save"][..], &["--save-to", &named]] {
        let refused = run.audit(arguments);
        refused.expect_complaint(COULD_NOT_RUN, "run.db", &["is left as it is", "--save-to FILE"]);
        assert!(refused.stdout.starts_with("tampered"), "the verdict is printed: {refused}");
        assert!(!run.path().join("run.db.report.dsse.json").exists());
    }
}

/// It has other rules than those of a run or a campaign, and nobody has touched it.
#[test]
fn the_ledger_of_a_qualifier_is_called_what_it_is() {
    let run = Honest::QuickStart.make();
    for (arguments, kind) in [
        (&["audit", "qualification.db"][..], "a run"),
        (&["campaign", "audit", "qualification.db"], "a campaign"),
        (&["handoff", "qualification.db"], "a run"),
    ] {
        let finished = programs::run(LEDGER, run.path(), arguments).expect_code(COULD_NOT_RUN);
        let message = format!(
            "qualification.db is the ledger of a qualifier, and this command audits the ledger of {kind}"
        );
        finished.expect_message(&[&message, "hint: ", "ledger list"]);
    }
    let _ = programs::run(LEDGER, run.path(), &["list", "qualification.db"]).expect_code(0);
}
