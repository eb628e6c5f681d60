//! Canonical bytes as the writer makes them (`docs/FORMAT.md`, "Canonical JSON").
//!
//! Entry JSON is what `serde_json` gives, with the formatter of `schemas`, for
//! types whose fields are declared in key order, so nothing is sorted on the hot
//! path. What the types cannot rule out (keys of maps, integers above 2^53,
//! nesting, extension values) is seen while the bytes are written; where that
//! says no, a scan over them says what is wrong. The validator has its own
//! implementation.

mod checked;

use serde::Serialize;
use serde_json::Value;

use schemas::MAX_JSON_INTEGER;
use schemas::number::EntryFormatter;

/// Deepest nesting of arrays and objects.
pub const MAX_DEPTH: usize = 64;

/// A value that has no canonical form, or bytes that are not in it.
#[derive(Debug, thiserror::Error)]
pub enum CanonicalError {
    /// A value could not be serialised at all.
    #[error("value cannot be written as JSON")]
    Serialize(#[source] serde_json::Error),
    /// Bytes break a rule of the canonical form.
    #[error("not canonical at byte {offset}: {fault}")]
    Form {
        /// Position of the first byte that breaks the rule.
        offset: usize,
        /// Which rule.
        fault: Fault,
    },
    /// A number of a contract has no RFC 8785 spelling that all readers share.
    #[error("{pointer}: integer {value} is beyond 2^53; write it as a decimal string")]
    Integer {
        /// JSON pointer of the number.
        pointer: String,
        /// The number.
        value: String,
    },
    /// A contract is nested too deeply.
    #[error("nested deeper than {MAX_DEPTH} levels")]
    Depth,
}

/// Which rule of the canonical form is broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "each message is the rule")]
pub enum Fault {
    #[error("bytes are not UTF-8")]
    NotUtf8,
    #[error("unexpected byte or white space")]
    Unexpected,
    #[error("object keys are not in strictly ascending byte order")]
    KeyOrder,
    #[error("an object key is not printable ASCII")]
    KeyCharacter,
    #[error("a string is escaped in another way than the canonical one")]
    Escape,
    #[error("an integer is beyond 2^53 or has a leading zero")]
    Integer,
    #[error("a float is not spelled as its shortest decimal")]
    Float,
    #[error("nested deeper than 64 levels")]
    Depth,
    #[error("bytes follow the value")]
    Trailing,
}

/// Entry JSON of any value.
///
/// # Errors
/// When the value cannot be serialised, or holds what entry JSON cannot say:
/// an integer beyond 2^53, a key that is not printable ASCII, nesting beyond
/// [`MAX_DEPTH`].
pub fn entry_json<T: Serialize>(value: &T) -> Result<Vec<u8>, CanonicalError> {
    let mut bytes = Vec::with_capacity(512);
    append_entry_json(&mut bytes, value)?;
    Ok(bytes)
}

/// Appends the entry JSON of a value to `bytes`; on an error `bytes` is as before.
pub(crate) fn append_entry_json<T: Serialize>(bytes: &mut Vec<u8>, value: &T) -> Result<(), CanonicalError> {
    let start = bytes.len();
    if checked::write(bytes, value).is_ok() {
        return Ok(());
    }
    bytes.truncate(start);
    let result = write_json(bytes, value).and_then(|()| match scan(&bytes[start..], Origin::Written) {
        // Internally tagged enums put their tag first; sorting costs only them.
        Err(CanonicalError::Form { fault: Fault::KeyOrder, .. }) => sort(bytes, start),
        other => other,
    });
    if result.is_err() {
        bytes.truncate(start);
    }
    result
}

/// Writes the value that stands from `start` on again, with its keys in order.
fn sort(bytes: &mut Vec<u8>, start: usize) -> Result<(), CanonicalError> {
    let sorted: Value = serde_json::from_slice(&bytes[start..]).map_err(CanonicalError::Serialize)?;
    bytes.truncate(start);
    write_json(bytes, &sorted)?;
    scan(&bytes[start..], Origin::Written)
}

fn write_json<T: Serialize>(bytes: &mut Vec<u8>, value: &T) -> Result<(), CanonicalError> {
    let mut serializer = serde_json::Serializer::with_formatter(bytes, EntryFormatter);
    value.serialize(&mut serializer).map_err(CanonicalError::Serialize)
}

/// Contract JSON (RFC 8785) of a contract that was parsed strictly.
///
/// # Errors
/// When an integer is beyond 2^53 or the nesting beyond [`MAX_DEPTH`]. A
/// `Value` cannot hold a number that is not finite.
pub fn contract_json(value: &Value) -> Result<Vec<u8>, CanonicalError> {
    check_contract_value(value, &mut String::new(), 0)?;
    serde_json_canonicalizer::to_vec(value).map_err(CanonicalError::Serialize)
}

/// Floats that RFC 8785 spells as integers beyond 2^53: from the next one above.
const SPELLED_AS_INTEGER: (f64, f64) = (9_007_199_254_740_994.0, 1e21);

fn check_contract_value(value: &Value, pointer: &mut String, depth: usize) -> Result<(), CanonicalError> {
    if depth >= MAX_DEPTH && (value.is_array() || value.is_object()) {
        return Err(CanonicalError::Depth);
    }
    let length = pointer.len();
    match value {
        Value::Number(number) => {
            let magnitude = number.as_u64().or_else(|| number.as_i64().map(i64::unsigned_abs));
            // Below 1e21 a float without a fraction is spelled as an integer.
            let spelled_beyond =
                |float: f64| (SPELLED_AS_INTEGER.0..SPELLED_AS_INTEGER.1).contains(&float.abs());
            let is_float_beyond = magnitude.is_none() && number.as_f64().is_some_and(spelled_beyond);
            if is_float_beyond || magnitude.is_some_and(|magnitude| magnitude > MAX_JSON_INTEGER) {
                return Err(CanonicalError::Integer { pointer: pointer.clone(), value: number.to_string() });
            }
        }
        Value::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                pointer.push_str(&format!("/{index}"));
                check_contract_value(item, pointer, depth + 1)?;
                pointer.truncate(length);
            }
        }
        Value::Object(members) => {
            for (key, member) in members {
                pointer.push('/');
                pointer.push_str(&key.replace('~', "~0").replace('/', "~1"));
                check_contract_value(member, pointer, depth + 1)?;
                pointer.truncate(length);
            }
        }
        Value::Null | Value::Bool(_) | Value::String(_) => {}
    }
    Ok(())
}

