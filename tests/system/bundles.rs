//! Bundles by the programs: the same bytes for the same evidence, and the same
//! report as of the folder, whatever is wrong with the run. What is refused names
//! the place, and nothing is left where it was unpacked.

use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rusqlite::Connection;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use system_tests::dump;
use system_tests::programs::{self, Finished, LEDGER, run};
use system_tests::random::Random;
use system_tests::run_folder::{RunFolder, flip_byte};

/// Name of the bundles here.
const BUNDLE: &str = "run.tar.zst";

#[track_caller]
fn bundled(folder: &RunFolder, further: &[&str]) -> PathBuf {
    let _ = folder.ledger_command("bundle", &[&[BUNDLE], further].concat()).expect_code(0);
    folder.path().join(BUNDLE)
}

/// The report of a bundle, audited in a folder in which there is nothing else.
#[track_caller]
fn audited(bundle: &Path, further: &[&str]) -> Finished {
    let elsewhere = tempfile::tempdir().expect("a folder");
    let path = bundle.to_string_lossy().into_owned();
    let finished = run(LEDGER, elsewhere.path(), &[&["audit", &path, "--json"], further].concat());
    let left = std::fs::read_dir(elsewhere.path()).expect("a folder").count();
    assert_eq!(left, 0, "an audit writes nothing");
    finished
}

/// Folder and bundle of a run get the same report and the same exit code.
#[track_caller]
fn check(folder: &RunFolder, what: &str, form: &str, verdict: &str) {
    let expected = folder.audit(&["--json"]);
    let report = expected.json();
    assert_eq!(report["verdict"], verdict, "{what}: {report:#}");
    let made = folder.ledger_command("bundle", &[BUNDLE, "--json"]).expect_code(0).json();
    assert_eq!(made["ledger"]["form"], form, "{what}");
    let found = audited(&folder.path().join(BUNDLE), &[]);
    assert_eq!(found.json(), report, "{what}");
    assert_eq!(found.code, expected.code, "{what}");
}

fn sql(folder: &RunFolder, sql: &str) {
    let connection = Connection::open(folder.ledger()).expect("a database");
    let triggers: Vec<(String, String)> = {
        let query = "SELECT name, sql FROM sqlite_schema WHERE type = 'trigger'";
        let mut statement = connection.prepare(query).expect("a query");
        let rows = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?))).expect("rows");
        rows.collect::<Result<_, _>>().expect("readable")
    };
    for (name, _) in &triggers {
        connection.execute_batch(&format!("DROP TRIGGER {name}")).expect("a trigger");
    }
    connection.execute_batch(sql).expect("the edit acts");
    for (_, text) in &triggers {
        connection.execute_batch(text).expect("a trigger");
    }
}

/// Some shard of the newest checkpoint.
fn shard(folder: &RunFolder) -> PathBuf {
    let files = dump::files(folder.path()).expect("readable");
    let mut shards = files.into_keys().filter(|path| {
        path.starts_with("checkpoints") && path.extension().is_some_and(|name| name == "safetensors")
    });
    folder.path().join(shards.next_back().expect("a shard"))
}

type Damage = fn(&RunFolder);

