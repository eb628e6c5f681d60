//! Ledgers that must not be written, and changes that the database refuses.

mod common;

use common::{Fixture, heartbeat, key};
use ledger::keys::{KeyPair, Role};
use ledger::reader::{ReadError, Reader};
use ledger::recorder::{Recorder, RecorderError};

/// A ledger with four entries under two heads of the trainer, closed.
fn recorded() -> Fixture {
    let fixture = Fixture::new();
    let recorder = fixture.open();
    recorder.append(heartbeat(1)).expect("queued");
    recorder.append_durable(heartbeat(2)).expect("durable");
    recorder.append(heartbeat(3)).expect("queued");
    recorder.close().expect("closed");
    fixture
}

fn refusal(fixture: &Fixture) -> String {
    match Recorder::open(&fixture.path(), key(Role::Trainer)) {
        Ok(_) => panic!("opened"),
        Err(error) => format!("{error:?}"),
    }
}

#[test]
fn the_database_refuses_update_delete_and_replace() {
    let fixture = recorded();
    let sqlite = fixture.sqlite();
    sqlite.execute_batch("PRAGMA recursive_triggers = OFF").expect("the default of SQLite");
    for statement in [
        "UPDATE entries SET entry = x'7b7d' WHERE seq = 1",
        "DELETE FROM entries WHERE seq = 3",
        "DELETE FROM entries",
        "INSERT OR REPLACE INTO entries SELECT seq, idem, x'7b7d', leaf FROM entries WHERE seq = 1",
        "REPLACE INTO entries SELECT seq, randomblob(16), entry, leaf FROM entries WHERE seq = 3",
        "REPLACE INTO entries SELECT 4, idem, entry, leaf FROM entries WHERE seq = 1",
        "INSERT OR IGNORE INTO entries SELECT seq, idem, x'7b7d', leaf FROM entries WHERE seq = 1",
        "INSERT INTO entries SELECT 9, randomblob(16), entry, leaf FROM entries WHERE seq = 1",
        "INSERT INTO entries SELECT -1, randomblob(16), entry, leaf FROM entries WHERE seq = 1",
        "UPDATE OR REPLACE entries SET seq = 2 WHERE seq = 1",
        "UPDATE heads SET note = ''",
        "DELETE FROM heads",
        "REPLACE INTO heads SELECT size, 'x' FROM heads",
        "INSERT INTO heads VALUES (2, 'smaller')",
        "INSERT INTO heads VALUES (5, 'beyond the entries')",
        "UPDATE artifacts SET bytes = x''",
        "DELETE FROM artifacts",
        "REPLACE INTO artifacts SELECT digest, x'00' FROM artifacts",
    ] {
        assert!(sqlite.execute_batch(statement).is_err(), "{statement}");
    }
    drop(sqlite);
    assert_eq!(fixture.open().num_entries(), 4);
}

#[test]
fn one_writer_at_a_time_and_the_error_names_it() {
    let fixture = Fixture::new();
    let recorder = fixture.open();
    let second = Recorder::open(&fixture.path(), key(Role::Trainer));
    let message = second.expect_err("locked").to_string();
    assert!(message.contains(&format!("process {}", std::process::id())), "{message}");
    recorder.close().expect("closed");
    fixture.open().close().expect("the lock is free again");
}

