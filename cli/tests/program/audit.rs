//! `audit`, `handoff`, `rule`, `rules` on a ledger that is only frozen. Whole
//! runs are audited in `tests/`.

use serde_json::{Value, json};

use crate::folder::Folder;

#[test]
fn a_run_that_has_not_begun_is_incomplete() {
    let folder = Folder::frozen();
    let before = folder.read("run/run.db");
    let report = folder.run(&["audit", "run/run.db", "--output-format", "json"]).expect(4).json();
    assert_eq!((&report["verdict"], &report["num_entries"]), (&json!("incomplete"), &json!(1)));
    assert_eq!(folder.run(&["audit", "run/run.db", "--json"]).expect(4).json(), report);
    let text = folder.run(&["audit", "run/run.db"]).expect(4).stdout;
    assert!(text.contains("incomplete"), "{text}");
    let sarif = folder.run(&["audit", "run/run.db", "--format", "sarif"]).expect(4).json();
    assert_eq!(sarif["version"], json!("2.1.0"));
    // What its evidence reached is in every form.
    assert!(text.contains("adversaries:") && text.contains("would not have been shown: "), "{text}");
    assert_eq!(sarif["runs"][0]["properties"]["trust"], report["trust"]);
    assert_eq!(report["trust"]["head_source"], json!("beside"));
    assert_eq!(folder.read("run/run.db"), before);
    assert!(!folder.path("run/run.db.report.dsse.json").exists(), "an audit writes only with --save");
}

#[test]
fn a_report_is_signed_on_request() {
    let folder = Folder::frozen();
    let finished = folder.run(&["audit", "run/run.db", "--save"]).expect(4);
    assert!(finished.stderr.contains("into run/run.db.report.dsse.json"), "{}", finished.stderr);
    let bytes = folder.read("run/run.db.report.dsse.json");
    let envelope: schemas::dsse::Envelope = serde_json::from_slice(&bytes).expect("an envelope");
    let public = folder.contract()["keys"]["validator"]["public"].as_str().expect("a key").to_owned();
    let payload =
        ledger::dsse::verify(&envelope, schemas::dsse::REPORT_PAYLOAD_TYPE, &public).expect("signed");
    let report: schemas::report::Report = serde_json::from_slice(&payload).expect("a report");
    assert_eq!(report.num_entries, 1);
    let finished = folder.run(&["audit", "run/run.db", "--save", "--keys", "nowhere"]).expect(2);
    assert!(finished.stderr.contains("nowhere"), "{}", finished.stderr);
    let _ = folder.run(&["audit", "run/run.db", "--save-to", "elsewhere.json"]).expect(4);
    let _ = folder.run(&["audit", "run/run.db", "--save-to", "elsewhere.json"]).expect(2);
}

#[test]
fn a_report_beside_the_ledger_is_signed_by_the_contracts_validator() {
    let folder = Folder::frozen();
    let _ = folder.run(&["keygen", "--role", "validator", "--keys", "strangers"]).expect(0);
    let finished = folder.run(&["audit", "run/run.db", "--save", "--keys", "strangers"]).expect(2);
    assert!(finished.stderr.contains("the contract names validator key"), "{}", finished.stderr);
    assert!(!folder.path("run/run.db.report.dsse.json").exists());
    let _ = folder.run(&["audit", "run/run.db", "--save-to", "theirs.json", "--keys", "strangers"]).expect(4);
}

/// What lies beside a ledger is what every later audit reads, however it was named.
#[test]
fn the_place_beside_the_ledger_is_known_by_every_name() {
    let folder = Folder::frozen();
    let _ = folder.run(&["keygen", "--role", "validator", "--keys", "strangers"]).expect(0);
    std::os::unix::fs::symlink("run", folder.path("linked")).expect("a link");
    let name = "run.db.report.dsse.json";
    let absolute = folder.path("run").join(name).to_string_lossy().into_owned();
    let relative = ["run", "./run", "run/../run", "linked", "linked/.", "strangers/../linked"];
    let places: Vec<String> =
        relative.iter().map(|place| format!("{place}/{name}")).chain([absolute]).collect();
    for place in &places {
        let refused =
            folder.run(&["audit", "run/run.db", "--save-to", place, "--keys", "strangers"]).expect(2);
        assert!(refused.stderr.contains("the contract names validator key"), "{place}: {}", refused.stderr);
        assert!(!folder.path("run").join(name).exists(), "{place}");
    }
    // The contract's own validator may sign there, again and again.
    for place in &places {
        let _ = folder.run(&["audit", "linked/run.db", "--save-to", place]).expect(4);
    }
    // Nothing takes the place of what a handoff names.
    let report = folder.read("run/run.db.report.dsse.json");
    folder.write("run/run.db.handoff.dsse.json", b"{}");
    for place in &places {
        let refused = folder.run(&["audit", "run/run.db", "--save-to", place]).expect(2);
        assert!(refused.stderr.contains("names the report that is saved beside it"), "{}", refused.stderr);
        assert_eq!(folder.read("run/run.db.report.dsse.json"), report, "{place}");
    }
    std::fs::remove_file(folder.path("run/run.db.handoff.dsse.json")).expect("removed");
    // The same name in another folder is another place, and so is another name there.
    for place in ["run.db.report.dsse.json", "run/other.json"] {
        let _ = folder.run(&["audit", "run/run.db", "--save-to", place]).expect(4);
    }
}