#[test]
fn a_damaged_run_is_judged_in_a_bundle_as_in_its_folder() {
    let run = RunFolder::trained();
    check(&run.copy(), "nothing", "export", "accepted");
    let damages: [(&str, &str, &str, Damage); 15] = [
        ("a changed shard", "export", "tampered", |run| flip_byte(&shard(run), 200)),
        ("a missing shard", "export", "tampered", |run| std::fs::remove_file(shard(run)).expect("removed")),
        ("a stray file", "export", "rejected", |run| {
            std::fs::write(shard(run).with_file_name("note.txt"), "x").expect("written");
        }),
        ("an empty folder in the store", "export", "accepted", |run| {
            std::fs::create_dir(run.path().join("checkpoints/empty")).expect("made");
        }),
        ("changed data", "export", "tampered", |run| {
            flip_byte(&run.path().join("data/shards/train-000.txt"), 20);
        }),
        ("missing data", "export", "not_evaluated", |run| {
            std::fs::remove_file(run.path().join("data/shards/train-000.txt")).expect("removed");
        }),
        ("no head file", "export", "not_evaluated", |run| {
            std::fs::remove_file(run.path().join("run.db.head")).expect("removed");
        }),
        ("a report that is none", "export", "rejected", |run| {
            std::fs::write(run.path().join("run.db.report.dsse.json"), "{}").expect("written");
        }),
        ("lost entries", "export", "tampered", |run| {
            sql(run, "DELETE FROM entries WHERE seq > 20; DELETE FROM heads WHERE size > 21;");
        }),
        ("a changed entry", "database", "tampered", |run| {
            sql(
                run,
                "UPDATE entries SET entry = CAST(replace(CAST(entry AS TEXT), 'step', 'stop') AS BLOB) WHERE seq = 9",
            );
        }),
        ("a changed leaf", "database", "tampered", |run| {
            sql(run, "UPDATE entries SET leaf = zeroblob(32) WHERE seq = 9");
        }),
        ("a missing trigger", "database", "tampered", |run| {
            let connection = Connection::open(run.ledger()).expect("a database");
            connection.execute_batch("DROP TRIGGER heads_update").expect("a trigger");
        }),
        ("another table", "database", "tampered", |run| {
            let connection = Connection::open(run.ledger()).expect("a database");
            connection.execute_batch("CREATE TABLE more (x)").expect("a table");
        }),
        ("a database that was cut", "database", "tampered", |run| {
            let bytes = std::fs::read(run.ledger()).expect("a ledger");
            std::fs::write(run.ledger(), &bytes[..bytes.len() / 2]).expect("written");
        }),
        ("no database", "database", "tampered", |run| {
            std::fs::write(run.ledger(), "this is a letter and not a ledger").expect("written");
        }),
    ];
    for (what, form, verdict, damage) in damages {
        let copy = run.copy();
        // SQL finds the rows in the database, and nothing in a log of another one.
        Connection::open(copy.ledger())
            .and_then(|connection| connection.execute_batch("PRAGMA wal_checkpoint(TRUNCATE)"))
            .expect("a database");
        damage(&copy);
        check(&copy, what, form, verdict);
    }
    check(&RunFolder::frozen(), "a run that has not begun", "export", "incomplete");
}

#[test]
fn the_same_evidence_gives_the_same_bytes() {
    let run = RunFolder::trained();
    let first = std::fs::read(bundled(&run, &[])).expect("a bundle");
    std::fs::rename(run.path().join(BUNDLE), run.path().join("first.tar.zst")).expect("renamed");
    let again = std::fs::read(bundled(&run, &[])).expect("a bundle");
    assert!(first == again, "twice of one folder");
    // Moved, exported and imported, with other files and times beside it.
    let moved = run.copy();
    std::fs::remove_file(moved.path().join(BUNDLE)).expect("the copy's bundle");
    system_tests::honest::export_and_import(&moved);
    std::fs::write(moved.path().join("notes.txt"), "no evidence").expect("written");
    let of_moved = std::fs::read(bundled(&moved, &[])).expect("a bundle");
    assert!(first == of_moved, "of the same run in another folder");
    // The control: other evidence gives other bytes.
    std::fs::remove_file(moved.path().join(BUNDLE)).expect("a bundle");
    std::fs::write(moved.path().join("checkpoints/stray"), "x").expect("written");
    assert!(first != std::fs::read(bundled(&moved, &[])).expect("a bundle"));
    let (manifest, name) = (manifest(&run.path().join(BUNDLE)), "manifest.json");
    std::fs::write(run.path().join(name), manifest).expect("written");
    let _ = run_schema(&run, name).expect_code(0);
    // Keys are no evidence.
    assert!(!members(&run.path().join(BUNDLE)).iter().any(|name| name.contains("keys/")));
}

