//! The recorder: what it assigns, groups, repeats and refuses.

mod common;

use common::{Fixture, heartbeat, key, step};
use ledger::create::{CreateError, create_qualification_ledger, create_run_ledger};
use ledger::head_file;
use ledger::keys::Role;
use ledger::note;
use ledger::reader::Reader;
use ledger::recorder::{Record, Recorder, RecorderError};
use ledger::tree::{Frontier, leaf_hash};
use schemas::body::{AnomalyDet, AnomalyObs, Body, Halves};
use schemas::entry::LedgerKind;
use schemas::ids::{IdempotencyKey, RunId};

fn anomaly(description: String) -> Record {
    let det = AnomalyDet::named("test");
    Record::new(Body::Anomaly(Box::new(Halves { det, obs: AnomalyObs { description } })))
}

#[test]
fn a_freeze_is_entry_zero_signed_by_the_owner() {
    let fixture = Fixture::new();
    let reader = Reader::open(&fixture.path()).expect("readable");
    assert_eq!(reader.num_entries(), 1);
    let frozen = reader.contract().expect("a contract");
    assert_eq!((&frozen.run, frozen.digest), (&fixture.created.run, fixture.created.digest));
    assert_eq!(reader.identity().expect("a head"), (LedgerKind::Run, fixture.created.run.clone()));
    let note = reader.head_beside().expect("a head file").to_owned();
    let head = note::verify(&note, &key(Role::Owner).public_hex()).expect("the owner's head");
    assert_eq!((head.size, head.root), (1, fixture.created.receipt.root));
    let Body::ContractFrozen(body) = reader.entry(0).expect("entry 0").body else { panic!("the freeze") };
    assert_eq!(body.det.artifacts.len(), 2);
    for stored in &body.det.artifacts {
        let bytes = reader.artifact(&stored.digest).expect("stored");
        assert_eq!(bytes.len() as u64, stored.num_bytes);
    }
    let files: Vec<_> = std::fs::read_dir(fixture.folder.path())
        .expect("the folder")
        .map(|file| file.expect("a file").file_name().into_string().expect("text"))
        .collect();
    assert_eq!(files.len(), 2, "nothing temporary is left: {files:?}");
}

#[test]
fn an_existing_file_is_never_replaced() {
    let fixture = Fixture::new();
    let before = std::fs::read(fixture.path()).expect("bytes");
    let contract = common::golden("contract.canonical.json");
    let again = create_run_ledger(&fixture.path(), contract.as_bytes(), &[], &key(Role::Owner), "test 0");
    assert!(matches!(again, Err(CreateError::Exists { .. })));
    assert_eq!(std::fs::read(fixture.path()).expect("bytes"), before);
    let other = fixture.folder.path().join("other.db");
    let wrong = create_run_ledger(&other, contract.as_bytes(), &[], &key(Role::Trainer), "test 0");
    assert!(matches!(wrong, Err(CreateError::WrongKey { expected: Role::Owner, .. })));
    let loose = format!("{contract}\n");
    let loose = create_run_ledger(&other, loose.as_bytes(), &[], &key(Role::Owner), "test 0");
    assert!(matches!(loose, Err(CreateError::ContractNotCanonical)));
    // A field that is null is written all the same.
    let less = contract.replacen("\"max_tokens\":null,", "", 1);
    assert_ne!(less, contract);
    let less = create_run_ledger(&other, less.as_bytes(), &[], &key(Role::Owner), "test 0");
    assert!(matches!(less, Err(CreateError::ContractForm)));
    assert!(!other.exists());
}

#[test]
fn entries_get_indices_and_times_that_never_fall_and_every_head_holds() {
    let fixture = Fixture::new();
    let recorder = fixture.open();
    assert_eq!(recorder.run(), &fixture.created.run);
    for number in 1..=300 {
        recorder.append(heartbeat(number)).expect("queued");
    }
    let durable = recorder.append_durable(heartbeat(301)).expect("durable");
    assert_eq!((durable.index, durable.size), (301, 302));
    recorder.append(step(1, f64::NAN)).expect("a NaN loss is an entry like others");
    let closed = recorder.close().expect("closed");
    assert_eq!((closed.index, closed.size), (302, 303));

    let reader = Reader::open(&fixture.path()).expect("readable");
    let mut frontier = Frontier::new();
    let mut roots = vec![frontier.root()];
    let mut last_time_us = 0;
    for (index, row) in (0..).zip(reader.rows(0)) {
        let (seq, bytes) = row.expect("a row");
        let entry = reader.entry(seq).expect("an entry");
        assert_eq!((seq, entry.index), (index, index));
        assert_eq!(entry.header.run, fixture.created.run);
        assert!(entry.time_us >= last_time_us);
        last_time_us = entry.time_us;
        ledger::canonical::check_entry_json(&bytes).expect("canonical");
        frontier.append(leaf_hash(&bytes));
        roots.push(frontier.root());
    }
    assert_eq!(frontier.size(), 303);
    let heads = reader.heads().expect("heads");
    // The freeze, the durable append, the close; group commits sign nothing.
    assert_eq!(heads.iter().map(|head| head.size).collect::<Vec<_>>(), [1, 302, 303]);
    for head in &heads[1..] {
        let verified = note::verify(&head.note, &key(Role::Trainer).public_hex()).expect("the trainer's");
        assert_eq!(roots[usize::try_from(verified.size).expect("small")], verified.root);
    }
    let external = head_file::read_all(&fixture.head_path(), 1 << 20).expect("notes");
    let stored: Vec<String> = heads.into_iter().map(|head| head.note).collect();
    assert_eq!(external, stored);
    assert!(!fixture.folder.path().join("run.db-wal").exists(), "closing folds the WAL in");
}

