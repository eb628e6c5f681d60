//! An honest ledger is accepted; every systematic corruption of it is found,
//! by the rule that it breaks.

use std::fs;

use schemas::finding::{Effect, Finding};
use schemas::report::{Report, RuleStatus, Verdict};

use crate::fixture::{RunBuilder, StoredRun, honest_run, signed_note};
use crate::{AuditRequest, audit};

fn stored() -> StoredRun {
    StoredRun::new(honest_run())
}

fn has(report: &Report, code: &str, effect: Effect) -> bool {
    report.findings.iter().any(|finding| finding.code == code && finding.effect == effect)
}

fn summary(findings: &[Finding]) -> Vec<String> {
    findings
        .iter()
        .map(|finding| {
            format!(
                "{} {:?} {:?} {} {} | {} | {}",
                finding.code,
                finding.effect,
                finding.entry,
                finding.location,
                finding.message,
                finding.expected,
                finding.actual
            )
        })
        .collect()
}

/// Applies `change` and expects a finding of `code` with `effect`.
fn check(code: &str, effect: Effect, change: impl FnOnce(&mut StoredRun)) -> Report {
    let mut run = stored();
    change(&mut run);
    let report = run.audit();
    assert!(has(&report, code, effect), "{code} {effect:?} in {:#?}", summary(&report.findings));
    assert_ne!(report.verdict, Verdict::Accepted);
    report
}

#[test]
fn an_honest_run_is_accepted_with_every_rule_evaluated() {
    for run in [stored(), StoredRun::new(RunBuilder::new().crash_after_step(5).build())] {
        let report = run.audit();
        let errors: Vec<_> = report.findings.iter().filter(|f| f.effect != Effect::None).cloned().collect();
        assert_eq!(report.verdict, Verdict::Accepted, "{:#?}", summary(&errors));
        for rule in &report.rules {
            assert!(!matches!(rule.status, RuleStatus::Failed | RuleStatus::NotEvaluated), "{rule:?}");
        }
        assert_eq!(report.num_entries, run.entries.len() as u64);
        assert_eq!(report.head.as_ref().map(|head| head.size), Some(report.num_entries));
        assert!(report.selected.is_some() && report.projection.is_some());
        assert_eq!(report.denominators.steps_logical, 8);
        let text = crate::render::text(&report);
        assert!(text.starts_with("accepted: "), "{text}");
        let sarif = crate::render::sarif(&report);
        assert_eq!(sarif["runs"][0]["invocations"][0]["exitCode"], 0);
        let json = serde_json::to_vec(&report).expect("serialises");
        crate::canonical::check_entry_json(&json).expect("a report is canonical entry JSON");
    }
}

#[test]
fn an_exact_replay_has_the_same_projection() {
    let crashed = StoredRun::new(RunBuilder::new().crash_after_step(5).build()).audit();
    let honest = stored().audit();
    assert_eq!(honest.projection, crashed.projection);
    assert_eq!((crashed.denominators.attempted, crashed.denominators.interrupted), (2, 1));
    assert!(crashed.denominators.steps_executed > honest.denominators.steps_executed);
}

#[test]
fn rows_dropped_duplicated_and_reordered() {
    check("GL002", Effect::Tampered, |run| run.tamper("DELETE FROM entries WHERE seq = 5"));
    check("GL002", Effect::Tampered, |run| run.tamper("UPDATE entries SET seq = seq + 1000 WHERE seq = 5"));
    check("GL008", Effect::Tampered, |run| {
        run.tamper("DELETE FROM entries WHERE seq >= (SELECT max(seq) - 2 FROM entries)");
    });
    check("GL009", Effect::Tampered, |run| {
        run.tamper("DELETE FROM entries WHERE seq >= (SELECT max(seq) - 2 FROM entries)");
    });
    let swap = "UPDATE entries SET seq = -1 - seq WHERE seq IN (4, 5)";
    let report = check("GL002", Effect::Tampered, |run| {
        run.tamper(&format!(
            "PRAGMA ignore_check_constraints = ON; {swap}; UPDATE entries SET seq = CASE seq WHEN -5 THEN 5 ELSE 4 END WHERE seq < 0"
        ));
    });
    assert!(has(&report, "GL008", Effect::Tampered));
    let report = check("GL002", Effect::Tampered, |run| {
        run.tamper(
            "INSERT INTO entries SELECT max(seq) + 1, randomblob(16), (SELECT entry FROM entries WHERE seq = 3), \
             (SELECT leaf FROM entries WHERE seq = 3) FROM entries",
        );
    });
    assert!(has(&report, "GL006", Effect::Tampered) && has(&report, "GL010", Effect::Rejected));
    check("GL002", Effect::Rejected, |run| run.tamper("DELETE FROM entries"));
}

