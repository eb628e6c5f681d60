//! Read-only media and a full disk, on small filesystems in memory.
//!
//! Mounting needs root. Where that is missing these tests fail: skipping them
//! would report something that was not tried.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use system_tests::dump;
use system_tests::programs::{self, EVALUATOR, Finished, LEDGER, TRAINER};
use system_tests::run_folder::{RunFolder, copy_folder};
use tempfile::TempDir;

const ENDED_ON_RECORD: i32 = 1;
const COULD_NOT_RUN: i32 = 2;
const INCOMPLETE: i32 = 4;

/// Unit in which a filesystem in memory counts.
const PAGE_BYTES: u64 = 4096;

/// Room for everything that a test writes.
const ROOMY: u64 = 256 << 20;

/// A filesystem in memory over a folder, unmounted at the end of the test. It
/// is declared after the folder, which has to outlive it.
struct Mount {
    folder: PathBuf,
}

impl Mount {
    fn over(folder: &Path, num_bytes: u64) -> Self {
        mount(&["-t", "tmpfs", "-o", &format!("size={num_bytes}"), "tmpfs"], folder);
        Self { folder: folder.to_owned() }
    }

    fn remount(&self, options: &str) {
        mount(&["-o", &format!("remount,{options}")], &self.folder);
    }

    fn make_roomy(&self) {
        self.remount(&format!("size={ROOMY}"));
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        // Nothing to do about a failure here but leave the mount behind.
        let _ = Command::new("umount").arg("--lazy").arg(&self.folder).status();
    }
}

fn mount(arguments: &[&str], folder: &Path) {
    let output = Command::new("mount").args(arguments).arg(folder).output().expect("`mount` is installed");
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "mount {arguments:?}: {message}\nthis test needs root; it is not skipped"
    );
}

fn mount_point() -> TempDir {
    TempDir::with_prefix("governed-ledger-mount-").expect("a temporary folder")
}

fn sizes(folder: &Path) -> Vec<u64> {
    let files = dump::files(folder).expect("the folder can be read");
    files.keys().map(|path| std::fs::metadata(folder.join(path)).expect("a file").len()).collect()
}

/// Bytes that a folder takes in whole pages.
fn used_bytes(folder: &Path) -> u64 {
    sizes(folder).into_iter().map(whole_pages).sum()
}

const fn whole_pages(num_bytes: u64) -> u64 {
    num_bytes.div_ceil(PAGE_BYTES) * PAGE_BYTES
}

/// What counts of a run's folder: databases by their rows, other files by their
/// bytes. A stored report may be another one of the same run; locks, logs and
/// their indices come and go.
fn content(folder: &Path) -> BTreeMap<PathBuf, String> {
    let mut found = BTreeMap::new();
    for (path, hash) in dump::files(folder).expect("the folder can be read") {
        let name = path.to_string_lossy().into_owned();
        if [".lock", "-wal", "-shm"].iter().any(|end| name.ends_with(end)) {
            continue;
        }
        let what = if name.ends_with(".report.dsse.json") {
            "a report".to_owned()
        } else if name.ends_with(".db") {
            dump::database(&folder.join(&path)).expect("a database")
        } else {
            hash.to_hex().to_string()
        };
        found.insert(path, what);
    }
    found
}

fn train(folder: &Path) -> Finished {
    programs::run(TRAINER, folder, &["run", "--ledger", "run.db"])
}

fn audit(folder: &Path) -> Finished {
    programs::run(LEDGER, folder, &["audit", "run.db"])
}

