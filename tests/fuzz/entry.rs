//! Entries: what `ledger import` reads and what an audit reads.

use ledger::canonical;
use schemas::entry::Entry;
use serde_json::Value;

use super::memory::bounded;
use super::run;

/// Bytes for each byte of an entry. The worst is an extension with objects of one
/// member: seven bytes take a node of eleven members, some 700 bytes, and the
/// validator reads an entry twice.
const FACTOR: usize = 256;

/// An entry as an import takes it (`ledger/src/export/check.rs`).
fn by_writer(bytes: &[u8]) -> Option<Entry> {
    if bytes.len() > schemas::MAX_ENTRY_BYTES {
        return None;
    }
    canonical::check_entry_json(bytes).ok()?;
    let entry = Entry::from_slice(bytes).ok()?;
    let written = canonical::entry_json(&entry).ok()?;
    (written == bytes).then_some(entry)
}

fn property(bytes: &[u8]) -> bool {
    let writer = bounded(bytes, FACTOR, || by_writer(bytes));
    let validator = bounded(bytes, FACTOR, || validator::fuzzing::entry(bytes));
    assert_eq!(writer, validator.closely, "writer and validator accept the same, with the same values");
    assert_eq!(validator.in_one_pass, validator.closely, "both ways of the validator agree");

    // The form alone, of what may be no entry.
    let is_canonical = bounded(bytes, FACTOR, || canonical::check_entry_json(bytes).is_ok());
    let by_validator = bounded(bytes, FACTOR, || validator::canonical::check_entry_json(bytes).is_ok());
    assert_eq!(is_canonical, by_validator, "writer and validator know one canonical form");
    if is_canonical {
        let value: Value = serde_json::from_slice(bytes).expect("canonical bytes are JSON");
        let again = canonical::entry_json(&value).expect("what was read can be written");
        assert!(again == bytes, "read and written again it is other bytes");
    }
    writer.is_some()
}

#[test]
fn entry() {
    run::target("entry", property);
}