#[test]
fn the_newest_rows_removed_together_with_their_heads() {
    let report = check("GL009", Effect::Tampered, |run| {
        let last = run.notes.len() - 1;
        let keep = run.notes[last - 1].0;
        run.tamper(&format!(
            "DELETE FROM heads WHERE size > {keep}; DELETE FROM entries WHERE seq >= {keep}"
        ));
    });
    assert!(report.findings.iter().any(|finding| finding.message.contains("behind")));
    assert_eq!(report.verdict, Verdict::Tampered);
}

#[test]
fn columns_changed() {
    check("GL005", Effect::Tampered, |run| {
        run.tamper("UPDATE entries SET leaf = zeroblob(32) WHERE seq = 6");
    });
    check("GL006", Effect::Tampered, |run| {
        run.tamper("UPDATE entries SET idem = randomblob(16) WHERE seq = 6");
    });
    let report = check("GL005", Effect::Tampered, |run| {
        run.tamper("UPDATE entries SET entry = CAST(replace(CAST(entry AS TEXT), '\"loss\":5.5', '\"loss\":4.5') AS BLOB)");
    });
    assert!(has(&report, "GL008", Effect::Tampered) && has(&report, "GL009", Effect::Tampered));
}

#[test]
fn every_byte_of_every_entry() {
    // The leaf column is left as it was: the entry is named. One bit a byte, at
    // a position that moves, so that digits, letters and punctuation all change.
    let run = stored();
    let connection = rusqlite::Connection::open(run.path()).expect("the fixture wrote it");
    connection.execute_batch("DROP TRIGGER entries_update").expect("a trigger");
    let mut statement =
        connection.prepare("UPDATE entries SET entry = ?2 WHERE seq = ?1").expect("a statement");
    let mut num_flips = 0u32;
    for (seq, bytes) in (0i64..).zip(&run.entries) {
        for index in (0..bytes.len()).step_by(251) {
            let mut forged = bytes.clone();
            forged[index] ^= 1 << (num_flips % 8);
            num_flips += 1;
            statement.execute(rusqlite::params![seq, forged]).expect("an update");
            let report = run.audit();
            let named = report.findings.iter().any(|finding| {
                finding.code == "GL005" && finding.entry == Some(u64::try_from(seq).expect("small"))
            });
            assert!(named && report.verdict == Verdict::Tampered, "entry {seq}, byte {index}");
        }
        statement.execute(rusqlite::params![seq, bytes]).expect("an update");
    }
    assert!(num_flips > 100);
}

#[test]
fn the_schema_changed() {
    check("GL001", Effect::Tampered, |run| {
        let connection = rusqlite::Connection::open(run.path()).expect("the fixture wrote it");
        connection.execute_batch("DROP TRIGGER entries_delete").expect("a trigger");
    });
    check("GL001", Effect::Tampered, |run| run.tamper("CREATE TABLE other (x)"));
    check("GL001", Effect::Tampered, |run| run.tamper("CREATE VIEW v AS SELECT 1"));
    check("GL001", Effect::Tampered, |run| run.tamper("ALTER TABLE entries ADD COLUMN note TEXT"));
    // A second row for an index of SQLite's own is no other object to it.
    check("GL001", Effect::Tampered, |run| {
        run.tamper(
            "PRAGMA writable_schema = ON;
             INSERT INTO sqlite_schema SELECT * FROM sqlite_schema WHERE name = 'sqlite_autoindex_entries_1';
             PRAGMA writable_schema = OFF",
        );
    });
    check("GL001", Effect::Rejected, |run| run.tamper("PRAGMA application_id = 1"));
    let report = check("GL001", Effect::NotEvaluated, |run| run.tamper("PRAGMA user_version = 2"));
    assert_eq!(report.num_entries, 0);
}

