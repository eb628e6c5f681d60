//! Reading: private copies, concurrent writers, queries, exports, heads.

mod common;

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use common::{Fixture, heartbeat, key, step};
use ledger::export::{self, ExportError};
use ledger::keys::Role;
use ledger::query::{Cell, QueryError, QueryLimits, query};
use ledger::reader::Reader;
use ledger::verify::{HeadChoice, VerifyHeadError, verify_head};

fn recorded(num_steps: u64) -> Fixture {
    let fixture = Fixture::new();
    let recorder = fixture.open();
    for number in 1..=num_steps {
        let loss = if number == 2 { f64::NAN } else { 1.0 / 3.0 };
        recorder.append(step(number, loss)).expect("queued");
        if number % 5 == 0 {
            recorder.append_durable(heartbeat(number)).expect("durable");
        }
    }
    recorder.close().expect("closed");
    fixture
}

fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(folder)
        .expect("a folder")
        .map(|file| file.expect("a file").file_name().into_string().expect("text"))
        .collect();
    names.sort();
    names
}

#[test]
fn a_reader_leaves_the_folder_as_it_is_and_sees_the_wal() {
    let fixture = Fixture::new();
    let recorder = fixture.open();
    recorder.append_durable(heartbeat(1)).expect("durable");
    let copy = tempfile::tempdir().expect("a temporary folder");
    for name in ["run.db", "run.db-wal", "run.db.head"] {
        std::fs::copy(fixture.folder.path().join(name), copy.path().join(name)).expect("copied");
    }
    let before = names(copy.path());
    std::fs::set_permissions(copy.path(), std::fs::Permissions::from_mode(0o555)).expect("read-only");
    let reader = Reader::open(&copy.path().join("run.db")).expect("readable");
    assert_eq!(reader.num_entries(), 2, "the second entry is in the WAL only");
    assert_eq!(reader.entries(0).filter(Result::is_ok).count(), 2);
    drop(reader);
    assert_eq!(names(copy.path()), before);
    std::fs::set_permissions(copy.path(), std::fs::Permissions::from_mode(0o755)).expect("writable");
}

#[test]
fn readers_during_writes_see_a_prefix_and_do_not_disturb_the_writer() {
    let fixture = Fixture::new();
    let recorder = fixture.open();
    let path = fixture.path();
    let writer = {
        let recorder = recorder.clone();
        std::thread::spawn(move || {
            for number in 1..=2000 {
                let record = step(number, 0.5);
                if number % 100 == 0 {
                    recorder.append_durable(record).expect("durable");
                } else {
                    recorder.append(record).expect("queued");
                }
            }
        })
    };
    let mut last = 0;
    let mut num_readers = 0;
    while !writer.is_finished() {
        let reader = Reader::open(&path).expect("readable while it is written");
        let num_entries = reader.num_entries();
        assert!(num_entries >= last, "{num_entries} after {last}");
        last = num_entries;
        let head = ledger::note::parse(reader.head_beside().expect("a head")).expect("a note").head;
        assert!(head.size <= num_entries, "the head file is never ahead of the copy");
        assert_eq!(ledger::verify::root_at(&reader, head.size).expect("entries"), head.root);
        num_readers += 1;
    }
    writer.join().expect("no panic");
    assert!(num_readers > 0);
    assert_eq!(recorder.close().expect("closed").size, 2001);
    assert_eq!(fixture.open().num_entries(), 2001);
}

#[test]
fn pages_join_without_gaps() {
    let fixture = recorded(600);
    let reader = Reader::open(&fixture.path()).expect("readable");
    let indices: Vec<u64> = reader.rows(0).map(|row| row.expect("a row").0).collect();
    assert_eq!(indices, (0..reader.num_entries()).collect::<Vec<_>>());
    let tail: Vec<u64> = reader.entries(700).map(|entry| entry.expect("an entry").index).collect();
    assert_eq!(tail, (700..reader.num_entries()).collect::<Vec<_>>());
    assert_eq!(reader.rows(u64::MAX).count(), 0);
}

#[test]
fn queries_read_views_and_nothing_else() {
    let fixture = recorded(10);
    let limits = QueryLimits::default();
    let run = |sql: &str| query(&fixture.path(), sql, &limits);
    let result = run("SELECT step, loss FROM steps ORDER BY step LIMIT 2").expect("a view");
    assert_eq!(result.columns, ["step", "loss"]);
    assert_eq!(result.rows[0], [Cell::Integer(1), Cell::Real(1.0 / 3.0)]);
    assert_eq!(result.rows[1], [Cell::Integer(2), Cell::Text("NaN:7ff8000000000000".to_owned())]);
    let kinds = run("SELECT kind, count(*) FROM entry GROUP BY kind ORDER BY kind").expect("an aggregate");
    assert_eq!(kinds.rows.len(), 3);
    assert_eq!(kinds.rows[2], [Cell::Text("step".to_owned()), Cell::Integer(10)]);
    run("WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 5) SELECT * FROM n")
        .expect("recursive");
    for refused in [
        "DELETE FROM entries",
        "INSERT INTO heads VALUES (99, 'x')",
        "PRAGMA journal_mode = DELETE",
        "ATTACH DATABASE '/tmp/other.db' AS other",
        "CREATE TEMP TABLE t (x)",
        "SELECT load_extension('x')",
        "SELECT * FROM pragma_database_list",
        "VACUUM INTO '/tmp/other.db'",
        "BEGIN",
    ] {
        let error = run(refused).expect_err(refused);
        assert!(matches!(error, QueryError::NotAllowed(_) | QueryError::Sql { .. }), "{refused}: {error:?}");
    }
    assert!(matches!(run("DELETE FROM entries"), Err(QueryError::NotAllowed(_))));
    assert!(matches!(run("SELECT * FROM nowhere"), Err(QueryError::Sql { .. })));
    assert!(run("SELECT 1; SELECT 2").is_err(), "one statement");
    assert!(run("SELECT length(zeroblob(1000000000))").is_err(), "allocation is bounded");
    assert_eq!(fixture.open().num_entries(), 13);
}

