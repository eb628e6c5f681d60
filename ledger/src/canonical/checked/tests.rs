//! The serializer against `serde_json` and the scan.

use std::collections::BTreeMap;

use proptest::prelude::*;
use serde_json::{Map, Number, Value, json};

use super::super::{Origin, scan, write_json};
use super::*;

/// What is accepted is canonical and what `serde_json` writes. What is
/// canonical is accepted, but that a key with an escape, an empty one, or
/// one that is no string may be left to the scan.
fn check<T: Serialize>(value: &T, follows: bool) {
    let (mut written, mut plain) = (Vec::new(), Vec::new());
    let is_accepted = write(&mut written, value).is_ok();
    write_json(&mut plain, value).expect("the value can be written");
    let scanned = scan(&plain, Origin::Foreign).is_ok();
    if is_accepted {
        assert_eq!(written, plain);
    }
    if follows {
        assert_eq!(is_accepted, scanned, "{}", plain.escape_ascii());
    } else {
        assert!(scanned || !is_accepted, "{}", plain.escape_ascii());
    }
}

fn nested(depth: usize) -> Value {
    (0..depth)
        .fold(json!(0), |inner, level| if level % 2 == 0 { json!([inner]) } else { json!({ "a": inner }) })
}

#[derive(Serialize)]
struct Unsorted {
    z: BTreeMap<String, u64>,
    a: u64,
}

#[test]
fn it_accepts_what_the_scan_accepts() {
    check(&json!({ "a": { "b": 1, "c": [] }, "b": {}, "c": [{ "a": 1 }, { "a": 2 }] }), true);
    check(&Unsorted { z: BTreeMap::from([("y".to_owned(), 1)]), a: 1 }, true);
    check(&json!(9_007_199_254_740_992_u64), true);
    check(&json!(9_007_199_254_740_993_u64), true);
    check(&json!(-9_007_199_254_740_993_i64), true);
    check(&json!({ "clé": 1 }), true);
    check(&json!({ "a\u{7f}": 1 }), true);
    check(&nested(64), true);
    check(&nested(65), true);
    check(&nested(67), true);
    check(&json!({ "": 1, "a": 2 }), false);
    check(&json!({ "\"": 1, "#": 2 }), false);
    check(&BTreeMap::from([(9_u32, "a"), (10, "b")]), false);
    check(&BTreeMap::from([(false, 1), (true, 2)]), false);
    assert_eq!(write(&mut Vec::new(), &nested(64)), Ok(()));
    assert_eq!(write(&mut Vec::new(), &nested(65)), Err(Refused));
}

/// Members in any order, keys repeated or not.
#[derive(Debug, Clone)]
enum Tree {
    Leaf(Value),
    List(Vec<Self>),
    Object(Vec<(String, Self)>),
}

impl Serialize for Tree {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Leaf(value) => value.serialize(serializer),
            Self::List(items) => serializer.collect_seq(items),
            Self::Object(members) => serializer.collect_map(members.iter().map(|(key, value)| (key, value))),
        }
    }
}

fn tree() -> impl Strategy<Value = Tree> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::Bool),
        any::<u64>().prop_map(Value::from),
        (0_u64..100).prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(|float| Number::from_f64(float).map_or(Value::Null, Value::Number)),
        ".{0,6}".prop_map(Value::String),
        Just(Value::Object(Map::new())),
    ];
    leaf.prop_map(Tree::Leaf).prop_recursive(4, 24, 4, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..4).prop_map(Tree::List),
            proptest::collection::vec(("[a-d~é]{1,2}", inner.clone()), 0..4).prop_map(Tree::Object),
            // Mostly in order, so that deep values are reached that are canonical.
            proptest::collection::btree_map("[a-d]{1,2}", inner, 0..4)
                .prop_map(|members| Tree::Object(members.into_iter().collect())),
        ]
    })
}