#[test]
fn read_only_media_can_be_audited_but_not_trained_on() {
    let run = RunFolder::trained();
    let folder = mount_point();
    let mount = Mount::over(folder.path(), ROOMY);
    copy_folder(run.path(), folder.path()).expect("a copy");
    mount.remount("ro");
    let _ = audit(folder.path()).expect_code(0);
    let finished = programs::run(LEDGER, folder.path(), &["audit", "run.db", "--save"]);
    finished.expect_complaint(COULD_NOT_RUN, "run.db.report.dsse.json", &["read-only"]);

    let frozen = RunFolder::frozen();
    mount.remount("rw");
    copy_folder(frozen.path(), folder.path()).expect("a copy over the first");
    std::fs::remove_dir_all(folder.path().join("checkpoints")).expect("the first run's checkpoints");
    mount.remount("ro");
    train(folder.path()).expect_complaint(COULD_NOT_RUN, "run.db", &["read-only"]);
}

/// What a probe would need is known before anything runs.
#[test]
fn a_probe_that_would_not_fit_is_refused_before_it_begins() {
    let run = RunFolder::trained();
    let folder = mount_point();
    let _mount = Mount::over(folder.path(), 64 * PAGE_BYTES);
    let entries = run.entries();
    let scratch = folder.path().to_string_lossy().into_owned();
    let arguments = ["probe", "--ledger", "run.db", "--checkpoint", "s00000000-a1", "--scratch", &scratch];
    let arguments = [&arguments[..], &["--steps", "1000"]].concat();
    let finished = programs::run(TRAINER, run.path(), &arguments);
    finished.expect_complaint(COULD_NOT_RUN, &scratch, &["bytes for states", "are free", "--scratch DIR"]);
    assert_eq!(run.entries(), entries);
    assert_eq!(std::fs::read_dir(folder.path()).expect("the mount").count(), 0, "the scratch folder is gone");
}

/// A frozen run, and the same one trained to its end. Without the floor, which
/// would stop before the disk is full.
fn frozen_and_uninterrupted() -> (RunFolder, RunFolder) {
    let run = RunFolder::tiny();
    run.edit_contract(|contract| contract["floors"]["free_disk_bytes"] = 0.into());
    let _ = run.freeze().expect_code(0);
    let uninterrupted = run.copy();
    let _ = uninterrupted.train().expect_code(0);
    (run, uninterrupted)
}

fn last_model(folder: &Path) -> Value {
    let entries = dump::entries(&folder.join("run.db")).expect("a ledger");
    let last = entries.into_iter().rfind(|entry| entry["kind"] == "checkpoint.durably_committed");
    last.expect("a checkpoint")["body"]["det"]["model"].clone()
}

/// What was recorded is intact: the run is not over, and nothing else. With
/// room again it goes on to the same end.
fn check_goes_on(folder: &Path, mount: &Mount, uninterrupted: &RunFolder) {
    let finished = audit(folder).expect_code(INCOMPLETE);
    assert!(finished.stdout.contains("incomplete"), "{finished}");
    mount.make_roomy();
    let _ = train(folder).expect_code(0);
    let _ = audit(folder).expect_code(0);
    assert_eq!(last_model(folder), last_model(uninterrupted.path()));
}

#[test]
fn a_full_store_ends_the_attempt_on_record_and_loses_nothing() {
    let (run, uninterrupted) = frozen_and_uninterrupted();
    let store = run.path().join("checkpoints");
    std::fs::create_dir(&store).expect("a store");
    // Room for one checkpoint and for the bytes of another, which the trainer
    // looks for, but not for its last pages.
    let first = uninterrupted.path().join("checkpoints/s00000000-a1");
    let num_bytes = used_bytes(&first) + whole_pages(sizes(&first).into_iter().sum());
    assert!(num_bytes < 2 * used_bytes(&first), "a second one does not fit");
    let mount = Mount::over(&store, num_bytes);
    let words = ["the checkpoint cannot be written", "no space left on device"];
    run.train().expect_complaint(ENDED_ON_RECORD, "checkpoints/.staging-s", &words);
    let entries = run.entries();
    assert!(entries.iter().any(|entry| entry["kind"] == "checkpoint.failed"), "the failure is recorded");
    let last = entries.last().expect("a ledger has entries");
    assert_eq!(last["kind"], "attempt.end");
    assert_eq!(last["body"]["det"]["outcome"], "failed");
    check_goes_on(run.path(), &mount, &uninterrupted);
}