#[test]
fn heads_changed_forged_and_removed() {
    check("GL008", Effect::Tampered, |run| {
        run.tamper("UPDATE heads SET note = replace(note, 'run/', 'ran/')");
    });
    check("GL008", Effect::Tampered, |run| run.tamper("UPDATE heads SET size = 4000 WHERE size = 1"));
    check("GL009", Effect::Tampered, |run| run.tamper("DELETE FROM heads WHERE size > 1"));
    check("GL106", Effect::Rejected, |run| {
        run.tamper("DELETE FROM heads WHERE size = 1");
        run.notes.remove(0);
        run.write_heads();
    });
    let by_wrong_key = |run: &mut StoredRun, size: u64, role: u8| {
        let note = &run.notes.iter().find(|(at, _)| *at == size).expect("a head of that size").1;
        let parsed = crate::note::Note::parse(note.as_bytes()).expect("a note");
        let forged = signed_note(&parsed.origin, size, parsed.root, role);
        run.tamper(&format!("UPDATE heads SET note = '{forged}' WHERE size = {size}"));
    };
    check("GL008", Effect::Tampered, |run| {
        let size = run.notes[3].0;
        by_wrong_key(run, size, 1);
    });
    check("GL008", Effect::Tampered, |run| by_wrong_key(run, 1, 3));
    check("GL008", Effect::Rejected, |run| {
        run.tamper("UPDATE heads SET note = note || substr(note, instr(note, char(8212)))");
    });
    check("GL009", Effect::Tampered, |run| {
        let mut bytes = fs::read(run.beside("run.db.head")).expect("a file");
        bytes[100] ^= 1;
        fs::write(run.beside("run.db.head"), bytes).expect("writable");
    });
    check("GL009", Effect::Tampered, |run| fs::write(run.beside("run.db.head"), b"").expect("writable"));
    check("GL009", Effect::Rejected, |run| {
        run.notes.truncate(run.notes.len() - 2);
        run.write_heads();
    });
    check("GL009", Effect::Tampered, |run| {
        run.notes.reverse();
        run.write_heads();
    });
    let mut run = stored();
    fs::remove_file(run.beside("run.db.head")).expect("a file");
    let report = run.audit();
    assert_eq!(report.verdict, Verdict::NotEvaluated);
    // A head that was kept elsewhere takes its place; an older one does too.
    run.notes.truncate(4);
    let kept = run.beside("kept.head");
    fs::write(&kept, &run.notes[3].1).expect("writable");
    let request = AuditRequest { ledger: run.path(), head: Some(kept), ..AuditRequest::default() };
    assert_eq!(audit(&request, &mut |_| {}).expect("can look").verdict, Verdict::Accepted);
}

#[test]
fn what_a_power_cut_leaves_of_the_head_file_is_incomplete() {
    let cut = |run: &StoredRun, num_bytes: usize, then: &[u8]| {
        let mut bytes = fs::read(run.beside("run.db.head")).expect("a file");
        bytes.truncate(bytes.len() - num_bytes);
        bytes.extend_from_slice(then);
        fs::write(run.beside("run.db.head"), bytes).expect("writable");
    };
    let run = stored();
    let last = run.notes.last().expect("a head").1.len() + 1;
    // Without the empty line, within the signature, within the text, without the note.
    for num_bytes in [1, 2, 40, last - 30, last - 1, last] {
        let report = check("GL009", Effect::Incomplete, |run| cut(run, num_bytes, b""));
        assert_eq!(report.verdict, Verdict::Incomplete, "{num_bytes} bytes");
        let finding = report.findings.iter().find(|finding| finding.code == "GL009").expect("a finding");
        assert!(finding.remedy.contains("trainer run"), "{}", finding.remedy);
    }
    // What is no beginning of the database's next note was written by somebody else.
    check("GL009", Effect::Tampered, |run| cut(run, 40, b"x"));
    check("GL009", Effect::Tampered, |run| cut(run, last, b"garbage"));
    check("GL009", Effect::Tampered, |run| cut(run, 0, b"\n"));
    // The first note of all was never complete: no recorder left this.
    check("GL009", Effect::Tampered, |run| {
        let note = run.notes[0].1.clone();
        fs::write(run.beside("run.db.head"), &note.as_bytes()[..60]).expect("writable");
    });
    // The database does not hold the head that the file lacks.
    let size = run.notes.last().expect("a head").0;
    let report = check("GL009", Effect::Tampered, |run| {
        run.tamper(&format!("DELETE FROM heads WHERE size = {size}"));
        cut(run, 40, b"");
    });
    assert_eq!(report.verdict, Verdict::Tampered);
}

