//! `schema`, help, and what an unknown command says.

use serde_json::{Value, json};

use crate::folder::Folder;

#[test]
fn schemas_are_printed_and_check_documents() {
    let folder = Folder::frozen();
    let names = folder.run(&["schema"]).expect(0).stdout;
    assert!(names.lines().any(|name| name == "contract"), "{names}");
    for name in names.lines() {
        let schema: Value = folder.run(&["schema", name]).expect(0).json();
        assert_eq!(schema["$schema"], json!("https://json-schema.org/draft/2020-12/schema"), "{name}");
    }
    for (name, path) in [
        ("contract", "run/contract.json"),
        ("data-manifest", "run/data/manifest.json"),
        ("parameter-manifest", "run/parameters.json"),
        ("policy-card", "run/policy-card.json"),
    ] {
        let finished = folder.run(&["schema", name, "--check", path]).expect(0);
        assert_eq!(finished.stdout, format!("{path}: a {name} as the schema has it\n"));
    }
    let entry = folder.run(&["get", "run/run.db", "0", "--json"]).expect(0).stdout;
    folder.write("entry.json", entry.as_bytes());
    let _ = folder.run(&["schema", "entry", "--check", "entry.json"]).expect(0);
    folder.edit_contract(|contract| contract["batch"]["accumulation"] = json!("two"));
    let finished = folder.run(&["schema", "contract", "--check", "run/contract.json"]).expect(1);
    assert!(
        finished.stderr.starts_with("error: run/contract.json /batch/accumulation: "),
        "{}",
        finished.stderr
    );
    let finished = folder.run(&["schema", "contracts"]).expect(2);
    finished
        .expect_lines(&["error: there is no schema \"contracts\"", "hint: `ledger schema` lists the names"]);
}

#[test]
fn help_names_every_command_and_its_exit_codes() {
    let folder = Folder::empty();
    let help = folder.run(&["--help"]).expect(0).stdout;
    for command in [
        "init",
        "keygen",
        "seal",
        "freeze",
        "show",
        "list",
        "get",
        "query",
        "verify-head",
        "export",
        "import",
        "audit",
        "rule",
        "rules",
        "trust",
        "diff",
        "handoff",
        "serve",
        "schema",
    ] {
        assert!(
            help.lines().any(|line| line.trim_start().starts_with(&format!("{command} "))),
            "{command}\n{help}"
        );
    }
    let help = folder.run(&["audit", "--help"]).expect(0).stdout;
    assert!(help.contains("0 accepted; 1 rejected; 2 could not run; 3 tampered; 4 incomplete"), "{help}");
    let _ = folder.run(&["audti"]).expect(2);
}

#[test]
fn serving_needs_a_loopback_address_and_a_ledger() {
    let folder = Folder::frozen();
    let finished = folder.run(&["serve", "run/run.db", "--listen", "0.0.0.0:0"]).expect(2);
    finished.expect_lines(&[
        "error: 0.0.0.0:0 is not a loopback address",
        "hint: name a free loopback address with --listen, such as 127.0.0.1:0",
    ]);
    let finished = folder.run(&["serve", "none.db"]).expect(2);
    finished.expect_lines(&["error: there is no ledger at none.db"]);
}