/// A store that is full while the next checkpoint is written costs nothing that
/// was whole: the best is read back bit for bit, and goes only by an entry.
#[test]
fn a_full_store_leaves_the_best_checkpoint_whole() {
    let run = RunFolder::tiny();
    run.edit_contract(|contract| {
        contract["floors"]["free_disk_bytes"] = 0.into();
        contract["checkpoints"]["keep"] =
            serde_json::json!({"kind": "chosen", "best": 1, "every_steps": null, "last": 1, "pinned": []});
    });
    let _ = run.freeze().expect_code(0);
    let uninterrupted = run.copy();
    let _ = uninterrupted.train().expect_code(0);
    let store = run.path().join("checkpoints");
    std::fs::create_dir(&store).expect("a store");
    // Room for two, and for the bytes of a third but not for its last pages.
    let first = uninterrupted.path().join("checkpoints/s00000000-a1");
    let mount = Mount::over(&store, 2 * used_bytes(&first) + whole_pages(sizes(&first).into_iter().sum()));
    run.train().expect_complaint(ENDED_ON_RECORD, "checkpoints/.staging-s", &["no space left on device"]);
    let verify = ["checkpoint", "verify", "--all", "--json", "--ledger", "run.db"];
    let verified = programs::run(TRAINER, run.path(), &verify).expect_code(0).json();
    assert_eq!(verified["checkpoints"].as_array().map(Vec::len), Some(2), "{verified:#}");
    let list = ["checkpoint", "list", "--json", "--ledger", "run.db"];
    let listed = programs::run(TRAINER, run.path(), &list).expect_code(0).json();
    let rows = listed["checkpoints"].as_array().expect("a list");
    let best = rows.iter().find(|row| row["best"] == true).expect("one is the best");
    assert_eq!((&best["stage"], &best["problem"]), (&Value::from("validated"), &Value::Null));
    assert!(rows.iter().any(|row| row["stage"] == "failed" && row["complete"] == false));
    check_goes_on(run.path(), &mount, &uninterrupted);
}

#[test]
fn a_full_disk_below_the_ledger_stops_training_and_loses_nothing() {
    let (run, uninterrupted) = frozen_and_uninterrupted();
    let before = used_bytes(run.path());
    let after = used_bytes(uninterrupted.path()) - used_bytes(&uninterrupted.path().join("checkpoints"));
    // The log of a run takes several times what its ledger grows by in the end.
    let folder = mount_point();
    let mount = Mount::over(folder.path(), before + 2 * (after - before));
    copy_folder(run.path(), folder.path()).expect("a copy");
    let store = folder.path().join("checkpoints");
    std::fs::create_dir(&store).expect("a store");
    let _store = Mount::over(&store, ROOMY);
    let words = ["the ledger cannot be written", "disk is full"];
    train(folder.path()).expect_complaint(COULD_NOT_RUN, "run.db", &words);
    let entries = dump::entries(&folder.path().join("run.db")).expect("a ledger");
    assert!(entries.iter().any(|entry| entry["kind"] == "attempt.start"), "it was full on the way");
    check_goes_on(folder.path(), &mount, &uninterrupted);
}