#[test]
fn what_is_no_regular_file_is_not_opened() {
    let fifo = |path: std::path::PathBuf| {
        let _ = fs::remove_file(&path);
        let made = std::process::Command::new("mkfifo").arg(&path).status().expect("mkfifo runs");
        assert!(made.success());
    };
    for name in ["run.db", "run.db.head", "run.db-wal", "run.db.val.dsse.json", "run.db.report.dsse.json"] {
        let run = stored();
        fifo(run.beside(name));
        let request = AuditRequest { ledger: run.path(), ..AuditRequest::default() };
        let error = audit(&request, &mut |_| {}).expect_err("a FIFO would block");
        let source = std::error::Error::source(&error).expect("a cause").to_string();
        assert!(source.contains("not a regular file"), "{name}: {source}");
    }
    check("GL108", Effect::Rejected, |run| fifo(run.beside("data/train-0.txt")));
    check("GL110", Effect::Rejected, |run| fifo(checkpoint(run).join("model.safetensors")));
}

#[test]
fn a_sparse_file_is_not_read_to_its_end() {
    let grow = |path: std::path::PathBuf| {
        let file = fs::OpenOptions::new().write(true).open(path).expect("a file");
        file.set_len(1 << 40).expect("a sparse file");
    };
    // The size is enough: a finding without a digest means that nothing was hashed.
    let not_hashed = |report: &Report, code: &str| {
        let found = report.findings.iter().filter(|finding| finding.code == code);
        let found: Vec<&str> = found.map(|finding| finding.actual.as_str()).collect();
        assert!(found.iter().any(|actual| actual.contains("1099511627776 bytes")), "{code}: {found:?}");
        assert!(!found.iter().any(|actual| actual.contains("blake3:")), "{code}: {found:?}");
    };
    let report = check("GL108", Effect::Tampered, |run| grow(run.beside("data/val-0.txt")));
    not_hashed(&report, "GL108");
    let report = check("GL110", Effect::Tampered, |run| grow(checkpoint(run).join("model.safetensors")));
    not_hashed(&report, "GL110");
}

#[test]
fn a_second_form_of_an_entry_is_no_entry() {
    let report = check("GL004", Effect::Rejected, |run| {
        run.tamper(
            "UPDATE entries SET entry = CAST(replace(CAST(entry AS TEXT), ',\"origin\":null', '') AS BLOB) WHERE seq = 6",
        );
    });
    let finding = report.findings.iter().find(|finding| finding.code == "GL004").expect("a finding");
    assert_eq!(finding.entry, Some(6));
}

#[test]
fn an_entry_that_is_not_canonical_is_shown_to_no_rule() {
    // Step 2^64 - 1 in an attempt's beginning would be what a rule computes with.
    let report = check("GL003", Effect::Rejected, |run| {
        run.tamper(
            "UPDATE entries SET entry = CAST(replace(CAST(entry AS TEXT), '\"from_step\":0', '\"from_step\":18446744073709551615') AS BLOB)",
        );
    });
    assert_eq!(report.denominators.attempted, 0);
}

#[test]
fn a_step_number_beyond_the_contract_ends_the_count() {
    use schemas::body::Kind;
    let mut fixture = honest_run();
    fixture.change(Kind::Step, 7, |entry| entry.header.step = Some(1 << 52));
    let report = StoredRun::new(fixture).audit();
    assert!(has(&report, "GL306", Effect::Rejected), "{:#?}", summary(&report.findings));
}

