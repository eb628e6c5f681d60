//! `ledger import` as a program: what it says, its exit codes, and that a run
//! goes on from an imported ledger.

use std::path::Path;

use system_tests::dump;
use system_tests::programs::{Finished, LEDGER, run};
use system_tests::run_folder::RunFolder;

fn ledger(folder: &RunFolder, arguments: &[&str]) -> Finished {
    run(LEDGER, folder.path(), arguments)
}

fn export(folder: &RunFolder, name: &str) {
    let _ = folder.ledger_command("export", &["--output", name]).expect_code(0);
}

fn remove_ledger(folder: &Path) {
    for name in ["run.db", "run.db-wal", "run.db-shm", "run.db.head"] {
        let path = folder.join(name);
        if path.exists() {
            std::fs::remove_file(path).expect("removed");
        }
    }
}

#[test]
fn a_run_goes_on_from_its_imported_ledger() {
    let folder = RunFolder::frozen();
    let frozen = dump::database(&folder.ledger()).expect("a database");
    export(&folder, "frozen");
    remove_ledger(folder.path());
    let imported = ledger(&folder, &["import", "frozen"]).expect_code(0);
    imported.expect_message(&["Imported frozen into run.db"]);
    assert_eq!(dump::database(&folder.ledger()).expect("a database"), frozen);

    let _ = folder.train().expect_code(0);
    let report = folder.report();
    assert_eq!(report["verdict"], "accepted", "{report:#}");
    // What came later is no part of the older export, and in the newer one.
    let again = ledger(&folder, &["import", "frozen"]).expect_code(0);
    again.expect_message(&["held all entries of frozen already"]);
    export(&folder, "trained");
    let _ = ledger(&folder, &["import", "frozen", "--output", "copy.db"]).expect_code(0);
    let further = ledger(&folder, &["import", "trained", "-o", "copy.db", "--json"]).expect_code(0).json();
    let num_entries = folder.entries().len() as u64;
    assert_eq!(further["created"], false);
    assert_eq!(further["num_entries"], num_entries);
    assert_eq!(further["num_new_entries"], num_entries - 1);
    let copy = dump::database(&folder.path().join("copy.db")).expect("a database");
    assert_eq!(copy, dump::database(&folder.ledger()).expect("a database"));
    let head = |name: &str| std::fs::read(folder.path().join(name)).expect("a head file");
    assert_eq!(head("copy.db.head"), head("run.db.head"));
}

#[test]
fn what_is_refused_names_place_and_remedy() {
    let folder = RunFolder::frozen();
    export(&folder, "export");
    let other = RunFolder::frozen();
    let export = folder.path().join("export");
    let name = export.to_string_lossy().into_owned();
    let before = dump::database(&other.ledger()).expect("a database");
    let refused = ledger(&other, &["import", &name]);
    refused.expect_complaint(1, "run.db", &["is the ledger of", "the export is of"]);
    assert_eq!(dump::database(&other.ledger()).expect("a database"), before);

    let entries = export.join("entries.jsonl");
    let bytes = std::fs::read(&entries).expect("entries");
    std::fs::write(&entries, &bytes[..bytes.len() / 2]).expect("written");
    let refused = ledger(&other, &["import", &name, "-o", "new.db"]);
    refused.expect_complaint(1, "entries.jsonl", &["line 1", "incomplete"]);
    assert!(!other.path().join("new.db").exists() && !other.path().join("new.db.head").exists());
    std::fs::write(&entries, bytes).expect("restored");

    let trust = other.path().join("trust.json");
    std::fs::write(&trust, format!("{{\"trainer\": \"{}\"}}", "11".repeat(32))).expect("written");
    let refused = ledger(&other, &["import", &name, "-o", "new.db", "--trust", "trust.json"]);
    refused.expect_complaint(1, "heads.txt", &["does not verify"]);
    let refused = ledger(&other, &["import", "nowhere", "-o", "new.db"]);
    refused.expect_complaint(2, "nowhere", &["cannot access"]);
}
