//! in-toto test results and SLSA provenance, read by `securesystemslib` and
//! `in-toto-attestation`.

use exports::{Evidence, ExportError};
use schemas::report::Report;
use serde_json::Value;
use sha2::{Digest, Sha256};
use system_tests::honest::Honest;
use system_tests::interop::{ask, ask_of_envelope};
use system_tests::run_folder::RunFolder;

use super::{candidate, export, replace_in_statement, statement, tampered};

#[test]
fn an_accepted_run_passes_and_only_with_these_bytes_under_this_key() {
    let run = RunFolder::trained();
    let finished = export(&run, "in-toto", "attested").expect_code(0);
    assert!(finished.stderr.contains("accepted"), "{finished}");
    let said = ask_of_envelope(&run, "attested/test-result.dsse.json", "validator").taken();
    assert_eq!(said["result"], "PASSED", "{said}");
    assert_eq!(said["failed"], Value::Array(vec![]), "{said}");
    let report = run.report();
    let passed = report["rules"].as_array().expect("rules").iter().filter(|rule| rule["status"] == "passed");
    assert_eq!(said["num_passed"], passed.count(), "{said}");
    let audit = ask_of_envelope(&run, "attested/audit.dsse.json", "validator").taken();
    assert_eq!(audit["predicate_type"], "https://governed-ledger.invalid/audit/v1");
    assert_eq!(statement(&run.path().join("attested/audit.dsse.json"))["predicate"], report);

    // The subjects are what `sha256sum` says of the files, and of the head.
    let files = ask(&["digests", &path(&run, "attested/test-result.dsse.json"), "--folder", &path(&run, "")]);
    let checked = files.taken()["checked"].to_string();
    let folder = candidate(&run);
    for file in ["model.safetensors", "config.json"] {
        assert!(checked.contains(&format!("{folder}/{file}")), "{checked}");
    }
    let heads = std::fs::read_to_string(run.path().join("run.db.head")).expect("the head file");
    let last = heads.trim_end().rsplit("\n\n").nth(1).expect("a note has two parts").to_owned() + "\n";
    let subjects = statement(&run.path().join("attested/test-result.dsse.json"))["subject"].clone();
    let head = subjects.as_array().expect("subjects").iter().find(|subject| {
        subject["name"].as_str().is_some_and(|name| name.starts_with("governed-ledger/run/"))
    });
    let head = head.expect("the head is a subject");
    assert_eq!(head["digest"]["sha256"], hex(&Sha256::digest(last)), "{head}");

    // Controls: another key, another statement.
    ask_of_envelope(&run, "attested/test-result.dsse.json", "trainer").refused("securesystemslib");
    replace_in_statement(&run.path().join("attested/test-result.dsse.json"), "\"GL001", "\"GL000");
    ask_of_envelope(&run, "attested/test-result.dsse.json", "validator").refused("securesystemslib");
}

#[test]
fn no_run_that_is_incomplete_or_rejected_passes() {
    let trained = RunFolder::trained();
    for (run, verdict) in [(RunFolder::frozen(), "incomplete"), (tampered(&trained), "tampered")] {
        let finished = export(&run, "in-toto", "attested").expect_code(0);
        assert!(finished.stderr.contains(verdict), "{finished}");
        let said = ask_of_envelope(&run, "attested/test-result.dsse.json", "validator").taken();
        assert_eq!(said["result"], "FAILED", "{said}");
        assert_ne!(said["failed"], Value::Array(vec![]), "{said}");
        let audit = statement(&run.path().join("attested/audit.dsse.json"));
        assert_eq!(audit["predicate"]["verdict"], verdict);
        // What is no longer what the record says is no subject.
        let subjects = said["subjects"].to_string();
        assert!(!subjects.contains("model.safetensors"), "{subjects}");
        // Whoever says otherwise without the key is refused.
        replace_in_statement(&run.path().join("attested/test-result.dsse.json"), "\"FAILED\"", "\"PASSED\"");
        ask_of_envelope(&run, "attested/test-result.dsse.json", "validator").refused("securesystemslib");
        // Formats that say that a run is in order are not written.
        for format in ["slsa", "model-signing"] {
            let refused = export(&run, format, format);
            refused.expect_complaint(1, "run.db", &[verdict, "accepted run"]);
            assert!(!run.path().join(format).exists());
        }
    }
}

#[test]
fn a_run_that_failed_is_warned_of_although_its_record_is_whole() {
    let run = Honest::Failed.make();
    let _ = export(&run, "in-toto", "attested").expect_code(0);
    let audit = statement(&run.path().join("attested/audit.dsse.json"));
    assert_eq!(audit["predicate"]["verdict"], "accepted");
    let said = ask_of_envelope(&run, "attested/test-result.dsse.json", "validator").taken();
    assert_eq!(said["result"], "WARNED", "{said}");
    // It selected nothing, so there is nothing to say the origin of.
    export(&run, "slsa", "slsa").expect_complaint(1, "run.db", &["no selected candidate"]);
}