#[test]
fn only_an_accepted_run_is_handed_off() {
    let folder = Folder::frozen();
    let before = folder.read("run/run.db");
    let finished = folder.run(&["handoff", "run/run.db"]).expect(1);
    finished.expect_lines(&["error: run/run.db is incomplete: nothing is handed off"]);
    assert_eq!(folder.read("run/run.db"), before);
    assert!(!folder.path("run/run.db.handoff.dsse.json").exists());
    assert!(!folder.path("run/run.db.report.dsse.json").exists());
    folder.write("run/run.db.handoff.dsse.json", b"{}");
    let finished = folder.run(&["handoff", "run/run.db"]).expect(2);
    finished
        .expect_lines(&["error: run/run.db.handoff.dsse.json exists: a candidate was handed off already"]);
    let finished = folder.run(&["audit", "run/run.db", "--save"]).expect(2);
    assert!(finished.stderr.contains("hint: sign the new report into another file with --save-to FILE"));
}

#[test]
fn a_ledger_that_is_missing_could_not_be_audited() {
    let folder = Folder::empty();
    let finished = folder.run(&["audit", "none.db"]).expect(2);
    finished.expect_lines(&[
        "error: there is no ledger at none.db",
        "hint: name the file that `ledger freeze` wrote, by default run.db",
    ]);
}

/// Keys are looked for only where there is something to sign.
#[test]
fn what_is_missing_is_named_before_its_keys() {
    let folder = Folder::empty();
    let ledger = "error: there is no ledger at none.db";
    for (arguments, error) in [
        (&["handoff", "none.db"][..], ledger),
        (&["query", "none.db", "--sql", "SELECT 1"], ledger),
        (&["serve", "none.db"], ledger),
        (
            &["campaign", "add", "campaign.db", "none.db"],
            "error: there is no ledger of a campaign at campaign.db",
        ),
        (&["seal", "none.txt", "--output", "none.age"], "error: there is no text at none.txt"),
    ] {
        let finished = folder.run(arguments).expect(2);
        let lines: Vec<&str> = finished.stderr.lines().collect();
        assert_eq!(lines.first(), Some(&error), "{arguments:?}: {}", finished.stderr);
        assert!(lines.get(1).is_some_and(|line| line.starts_with("hint: ")), "{}", finished.stderr);
    }
}

#[test]
fn rules_are_listed_and_explained() {
    let folder = Folder::empty();
    let rules = folder.run(&["rules", "--json"]).expect(0).json();
    let rules = rules["rules"].as_array().cloned().expect("a list");
    assert!(rules.len() >= 10, "{}", rules.len());
    for rule in &rules {
        let code = rule["code"].as_str().expect("a code");
        let text = folder.run(&["rule", code]).expect(0).stdout;
        for field in ["what", "why", "remedy", "reference", "gate", "name"] {
            let value = rule[field].as_str().expect("a text");
            assert!(text.contains(value), "{code} does not say its {field}");
        }
    }
    let first: &Value = &rules[0];
    let code = first["code"].as_str().expect("a code");
    assert_eq!(folder.run(&["rule", &code.to_lowercase(), "--json"]).expect(0).json()["code"], first["code"]);
    let finished = folder.run(&["rule", "GL999"]).expect(2);
    finished.expect_lines(&["error: there is no rule \"GL999\"", "hint: `ledger rules` lists them"]);
}

#[test]
fn what_the_rules_cover_is_printed_and_nothing_is_missing() {
    let folder = Folder::empty();
    let coverage = folder.run(&["rules", "--coverage", "--json"]).expect(0).json();
    let list = |name: &str| coverage[name].as_array().cloned().expect("a list");
    assert_eq!((list("concerns").len(), list("gaps").len()), (32, 0));
    let rules = folder.run(&["rules", "--json"]).expect(0).json();
    let listed = rules["rules"].as_array().cloned().expect("a list");
    let num_listed = |prefix: &str| {
        listed
            .iter()
            .filter(|rule| rule["code"].as_str().is_some_and(|code| code.starts_with(prefix)))
            .count()
    };
    assert_eq!(num_listed("GL"), list("rules").len());
    assert_eq!(num_listed("GC"), list("campaign_rules").len());
    for rule in list("rules").into_iter().chain(list("campaign_rules")) {
        for kind in ["passing", "failing"] {
            assert!(rule[kind].as_array().is_some_and(|names| !names.is_empty()), "{rule}");
        }
    }
    for field in list("fields") {
        let is_read = field["rules"].as_array().is_some_and(|codes| !codes.is_empty());
        assert!(is_read || field["reason"].is_string(), "{field}");
    }
    let text = folder.run(&["rules", "--coverage"]).expect(0).stdout;
    for line in [
        "Invariants, and the rules that guard each",
        "    such as: a contract that its owner did not sign, which GL102 catches",
        "GL203  resume-point",
        "GC114  arms-differ-where-declared",
    ] {
        assert!(text.lines().any(|found| found == line), "no line {line:?} in\n{text}");
    }
}