#[test]
fn queries_are_bounded_in_rows_and_time() {
    let fixture = recorded(10);
    let few = QueryLimits { max_rows: 3, ..QueryLimits::default() };
    let result = query(&fixture.path(), "SELECT seq FROM entries ORDER BY seq", &few).expect("rows");
    assert_eq!((result.rows.len(), result.truncated), (3, true));
    let small = QueryLimits { max_bytes: 2000, ..QueryLimits::default() };
    let result = query(&fixture.path(), "SELECT entry FROM entries WHERE seq > 0", &small).expect("rows");
    assert!(result.truncated && result.rows.len() < 5);
    let short = QueryLimits { max_time: Duration::from_millis(50), ..QueryLimits::default() };
    let endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n";
    let outcome = query(&fixture.path(), endless, &short);
    assert!(matches!(outcome, Err(QueryError::TooSlow { .. })), "{outcome:?}");
}

#[test]
fn an_export_checks_without_the_database_and_every_flipped_bit_is_found() {
    let fixture = recorded(12);
    let out = tempfile::tempdir().expect("a temporary folder");
    let folder = out.path().join("export");
    let summary = export::export(&fixture.path(), &folder).expect("exported");
    assert_eq!((summary.num_entries, summary.num_heads, summary.num_artifacts), (15, 4, 2));
    assert_eq!(export::check(&folder, &[]).expect("checked"), summary);
    let trusted = [key(Role::Trainer).public_hex(), key(Role::Owner).public_hex()];
    assert_eq!(export::check(&folder, &trusted).expect("checked"), summary);
    assert!(export::check(&folder, &[key(Role::Validator).public_hex()]).is_err(), "another key");
    assert!(matches!(export::export(&fixture.path(), &folder), Err(ExportError::Exists { .. })));

    for name in
        ["README.txt", "entries.jsonl", "heads.txt", "head-beside.txt", "proofs.json", "contract.json"]
    {
        let path = folder.join(name);
        let bytes = std::fs::read(&path).expect("bytes");
        // A prime stride meets every kind of byte and keeps the test short.
        for position in (0..bytes.len()).step_by(if bytes.len() > 2000 { 41 } else { 3 }) {
            let mut changed = bytes.clone();
            changed[position] ^= 1;
            std::fs::write(&path, &changed).expect("written");
            assert!(export::check(&folder, &[]).is_err(), "{name}, byte {position}");
        }
        std::fs::write(&path, &bytes[..bytes.len() - 1]).expect("written");
        assert!(export::check(&folder, &[]).is_err(), "{name}, cut");
        std::fs::write(&path, &bytes).expect("restored");
    }
    let artifact =
        std::fs::read_dir(folder.join("artifacts")).expect("artifacts").next().expect("one").expect("one");
    let bytes = std::fs::read(artifact.path()).expect("bytes");
    std::fs::write(artifact.path(), &bytes[1..]).expect("written");
    assert!(export::check(&folder, &[]).is_err(), "a cut artifact");
    std::fs::remove_file(artifact.path()).expect("removed");
    assert!(export::check(&folder, &[]).is_err(), "a missing artifact");
    std::fs::write(artifact.path(), &bytes).expect("restored");
    std::fs::write(folder.join("extra.json"), b"{}").expect("written");
    assert!(export::check(&folder, &[]).is_err(), "a file that no export holds");
}

#[test]
fn heads_verify_against_the_ledger_they_are_of() {
    let fixture = recorded(12);
    let path = fixture.path();
    let verified = verify_head(&path, &HeadChoice::Beside, &[]).expect("verified");
    assert_eq!((verified.head.size, verified.num_entries, verified.role), (15, 15, Some(Role::Trainer)));
    let given =
        verify_head(&path, &HeadChoice::Beside, &[key(Role::Trainer).public_hex()]).expect("verified");
    assert_eq!(given.role, None);
    let stranger = verify_head(&path, &HeadChoice::Beside, &[key(Role::Validator).public_hex()]);
    assert!(matches!(stranger, Err(VerifyHeadError::Note(_))));

    let kept = fixture.folder.path().join("kept.head");
    std::fs::copy(fixture.head_path(), &kept).expect("copied");
    let recorder = fixture.open();
    recorder.append_durable(heartbeat(1)).expect("durable");
    recorder.close().expect("closed");
    let older = verify_head(&path, &HeadChoice::File(kept), &[]).expect("an older head still holds");
    assert_eq!((older.head.size, older.num_entries), (15, 16));

    let mut ahead = verified.head.clone();
    ahead.size = 40;
    let ahead = HeadChoice::Note(ahead.sign(&key(Role::Trainer)));
    assert!(matches!(verify_head(&path, &ahead, &[]), Err(VerifyHeadError::Behind { size: 40, .. })));
    let mut other = verified.head.clone();
    other.root[0] ^= 1;
    let other = HeadChoice::Note(other.sign(&key(Role::Trainer)));
    assert!(matches!(verify_head(&path, &other, &[]), Err(VerifyHeadError::Root { size: 15, .. })));
    let mut foreign = verified.head;
    foreign.origin.push('0');
    let foreign = HeadChoice::Note(foreign.sign(&key(Role::Trainer)));
    assert!(matches!(verify_head(&path, &foreign, &[]), Err(VerifyHeadError::Origin { .. })));
}