#[test]
fn provenance_names_what_the_candidate_was_made_from() {
    let run = RunFolder::trained();
    let _ = export(&run, "slsa", "provenance").expect_code(0);
    let said = ask_of_envelope(&run, "provenance/provenance.dsse.json", "validator").taken();
    let report = run.report();
    assert_eq!(said["invocation"], report["run"], "{said}");
    assert_eq!(said["build_type"], "https://governed-ledger.invalid/training/v1");
    assert!(said["seconds"].as_i64().is_some_and(|seconds| (0..3_600).contains(&seconds)), "{said}");
    let dependencies = said["dependencies"].to_string();
    for name in ["trainer 0.1.0", "data/manifest.json", "\"data/train", "policy-card"] {
        assert!(dependencies.contains(name), "{name} is no dependency: {dependencies}");
    }
    let envelope = path(&run, "provenance/provenance.dsse.json");
    let files = ask(&["digests", &envelope, "--folder", &path(&run, "")]).taken();
    assert!(files["checked"].as_array().is_some_and(|checked| checked.len() >= 7), "{files}");
    let document = statement(&run.path().join("provenance/provenance.dsse.json"));
    let parameters = &document["predicate"]["buildDefinition"]["externalParameters"]["contract"];
    assert_eq!(
        parameters["name"],
        run.entries()[0]["run"].as_str().map_or(Value::Null, |_| contract_name(&run))
    );
    // Controls: other data, other weights.
    replace_in_statement(&run.path().join("provenance/provenance.dsse.json"), "\"train\"", "\"val\"");
    ask_of_envelope(&run, "provenance/provenance.dsse.json", "validator").refused("securesystemslib");
    let _ = export(&run, "slsa", "again").expect_code(0);
    let model = run.path().join(candidate(&run)).join("model.safetensors");
    std::fs::write(&model, b"other weights").expect("written");
    ask(&["digests", &path(&run, "again/provenance.dsse.json"), "--folder", &path(&run, "")])
        .refused("sha256sum");
}

#[test]
fn the_same_run_gives_the_same_bytes_and_nothing_is_overwritten() {
    let run = RunFolder::trained();
    for format in ["in-toto", "slsa"] {
        let (first, second) = (format!("{format}-1"), format!("{format}-2"));
        let _ = export(&run, format, &first).expect_code(0);
        let _ = export(&run, format, &second).expect_code(0);
        for item in std::fs::read_dir(run.path().join(&first)).expect("the folder") {
            let name = item.expect("a file").file_name();
            let bytes = |folder: &str| std::fs::read(run.path().join(folder).join(&name)).expect("the file");
            assert_eq!(bytes(&first), bytes(&second), "{}", name.display());
        }
        export(&run, format, &first).expect_complaint(2, &first, &["exists and is not overwritten"]);
    }
    // The validator's key has to be the contract's.
    let strangers = RunFolder::tiny();
    let keys = strangers.path().join("keys");
    let keys = keys.to_string_lossy();
    let arguments = ["--format", "in-toto", "--output", "stranger", "--keys", &keys];
    run.ledger_command("export", &arguments).expect_complaint(2, "key", &["names validator key"]);
    assert!(!run.path().join("stranger").exists());
}

#[test]
fn a_report_of_another_record_is_not_exported() {
    let run = RunFolder::trained();
    let report = run.report();
    let gather = |change: &dyn Fn(&mut Value)| {
        let mut report = report.clone();
        change(&mut report);
        let report: Report = serde_json::from_value(report).expect("a report");
        Evidence::gather(&run.ledger(), report)
    };
    let evidence = gather(&|_| {}).expect("the record that was audited");
    assert_eq!(evidence.attempts.len(), 1);
    assert_eq!(evidence.candidates.iter().filter(|candidate| candidate.selected).count(), 1);
    let check = |change: &dyn Fn(&mut Value), words: &str| {
        let Err(error) = gather(change) else { panic!("{words}: it was taken") };
        assert!(matches!(error, ExportError::NotAudited { .. }), "{error}");
        assert!(error.to_string().contains(words), "{error}");
    };
    check(&|report| report["num_entries"] = 5.into(), "the audit saw 5 entries");
    check(&|report| report["head"]["root"] = "00".repeat(32).into(), "root 0000");
    check(&|report| report["contract"] = format!("sha256:{}", "00".repeat(32)).into(), "sha256:0000");
    let since = serde_json::json!({"report": format!("blake3:{}", "00".repeat(32)), "root": "", "size": 1});
    check(&|report| report["since"] = since.clone(), "the audit saw everything");
}

fn contract_name(run: &RunFolder) -> Value {
    let contract = std::fs::read(run.contract()).expect("the contract");
    serde_json::from_slice::<Value>(&contract).expect("JSON")["name"].clone()
}

fn path(run: &RunFolder, name: &str) -> String {
    run.path().join(name).to_string_lossy().into_owned()
}

fn hex(bytes: &[u8]) -> String {
    schemas::digest::encode_hex(bytes)
}