#[test]
fn sizes_paths_and_files_of_checkpoints() {
    use schemas::body::{Body, CheckpointDet, CheckpointFailedObs, Halves, Kind};
    let changed = |change: &dyn Fn(&mut schemas::body::CheckpointCommittedObs)| {
        let mut fixture = honest_run();
        fixture.change(Kind::CheckpointDurablyCommitted, 1, |entry| {
            let Body::CheckpointDurablyCommitted(halves) = &mut entry.body else { panic!("a checkpoint") };
            change(&mut halves.obs);
        });
        StoredRun::new(fixture).audit()
    };
    assert!(has(&changed(&|obs| obs.num_bytes -= 1), "GL110", Effect::Rejected));
    assert!(has(&changed(&|obs| obs.path.push('/')), "GL110", Effect::Rejected));
    assert!(has(&changed(&|obs| obs.path = format!("./{}", obs.path)), "GL110", Effect::Rejected));
    // The selected candidate's checkpoint is given up afterwards, and its weights changed.
    let mut fixture = honest_run();
    let selected = fixture.entries.iter().find_map(|entry| match &entry.body {
        Body::CandidateSelected(halves) => Some((entry.clone(), halves.obs.checkpoint.clone())),
        _ => None,
    });
    let (mut entry, checkpoint) = selected.expect("a selection");
    let det = CheckpointDet { step: entry.header.step.expect("a step") };
    let obs = CheckpointFailedObs { checkpoint: checkpoint.clone(), reason: "given up".to_owned() };
    entry.header.idem = schemas::ids::IdempotencyKey("f".repeat(32));
    entry.body = Body::CheckpointQuarantined(Box::new(Halves { det, obs }));
    fixture.entries.push(entry);
    fixture.renumber();
    let run = StoredRun::new(fixture);
    assert!(!has(&run.audit(), "GL110", Effect::Tampered));
    let weights = run.beside(&format!("checkpoints/{checkpoint}/model.safetensors"));
    let mut bytes = fs::read(&weights).expect("a file");
    *bytes.last_mut().expect("bytes") ^= 1;
    fs::write(&weights, bytes).expect("writable");
    assert!(has(&run.audit(), "GL110", Effect::Tampered));
}

#[test]
fn files_beside_the_ledger() {
    check("GL108", Effect::Tampered, |run| {
        fs::write(run.beside("data/train-0.txt"), b"x").expect("writable");
    });
    check("GL110", Effect::Tampered, |run| flip(run, "model.safetensors"));
    check("GL110", Effect::Tampered, |run| flip(run, "manifest.json"));
    check("GL110", Effect::Tampered, |run| {
        fs::remove_file(checkpoint(run).join("config.json")).expect("a file");
    });
    check("GL110", Effect::Rejected, |run| {
        fs::write(checkpoint(run).join("notes.txt"), b"x").expect("writable");
    });
    let run = stored();
    fs::remove_file(run.beside("data/val-0.txt")).expect("a file");
    assert_eq!(run.audit().verdict, Verdict::NotEvaluated);
    let run = stored();
    fs::create_dir(run.beside("checkpoints/.staging-s00000008-a1-77")).expect("writable");
    let report = run.audit();
    assert!(report.verdict == Verdict::Accepted && has(&report, "GL110", Effect::None));
}

fn checkpoint(run: &StoredRun) -> std::path::PathBuf {
    run.beside("checkpoints/s00000004-a1")
}

fn flip(run: &StoredRun, name: &str) {
    let path = checkpoint(run).join(name);
    let mut bytes = fs::read(&path).expect("a file");
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(path, bytes).expect("writable");
}

#[test]
fn stored_documents_changed() {
    check("GL104", Effect::Tampered, |run| {
        run.tamper(
            "UPDATE artifacts SET bytes = CAST(replace(bytes, 'adamw', 'adamv') AS BLOB) WHERE rowid = 5",
        );
    });
    check("GL104", Effect::Tampered, |run| run.tamper("DELETE FROM artifacts WHERE rowid = 1"));
    check("GL104", Effect::Rejected, |run| {
        let digest = blake3::hash(b"extra").to_hex();
        run.tamper(&format!("INSERT INTO artifacts VALUES (x'{digest}', CAST('extra' AS BLOB))"));
    });
}

#[test]
fn files_that_are_no_ledger() {
    let run = stored();
    for (content, code, effect) in [
        (b"".to_vec(), "GL001", Effect::Rejected),
        (b"not a database at all".to_vec(), "GL001", Effect::Rejected),
        (fs::read(run.path()).expect("a file")[..5000].to_vec(), "GL001", Effect::Tampered),
    ] {
        fs::write(run.path(), content).expect("writable");
        let report = run.audit();
        assert!(has(&report, code, effect), "{:#?}", summary(&report.findings));
        assert!(has(&report, "GL009", Effect::Tampered), "{:#?}", summary(&report.findings));
        assert!(report.contract.is_none() && report.verdict == Verdict::Tampered);
    }
    let missing = AuditRequest { ledger: run.beside("none.db"), ..AuditRequest::default() };
    let error = audit(&missing, &mut |_| {}).expect_err("there is nothing to look at");
    assert!(error.to_string().contains("none.db"), "{error}");
}

