//! Audits that go on from an earlier report, and audits on several threads, by
//! the programs: the same verdict and findings as an audit of everything.

use std::fs;

use serde_json::Value;
use system_tests::run_folder::RunFolder;

/// A report without what it says of an earlier one, and that member.
fn apart(mut report: Value) -> (Value, Option<Value>) {
    let since = report.as_object_mut().expect("an object").remove("since");
    (report, since)
}

#[test]
fn an_audit_goes_on_from_the_report_of_an_earlier_one() {
    let run = RunFolder::smallest();
    let _ = run.freeze().expect_code(0);
    let _ = run.train().expect_code(0);
    // Before there are numbers of the evaluator.
    let _ = run.audit(&["--save-to", "early.json"]).expect_code(0);
    let _ = run.evaluator_command("val", &["--ledger", "run.db"]).expect_code(0);
    let _ = run.audit(&["--save"]).expect_code(0);
    let _ = run.ledger_command("handoff", &[]).expect_code(0);
    let whole = run.report();
    assert_eq!((whole["verdict"].as_str(), whole.get("since")), (Some("accepted"), None));
    let size_before = |report: &Value| report["since"]["size"].as_u64();
    for earlier in ["early.json", "run.db.report.dsse.json"] {
        let gone_on = run.audit(&["--since", earlier, "--json"]).expect_code(0).json();
        assert!(size_before(&gone_on) < whole["num_entries"].as_u64(), "a handoff came since: {gone_on}");
        let text = run.audit(&["--since", earlier]).expect_code(0).stdout;
        assert!(text.contains("incremental:  goes on from report blake3:"), "{text}");
        let (gone_on, since) = apart(gone_on);
        assert!(since.is_some());
        if earlier != "early.json" {
            assert_eq!(gone_on, whole, "{earlier}");
        }
        assert_eq!(gone_on["findings"], whole["findings"], "{earlier}");
    }
    for threads in ["1", "2", "7"] {
        let report = run.audit(&["--threads", threads, "--json"]).expect_code(0).json();
        assert_eq!(report, whole, "{threads} threads");
    }
    run.audit(&["--threads", "0"]).expect_code(2).expect_message(&["--threads"]);

    // A report by another key, as anybody can write one.
    let forged = fs::read_to_string(run.path().join("early.json")).expect("a report");
    let forged = forged.replacen("\"payload\":\"ey", "\"payload\":\"eyJ", 1);
    fs::write(run.path().join("forged.json"), forged).expect("writable");
    let refused = run.audit(&["--since", "forged.json"]).expect_code(2);
    refused.expect_message(&["forged.json", "not signed by the contract's validator", "hint: "]);

    // The run that the report saw is not the one that lies there now.
    let other = RunFolder::smallest();
    let _ = other.freeze().expect_code(0);
    fs::copy(run.path().join("early.json"), other.path().join("early.json")).expect("a copy");
    let refused = other.audit(&["--since", "early.json"]).expect_code(2);
    refused.expect_message(&["early.json", "hint: "]);
}

#[test]
fn entries_that_were_rewritten_since_are_looked_at_again() {
    let run = RunFolder::smallest();
    let _ = run.freeze().expect_code(0);
    let _ = run.train().expect_code(0);
    let _ = run.evaluator_command("val", &["--ledger", "run.db"]).expect_code(0);
    let _ = run.audit(&["--save"]).expect_code(0);
    let connection = rusqlite::Connection::open(run.ledger()).expect("a ledger");
    let sql = "DROP TRIGGER entries_update; UPDATE entries SET entry = CAST(replace(CAST(entry AS TEXT), '\"attempt\":1', '\"attempt\":2') AS BLOB) WHERE seq = 5";
    connection.execute_batch(sql).expect("somebody who owns the file");
    drop(connection);
    let whole = run.audit(&["--json"]).expect_code(3).json();
    let gone_on = run.audit(&["--since", "run.db.report.dsse.json", "--json"]).expect_code(3);
    gone_on.expect_message(&["everything was looked at"]);
    assert_eq!(gone_on.json(), whole);
    assert_eq!(whole.get("since"), None);
    let codes: Vec<&str> = whole["findings"]
        .as_array()
        .expect("findings")
        .iter()
        .filter_map(|one| one["code"].as_str())
        .collect();
    assert!(codes.contains(&"GL111") && codes.contains(&"GL005"), "{codes:?}");
}
