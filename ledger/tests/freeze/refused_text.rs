//! Text that is no contract: ambiguity, unknown members, wrong types.

use serde_json::json;

use crate::fixture::{Fixture, lines, problems};

/// The fixture's contract with one piece of its text replaced.
fn check_text(from: &str, to: &str, expected: &[&str]) {
    let fixture = Fixture::new();
    let text = serde_json::to_string(&fixture.contract).expect("JSON");
    assert!(text.contains(from), "{from} is not in the contract");
    assert_eq!(lines(fixture.check_text(&text.replacen(from, to, 1))), expected);
}

#[test]
fn duplicate_keys() {
    check_text(
        "\"max_attempts\":5",
        "\"max_attempts\":5,\"max_attempts\":6",
        &[
            "contract.json /budget/max_attempts: duplicate key \"max_attempts\": which of the two counts would depend on the reader",
        ],
    );
}

#[test]
fn numbers_that_are_none() {
    check_text(
        "\"dropout\":0.1",
        "\"dropout\":NaN",
        &["contract.json /architecture/dropout: NaN is not a JSON number"],
    );
    check_text(
        "\"dropout\":0.1",
        "\"dropout\":1e999",
        &["contract.json /architecture/dropout: the number 1e999 is too large for a double"],
    );
    check_text(
        "\"max_steps\":20",
        "\"max_steps\":9007199254740993",
        &[
            "contract.json /budget/max_steps: the integer 9007199254740993 is beyond 2^53; where all 64 bits are meant, write a decimal string",
        ],
    );
}

#[test]
fn unknown_members_are_all_named_with_the_rest_of_what_is_wrong() {
    let mut fixture = Fixture::new();
    fixture
        .set("/batch/size", json!(4))
        .set("/architecture/bias", json!(true))
        .set("/order/shuffle", json!(true));
    fixture.set("/epochs", json!(1)).set("/batch/global_examples", json!(5));
    assert_eq!(
        lines(fixture.check()),
        [
            "contract.json /architecture/bias: unknown member",
            "contract.json /batch/size: unknown member",
            "contract.json /epochs: unknown member",
            "contract.json /order/shuffle: unknown member",
            "contract.json /batch/global_examples: is 5; expected 4 = microbatch_examples 2 x accumulation 2 x data_parallel 1",
        ]
    );
}

#[test]
fn missing_members_and_wrong_types() {
    let mut fixture = Fixture::new();
    fixture.contract["budget"].as_object_mut().expect("an object").remove("max_steps");
    assert_eq!(lines(fixture.check()), ["contract.json /budget: missing field `max_steps`"]);
    check_text(
        "\"hidden_size\":8",
        "\"hidden_size\":\"8\"",
        &["contract.json /architecture/hidden_size: invalid type: string \"8\", expected u32"],
    );
    check_text(
        "\"data_order\":\"1\"",
        "\"data_order\":1",
        &["contract.json /seeds/data_order: invalid type: integer `1`, expected a string"],
    );
    check_text(
        "\"reduction\":\"microbatch_tree\"",
        "\"reduction\":\"atomic\"",
        &["contract.json /numerics/reduction: unknown variant `atomic`, expected `microbatch_tree`"],
    );
    check_text(
        "\"max_steps\":20",
        "\"max_steps\":20.0",
        &["contract.json /budget/max_steps: invalid type: floating point `20.0`, expected u64"],
    );
    check_text(
        "\"format\":\"contract/1\"",
        "\"format\":\"contract/2\"",
        &["contract.json /format: is \"contract/2\"; expected \"contract/1\""],
    );
}

#[test]
fn places_are_lines_and_columns_of_the_text() {
    let mut fixture = Fixture::new();
    fixture.set("/batch/accumulation", json!(0));
    let text = serde_json::to_string_pretty(&fixture.contract).expect("JSON");
    let found = problems(fixture.check_text(&text));
    let problem = found.iter().find(|problem| problem.pointer == "/batch/accumulation").expect("refused");
    let position = problem.position.expect("a place");
    let line = text.lines().nth(position.line - 1).expect("the line exists");
    assert_eq!(line, "    \"accumulation\": 0,");
    assert_eq!(&line[position.column - 1..], "0,");
    assert!(
        problem
            .to_string()
            .contains(&format!("contract.json:{}:{} /batch/accumulation: ", position.line, position.column))
    );
}

#[test]
fn documents_that_the_contract_names_are_read_as_strictly() {
    let fixture = Fixture::new();
    let card = std::fs::read_to_string(fixture.path("policy.json")).expect("readable");
    fixture.write("policy.json", card.replacen("\"version\"", "\"versions\"", 1).as_bytes());
    fixture.write("parameters.json", b"{\"format\":\"parameter-manifest/1\",\"format\":\"x\"}");
    fixture.edit_file("data/manifest.json", |manifest| manifest["shards"][1]["language"] = json!("en"));
    assert_eq!(
        lines(fixture.check()),
        [
            "manifest.json /shards/1/language: unknown member",
            "policy.json /versions: unknown member",
            "policy.json : missing field `version`",
            "parameters.json /format: duplicate key \"format\": which of the two counts would depend on the reader",
        ]
    );
}

#[test]
fn a_contract_that_entry_0_cannot_hold() {
    let mut fixture = Fixture::new();
    fixture.set("/purpose/statement", json!("x".repeat(48 * 1024)));
    let found = lines(fixture.check());
    assert_eq!(found.len(), 1);
    assert!(found[0].starts_with("contract.json : has "), "{found:?}");
    assert!(found[0].contains("canonical bytes; expected at most 49152"), "{found:?}");
    fixture.set("/purpose/statement", json!("\"".repeat(28 * 1024)));
    assert_eq!(lines(fixture.check()).len(), 1, "escapes count");
}

#[test]
fn a_contract_that_is_no_file() {
    let fixture = Fixture::new();
    let missing = ledger::freeze::check(&ledger::freeze::FreezeRequest::new(&fixture.path("nothing.json")));
    assert!(matches!(missing, Err(ledger::freeze::FreezeError::Read { .. })));
    let folder = ledger::freeze::check(&ledger::freeze::FreezeRequest::new(&fixture.path("data")));
    assert!(matches!(folder, Err(ledger::freeze::FreezeError::Read { .. })));
}
