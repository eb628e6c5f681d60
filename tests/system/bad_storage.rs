//! Read-only media and a full disk, on small filesystems in memory.
//!
//! Mounting needs root. Where that is missing these tests fail: skipping them
//! would report something that was not tried.

use std::path::Path;
use std::process::Command;

use system_tests::run_folder::{RunFolder, copy_folder};
use system_tests::{dump, programs};
use tempfile::TempDir;

/// A filesystem in memory that is unmounted at the end of the test.
struct Mount {
    folder: TempDir,
}

impl Mount {
    fn new(num_bytes: u64) -> Self {
        let folder = TempDir::with_prefix("governed-ledger-mount-").expect("a temporary folder");
        mount(&["-t", "tmpfs", "-o", &format!("size={num_bytes}"), "tmpfs"], folder.path());
        Self { folder }
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }

    fn remount(&self, options: &str) {
        mount(&["-o", &format!("remount,{options}")], self.path());
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        // Nothing to do about a failure here but leave the mount behind.
        let _ = Command::new("umount").arg("--lazy").arg(self.path()).status();
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

fn used_bytes(folder: &Path) -> u64 {
    let files = dump::files(folder).expect("the folder can be read");
    // Whole pages, as tmpfs counts.
    let sizes = files.keys().map(|path| std::fs::metadata(folder.join(path)).expect("a file").len());
    sizes.map(|size| size.div_ceil(4096) * 4096).sum()
}

#[test]
fn read_only_media_can_be_audited_but_not_trained_on() {
    let run = RunFolder::trained();
    let mount = Mount::new(256 << 20);
    copy_folder(run.path(), mount.path()).expect("a copy");
    mount.remount("ro");
    let finished = programs::run(programs::LEDGER, mount.path(), &["audit", "run.db"]);
    assert_eq!(finished.code, 0, "{finished}");
    let finished =
        programs::run(programs::LEDGER, mount.path(), &["audit", "run.db", "--save"]).expect_code(2);
    finished.expect_message(&["run.db.report.dsse.json", "read-only"]);

    let frozen = RunFolder::frozen();
    mount.remount("rw");
    copy_folder(frozen.path(), mount.path()).expect("a copy over the first");
    std::fs::remove_dir_all(mount.path().join("checkpoints")).expect("the first run's checkpoints");
    mount.remount("ro");
    let arguments = ["run", "--ledger", "run.db"];
    let finished = programs::run(programs::TRAINER, mount.path(), &arguments).expect_code(2);
    finished.expect_message(&["run.db"]);
}

#[test]
fn a_full_disk_stops_training_and_loses_nothing() {
    let run = RunFolder::tiny();
    // Without the floor, which would stop before the disk is full.
    run.edit_contract(|contract| contract["floors"]["free_disk_bytes"] = 0.into());
    let _ = run.freeze().expect_code(0);
    let uninterrupted = run.copy();
    let _ = uninterrupted.train().expect_code(0);
    let (before, after) = (used_bytes(run.path()), used_bytes(uninterrupted.path()));
    let mount = Mount::new(before + (after - before) / 2);
    copy_folder(run.path(), mount.path()).expect("a copy");

    let arguments = ["run", "--ledger", "run.db"];
    let finished = programs::run(programs::TRAINER, mount.path(), &arguments);
    assert!(finished.code == 1 || finished.code == 2, "{finished}");
    let message = finished.stderr.to_lowercase();
    assert!(message.contains("space") || message.contains("disk") || message.contains("full"), "{finished}");

    // What was recorded is intact: the run is not over, and nothing else.
    let finished = programs::run(programs::LEDGER, mount.path(), &["audit", "run.db"]).expect_code(4);
    assert!(finished.stdout.contains("incomplete"), "{finished}");

    // With room again it goes on to the same end.
    mount.remount("size=256m");
    let _ = programs::run(programs::TRAINER, mount.path(), &arguments).expect_code(0);
    let _ = programs::run(programs::LEDGER, mount.path(), &["audit", "run.db"]).expect_code(0);
    let model = |ledger: &Path| {
        let entries = dump::entries(ledger).expect("a ledger");
        let last = entries.into_iter().rfind(|entry| entry["kind"] == "checkpoint.durably_committed");
        last.expect("a checkpoint")["body"]["det"]["model"].clone()
    };
    assert_eq!(model(&mount.path().join("run.db")), model(&uninterrupted.ledger()));
}

#[test]
fn a_floor_stops_training_before_the_disk_is_full() {
    let run = RunFolder::tiny();
    run.edit_contract(|contract| contract["floors"]["free_disk_bytes"] = (1_u64 << 50).into());
    let _ = run.freeze().expect_code(0);
    let finished = run.train().expect_code(1);
    for word in ["floor", "disk"] {
        assert!(finished.stdout.contains(word), "the result does not say {word:?}\n{finished}");
    }
    let entries = run.entries();
    let end = entries.iter().rfind(|entry| entry["kind"] == "attempt.end").expect("a terminal entry");
    assert_eq!(end["body"]["det"]["outcome"], "floor_reached");
    let _ = run.audit(&[]).expect_code(4);
}