/// Checks that bytes are entry JSON in canonical form, floats included.
///
/// # Errors
/// The first rule that is broken, with its byte offset.
pub fn check_entry_json(bytes: &[u8]) -> Result<(), CanonicalError> {
    scan(bytes, Origin::Foreign)
}

/// Where bytes come from. What `serde_json` has just written is UTF-8, escapes
/// control characters and spells floats as their shortest decimals.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Origin {
    Foreign,
    Written,
}

fn scan(bytes: &[u8], origin: Origin) -> Result<(), CanonicalError> {
    if origin == Origin::Written {
        // Written by `serde_json` a moment ago, and so UTF-8.
    } else if let Err(error) = std::str::from_utf8(bytes) {
        return Err(CanonicalError::Form { offset: error.valid_up_to(), fault: Fault::NotUtf8 });
    }
    // Mostly all text is printable ASCII; then no key has to be looked at twice.
    let printable = origin == Origin::Written && bytes.is_ascii() && memchr::memchr(0x7f, bytes).is_none();
    let mut scanner = Scanner { bytes, at: 0, origin, printable };
    scanner.value(0)?;
    if scanner.at < bytes.len() {
        return scanner.fail(Fault::Trailing);
    }
    Ok(())
}

struct Scanner<'a> {
    bytes: &'a [u8],
    at: usize,
    origin: Origin,
    /// No byte is outside printable ASCII.
    printable: bool,
}

/// A key as it stands between its quotes, and whether it holds an escape.
#[derive(Clone, Copy)]
struct Text<'a> {
    raw: &'a [u8],
    escaped: bool,
}

impl Text<'_> {
    /// What the text says, not how it is escaped: only `"` and `\\` among
    /// printable characters need an escape.
    fn is_printable_ascii(self) -> bool {
        let printable = self.raw.iter().all(|byte| (0x20..0x7f).contains(byte));
        let mut bytes = self.raw.iter();
        let mut escapes_printable = || {
            while let Some(byte) = bytes.next() {
                if *byte == b'\\' && !matches!(bytes.next(), Some(b'"' | b'\\')) {
                    return false;
                }
            }
            true
        };
        printable && (!self.escaped || escapes_printable())
    }
}

impl<'a> Scanner<'a> {
    fn fail<T>(&self, fault: Fault) -> Result<T, CanonicalError> {
        Err(CanonicalError::Form { offset: self.at, fault })
    }

    fn peek(&self) -> u8 {
        // Zero occurs nowhere in canonical JSON, so it stands for the end.
        self.bytes.get(self.at).copied().unwrap_or(0)
    }

    fn literal(&mut self, text: &[u8]) -> Result<(), CanonicalError> {
        if self.bytes[self.at..].starts_with(text) {
            self.at += text.len();
            Ok(())
        } else {
            self.fail(Fault::Unexpected)
        }
    }

