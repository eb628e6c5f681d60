//! Ledgers, keys, data and checkpoints that are not what they should be: each
//! message names file, place and remedy, and nothing is lost.

use std::path::{Path, PathBuf};
use std::time::Duration;

use ledger::keys::{KeyRing, Role};
use ledger::recorder::Recorder;
use system_tests::dump;
use system_tests::programs::{self, Finished, TRAINER};
use system_tests::run_folder::RunFolder;

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

/// Runs, and expects a message with each of `words`, and no changed file.
#[track_caller]
fn check(run: &RunFolder, action: impl FnOnce(&RunFolder) -> Finished, code: i32, words: &[&str]) {
    let before = content(run.path());
    let finished = action(run).expect_code(code);
    let mut shown = finished.clone();
    // An audit says what it found on stdout.
    shown.stderr.push_str(&finished.stdout);
    shown.expect_message(words);
    assert_eq!(before, content(run.path()), "files changed\n{finished}");
}

fn flip_byte(path: &Path, offset: usize) {
    let mut bytes = std::fs::read(path).expect("the file can be read");
    bytes[offset] ^= 1;
    std::fs::write(path, bytes).expect("the file can be written");
}

#[test]
fn not_a_database() {
    let run = RunFolder::frozen();
    std::fs::write(run.ledger(), "this is a letter and not a ledger").expect("a file");
    check(&run, |run| run.audit(&[]), TAMPERED, &["run.db", "not a"]);
    check(&run, RunFolder::train, COULD_NOT_RUN, &["run.db", "not a"]);
}

#[test]
fn truncated() {
    let run = RunFolder::trained();
    let bytes = std::fs::read(run.ledger()).expect("a ledger");
    std::fs::write(run.ledger(), &bytes[..bytes.len() / 2]).expect("a shorter ledger");
    check(&run, |run| run.audit(&[]), TAMPERED, &["run.db"]);
    check(&run, RunFolder::train, COULD_NOT_RUN, &["run.db", "truncated"]);
}

#[test]
fn missing() {
    let run = RunFolder::tiny();
    check(&run, |run| run.audit(&[]), COULD_NOT_RUN, &["run.db", "hint:"]);
    check(&run, RunFolder::train, COULD_NOT_RUN, &["run.db"]);
}

#[test]
fn behind_its_external_head() {
    let run = RunFolder::frozen();
    let early = std::fs::read(run.ledger()).expect("a ledger");
    let _ = run.train().expect_code(0);
    std::fs::write(run.ledger(), early).expect("the older ledger");
    for suffix in ["-wal", "-shm"] {
        let path = dump::with_suffix(&run.ledger(), suffix);
        if path.exists() {
            std::fs::remove_file(path).expect("the file can be removed");
        }
    }
    check(&run, |run| run.audit(&[]), TAMPERED, &["run.db.head"]);
    check(&run, RunFolder::train, COULD_NOT_RUN, &["behind", "run.db.head"]);
}

#[test]
fn of_a_newer_format() {
    let run = RunFolder::frozen();
    let connection = rusqlite::Connection::open(run.ledger()).expect("a database");
    connection
        .execute_batch("PRAGMA user_version = 2; PRAGMA wal_checkpoint(TRUNCATE)")
        .expect("a newer version");
    drop(connection);
    check(&run, RunFolder::train, COULD_NOT_RUN, &["run.db", "layout 2"]);
    let before = content(run.path());
    let finished = run.audit(&[]);
    assert_ne!(finished.code, 0, "{finished}");
    assert!(finished.stdout.contains("newer layout"), "{finished}");
    assert_eq!(before, content(run.path()));
}

#[test]
fn held_by_another_writer() {
    let run = RunFolder::frozen();
    let keys = KeyRing::open(&run.path().join("keys")).expect("the run's keys");
    let key = keys.get(Role::Trainer).expect("the trainer's key");
    let held = Recorder::open(&run.ledger(), key).expect("the first writer");
    let finished = run.train().expect_code(COULD_NOT_RUN);
    finished.expect_message(&["run.db", "being written by", &std::process::id().to_string()]);
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
    let finished = run.train().expect_code(COULD_NOT_RUN);
    finished.expect_message(&[
        &name,
        "changed after the freeze",
        "expected blake3:",
        "found blake3:",
        "hint:",
    ]);
    assert!(!run.entries().iter().any(|entry| entry["kind"] == "step"), "it did not train on other data");
    // The data can be put back, and the refused attempt stays on record.
    std::fs::write(&shard, &original).expect("the data can be put back");
    let _ = run.train().expect_code(0);
    let report = run.report();
    assert_eq!(report["verdict"], "accepted", "{:#}", report["findings"]);
    assert_eq!(report["denominators"]["attempted"], 2);
    assert_eq!(report["denominators"]["failed"], 1);
    flip_byte(&shard, 1000);
    check(&run, |run| run.audit(&[]), TAMPERED, &[&name, "GL108", "hint:"]);
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
    let name = "trainer.key";
    std::fs::copy(other.path().join("keys").join(name), run.path().join("keys").join(name))
        .expect("another key");
    check(&run, RunFolder::train, COULD_NOT_RUN, &["key", "trainer:"]);
}

#[test]
fn no_key() {
    let run = RunFolder::frozen();
    std::fs::remove_file(run.path().join("keys").join("trainer.key")).expect("the key is there");
    check(&run, RunFolder::train, COULD_NOT_RUN, &["trainer.key", "keygen"]);
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
    let finished = run.train();
    finished.expect_message(&["optimizer.safetensors", obs["checkpoint"].as_str().expect("an id")]);
    // It goes on from an older one, and the record says so.
    assert_eq!(finished.code, 0, "{finished}");
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
