//! A formatter that sees, while `serde_json` writes, whether the result is
//! canonical: keys ascend and are printable ASCII, integers stay within 2^53,
//! nesting within 64. Scanning the bytes afterwards costs three times as much.
//!
//! It only says yes or no. Whatever it does not follow (keys with escapes, keys
//! that are numbers, raw fragments) is a no, and the scan then says what is
//! wrong, if anything is.

use std::io;

use schemas::MAX_JSON_INTEGER;
use schemas::number::EntryFormatter;
use serde::Serialize;
use serde_json::ser::{CharEscape, Formatter, Serializer};

use super::MAX_DEPTH;

/// Writes a value and says whether its bytes are known to be canonical.
pub(super) fn write<T: Serialize>(bytes: &mut Vec<u8>, value: &T) -> Result<bool, serde_json::Error> {
    let mut state = State {
        is_canonical: true,
        place: Place::Value,
        depth: 0,
        keys: Vec::with_capacity(256),
        starts: [0; MAX_DEPTH + 1],
    };
    value.serialize(&mut Serializer::with_formatter(bytes, Checked(&mut state)))?;
    Ok(state.is_canonical)
}

/// Where the serializer is, as far as it matters.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Value,
    /// A key has begun.
    Key,
    /// Its one fragment was written; a key in several pieces has an escape.
    KeyWritten,
}

struct State {
    is_canonical: bool,
    place: Place,
    /// Open arrays and objects.
    depth: usize,
    /// The last key of every open object, the innermost at the end.
    keys: Vec<u8>,
    /// Where the last key of each depth starts in `keys`.
    starts: [usize; MAX_DEPTH + 1],
}

impl State {
    fn open(&mut self) {
        self.depth += 1;
        match self.starts.get_mut(self.depth) {
            Some(start) => *start = self.keys.len(),
            None => self.is_canonical = false,
        }
    }

    fn close(&mut self) {
        if let Some(start) = self.starts.get(self.depth) {
            self.keys.truncate(*start);
        }
        self.depth -= 1;
    }

    /// Compares a key with the one before it in the same object; before the
    /// first stands nothing, which sorts before every key but the empty one.
    fn key(&mut self, key: &[u8]) {
        let start = self.starts.get(self.depth).copied().unwrap_or(0);
        let previous = self.keys.get(start..).unwrap_or_default();
        let is_printable = key.iter().all(|byte| matches!(byte, 0x20..=0x7e));
        self.is_canonical &= self.place == Place::Key && previous < key && is_printable;
        self.keys.truncate(start);
        self.keys.extend_from_slice(key);
        self.place = Place::KeyWritten;
    }

    fn magnitude(&mut self, magnitude: u64) {
        self.is_canonical &= magnitude <= MAX_JSON_INTEGER;
    }
}

struct Checked<'a>(&'a mut State);

impl Formatter for Checked<'_> {
    fn write_i64<W: ?Sized + io::Write>(&mut self, writer: &mut W, value: i64) -> io::Result<()> {
        self.0.magnitude(value.unsigned_abs());
        EntryFormatter.write_i64(writer, value)
    }

    fn write_i128<W: ?Sized + io::Write>(&mut self, writer: &mut W, value: i128) -> io::Result<()> {
        self.0.magnitude(u64::try_from(value.unsigned_abs()).unwrap_or(u64::MAX));
        EntryFormatter.write_i128(writer, value)
    }

    fn write_u64<W: ?Sized + io::Write>(&mut self, writer: &mut W, value: u64) -> io::Result<()> {
        self.0.magnitude(value);
        EntryFormatter.write_u64(writer, value)
    }

    fn write_u128<W: ?Sized + io::Write>(&mut self, writer: &mut W, value: u128) -> io::Result<()> {
        self.0.magnitude(u64::try_from(value).unwrap_or(u64::MAX));
        EntryFormatter.write_u128(writer, value)
    }

    fn write_f64<W: ?Sized + io::Write>(&mut self, writer: &mut W, value: f64) -> io::Result<()> {
        EntryFormatter.write_f64(writer, value)
    }

    fn write_number_str<W: ?Sized + io::Write>(&mut self, writer: &mut W, value: &str) -> io::Result<()> {
        self.0.is_canonical = false;
        EntryFormatter.write_number_str(writer, value)
    }

    fn write_string_fragment<W: ?Sized + io::Write>(
        &mut self,
        writer: &mut W,
        fragment: &str,
    ) -> io::Result<()> {
        if self.0.place != Place::Value {
            self.0.key(fragment.as_bytes());
        }
        writer.write_all(fragment.as_bytes())
    }

    fn write_char_escape<W: ?Sized + io::Write>(
        &mut self,
        writer: &mut W,
        escape: CharEscape,
    ) -> io::Result<()> {
        self.0.is_canonical &= self.0.place == Place::Value;
        EntryFormatter.write_char_escape(writer, escape)
    }

    fn begin_array<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.0.open();
        EntryFormatter.begin_array(writer)
    }

    fn end_array<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.0.close();
        EntryFormatter.end_array(writer)
    }

    fn begin_object<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.0.open();
        EntryFormatter.begin_object(writer)
    }

    fn end_object<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.0.close();
        EntryFormatter.end_object(writer)
    }

    fn begin_object_key<W: ?Sized + io::Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        self.0.place = Place::Key;
        EntryFormatter.begin_object_key(writer, first)
    }

    fn end_object_key<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.0.is_canonical &= self.0.place == Place::KeyWritten;
        self.0.place = Place::Value;
        EntryFormatter.end_object_key(writer)
    }

    fn write_raw_fragment<W: ?Sized + io::Write>(
        &mut self,
        writer: &mut W,
        fragment: &str,
    ) -> io::Result<()> {
        self.0.is_canonical = false;
        EntryFormatter.write_raw_fragment(writer, fragment)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;
    use serde_json::{Map, Number, Value, json};

    use super::super::{Origin, scan, write_json};
    use super::*;

    /// Both ways of judging agree, but that the formatter may leave a key with
    /// an escape, an empty one, or one that is no string to the scan.
    fn check<T: Serialize>(value: &T, follows: bool) {
        let (mut checked, mut plain) = (Vec::new(), Vec::new());
        let is_canonical = write(&mut checked, value).expect("the value can be written");
        write_json(&mut plain, value).expect("the value can be written");
        assert_eq!(checked, plain);
        let scanned = scan(&plain, Origin::Foreign).is_ok();
        if follows {
            assert_eq!(is_canonical, scanned, "{}", plain.escape_ascii());
        } else {
            assert!(scanned || !is_canonical, "{}", plain.escape_ascii());
        }
    }

    fn nested(depth: usize) -> Value {
        (0..depth).fold(
            json!(0),
            |inner, level| if level % 2 == 0 { json!([inner]) } else { json!({ "a": inner }) },
        )
    }

    #[derive(Serialize)]
    struct Unsorted {
        z: BTreeMap<String, u64>,
        a: u64,
    }

    #[test]
    fn the_formatter_says_what_the_scan_says() {
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
        assert!(write(&mut Vec::new(), &nested(64)).is_ok_and(|is_canonical| is_canonical));
        assert!(write(&mut Vec::new(), &nested(65)).is_ok_and(|is_canonical| !is_canonical));
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
                Self::Object(members) => {
                    serializer.collect_map(members.iter().map(|(key, value)| (key, value)))
                }
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
}