/// `ledger schema` of a bundle's manifest.
fn run_schema(folder: &RunFolder, name: &str) -> Finished {
    run(LEDGER, folder.path(), &["schema", "bundle-manifest", "--check", name])
}

/// Bytes of the manifest, as `tar` takes them out.
#[track_caller]
fn manifest(bundle: &Path) -> Vec<u8> {
    let taken =
        std::process::Command::new("tar").args(["--zstd", "-xOf"]).arg(bundle).arg("manifest.json").output();
    let taken = taken.expect("tar and zstd are installed (scripts/test installs them)");
    assert!(taken.status.success(), "{}", String::from_utf8_lossy(&taken.stderr));
    taken.stdout
}

/// Names of the members as `tar` lists them, which has to be able to read it.
#[track_caller]
fn members(bundle: &Path) -> Vec<String> {
    let unpacked = std::process::Command::new("zstd").args(["-d", "-c"]).arg(bundle).output();
    let unpacked = unpacked.expect("zstd is installed (scripts/test installs it)");
    assert!(unpacked.status.success(), "{}", String::from_utf8_lossy(&unpacked.stderr));
    let folder = tempfile::tempdir().expect("a folder");
    let archive = folder.path().join("run.tar");
    std::fs::write(&archive, unpacked.stdout).expect("written");
    let listed = std::process::Command::new("tar").arg("-tf").arg(&archive).output().expect("tar");
    assert!(listed.status.success(), "{}", String::from_utf8_lossy(&listed.stderr));
    String::from_utf8(listed.stdout).expect("text").lines().map(str::to_owned).collect()
}

#[test]
fn what_was_left_out_is_not_evaluated_and_listed() {
    let run = RunFolder::trained();
    let report = |further: &[&str]| {
        let bundle = bundled(&run, further);
        let finished = audited(&bundle, &[]);
        std::fs::remove_file(bundle).expect("removed");
        finished
    };
    for option in ["--without-data", "--without-checkpoints", "--without-shards"] {
        let finished = report(&[option]);
        assert_eq!(
            (finished.code, &finished.json()["verdict"]),
            (4, &Value::from("not_evaluated")),
            "{option}"
        );
        finished.expect_message(&["files were left out of the bundle:", "run/"]);
        let rules = finished.json()["rules"].clone();
        let idle: Vec<Value> = rules
            .as_array()
            .expect("rules")
            .iter()
            .filter(|rule| rule["status"] == "not_evaluated")
            .cloned()
            .collect();
        let names_files = |rule: &Value| {
            rule["reason"].as_str().is_some_and(|reason| reason.contains("left out of the bundle"))
        };
        assert!(!idle.is_empty() && idle.iter().any(names_files), "{option}: {idle:#?}");
        assert!(rules.as_array().expect("rules").iter().all(|rule| rule["status"] != "failed"), "{option}");
    }
    assert_eq!(report(&[]).code, 0, "the control: with everything it is accepted");
}

#[test]
fn a_bundle_becomes_a_ledger_again() {
    let run = RunFolder::trained();
    let bundle = bundled(&run, &[]);
    let other = tempfile::tempdir().expect("a folder");
    let path = bundle.to_string_lossy().into_owned();
    let _ = programs::run(LEDGER, other.path(), &["import", &path, "-o", "copy.db"]).expect_code(0);
    let database = |path: &Path| dump::database(path).expect("a database");
    assert_eq!(database(&other.path().join("copy.db")), database(&run.ledger()));
}

