//! Bundles of a run that is being written: everything in one is of one moment.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use common::{Fixture, heartbeat};
use ledger::bundle::{BundleError, BundleRequest, BundleSummary, bundle};
use ledger::head_file::split_notes;
use ledger::note;
use schemas::bundle::LedgerForm;

/// Bundles a run; the folder holds bundle and scratch.
fn bundled(fixture: &Fixture) -> (tempfile::TempDir, Result<BundleSummary, BundleError>) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let scratch = folder.path().join("scratch");
    std::fs::create_dir(&scratch).expect("a folder");
    let request = BundleRequest {
        ledger: fixture.path(),
        output: folder.path().join("run.tar.zst"),
        scratch,
        without_checkpoints: false,
        without_data: false,
    };
    let made = bundle(&request, &mut |_| {});
    (folder, made)
}

#[test]
fn head_and_export_are_of_one_moment_while_the_run_is_written() {
    let fixture = Fixture::new();
    let recorder = fixture.open();
    let is_over = Arc::new(AtomicBool::new(false));
    let writer = {
        let (recorder, is_over) = (recorder.clone(), Arc::clone(&is_over));
        std::thread::spawn(move || {
            let mut number = 0;
            while !is_over.load(Ordering::Relaxed) {
                number += 1;
                recorder.append_durable(heartbeat(number)).expect("durable");
            }
        })
    };
    let mut sizes = Vec::new();
    for round in 0..12 {
        let (folder, made) = bundled(&fixture);
        let manifest = made.expect("a bundle").manifest;
        assert_eq!(manifest.ledger.form, LedgerForm::Export, "round {round}");
        let head = manifest.head.expect("a head");
        let heads = folder.path().join("scratch/export/heads.txt");
        let notes = split_notes(&std::fs::read_to_string(heads).expect("the export's heads"));
        let newest = note::parse(notes.last().expect("a head")).expect("a note").head;
        assert_eq!(newest.size, head.size, "round {round}");
        sizes.push(head.size);
    }
    is_over.store(true, Ordering::Relaxed);
    writer.join().expect("the writer ended well");
    recorder.close().expect("closed");
    assert!(sizes.first() < sizes.last(), "the run was not written meanwhile: {sizes:?}");
}

#[test]
fn a_database_with_something_wrong_is_bundled_as_the_copy_that_was_read() {
    let fixture = Fixture::new();
    fixture.open().close().expect("closed");
    let changed = rusqlite::Connection::open(fixture.path()).expect("a database");
    changed.execute_batch("CREATE TABLE more (x); PRAGMA wal_checkpoint(TRUNCATE);").expect("changed");
    drop(changed);
    let (_folder, made) = bundled(&fixture);
    let manifest = made.expect("a bundle").manifest;
    assert_eq!(manifest.ledger.form, LedgerForm::Database);
    let database = std::fs::read(fixture.path()).expect("a database");
    let member = manifest.members.iter().find(|member| member.name == "run/run.db").expect("the database");
    assert_eq!(member.digest.bytes, *blake3::hash(&database).as_bytes());
    let names: Vec<&str> = manifest.members.iter().map(|member| member.name.as_str()).collect();
    assert!(!names.contains(&"run/run.db-wal"), "{names:?}");
}

#[test]
fn an_export_that_cannot_be_written_is_an_error_and_no_other_form() {
    let fixture = Fixture::new();
    fixture.open().close().expect("closed");
    let folder = tempfile::tempdir().expect("a temporary folder");
    let scratch = folder.path().join("scratch");
    std::fs::create_dir_all(scratch.join("export")).expect("the place is taken");
    let request = BundleRequest {
        ledger: fixture.path(),
        output: folder.path().join("run.tar.zst"),
        scratch,
        without_checkpoints: false,
        without_data: false,
    };
    let error = bundle(&request, &mut |_| {}).expect_err("no export can be made");
    assert!(matches!(&error, BundleError::Exists { path } if path.ends_with("export")), "{error}");
    assert!(!request.output.exists());
}