#[test]
fn keys_that_the_reviewer_does_not_trust() {
    let run = stored();
    let trust = run.beside("trust.json");
    let audit_with = |text: &str| {
        fs::write(&trust, text).expect("writable");
        let request =
            AuditRequest { ledger: run.path(), trust: Some(trust.clone()), ..AuditRequest::default() };
        audit(&request, &mut |_| {})
    };
    let owner = schemas::digest::encode_hex(crate::fixture::signing_key(1).verifying_key().as_bytes());
    let report = audit_with(&format!("{{\"owner\":\"{owner}\"}}")).expect("can look");
    assert_eq!(report.verdict, Verdict::Accepted);
    let report = audit_with(&format!("{{\"trainer\":\"{owner}\"}}")).expect("can look");
    assert!(has(&report, "GL011", Effect::Tampered));
    assert!(audit_with("{\"nobody\":\"00\"}").is_err());
    assert!(audit_with("{").is_err());
}

#[test]
fn a_log_with_committed_rows_is_read_and_its_loss_is_seen() {
    let run = stored();
    let connection = rusqlite::Connection::open(run.path()).expect("the fixture wrote it");
    let mode: String =
        connection.query_row("PRAGMA journal_mode = WAL", [], |row| row.get(0)).expect("WAL is possible");
    assert_eq!(mode, "wal");
    connection
        .execute_batch("PRAGMA wal_autocheckpoint = 0; PRAGMA recursive_triggers = ON")
        .expect("settings");
    // The last rows and heads are moved into the log.
    let last = run.entries.len() - 1;
    let (seq, leaf) = (i64::try_from(last).expect("small"), crate::tree::leaf_hash(&run.entries[last]));
    let note = run.notes.last().expect("a head").1.clone();
    run.tamper(&format!("DELETE FROM entries WHERE seq = {seq}; DELETE FROM heads WHERE size = {}", seq + 1));
    connection.execute_batch("PRAGMA wal_checkpoint(TRUNCATE)").expect("a checkpoint");
    connection
        .execute(
            "INSERT INTO entries VALUES (?1, ?2, ?3, ?4)",
            rusqlite::params![
                seq,
                schemas::digest::decode_hex(&format!("{last:032x}")),
                run.entries[last],
                leaf
            ],
        )
        .expect("a row");
    connection
        .execute("INSERT INTO heads VALUES (?1, ?2)", rusqlite::params![seq + 1, note])
        .expect("a head");
    assert_eq!(run.audit().verdict, Verdict::Accepted);
    let log = run.beside("run.db-wal");
    let bytes = fs::read(&log).expect("a log");
    fs::write(&log, &bytes[..bytes.len() / 2]).expect("writable");
    let report = run.audit();
    assert!(has(&report, "GL009", Effect::Tampered) && report.verdict == Verdict::Tampered);
    fs::write(&log, &bytes).expect("writable");
    assert_eq!(run.audit().verdict, Verdict::Accepted);
}

#[test]
fn a_ledger_that_changes_while_it_is_read_is_read_again() {
    let run = stored();
    let request = AuditRequest { ledger: run.path(), ..AuditRequest::default() };
    let mut num_passes = 0;
    let report = audit(&request, &mut |progress| {
        if progress.phase == "entries" && progress.done == 0 {
            num_passes += 1;
            if num_passes == 1 {
                run.tamper("DELETE FROM entries WHERE seq = 7");
            }
        }
    });
    assert_eq!(num_passes, 2);
    assert!(has(&report.expect("can look"), "GL002", Effect::Tampered));
}

#[test]
fn a_read_only_folder_is_no_obstacle_and_nothing_is_left_behind() {
    use std::os::unix::fs::PermissionsExt;
    let run = stored();
    let names = || {
        let entries = fs::read_dir(run.folder()).expect("a folder");
        let mut names: Vec<_> = entries.map(|entry| entry.expect("an entry").file_name()).collect();
        names.sort();
        names
    };
    let before = names();
    fs::set_permissions(run.folder(), fs::Permissions::from_mode(0o555)).expect("permissions");
    let report = run.audit();
    fs::set_permissions(run.folder(), fs::Permissions::from_mode(0o755)).expect("permissions");
    assert_eq!(report.verdict, Verdict::Accepted);
    assert_eq!(names(), before);
}
