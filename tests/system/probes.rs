//! Resume probes as a reviewer meets them: what an audit makes of a probed run,
//! and that a contract which asks for them hands nothing off before.

use std::path::Path;

use rusqlite::Connection;
use serde_json::Value;
use system_tests::programs::{Finished, TRAINER, run};
use system_tests::run_folder::RunFolder;

/// A run whose candidate has to be resume-qualified, with state digests in its
/// steps.
fn probed_contract() -> RunFolder {
    let folder = RunFolder::tiny();
    folder.edit_contract(|contract| {
        contract["checkpoints"]["candidate_stage"] = "resume_qualified".into();
        contract["state_digest_every_steps"] = 3.into();
    });
    let _ = folder.freeze().expect_code(0);
    let _ = folder.train().expect_code(0);
    folder
}

fn probe(folder: &RunFolder, checkpoint: &str, further: &[&str]) -> Finished {
    let fixed = ["probe", "--ledger", "run.db", "--quiet", "--checkpoint", checkpoint];
    let arguments: Vec<&str> = fixed.into_iter().chain(further.iter().copied()).collect();
    run(TRAINER, folder.path(), &arguments)
}

/// The checkpoint of the selected candidate.
fn selected(folder: &RunFolder) -> String {
    let entries = folder.entries();
    let entry = entries.iter().find(|entry| entry["kind"] == "candidate.selected").expect("a selection");
    entry["body"]["obs"]["checkpoint"].as_str().expect("a name").to_owned()
}

fn status(report: &Value, code: &str) -> String {
    let mut rules = report["rules"].as_array().into_iter().flatten();
    let rule = rules.find(|rule| rule["code"] == code).expect("the rule is in the report");
    rule["status"].as_str().expect("a status").to_owned()
}

#[test]
fn a_candidate_is_handed_off_after_it_was_probed_and_not_before() {
    let folder = probed_contract();
    let refused = folder.ledger_command("handoff", &[]);
    refused.expect_complaint(1, "run.db", &["ResumeQualified", "trainer probe"]);
    let before = folder.report();
    for code in ["GL620", "GL621", "GL622"] {
        assert_eq!(status(&before, code), "not_applicable");
    }
    let outcome = |report: &Value| (report["verdict"].clone(), report["route"].clone());
    assert_eq!(outcome(&before), ("accepted".into(), "request_qualification".into()));
    let text = folder.audit(&[]).expect_code(0).stdout;
    assert!(text.contains("route: request_qualification: the candidate is not resume-qualified"), "{text}");

    let checkpoint = selected(&folder);
    let _ = probe(&folder, &checkpoint, &["--controls"]).expect_code(0);
    let report = folder.report();
    assert_eq!(outcome(&report), ("accepted".into(), "accept_handoff".into()), "{report:#}");
    for code in ["GL620", "GL621", "GL622"] {
        assert_eq!(status(&report, code), "passed", "{report:#}");
    }
    // Nobody else computed what the selection rests on.
    let refused = folder.ledger_command("handoff", &[]);
    refused.expect_complaint(1, "run.db", &["the trainer's own numbers", "evaluator val"]);
    assert!(!folder.path().join("run.db.handoff.dsse.json").exists());
    assert!(!folder.entries().iter().any(|entry| entry["kind"] == "handoff.issued"));
    let handed = folder.ledger_command("handoff", &["--on-trainer-numbers", "--json"]).expect_code(0).json();
    assert_eq!(handed["selection_basis"], "trainer");
    let report = folder.report();
    assert_eq!(report["verdict"], "accepted", "{report:#}");
    // A handoff keeps nobody from probing again.
    let _ = probe(&folder, "s00000000-a1", &[]).expect_code(1);
    assert_eq!(folder.report()["verdict"], "accepted");
}

/// Changes text in the stored bytes of the first entry of a kind, past the
/// triggers.
fn tamper(ledger: &Path, kind: &str, from: &str, to: &str) {
    let connection = Connection::open(ledger).expect("the ledger opens");
    let triggers: Vec<String> = {
        let mut statement =
            connection.prepare("SELECT name FROM sqlite_schema WHERE type = 'trigger'").expect("SQL");
        let rows = statement.query_map([], |row| row.get(0)).expect("rows");
        rows.collect::<Result<_, _>>().expect("names")
    };
    for name in triggers {
        connection.execute_batch(&format!("DROP TRIGGER {name}")).expect("SQL");
    }
    let num_changed = connection
        .execute(
            "UPDATE entries SET entry = CAST(replace(CAST(entry AS TEXT), ?1, ?2) AS BLOB) WHERE seq = \
             (SELECT min(seq) FROM entries WHERE instr(CAST(entry AS TEXT), ?3) > 0 \
              AND instr(CAST(entry AS TEXT), ?1) > 0)",
            [from, to, &format!("\"kind\":\"{kind}\"")],
        )
        .expect("SQL");
    assert_eq!(num_changed, 1, "the change acts");
}

#[test]
fn distances_that_were_changed_afterwards_are_not_accepted() {
    let folder = probed_contract();
    let checkpoint = selected(&folder);
    let _ = probe(&folder, &checkpoint, &[]).expect_code(0);
    assert_eq!(folder.report()["verdict"], "accepted");
    let changed = folder.copy();
    tamper(&changed.ledger(), "probe.result", "\"max_ulp\":0", "\"max_ulp\":1");
    assert_eq!(changed.report()["verdict"], "tampered");
    // And nothing is probed in a ledger whose bytes are not those of its heads.
    let _ = probe(&changed, &checkpoint, &[]).expect_code(2);
}