#[test]
fn what_is_refused_names_place_and_remedy() {
    let run = RunFolder::frozen();
    let bundle = bundled(&run, &[]);
    run.ledger_command("bundle", &[BUNDLE]).expect_complaint(2, BUNDLE, &["never overwritten"]);
    let save = programs::run(LEDGER, run.path(), &["audit", BUNDLE, "--save"]);
    save.expect_complaint(2, BUNDLE, &["no ledger to lie beside", "--save-to"]);
    let missing = programs::run(LEDGER, run.path(), &["bundle", "nothing.db", "other.tar.zst"]);
    missing.expect_complaint(2, "nothing.db", &["no ledger"]);

    let whole = std::fs::read(&bundle).expect("a bundle");
    let cut = run.path().join("cut.tar.zst");
    std::fs::write(&cut, &whole[..whole.len() / 2]).expect("written");
    let refused = programs::run(LEDGER, run.path(), &["audit", "cut.tar.zst"]);
    refused.expect_complaint(2, "cut.tar.zst", &["truncated", "fetch it again"]);
    std::fs::write(&cut, [&whole[..], b"more"].concat()).expect("written");
    let refused = programs::run(LEDGER, run.path(), &["audit", "cut.tar.zst"]);
    refused.expect_complaint(2, "cut.tar.zst", &["trailing-data"]);

    std::fs::create_dir(run.path().join("checkpoints")).expect("made");
    std::os::unix::fs::symlink("/etc/passwd", run.path().join("checkpoints/x")).expect("a link");
    let refused = run.ledger_command("bundle", &["other.tar.zst"]);
    refused.expect_complaint(2, "checkpoints/x", &["a link"]);
    assert!(!run.path().join("other.tar.zst").exists());
    let left: Vec<PathBuf> = dump::files(run.path()).expect("readable").into_keys().collect();
    assert!(!left.iter().any(|path| path.to_string_lossy().contains(".ledger-bundle-")), "{left:?}");
}

#[test]
fn a_bundle_is_known_by_its_bytes_and_what_has_only_its_name_is_not_audited() {
    let run = RunFolder::frozen();
    let bundle = std::fs::read(bundled(&run, &[])).expect("a bundle");
    // Under another name it is a bundle all the same.
    let plain = run.path().join("evidence");
    std::fs::write(&plain, &bundle).expect("written");
    let found = audited(&plain, &[]);
    assert_eq!((found.code, &found.json()["verdict"]), (4, &Value::from("incomplete")));
    let shown = programs::run(LEDGER, run.path(), &["show", "evidence"]);
    shown.expect_complaint(2, "evidence", &["is a bundle", "ledger import evidence -o", "ledger audit"]);
    // A ledger under the name of a bundle is a ledger.
    let named = run.path().join("ledger.tar.zst");
    std::fs::copy(run.ledger(), &named).expect("copied");
    let found = programs::run(LEDGER, run.path(), &["audit", "ledger.tar.zst", "--json"]);
    assert!(found.json()["num_entries"].as_u64().is_some_and(|count| count > 0), "{}", found.stdout);

    let unpacked =
        std::process::Command::new("zstd").args(["-d", "-c", BUNDLE]).current_dir(run.path()).output();
    let unpacked = unpacked.expect("zstd is installed (scripts/test installs it)").stdout;
    let wrong: [(&str, &[u8], &str); 4] = [
        ("empty.tar.zst", b"", "it is empty"),
        ("gzip.tar.zst", b"\x1f\x8b\x08\x00", "gzip"),
        ("plain.TAR.ZST", &unpacked, "not compressed"),
        ("text.tar.zst", b"a letter", "it begins with 61 20 6c 65"),
    ];
    for (name, bytes, what) in wrong {
        std::fs::write(run.path().join(name), bytes).expect("written");
        for arguments in [&["audit", name][..], &["import", name, "-o", "copy.db"]] {
            let refused = programs::run(LEDGER, run.path(), arguments);
            refused.expect_complaint(2, name, &[what, "Zstandard frame", "ledger bundle run.db"]);
        }
    }
    std::fs::write(run.path().join("letter"), "a letter and no archive\n".repeat(99)).expect("written");
    let packed = std::process::Command::new("zstd").args(["-q", "letter"]).current_dir(run.path()).status();
    assert!(packed.expect("zstd is installed").success());
    let refused = programs::run(LEDGER, run.path(), &["audit", "letter.zst"]);
    refused.expect_complaint(2, "letter.zst", &["no-bundle", "Zstandard frame", "ledger bundle"]);
}