proptest! {
    #[test]
    fn of_any_value_too(value in tree()) {
        check(&value, true);
    }
}

/// Words overlap at the ends of strings and keys of every length.
#[test]
fn every_byte_of_a_string_and_of_a_key_is_looked_at() {
    let (mut num_strings, mut num_keys) = (0, 0);
    for length in 1..=40 {
        for position in 0..length {
            for byte in 0..=0x7f_u8 {
                let mut text = vec![b'x'; length];
                text[position] = byte;
                let text = String::from_utf8(text).expect("ASCII");
                check(&text, true);
                let is_plain = matches!(byte, 0x20..=0x7e) && !matches!(byte, b'"' | b'\\');
                let object = BTreeMap::from([(text, 1)]);
                assert_eq!(write(&mut Vec::new(), &object).is_ok(), is_plain, "{object:?}");
                num_strings += 1;
                num_keys += usize::from(is_plain);
            }
        }
    }
    assert_eq!((num_strings, num_keys), (820 * 128, 820 * 93));
}

#[test]
fn order_of_keys_is_that_of_bytes_whatever_their_lengths() {
    for keys in [["a", "ab"], ["ab", "b"], ["aa", "ab"], ["a", "a"], ["abcdefgh1", "abcdefgh2"]] {
        let members = |keys: [&str; 2]| {
            let member = |key: &str| (key.to_owned(), Tree::Leaf(Value::Null));
            Tree::Object(keys.map(member).into())
        };
        assert_eq!(write(&mut Vec::new(), &members(keys)).is_ok(), keys[0] < keys[1], "{keys:?}");
        assert_eq!(write(&mut Vec::new(), &members([keys[1], keys[0]])), Err(Refused), "{keys:?}");
    }
}

#[derive(Serialize)]
enum Shape {
    Unit,
    Newtype(u8),
    Pair(u8, u8),
    Fields { a: Option<char>, b: (u8, i16) },
}

#[test]
fn shapes_and_numbers_of_every_kind() {
    check(&[Shape::Unit, Shape::Newtype(7), Shape::Fields { a: Some('"'), b: (1, -2) }], true);
    check(&Shape::Fields { a: None, b: (0, 0) }, true);
    // What it does not follow is written by the other way.
    check(&Shape::Pair(1, 2), false);
    check(&1.5_f32, false);
    check(&1_u128, false);
    check(&f64::NAN, false);
    let raw = serde_json::value::RawValue::from_string(r#"{"b":1,"a":2}"#.to_owned()).expect("JSON");
    check(&raw, false);
    for value in [0.1, -0.0, 1e16, 1e300, 5e-324, 123_456_789.0, f64::MAX] {
        check(&value, true);
    }
}

#[derive(Serialize)]
struct Sorted {
    alpha: u8,
    beta: u8,
    #[serde(skip_serializing_if = "Option::is_none")]
    delta: Option<u8>,
    gamma: u8,
}

/// The same names in another order, which the compiler may put at one place.
#[derive(Serialize)]
struct Reversed {
    beta: u8,
    alpha: u8,
}

#[derive(Serialize)]
struct Quoted {
    #[serde(rename = "al\"pha")]
    alpha: u8,
}

#[test]
fn what_was_judged_before_changes_no_answer() {
    for round in 0..4 {
        let sorted = |delta| Sorted { alpha: round, beta: 1, delta, gamma: 2 };
        check(&[sorted(None), sorted(Some(1))], true);
        check(&json!({ "alpha": 1, "beta": { "alpha": 1, "beta": 2 } }), true);
        assert_eq!(write(&mut Vec::new(), &sorted(None)), Ok(()));
        assert_eq!(write(&mut Vec::new(), &sorted(Some(3))), Ok(()));
        assert_eq!(write(&mut Vec::new(), &Reversed { beta: 1, alpha: round }), Err(Refused));
        assert_eq!(write(&mut Vec::new(), &Quoted { alpha: round }), Err(Refused));
    }
}
