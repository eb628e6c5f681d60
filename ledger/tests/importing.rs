//! Imports: the same bytes again, once and twice, further, and refused.

mod common;

use std::path::{Path, PathBuf};

use common::{Fixture, heartbeat, key, step};
use ledger::export::{self, ExportError};
use ledger::import::{ImportError, ImportSummary, import};
use ledger::keys::Role;
use ledger::recorder::{Record, Recorder};
use schemas::ids::IdempotencyKey;
use tempfile::TempDir;

/// A folder for exports and for what is made of them.
struct Out(TempDir);

impl Out {
    fn new() -> Self {
        Self(tempfile::tempdir().expect("a temporary folder"))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn export(&self, fixture: &Fixture, name: &str) -> PathBuf {
        let folder = self.path(name);
        export::export(&fixture.path(), &folder).expect("exported");
        folder
    }
}

fn append(fixture: &Fixture, numbers: std::ops::RangeInclusive<u64>) {
    let recorder = fixture.open();
    for number in numbers {
        recorder.append(step(number, 1.0 / 3.0)).expect("queued");
        let is_durable = if number < 100 { number % 5 == 0 } else { number % 500 == 0 };
        if is_durable {
            recorder.append_durable(heartbeat(number)).expect("durable");
        }
    }
    recorder.close().expect("closed");
}

/// Every row of the three tables, by a reader of its own.
fn rows(path: &Path) -> Vec<String> {
    let connection = rusqlite::Connection::open(path).expect("an SQLite file");
    let mut found = Vec::new();
    for sql in [
        "SELECT seq || hex(idem) || hex(entry) || hex(leaf) FROM entries ORDER BY seq",
        "SELECT size || note FROM heads ORDER BY size",
        "SELECT hex(digest) || hex(bytes) FROM artifacts ORDER BY digest",
        "SELECT type || name || coalesce(sql, '') FROM sqlite_schema ORDER BY type, name",
    ] {
        let mut statement = connection.prepare(sql).expect("a query");
        let texts = statement.query_map([], |row| row.get::<_, String>(0)).expect("rows");
        let before = found.len();
        found.extend(texts.map(|text| text.expect("text")));
        assert!(found.len() > before, "{sql}");
    }
    found
}

fn head_file(ledger: &Path) -> PathBuf {
    let mut path = ledger.as_os_str().to_owned();
    path.push(".head");
    path.into()
}

/// What can be seen of a ledger and its head file.
fn state(ledger: &Path) -> (Vec<String>, Option<Vec<u8>>) {
    (rows(ledger), std::fs::read(head_file(ledger)).ok())
}

fn new_of(summary: &ImportSummary) -> (bool, u64, u64) {
    (summary.is_created, summary.num_new_entries, summary.num_new_heads)
}

#[test]
fn an_import_has_every_byte_of_the_ledger_and_can_be_recorded_to() {
    let fixture = Fixture::new();
    append(&fixture, 1..=12);
    let out = Out::new();
    let (folder, copy) = (out.export(&fixture, "export"), out.path("copy.db"));
    let summary = import(&folder, &copy, &[]).expect("imported");
    assert_eq!(new_of(&summary), (true, 15, 4));
    assert_eq!(state(&copy), state(&fixture.path()));
    let recorder = Recorder::open(&copy, key(Role::Trainer)).expect("it goes on");
    recorder.append_durable(heartbeat(1)).expect("durable");
    recorder.close().expect("closed");

    let twice = out.path("twice");
    export::export(&copy, &twice).expect("exported");
    let (first, second) = (out.path("export/entries.jsonl"), out.path("twice/entries.jsonl"));
    let bytes = |path: PathBuf| std::fs::read(path).expect("entries");
    let (first, second) = (bytes(first), bytes(second));
    assert!(second.starts_with(&first) && second.len() > first.len(), "the same entries and one more");
    let mut names = Vec::new();
    for file in std::fs::read_dir(out.0.path()).expect("a folder") {
        names.push(file.expect("a file").file_name().into_string().expect("text"));
    }
    assert!(names.iter().all(|name| !name.contains("importing")), "{names:?}");
}

#[test]
fn the_same_export_twice_is_the_same_ledger_and_a_later_one_goes_on() {
    let fixture = Fixture::new();
    append(&fixture, 1..=7);
    let out = Out::new();
    let (early, copy) = (out.export(&fixture, "early"), out.path("copy.db"));
    import(&early, &copy, &[]).expect("imported");
    let before = state(&copy);
    assert_eq!(new_of(&import(&early, &copy, &[]).expect("again")), (false, 0, 0));
    assert_eq!(state(&copy), before);

    append(&fixture, 8..=5_000);
    let late = out.export(&fixture, "late");
    let summary = import(&late, &copy, &[]).expect("further");
    assert_eq!((summary.is_created, summary.num_new_entries), (false, 4_993 + 28));
    assert!(summary.num_new_heads >= 28, "{summary:?}");
    assert_eq!(state(&copy), state(&fixture.path()));
    // The older one is a part of what is there.
    let summary = import(&early, &copy, &[]).expect("the older one");
    assert_eq!((new_of(&summary), summary.num_entries), ((false, 0, 0), 5_030));
    assert_eq!(state(&copy), state(&fixture.path()));
}

#[test]
fn a_key_that_says_something_else_and_a_ledger_that_parted_are_refused() {
    let fixture = Fixture::new();
    append(&fixture, 1..=5);
    let out = Out::new();
    let early = out.export(&fixture, "early");
    let keyed = |record: Record, digit: &str| record.idem(IdempotencyKey(digit.repeat(32)));
    let going_on = |ledger: &Path, record: Record| {
        let recorder = Recorder::open(ledger, key(Role::Trainer)).expect("a ledger");
        recorder.append_durable(record).expect("durable");
        recorder.close().expect("closed");
    };
    going_on(&fixture.path(), keyed(heartbeat(1), "a"));
    let export = out.export(&fixture, "export");
    let entries = export.join("entries.jsonl");
    for (name, record, is_conflict) in
        [("same.db", keyed(heartbeat(2), "a"), true), ("other.db", keyed(heartbeat(1), "b"), false)]
    {
        let ledger = out.path(name);
        import(&early, &ledger, &[]).expect("imported");
        going_on(&ledger, record);
        let before = state(&ledger);
        let error = import(&export, &ledger, &[]).expect_err("it parted");
        assert!(error.is_finding(), "{error}");
        match error {
            ImportError::Conflict { path, index, idem, entries: of, line } if is_conflict => {
                assert_eq!(
                    (path, index, idem, of, line),
                    (ledger.clone(), 7, "a".repeat(32), entries.clone(), 8)
                );
            }
            ImportError::Differs { path, index, entries: of, line } if !is_conflict => {
                assert_eq!((path, index, of, line), (ledger.clone(), 7, entries.clone(), 8));
            }
            other => panic!("{name}: {other}"),
        }
        assert_eq!(state(&ledger), before, "{name}");
    }
    let stranger = Fixture::new();
    let before = state(&stranger.path());
    let error = import(&export, &stranger.path(), &[]).expect_err("another run");
    assert!(matches!(error, ImportError::OtherLedger { .. }), "{error}");
    assert_eq!(state(&stranger.path()), before);
}

#[test]
fn a_head_that_the_export_lacks_is_refused() {
    let fixture = Fixture::new();
    append(&fixture, 1..=3);
    let out = Out::new();
    let early = out.export(&fixture, "early");
    let (late, copy) = (out.path("late"), out.path("copy.db"));
    import(&early, &copy, &[]).expect("imported");
    append(&fixture, 4..=9);
    export::export(&fixture.path(), &late).expect("exported");
    // The last entries of the copy come under a head of their own.
    let note = rusqlite::Connection::open(fixture.path())
        .and_then(|sqlite| {
            sqlite.query_row("SELECT note FROM heads WHERE size = 1", [], |row| row.get::<_, String>(0))
        })
        .expect("a head");
    let sqlite = rusqlite::Connection::open(&copy).expect("an SQLite file");
    sqlite.execute_batch("DROP TRIGGER heads_update").expect("dropped");
    sqlite.execute("UPDATE heads SET note = ?1 || char(10) WHERE size = 1", [note]).expect("changed");
    sqlite
        .execute_batch(
            "CREATE TRIGGER heads_update BEFORE UPDATE ON heads
BEGIN
    SELECT RAISE(ABORT, 'heads is append-only: no UPDATE');
END",
        )
        .expect("put back");
    drop(sqlite);
    let before = rows(&copy);
    let error = import(&late, &copy, &[]).expect_err("another head");
    assert!(matches!(error, ImportError::Heads { size: 4, .. }), "{error}");
    assert_eq!(rows(&copy), before);
}

#[test]
fn a_lost_database_comes_back_to_the_head_that_outlived_it() {
    let fixture = Fixture::new();
    append(&fixture, 1..=12);
    let out = Out::new();
    let (export, copy) = (out.export(&fixture, "export"), out.path("copy.db"));
    std::fs::copy(fixture.head_path(), head_file(&copy)).expect("copied");
    import(&export, &copy, &[]).expect("imported");
    assert_eq!(state(&copy), state(&fixture.path()));

    // A head file that is lost comes back too, and one that is behind goes on.
    let whole = std::fs::read(head_file(&copy)).expect("a head file");
    std::fs::remove_file(head_file(&copy)).expect("removed");
    import(&export, &copy, &[]).expect("again");
    assert_eq!(std::fs::read(head_file(&copy)).expect("a head file"), whole);
    let text = String::from_utf8(whole.clone()).expect("text");
    let first = ledger::head_file::split_notes(&text).remove(0);
    std::fs::write(head_file(&copy), format!("{first}\n")).expect("written");
    import(&export, &copy, &[]).expect("again");
    assert_eq!(std::fs::read(head_file(&copy)).expect("a head file"), whole);

    // That of another ledger is not touched.
    let stranger = Fixture::new();
    let foreign = std::fs::read(stranger.head_path()).expect("a head file");
    std::fs::write(head_file(&copy), &foreign).expect("written");
    let error = import(&export, &copy, &[]).expect_err("a foreign head");
    assert!(matches!(error, ImportError::Beside { .. }), "{error}");
    let new = out.path("new.db");
    std::fs::write(head_file(&new), &foreign).expect("written");
    let error = import(&export, &new, &[]).expect_err("a foreign head");
    assert!(error.to_string().contains("new.db.head"), "{error}");
    assert!(!new.exists());
    assert_eq!(std::fs::read(head_file(&new)).expect("a head file"), foreign);
}

#[test]
fn an_export_without_a_head_file_gives_none() {
    let fixture = Fixture::new();
    append(&fixture, 1..=5);
    std::fs::remove_file(fixture.head_path()).expect("removed");
    let out = Out::new();
    let (export, copy) = (out.export(&fixture, "export"), out.path("copy.db"));
    import(&export, &copy, &[]).expect("imported");
    assert_eq!(state(&copy), (rows(&fixture.path()), None));
}

/// Each cut and change is refused with its place, and nothing is left.
#[test]
fn what_was_cut_or_changed_is_refused_with_its_place() {
    let fixture = Fixture::new();
    append(&fixture, 1..=12);
    let out = Out::new();
    let export = out.export(&fixture, "export");
    let entries = export.join("entries.jsonl");
    let bytes = std::fs::read(&entries).expect("entries");
    let lines: Vec<&[u8]> = bytes.split_inclusive(|byte| *byte == b'\n').collect();
    let check = |content: &[u8], file: &str, line: Option<u64>, words: &str| {
        std::fs::write(&entries, content).expect("written");
        let copy = out.path("copy.db");
        let error = import(&export, &copy, &[]).expect_err(words);
        assert!(error.is_finding(), "{error}");
        let ImportError::Export(ExportError::Content { path, line: at, what }) = &error else {
            panic!("{words}: {error}");
        };
        assert_eq!((path, *at), (&export.join(file), line), "{error}");
        assert!(what.contains(words), "{words}: {error}");
        assert!(!copy.exists() && !head_file(&copy).exists(), "{words}");
    };
    check(&bytes[..bytes.len() - 10], "entries.jsonl", Some(15), "incomplete");
    check(&lines[..14].concat(), "heads.txt", None, "signed over 15 entries, entries.jsonl ends at 14");
    check(&[&lines[..5], &lines[6..]].concat().concat(), "entries.jsonl", Some(6), "holds entry 6");
    check(&[&lines[..6], &lines[5..]].concat().concat(), "entries.jsonl", Some(7), "holds entry 5");
    check(&[&bytes[..], b"\n"].concat(), "entries.jsonl", Some(16), "");
    let text = |index: usize| String::from_utf8(lines[index].to_vec()).expect("text");
    let idem = |index: usize| {
        let entry: serde_json::Value = serde_json::from_slice(lines[index]).expect("JSON");
        entry["idem"].as_str().expect("a key").to_owned()
    };
    let with = |index: usize, line: String| {
        let mut changed: Vec<Vec<u8>> = lines.iter().map(|line| line.to_vec()).collect();
        changed[index] = line.into_bytes();
        changed.concat()
    };
    let same_key = text(9).replace(&idem(9), &idem(3));
    check(&with(9, same_key), "entries.jsonl", Some(10), "belongs to entry 3");
    let other = text(9).replace(&idem(9), &"0".repeat(32));
    check(&with(9, other), "heads.txt", None, "do not give the root");
    let spaced = text(9).replacen(':', ": ", 1);
    check(&with(9, spaced), "entries.jsonl", Some(10), "");
    std::fs::write(&entries, &bytes).expect("restored");
    let wrong_key = import(&export, &out.path("copy.db"), &[key(Role::Validator).public_hex()]);
    assert!(matches!(wrong_key, Err(ImportError::Export(ExportError::Head { .. }))));
    import(&export, &out.path("copy.db"), &[]).expect("and as it was it is taken");
}

/// As layout 1 has it.
const HEADS_DELETE: &str = "CREATE TRIGGER heads_delete BEFORE DELETE ON heads
BEGIN
    SELECT RAISE(ABORT, 'heads is append-only: no DELETE');
END";

/// What is appended comes under the next head of whoever goes on.
#[test]
fn entries_that_no_head_is_over_are_not_appended_to_a_ledger() {
    let fixture = Fixture::new();
    append(&fixture, 1..=5);
    let out = Out::new();
    let (early, copy) = (out.export(&fixture, "early"), out.path("copy.db"));
    import(&early, &copy, &[]).expect("imported");
    append(&fixture, 6..=9);
    // The head over the last entries is lost, in the database and beside it.
    let sqlite = rusqlite::Connection::open(fixture.path()).expect("an SQLite file");
    sqlite.execute_batch("DROP TRIGGER heads_delete").expect("dropped");
    let newest = "SELECT max(size) FROM heads";
    let largest = || sqlite.query_row(newest, [], |row| row.get::<_, i64>(0)).expect("a head");
    let last = largest();
    sqlite.execute("DELETE FROM heads WHERE size = ?1", [last]).expect("deleted");
    let signed = largest().unsigned_abs();
    let last = last.unsigned_abs();
    sqlite.execute_batch(HEADS_DELETE).expect("put back");
    drop(sqlite);
    std::fs::remove_file(head_file(&fixture.path())).expect("there was one");
    let late = out.path("late");
    export::export(&fixture.path(), &late).expect("exported");

    let before = rows(&copy).len() as u64;
    let summary = import(&late, &copy, &[]).expect("further");
    assert_eq!((summary.num_entries, summary.num_unsigned), (signed, last - signed), "{summary:?}");
    assert!(summary.num_unsigned > 0 && rows(&copy).len() as u64 >= before);
    // A new ledger is the exported one as a whole.
    let summary = import(&late, &out.path("new.db"), &[]).expect("made");
    assert_eq!((summary.num_entries, summary.num_unsigned), (last, 0));
}

#[test]
fn an_artifact_that_the_contract_does_not_name_is_refused() {
    let fixture = Fixture::new();
    append(&fixture, 1..=2);
    let out = Out::new();
    let folder = out.export(&fixture, "export");
    let name = blake3::hash(b"").to_hex().to_string();
    std::fs::write(folder.join("artifacts").join(&name), b"").expect("written");
    let error = import(&folder, &out.path("copy.db"), &[]).expect_err("one too many");
    assert!(error.is_finding() && error.to_string().contains(&name), "{error}");
    assert!(!out.path("copy.db").exists());
}

/// SQLite would read the log's pages into whatever has the name.
#[test]
fn a_log_that_a_lost_database_left_is_not_read_into_a_new_one() {
    let fixture = Fixture::new();
    append(&fixture, 1..=2);
    let out = Out::new();
    let folder = out.export(&fixture, "export");
    for suffix in ["-wal", "-journal"] {
        let log = out.path(&format!("copy.db{suffix}"));
        std::fs::write(&log, b"frames").expect("written");
        let error = import(&folder, &out.path("copy.db"), &[]).expect_err("a log is there");
        assert!(error.to_string().contains(suffix) && !error.is_finding(), "{error}");
        assert!(!out.path("copy.db").exists() && log.exists());
        std::fs::remove_file(log).expect("removed");
    }
    import(&folder, &out.path("copy.db"), &[]).expect("imported");
}