#[test]
fn only_the_key_that_the_contract_names_may_write() {
    let fixture = Fixture::new();
    let stranger = KeyPair::random(Role::Trainer).expect("a key");
    for other in [stranger, key(Role::Owner), key(Role::Validator)] {
        let id = other.id();
        match Recorder::open(&fixture.path(), other) {
            Err(RecorderError::WrongKey { expected, given, .. }) => {
                assert_eq!((expected, given), (key(Role::Trainer).id().0, id));
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn rows_lost_from_the_end_are_noticed_by_the_external_head() {
    let fixture = recorded();
    fixture.tamper("DELETE FROM entries WHERE seq >= 2; DELETE FROM heads WHERE size > 1;");
    assert!(refusal(&fixture).starts_with("Behind"), "{}", refusal(&fixture));
    let fixture = recorded();
    fixture.tamper("DELETE FROM entries; DELETE FROM heads WHERE size > 1;");
    assert!(refusal(&fixture).starts_with("Behind"), "{}", refusal(&fixture));
}

#[test]
fn an_older_copy_of_the_database_is_behind() {
    let fixture = Fixture::new();
    let old = std::fs::read(fixture.path()).expect("bytes");
    let recorder = fixture.open();
    recorder.append_durable(heartbeat(1)).expect("durable");
    recorder.close().expect("closed");
    std::fs::write(fixture.path(), old).expect("restored");
    let message = Recorder::open(&fixture.path(), key(Role::Trainer)).expect_err("behind").to_string();
    assert!(message.contains("1 entries are stored") && message.contains("signed over 2"), "{message}");
    assert!(message.contains("run.db.head") && message.contains("restore"), "{message}");
}

#[test]
fn a_lost_wal_is_behind() {
    let fixture = Fixture::new();
    let recorder = fixture.open();
    recorder.append_durable(heartbeat(1)).expect("durable");
    // What a crash leaves, copied without its WAL.
    let copy = tempfile::tempdir().expect("a temporary folder");
    for name in ["run.db", "run.db.head"] {
        std::fs::copy(fixture.folder.path().join(name), copy.path().join(name)).expect("copied");
    }
    let opened = Recorder::open(&copy.path().join("run.db"), key(Role::Trainer));
    assert!(matches!(opened, Err(RecorderError::Behind { num_entries: 1, head_size: 2, .. })), "{opened:?}");
    // With its WAL nothing is missing.
    let whole = tempfile::tempdir().expect("a temporary folder");
    for name in ["run.db", "run.db-wal", "run.db.head"] {
        std::fs::copy(fixture.folder.path().join(name), whole.path().join(name)).expect("copied");
    }
    let opened = Recorder::open(&whole.path().join("run.db"), key(Role::Trainer)).expect("whole");
    assert_eq!(opened.num_entries(), 2);
}

#[test]
fn changed_entries_and_heads_are_refused_by_place() {
    let changed = |statement: &str| {
        let fixture = recorded();
        fixture.tamper(statement);
        refusal(&fixture)
    };
    let entry = "UPDATE entries SET entry = CAST(replace(CAST(entry AS TEXT), 'phase 2', 'phase 9') AS BLOB) WHERE seq = 2";
    let message = changed(entry);
    assert!(message.contains("Row") && message.contains("index: 2"), "{message}");
    let leaf = changed("UPDATE entries SET leaf = zeroblob(32) WHERE seq = 1");
    assert!(leaf.contains("Row") && leaf.contains("index: 1"), "{leaf}");
    let gap = changed("DELETE FROM entries WHERE seq = 1");
    assert!(gap.contains("Row") && gap.contains("index: 1"), "{gap}");
    let swapped = changed(
        "UPDATE entries SET seq = 9 WHERE seq = 1; UPDATE entries SET seq = 1 WHERE seq = 2; UPDATE entries SET seq = 2 WHERE seq = 9;",
    );
    assert!(swapped.contains("Root"), "{swapped}");
    let head = changed("UPDATE heads SET note = replace(note, 'governed', 'gowerned') WHERE size = 4");
    assert!(head.contains("Malformed") || head.contains("Origin"), "{head}");
    let none = changed("DELETE FROM heads");
    assert!(none.contains("NoHead"), "{none}");
}

#[test]
fn a_head_signed_by_a_stranger_is_refused() {
    let fixture = recorded();
    let stranger = KeyPair::random(Role::Trainer).expect("a key");
    let newest = ledger::head_file::read_last(&fixture.head_path()).expect("a note");
    let forged = ledger::note::parse(&newest).expect("a note").head.sign(&stranger);
    std::fs::write(fixture.head_path(), format!("{forged}\n")).expect("written");
    let message = refusal(&fixture);
    assert!(message.contains("Head") && message.contains("Signature"), "{message}");
}

#[test]
fn a_head_that_a_crash_kept_from_the_file_is_published_at_the_next_opening() {
    let fixture = recorded();
    let notes = ledger::head_file::read_all(&fixture.head_path(), 1 << 20).expect("notes");
    let (newest, earlier) = notes.split_last().expect("several");
    let torn = &newest[..newest.len() / 2];
    let text: String = earlier.iter().map(|note| format!("{note}\n")).collect();
    std::fs::write(fixture.head_path(), format!("{text}{torn}")).expect("written");
    fixture.open().close().expect("closed");
    assert_eq!(ledger::head_file::read_all(&fixture.head_path(), 1 << 20).expect("notes"), notes);
}

#[test]
fn changed_triggers_and_tables_are_refused() {
    for statement in [
        "DROP TRIGGER entries_delete",
        "CREATE TABLE other (x)",
        "DROP TRIGGER entries_update; CREATE TRIGGER entries_update BEFORE UPDATE ON entries BEGIN SELECT 1; END",
    ] {
        let fixture = recorded();
        fixture.sqlite().execute_batch(statement).expect("the schema can be changed");
        assert!(refusal(&fixture).contains("Schema"), "{statement}");
    }
}

#[test]
fn files_that_are_not_ledgers_are_refused_untouched() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let check = |name: &str, bytes: &[u8], expected: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, bytes).expect("written");
        let writing = Recorder::open(&path, key(Role::Trainer)).expect_err("refused").to_string();
        let reading = Reader::open(&path).expect_err("refused").to_string();
        for message in [&writing, &reading] {
            assert!(message.contains(expected) && message.contains(name), "{name}: {message}");
        }
        assert_eq!(std::fs::read(&path).expect("bytes"), bytes, "{name} was changed");
    };
    check("empty.db", b"", "has only 0 bytes");
    check("text.db", &b"not a database ".repeat(20), "not an SQLite database");
    let fixture = recorded();
    let bytes = std::fs::read(fixture.path()).expect("bytes");
    check("cut.db", &bytes[..bytes.len() - 4096], "truncated");
    check("short.db", &bytes[..512], "truncated");
    let mut newer = bytes.clone();
    newer[60..64].copy_from_slice(&2u32.to_be_bytes());
    check("newer.db", &newer, "layout 2");
    let mut foreign = bytes;
    foreign[68..72].copy_from_slice(&[0; 4]);
    check("foreign.db", &foreign, "another kind");
    let missing = Recorder::open(&folder.path().join("missing.db"), key(Role::Trainer));
    assert!(missing.expect_err("missing").to_string().contains("no ledger at"));
    let folder_error = Recorder::open(folder.path(), key(Role::Trainer)).expect_err("a folder").to_string();
    assert!(folder_error.contains("not a file"), "{folder_error}");
}

#[test]
fn a_missing_or_foreign_head_file_is_refused() {
    let fixture = recorded();
    let kept = std::fs::read(fixture.head_path()).expect("bytes");
    std::fs::remove_file(fixture.head_path()).expect("removed");
    assert!(refusal(&fixture).contains("HeadFile(Missing"), "{}", refusal(&fixture));
    let other = recorded();
    std::fs::copy(other.head_path(), fixture.head_path()).expect("copied");
    assert!(refusal(&fixture).contains("Origin"), "{}", refusal(&fixture));
    std::fs::write(fixture.head_path(), kept).expect("restored");
    assert_eq!(fixture.open().num_entries(), 4);
}

#[test]
fn rows_beyond_the_last_head_are_kept_and_signed_later() {
    let fixture = Fixture::new();
    let recorder = fixture.open();
    recorder.append_durable(heartbeat(1)).expect("durable");
    for number in 2..200 {
        recorder.append(heartbeat(number)).expect("queued");
    }
    // Wait for a group commit, then copy what a crash would leave.
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(5);
    let copy = loop {
        let copy = tempfile::tempdir().expect("a temporary folder");
        for name in ["run.db", "run.db-wal", "run.db.head"] {
            std::fs::copy(fixture.folder.path().join(name), copy.path().join(name)).expect("copied");
        }
        let reader = Reader::open(&copy.path().join("run.db")).expect("readable");
        if reader.num_entries() > 2 {
            break copy;
        }
        assert!(std::time::Instant::now() < deadline, "no group commit within 5 s");
    };
    let path = copy.path().join("run.db");
    let recorder = Recorder::open(&path, key(Role::Trainer)).expect("a crash is no damage");
    let num_entries = recorder.num_entries();
    assert!(num_entries > 2);
    let receipt = recorder.flush().expect("signed now");
    assert_eq!(receipt.size, num_entries);
    let head = ledger::head_file::read_last(&copy.path().join("run.db.head")).expect("a note");
    assert_eq!(ledger::note::parse(&head).expect("a note").head.size, num_entries);
}

#[test]
fn a_failed_write_surfaces_on_the_next_call_and_every_later_one() {
    let fixture = Fixture::new();
    let recorder = fixture.open();
    recorder.append_durable(heartbeat(1)).expect("durable");
    // A stranger appends a row behind the writer's back: its index is taken.
    let entry = b"{}".to_vec();
    fixture
        .sqlite()
        .execute(
            "INSERT INTO entries (seq, idem, entry, leaf) VALUES (2, zeroblob(16), ?1, zeroblob(32))",
            [entry],
        )
        .expect("the database itself cannot tell");
    let failed = recorder.append_durable(heartbeat(2)).expect_err("the index is taken");
    let source = std::error::Error::source(&failed).map(ToString::to_string).unwrap_or_default();
    assert!(source.contains("appending entries failed"), "{failed}: {source}");
    assert!(matches!(recorder.append(heartbeat(3)), Err(RecorderError::Failed { .. })));
    assert!(matches!(recorder.flush(), Err(RecorderError::Failed { .. })));
    assert!(matches!(recorder.close(), Err(RecorderError::Failed { .. })));
    let head = ledger::head_file::read_last(&fixture.head_path()).expect("a note");
    assert_eq!(ledger::note::parse(&head).expect("a note").head.size, 2, "nothing was signed over it");
}

#[test]
fn reading_names_what_is_missing_or_damaged() {
    let fixture = recorded();
    fixture.tamper("UPDATE entries SET entry = x'7b7d' WHERE seq = 2");
    let reader = Reader::open(&fixture.path()).expect("readable");
    assert!(matches!(reader.entry(2), Err(ReadError::Entry { index: 2, .. })));
    assert!(matches!(reader.entry(9), Err(ReadError::NoEntry { index: 9, num_entries: 4, .. })));
    let seen: Vec<bool> = reader.entries(0).map(|entry| entry.is_ok()).collect();
    assert_eq!(seen, [true, true, false, true]);
}
