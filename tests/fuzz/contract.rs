//! Contracts: as a person writes them, and in canonical form.

use ledger::canonical::contract_json;
use ledger::strict::{ParseOptions, parse, parse_located};
use schemas::CONTRACT_FORMAT;
use schemas::contract::Contract;

use super::memory::{self, bounded};
use super::run;

/// As for entries; positions take more than values, and values are kept beside.
const FACTOR: usize = 512;

fn property(bytes: &[u8]) -> bool {
    let located = bounded(bytes, FACTOR, || parse_located(bytes, ParseOptions::without_comments()));
    let value = bounded(bytes, FACTOR, || parse(bytes, ParseOptions::without_comments()));
    assert_eq!(located.map(|located| located.value), value, "with and without positions");
    let frozen = value.ok().and_then(|value| bounded(bytes, FACTOR, || contract_json(&value).ok()));
    if let Some(frozen) = &frozen {
        // What is frozen is read back as the same, by both.
        assert_eq!(validator::canonical::check_contract_json(frozen), Ok(()));
        let again = parse(frozen, ParseOptions::default()).expect("what was frozen is strict JSON");
        assert_eq!(contract_json(&again).ok().as_ref(), Some(frozen), "read and frozen again");
    }
    let strict = parse(bytes, ParseOptions::default()).ok();
    let is_canonical =
        strict.and_then(|value| contract_json(&value).ok()).is_some_and(|again| again == bytes);
    let by_validator = bounded(bytes, FACTOR, || validator::canonical::check_contract_json(bytes));
    assert_eq!(is_canonical, by_validator.is_ok(), "one canonical form: {by_validator:?}");

    // What an audit takes is what a freeze writes of it, byte for byte.
    let own: Option<Contract> = serde_json::from_slice(bytes).ok();
    let own =
        own.filter(|own| own.format == CONTRACT_FORMAT && written(own).is_some_and(|text| text == bytes));
    let audited = bounded(bytes, FACTOR, || validator::fuzzing::contract(bytes));
    assert_eq!(audited, own, "one form of a contract");

    let Some(contract) = frozen.and_then(|frozen| serde_json::from_slice::<Contract>(&frozen).ok()) else {
        return false;
    };
    let written = written(&contract).expect("a contract has a canonical form");
    let again: Contract = serde_json::from_slice(&written).expect("a written contract is one");
    assert_eq!(again, contract, "written and read again");
    true
}

/// The bytes of a contract as a freeze writes them.
fn written(contract: &Contract) -> Option<Vec<u8>> {
    contract_json(&serde_json::to_value(contract).ok()?).ok()
}

#[test]
fn contract() {
    run::target("contract", property);
}

/// A copy of a name for each value below it was once 1,000 times the document.
#[test]
fn a_long_name_above_many_values_takes_no_copy_for_each() {
    let _alone = memory::alone();
    let name = "n".repeat(1 << 20);
    let document = format!("{{\"{name}\":[{}0]}}", "0,".repeat(1 << 19));
    let located = bounded(document.as_bytes(), 128, || {
        parse_located(document.as_bytes(), ParseOptions::default()).expect("strict JSON")
    });
    let position = located.position(&format!("/{name}/{}", 1 << 18)).expect("that of an ancestor");
    assert_eq!(position.line, 1);
}
