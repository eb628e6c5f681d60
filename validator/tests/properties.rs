//! Parsers of stored bytes never panic, whatever the bytes are.

use proptest::prelude::*;
use validator::canonical::{check_contract_json, check_entry_json};
use validator::dsse;
use validator::ed25519::PublicKey;
use validator::frozen::ExampleTable;
use validator::note::Note;

/// Fragments that lead deep into the parsers.
fn fragments() -> impl Strategy<Value = Vec<u8>> {
    let fragment = prop_oneof![
        Just(b"{\"".to_vec()),
        Just(b"\":".to_vec()),
        Just(b"}".to_vec()),
        Just(b"[".to_vec()),
        Just(b"]".to_vec()),
        Just(b",".to_vec()),
        Just(b"\"\\u00".to_vec()),
        Just(b"\\".to_vec()),
        Just(b"-0.".to_vec()),
        Just(b"1e".to_vec()),
        Just(b"99999999999999999999".to_vec()),
        Just(b"null".to_vec()),
        Just("\u{2014} ".as_bytes().to_vec()),
        Just(b"\n".to_vec()),
        proptest::collection::vec(any::<u8>(), 0..6),
    ];
    proptest::collection::vec(fragment, 0..40).prop_map(|parts| parts.concat())
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(2000) })]

    #[test]
    fn no_parser_panics(bytes in fragments()) {
        let _ = check_entry_json(&bytes);
        let _ = check_contract_json(&bytes);
        let _ = Note::parse(&bytes);
        let _ = ExampleTable::parse(bytes.clone());
        let _ = schemas::entry::Entry::from_slice(&bytes);
        if let Ok(key) = PublicKey::from_hex("d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a") {
            prop_assert!(dsse::verify(&bytes, "t", &key).is_err());
        }
    }

    #[test]
    fn whatever_passes_is_json_and_comes_back_the_same(bytes in fragments()) {
        if check_entry_json(&bytes).is_ok() {
            let value: serde_json::Value = serde_json::from_slice(&bytes)?;
            // serde_json writes a plus in exponents; all else is canonical.
            let again = serde_json::to_string(&value)?.replace("e+", "e");
            prop_assert_eq!(again.as_bytes(), &bytes[..]);
        }
    }

    #[test]
    fn every_finite_double_has_exactly_one_spelling(value in any::<f64>().prop_filter("finite", |v| v.is_finite())) {
        let text = serde_json::to_string(&value)?.replace("e+", "e");
        prop_assert!(check_entry_json(text.as_bytes()).is_ok(), "{}", text);
        let longer = format!("{value:.17e}");
        prop_assert!(check_entry_json(longer.as_bytes()).is_err(), "{}", longer);
    }
}