#[test]
fn a_signal_leaves_nothing_of_what_was_unpacked() {
    let run = RunFolder::frozen();
    // Bytes that do not compress, so that unpacking takes a while.
    let mut random = Random::new(1);
    let bytes: Vec<u8> = (0..(3 << 20) / 8).flat_map(|_| random.next_u64().to_le_bytes()).collect();
    std::fs::create_dir(run.path().join("checkpoints")).expect("made");
    for number in 0..8 {
        let mut bytes = bytes.clone();
        bytes[0] = number;
        std::fs::write(run.path().join(format!("checkpoints/{number}")), bytes).expect("written");
    }
    let bundle = bundled(&run, &[]);
    let temporary = tempfile::tempdir().expect("a folder");
    let mut command = programs::command(LEDGER, run.path(), &["audit", &bundle.to_string_lossy()]);
    let mut child = command
        .env("TMPDIR", temporary.path())
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .spawn()
        .expect("the audit starts");
    let has_begun = || {
        let mut items = std::fs::read_dir(temporary.path()).expect("a folder");
        items.any(|item| item.is_ok_and(|item| item.path().join("run/checkpoints/0").exists()))
    };
    let until = Instant::now() + Duration::from_secs(60);
    while !has_begun() && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(2));
    }
    kill_process(Pid::from_child(&child), Signal::TERM).expect("a signal");
    let status = child.wait().expect("a child can be waited for");
    assert_eq!(programs::exit_code(status), 128 + 15, "it was unpacking when the signal came");
    assert_eq!(std::fs::read_dir(temporary.path()).expect("a folder").count(), 0);
}

/// Every byte of a small bundle is swept in the validator's own tests; here are
/// some of a real one.
#[test]
fn a_changed_byte_of_a_bundle_is_refused_or_changes_nothing() {
    let run = RunFolder::smallest();
    let _ = run.freeze().expect_code(0);
    let _ = run.train().expect_code(0);
    let bundle = bundled(&run, &[]);
    let work = tempfile::tempdir().expect("a folder");
    let report = |number: u64| {
        let scratch = work.path().join(number.to_string());
        std::fs::create_dir(&scratch).expect("made");
        let unpacked = validator::bundle::unpack(&bundle, &scratch, &mut |_| {});
        let report = unpacked
            .and_then(|unpacked| unpacked.audit(&validator::bundle::BundleAudit::default(), &mut |_| {}));
        std::fs::remove_dir_all(&scratch).expect("removed");
        report
    };
    let honest = report(0).expect("an audit");
    let num_bytes = std::fs::metadata(&bundle).expect("a file").len();
    let file = std::fs::OpenOptions::new().read(true).write(true).open(&bundle).expect("a file");
    let mut num_refused = 0;
    for number in 1..=200 {
        let mut random = Random::new(number);
        let (offset, mut byte) = (random.below(num_bytes), [0]);
        file.read_exact_at(&mut byte, offset).expect("a byte");
        let mask = u8::try_from(1 + random.below(255)).expect("a byte");
        file.write_all_at(&[byte[0] ^ mask], offset).expect("written");
        match report(number) {
            Err(error) => {
                assert!(error.to_string().contains(BUNDLE), "byte {offset}: {error}");
                num_refused += 1;
            }
            Ok(found) => assert_eq!(found, honest, "byte {offset}"),
        }
        file.write_all_at(&byte, offset).expect("written");
    }
    assert!(num_refused > 190, "{num_refused} of 200");
}