    fn value(&mut self, depth: usize) -> Result<(), CanonicalError> {
        match self.peek() {
            b'{' | b'[' if depth >= MAX_DEPTH => self.fail(Fault::Depth),
            b'"' => self.string().map(|_| ()),
            b'{' => self.object(depth),
            b'[' => self.array(depth),
            b'n' => self.literal(b"null"),
            b't' => self.literal(b"true"),
            b'f' => self.literal(b"false"),
            b'-' | b'0'..=b'9' => self.number(),
            _ => self.fail(Fault::Unexpected),
        }
    }

    fn array(&mut self, depth: usize) -> Result<(), CanonicalError> {
        self.at += 1;
        if self.peek() == b']' {
            self.at += 1;
            return Ok(());
        }
        loop {
            self.value(depth + 1)?;
            match self.peek() {
                b',' => self.at += 1,
                b']' => {
                    self.at += 1;
                    return Ok(());
                }
                _ => return self.fail(Fault::Unexpected),
            }
        }
    }

    fn object(&mut self, depth: usize) -> Result<(), CanonicalError> {
        self.at += 1;
        if self.peek() == b'}' {
            self.at += 1;
            return Ok(());
        }
        let mut previous: Option<Text<'a>> = None;
        loop {
            let start = self.at;
            let key = self.string()?;
            if !(self.printable && !key.escaped || key.is_printable_ascii()) {
                self.at = start;
                return self.fail(Fault::KeyCharacter);
            }
            if previous.is_some_and(|previous| !ascending(previous, key)) {
                self.at = start;
                return self.fail(Fault::KeyOrder);
            }
            previous = Some(key);
            self.literal(b":")?;
            self.value(depth + 1)?;
            match self.peek() {
                b',' => self.at += 1,
                b'}' => {
                    self.at += 1;
                    return Ok(());
                }
                _ => return self.fail(Fault::Unexpected),
            }
        }
    }

    fn string(&mut self) -> Result<Text<'a>, CanonicalError> {
        self.literal(b"\"")?;
        let start = self.at;
        let mut escaped = false;
        loop {
            let rest = &self.bytes[self.at..];
            let Some(length) = memchr::memchr2(b'"', b'\\', rest) else {
                self.at = self.bytes.len();
                return self.fail(Fault::Unexpected);
            };
            // Strings that `serde_json` wrote hold no raw control characters.
            if self.origin == Origin::Foreign
                && let Some(control) = rest[..length].iter().position(|byte| *byte < 0x20)
            {
                self.at += control;
                return self.fail(Fault::Unexpected);
            }
            self.at += length;
            if rest[length] == b'"' {
                let raw = &self.bytes[start..self.at];
                self.at += 1;
                return Ok(Text { raw, escaped });
            }
            escaped = true;
            self.escape()?;
        }
    }

    fn escape(&mut self) -> Result<(), CanonicalError> {
        let rest = &self.bytes[self.at + 1..];
        match rest {
            [b'"' | b'\\' | b'b' | b't' | b'n' | b'f' | b'r', ..] => self.at += 2,
            [b'u', b'0', b'0', high @ (b'0' | b'1'), low @ (b'0'..=b'9' | b'a'..=b'f'), ..] => {
                // These five have a short escape, which is the canonical one.
                if *high == b'0' && matches!(low, b'8' | b'9' | b'a' | b'c' | b'd') {
                    return self.fail(Fault::Escape);
                }
                self.at += 6;
            }
            _ => return self.fail(Fault::Escape),
        }
        Ok(())
    }

    fn number(&mut self) -> Result<(), CanonicalError> {
        let start = self.at;
        if self.peek() == b'-' {
            self.at += 1;
        }
        let digits_start = self.at;
        let mut float = false;
        loop {
            match self.peek() {
                b'0'..=b'9' => {}
                b'.' | b'e' | b'-' => float = true,
                _ => break,
            }
            self.at += 1;
        }
        let digits = &self.bytes[digits_start..self.at];
        let text = &self.bytes[start..self.at];
        let valid = if float {
            self.origin == Origin::Written || is_shortest_float(text)
        } else {
            is_canonical_integer(digits, text.len() > digits.len())
        };
        if valid {
            return Ok(());
        }
        self.at = start;
        self.fail(if float { Fault::Float } else { Fault::Integer })
    }
}

fn is_canonical_integer(digits: &[u8], negative: bool) -> bool {
    match digits {
        [] => false,
        [b'0'] => !negative,
        [b'0', ..] => false,
        _ if digits.len() > 16 => false,
        _ => {
            let magnitude = digits.iter().fold(0u64, |sum, digit| sum * 10 + u64::from(digit - b'0'));
            magnitude <= MAX_JSON_INTEGER
        }
    }
}

fn is_shortest_float(text: &[u8]) -> bool {
    let Ok(value) = serde_json::from_slice::<f64>(text) else { return false };
    let mut shortest = Vec::with_capacity(32);
    write_json(&mut shortest, &value).is_ok() && shortest == text
}