#[test]
fn steps_reach_the_database_within_the_contract_without_a_flush() {
    let fixture = Fixture::new();
    let recorder = fixture.open();
    for number in 1..=50 {
        recorder.append(step(number, 1.0)).expect("queued");
    }
    // max_unsynced_steps is 50 and max_unsynced_ms 250; 5 s is for a busy machine.
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(5);
    loop {
        let stored: i64 = fixture
            .sqlite()
            .query_row("SELECT count(*) FROM entries", [], |row| row.get(0))
            .expect("a count");
        if stored == 51 {
            break;
        }
        assert!(std::time::Instant::now() < deadline, "{stored} entries stored");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    drop(recorder);
}

#[test]
fn the_same_key_is_the_same_append_and_other_content_is_refused() {
    let fixture = Fixture::new();
    let idem = IdempotencyKey("00112233445566778899aabbccddeeff".to_owned());
    let recorder = fixture.open();
    let keyed = |number| heartbeat(number).idem(idem.clone());
    assert_eq!((recorder.num_entries(), recorder.num_durable()), (1, 1));
    recorder.append(keyed(1)).expect("new");
    recorder.append(keyed(1)).expect("the same, still queued");
    assert_eq!(recorder.num_entries(), 2);
    assert!(matches!(recorder.append(keyed(2)), Err(RecorderError::Conflict { index: 1, .. })));
    let receipt = recorder.append_durable(keyed(1)).expect("the same, made durable");
    assert_eq!((receipt.index, receipt.size), (1, 2));
    assert_eq!(recorder.num_durable(), 2);
    recorder.append(heartbeat(7)).expect("another");
    let receipt = recorder.append_durable(keyed(1)).expect("the same, stored");
    assert_eq!(receipt.index, 1);
    assert!(matches!(recorder.append(keyed(3)), Err(RecorderError::Conflict { index: 1, .. })));
    recorder.close().expect("closed");

    let recorder = fixture.open();
    assert_eq!(recorder.append_durable(keyed(1)).expect("the same, in another process").index, 1);
    assert!(matches!(recorder.append(keyed(4)), Err(RecorderError::Conflict { index: 1, .. })));
    for wrong in ["", "0011", "00112233445566778899AABBCCDDEEFF", "00112233445566778899aabbccddeefg"] {
        let record = heartbeat(9).idem(IdempotencyKey(wrong.to_owned()));
        assert!(matches!(recorder.append(record), Err(RecorderError::Idempotency { .. })), "{wrong}");
    }
    assert_eq!(recorder.close().expect("closed").size, 3);
}

#[test]
fn an_entry_that_is_too_large_is_refused_and_recording_goes_on() {
    let fixture = Fixture::new();
    let recorder = fixture.open();
    let large = recorder.append(anomaly("x".repeat(1 << 20)));
    assert!(
        matches!(large, Err(RecorderError::TooLarge { kind: "anomaly", num_bytes }) if num_bytes > 1 << 20)
    );
    let fixed_bytes = match recorder.append(anomaly("x".repeat(65_535))) {
        Err(RecorderError::TooLarge { num_bytes, .. }) => num_bytes - 65_535,
        other => panic!("{other:?}"),
    };
    recorder.append(anomaly("x".repeat(65_535 - fixed_bytes))).expect("exactly 65,535 bytes");
    assert!(recorder.append(anomaly("x".repeat(65_536 - fixed_bytes))).is_err());
    assert_eq!(recorder.close().expect("closed").size, 2);
}

#[test]
fn numbers_and_keys_without_a_canonical_form_are_refused() {
    let fixture = Fixture::new();
    let recorder = fixture.open();
    let refused = recorder.append(heartbeat((1 << 53) + 1));
    assert!(matches!(refused, Err(RecorderError::Canonical { kind: "heartbeat", .. })));
    let extension = |value| schemas::entry::Extension {
        critical: false,
        name: "org.example.test".to_owned(),
        schema_digest: schemas::digest::Digest::sha256([0; 32]),
        value,
    };
    let refused = recorder.append(heartbeat(1).extension(extension(serde_json::json!({ "é": 1 }))));
    assert!(matches!(refused, Err(RecorderError::Canonical { .. })));
    let value = serde_json::json!({ "b": [0.1, -0.0, "\u{1}"], "a": null });
    recorder.append(heartbeat(2).extension(extension(value.clone()))).expect("canonical");
    assert_eq!(recorder.close().expect("closed").size, 2);
    let reader = Reader::open(&fixture.path()).expect("readable");
    assert_eq!(reader.entry(1).expect("stored").header.extensions[0].value, value);
}

#[test]
fn a_dropped_recorder_loses_nothing_and_a_closed_one_takes_nothing() {
    let fixture = Fixture::new();
    let recorder = fixture.open();
    let clone = recorder.clone();
    recorder.append(heartbeat(1)).expect("queued");
    drop(recorder);
    clone.append(heartbeat(2)).expect("a clone shares the writer");
    drop(clone);
    let recorder = fixture.open();
    assert_eq!(recorder.num_entries(), 3);
    let clone = recorder.clone();
    recorder.close().expect("closed");
    assert!(matches!(clone.append(heartbeat(3)), Err(RecorderError::Closed { .. })));
    assert!(matches!(clone.flush(), Err(RecorderError::Closed { .. })));
    assert!(matches!(clone.close(), Err(RecorderError::Closed { .. })));
}

#[test]
fn threads_share_one_recorder() {
    let fixture = Fixture::new();
    let recorder = fixture.open();
    let threads: Vec<_> = (0..4u64)
        .map(|thread| {
            let recorder = recorder.clone();
            std::thread::spawn(move || {
                for number in 0..50 {
                    let record = heartbeat(thread * 1000 + number);
                    if number % 10 == 0 {
                        recorder.append_durable(record).expect("durable");
                    } else {
                        recorder.append(record).expect("queued");
                    }
                }
            })
        })
        .collect();
    for thread in threads {
        thread.join().expect("no panic");
    }
    assert_eq!(recorder.close().expect("closed").size, 201);
    // Opening reads and checks everything again.
    assert_eq!(fixture.open().num_entries(), 201);
}

#[test]
fn a_clock_that_was_set_back_repeats_the_last_time() {
    let fixture = Fixture::new();
    let future_us = 4_000_000_000_000_000u64;
    let entry = {
        let reader = Reader::open(&fixture.path()).expect("readable");
        let mut entry = reader.entry(0).expect("the freeze");
        entry.index = 1;
        entry.time_us = future_us;
        entry.body = heartbeat(0).body;
        entry.header.idem = IdempotencyKey("ff".repeat(16));
        ledger::canonical::entry_json(&entry).expect("canonical")
    };
    let leaf = leaf_hash(&entry);
    fixture
        .sqlite()
        .execute(
            "INSERT INTO entries (seq, idem, entry, leaf) VALUES (1, ?1, ?2, ?3)",
            rusqlite::params![[0xffu8; 16], entry, leaf],
        )
        .expect("the next row is no change of an earlier one");
    let recorder = fixture.open();
    recorder.append(heartbeat(1)).expect("queued");
    recorder.close().expect("closed");
    let reader = Reader::open(&fixture.path()).expect("readable");
    assert_eq!(reader.entry(2).expect("stored").time_us, future_us);
}

#[test]
fn a_qualification_ledger_has_its_own_identity_and_key() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("qualification.db");
    let run = RunId::from("qualification-0001");
    let wrong = create_qualification_ledger(&path, &key(Role::Trainer), &run);
    assert!(matches!(wrong, Err(CreateError::WrongKey { .. })));
    let bad = create_qualification_ledger(&path, &key(Role::Qualifier), &RunId::from("a b"));
    assert!(matches!(bad, Err(CreateError::RunId { .. })));
    let receipt = create_qualification_ledger(&path, &key(Role::Qualifier), &run).expect("a new ledger");
    assert_eq!(receipt.size, 0);
    let other = ledger::keys::KeyPair::random(Role::Qualifier).expect("a key");
    assert!(matches!(Recorder::open(&path, other), Err(RecorderError::WrongKey { .. })));
    let recorder = Recorder::open(&path, key(Role::Qualifier)).expect("its own key");
    assert!(recorder.contract().is_none());
    assert_eq!((recorder.kind(), recorder.run()), (LedgerKind::Qualification, &run));
    let receipt = recorder.append_durable(heartbeat(1)).expect("durable");
    assert_eq!((receipt.index, receipt.size), (0, 1));
    recorder.close().expect("closed");
    let reader = Reader::open(&path).expect("readable");
    assert_eq!(reader.identity().expect("a head"), (LedgerKind::Qualification, run));
    assert_eq!(reader.entry(0).expect("stored").header.ledger, LedgerKind::Qualification);
    let head = note::parse(reader.head_beside().expect("a head file")).expect("a note").head;
    assert_eq!(head.size, 1);
}

#[test]
fn a_caller_inside_an_asynchronous_runtime_can_create_and_record() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    runtime.block_on(async {
        let fixture = Fixture::new();
        let recorder = fixture.open();
        assert_eq!(recorder.append_durable(heartbeat(1)).expect("durable").index, 1);
        recorder.close().expect("closed");
    });
}