/// A disk that could not hold one more checkpoint is left before that one is
/// begun, with a terminal entry and without a floor of the contract's.
#[test]
fn a_disk_that_could_not_hold_one_more_checkpoint_ends_the_attempt_cleanly() {
    let (run, uninterrupted) = frozen_and_uninterrupted();
    let store = run.path().join("checkpoints");
    std::fs::create_dir(&store).expect("a store");
    // Room for two checkpoints, and for half of a third.
    let num_bytes = used_bytes(&uninterrupted.path().join("checkpoints/s00000000-a1"));
    let mount = Mount::over(&store, 2 * num_bytes + whole_pages(num_bytes / 2));
    run.train().expect_complaint(
        ENDED_ON_RECORD,
        "disk: ",
        &["one more checkpoint takes", "stopped at a floor"],
    );
    let entries = run.entries();
    let count = |kind: &str| entries.iter().filter(|entry| entry["kind"] == kind).count();
    assert_eq!((count("checkpoint.requested"), count("checkpoint.validated")), (2, 2));
    assert_eq!((count("checkpoint.failed"), count("fault.observed")), (0, 0));
    let last = entries.last().expect("a ledger has entries");
    assert_eq!(
        (&last["kind"], &last["body"]["det"]["outcome"]),
        (&"attempt.end".into(), &"floor_reached".into())
    );
    check_goes_on(run.path(), &mount, &uninterrupted);
}

#[test]
fn a_floor_stops_training_before_the_disk_is_full() {
    let run = RunFolder::tiny();
    let floor = 1_u64 << 50;
    run.edit_contract(|contract| contract["floors"]["free_disk_bytes"] = floor.into());
    let _ = run.freeze().expect_code(0);
    run.train().expect_complaint(ENDED_ON_RECORD, "disk: ", &["stopped at a floor", &floor.to_string()]);
    let entries = run.entries();
    let end = entries.iter().rfind(|entry| entry["kind"] == "attempt.end").expect("a terminal entry");
    assert_eq!(end["body"]["det"]["outcome"], "floor_reached");
    let _ = run.audit(&[]).expect_code(INCOMPLETE);
}

/// A verb that writes beside a run meets a disk with so many pages of room: the
/// message says what to do, all that was there is there, and nothing new
/// counts. With room again the same command does it; so it does in the run's own
/// folder.
#[track_caller]
fn check_full_disk(run: &RunFolder, program: &str, arguments: &[&str], place: &str, rooms: &[u64]) {
    let before = content(run.path());
    for num_pages in rooms {
        let folder = mount_point();
        let mount = Mount::over(folder.path(), used_bytes(run.path()) + num_pages * PAGE_BYTES);
        copy_folder(run.path(), folder.path()).expect("a copy");
        let finished = programs::run(program, folder.path(), arguments);
        finished.expect_complaint(COULD_NOT_RUN, place, &["room"]);
        assert_eq!(content(folder.path()), before, "with {num_pages} pages of room\n{finished}");
        mount.make_roomy();
        let _ = programs::run(program, folder.path(), arguments).expect_code(0);
    }
    let _ = programs::run(program, run.path(), arguments).expect_code(0);
    assert_ne!(content(run.path()), before, "{arguments:?} writes nothing");
}

#[test]
fn a_full_disk_stops_every_verb_that_writes_beside_a_run_and_loses_nothing() {
    let run = RunFolder::tiny();
    // None, and not enough for the tables.
    check_full_disk(&run, LEDGER, &["freeze", "contract.json"], "run.db", &[0, 10]);
    let _ = run.train().expect_code(0);
    let val = ["val", "--ledger", "run.db"];
    check_full_disk(&run, EVALUATOR, &val, "qualification.db", &[0, 8]);
    check_full_disk(&run, LEDGER, &["audit", "run.db", "--save"], "run.db.report.dsse.json", &[0, 2]);
    // None; and enough for the report, which takes the place of the one that is
    // there, but not for SQLite's log and its index of 8 pages.
    let report = std::fs::metadata(run.path().join("run.db.report.dsse.json")).expect("a report is stored");
    let num_pages = (whole_pages(report.len()) / PAGE_BYTES + 1).max(9);
    check_full_disk(&run, LEDGER, &["handoff", "run.db"], "run.db", &[0, num_pages]);
    let qualify = ["qualify", "--ledger", "run.db", "--handoff", "run.db.handoff.dsse.json"];
    check_full_disk(&run, EVALUATOR, &qualify, "qualification.db", &[0, 9]);
    let _ = audit(run.path()).expect_code(0);
}