fn ascending(previous: Text<'_>, next: Text<'_>) -> bool {
    if !previous.escaped && !next.escaped {
        return previous.raw < next.raw;
    }
    let plain = |text: Text<'_>| -> Vec<u8> {
        let mut bytes = Vec::with_capacity(text.raw.len());
        let mut iterator = text.raw.iter().copied();
        while let Some(byte) = iterator.next() {
            // Keys are printable ASCII, so only `\"` and `\\` can occur here.
            bytes.push(if byte == b'\\' { iterator.next().unwrap_or(byte) } else { byte });
        }
        bytes
    };
    plain(previous) < plain(next)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn check(text: &str, expected: Option<Fault>) {
        let found = match check_entry_json(text.as_bytes()) {
            Ok(()) => None,
            Err(CanonicalError::Form { fault, .. }) => Some(fault),
            Err(other) => panic!("{text}: {other}"),
        };
        assert_eq!(found, expected, "{text}");
    }

    #[test]
    fn canonical_form_is_recognised_and_every_departure_named() {
        check(r#"{"a":1,"b":[null,true,false,"x\n\u0001é"],"c":{}}"#, None);
        check(r#"{"a":1, "b":2}"#, Some(Fault::Unexpected));
        check(r#"{"b":1,"a":2}"#, Some(Fault::KeyOrder));
        check(r#"{"a":1,"a":2}"#, Some(Fault::KeyOrder));
        check(r#"{"é":1}"#, Some(Fault::KeyCharacter));
        check(r#""\/""#, Some(Fault::Escape));
        check(r#""\u000a""#, Some(Fault::Escape));
        check(r#""\u001F""#, Some(Fault::Escape));
        check(r#""\u0041""#, Some(Fault::Escape));
        check("\"\u{1}\"", Some(Fault::Unexpected));
        check("9007199254740992", None);
        check("-9007199254740992", None);
        check("9007199254740993", Some(Fault::Integer));
        check("01", Some(Fault::Integer));
        check("-0", Some(Fault::Integer));
        check("-0.0", None);
        check("1.50", Some(Fault::Float));
        check("1e5", Some(Fault::Float));
        check("1e16", None);
        check("5e-324", None);
        check("1 ", Some(Fault::Trailing));
        check("", Some(Fault::Unexpected));
        check(&"[".repeat(65), Some(Fault::Depth));
        let deepest = format!("{}{}", "[".repeat(64), "]".repeat(64));
        check(&deepest, None);
    }

    #[test]
    fn escaped_keys_are_ordered_by_what_they_say() {
        // `"` (0x22) sorts before `#` (0x23) although its escape begins with 0x5c.
        check(r##"{"\"":1,"#":2}"##, None);
        check(r##"{"#":2,"\"":1}"##, Some(Fault::KeyOrder));
    }

    #[test]
    fn values_in_another_order_are_sorted_and_large_integers_refused() {
        #[derive(Serialize)]
        struct Unsorted {
            z: u64,
            a: u64,
        }
        let bytes = entry_json(&Unsorted { z: 1, a: 2 }).expect("both fit");
        assert_eq!(bytes, br#"{"a":2,"z":1}"#);
        assert!(entry_json(&Unsorted { z: u64::MAX, a: 2 }).is_err());
        assert!(entry_json(&json!({ "clé": 1 })).is_err());
    }

    #[test]
    fn contract_numbers_follow_ecmascript() {
        let value = json!({ "b": 1.0, "a": [0.1, 1e21, 1e-7, -0.0, 100] });
        let bytes = contract_json(&value).expect("every number has a spelling");
        assert_eq!(String::from_utf8_lossy(&bytes), r#"{"a":[0.1,1e+21,1e-7,0,100],"b":1}"#);
        let error =
            contract_json(&json!({ "a/b": [1, 9_007_199_254_740_993_u64] })).expect_err("beyond 2^53");
        assert!(error.to_string().starts_with("/a~1b/1: integer 9007199254740993"), "{error}");
        for (float, is_refused) in
            [(9_007_199_254_740_992.0, false), (1e17, true), (-1e20, true), (1e21, false)]
        {
            assert_eq!(contract_json(&json!([float])).is_err(), is_refused, "{float}");
        }
    }

    #[test]
    fn serde_json_keeps_maps_sorted_and_numbers_binary() {
        // `preserve_order` or `arbitrary_precision`, switched on by any crate
        // of the build, would change canonical bytes without a compile error.
        let value: Value = serde_json::from_str(r#"{"b":1,"a":1.10}"#).expect("valid JSON");
        assert_eq!(value.to_string(), r#"{"a":1.1,"b":1}"#);
    }
}
