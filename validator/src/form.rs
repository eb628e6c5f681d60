//! Whether a document's bytes are the one form of what was read from them.
//!
//! The scanner of `canonical` sees one spelling of every string and number; it
//! cannot see what the types let pass: a key that may be null left out, a list
//! in the place of an object, a name written as an object. So what was read is
//! written again and compared with the stored bytes on the fly. Floats are
//! passed over: the scanner has judged their spelling, and writing them again
//! costs more than everything else together.
//!
//! Entries come here only where `reading` did not see their form on its way.

use std::io;

use serde::Serialize;
use serde_json::Value;
use serde_json::ser::{Formatter, Serializer};

use crate::canonical::MAX_DEPTH;

/// Stands for a float; it occurs in no UTF-8 text.
const FLOAT: u8 = 0xff;

/// Compares with bytes that `canonical::check_entry_json` has accepted; the
/// first byte that differs, if any.
pub(crate) fn first_difference<T: Serialize>(value: &T, bytes: &[u8]) -> Option<usize> {
    let mut compare = Compare { expected: bytes, at: 0 };
    let written = value.serialize(&mut Serializer::with_formatter(&mut compare, FloatMarks));
    (written.is_err() || compare.at != bytes.len()).then_some(compare.at)
}

/// The same of a document whose bytes a check of `canonical` has accepted: a pointer to
/// the first place that is other than what was read from it, if any. RFC 8785 writes
/// whole floats as integers, and tags are sorted among the members, so the values are
/// compared and not the bytes; there are few such documents.
pub(crate) fn first_other_place<T: Serialize>(value: &T, text: &[u8]) -> Option<String> {
    let stored: Option<Value> = serde_json::from_slice(text).ok();
    match (stored, serde_json::to_value(value).ok()) {
        (Some(stored), Some(written)) => other_place(&stored, &written, 0),
        _ => Some(String::new()),
    }
}

/// A pointer to the first member of a document that its type passed over, if any:
/// serde refuses unknown ones, but for those beside the tag of a variant that has no
/// fields. The document need not be canonical.
pub(crate) fn first_unread_member<T: Serialize>(value: &T, text: &[u8]) -> Option<String> {
    let stored: Value = serde_json::from_slice(text).ok()?;
    unread_member(&stored, &serde_json::to_value(value).ok()?)
}

/// `serde_json` refuses what is nested so deeply that this would overflow the stack.
fn unread_member(stored: &Value, written: &Value) -> Option<String> {
    match (stored, written) {
        (Value::Object(stored), Value::Object(written)) => stored.iter().find_map(|(name, value)| {
            let place = match written.get(name) {
                Some(written) => unread_member(value, written)?,
                None => String::new(),
            };
            Some(below(name, &place))
        }),
        (Value::Array(stored), Value::Array(written)) => {
            let mut pairs = stored.iter().zip(written).enumerate();
            pairs.find_map(|(index, (stored, written))| {
                Some(below(&index.to_string(), &unread_member(stored, written)?))
            })
        }
        _ => None,
    }
}

/// The pointer of what lies at a place below a member or item.
fn below(name: &str, place: &str) -> String {
    format!("/{}{place}", name.replace('~', "~0").replace('/', "~1"))
}

/// `depth` cannot pass the scanner's own bound, which keeps the stack small.
fn other_place(stored: &Value, written: &Value, depth: u32) -> Option<String> {
    match (stored, written) {
        _ if depth > MAX_DEPTH => Some(String::new()),
        (Value::Object(stored), Value::Object(written)) => {
            let strange = stored.keys().find(|name| !written.contains_key(*name));
            let missing = written.keys().find(|name| !stored.contains_key(*name));
            if let Some(name) = strange.or(missing) {
                return Some(below(name, ""));
            }
            stored.iter().find_map(|(name, value)| {
                Some(below(name, &other_place(value, written.get(name)?, depth + 1)?))
            })
        }
        (Value::Array(stored), Value::Array(written)) if stored.len() == written.len() => {
            let mut pairs = stored.iter().zip(written).enumerate();
            pairs.find_map(|(index, (stored, written))| {
                Some(below(&index.to_string(), &other_place(stored, written, depth + 1)?))
            })
        }
        (Value::Number(stored), Value::Number(written)) if stored.as_f64() == written.as_f64() => None,
        _ => (stored != written).then(String::new),
    }
}

struct FloatMarks;

impl Formatter for FloatMarks {
    fn write_f64<W: ?Sized + io::Write>(&mut self, writer: &mut W, _: f64) -> io::Result<()> {
        writer.write_all(&[FLOAT])
    }
}

/// A writer that keeps nothing and fails at the first difference.
struct Compare<'a> {
    expected: &'a [u8],
    at: usize,
}

impl io::Write for Compare<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let rest = self.expected.get(self.at..).unwrap_or_default();
        // Most of what is written is a quote, a colon or a comma.
        if let ([byte], [next, ..]) = (bytes, rest)
            && byte == next
        {
            self.at += 1;
            return Ok(1);
        }
        if bytes == [FLOAT] {
            let is_part = |byte: &&u8| matches!(byte, b'0'..=b'9' | b'-' | b'.' | b'e');
            let length = rest.iter().take_while(is_part).count();
            if length == 0 {
                return Err(io::ErrorKind::InvalidData.into());
            }
            self.at += length;
        } else if rest.starts_with(bytes) {
            self.at += bytes.len();
        } else {
            self.at += rest.iter().zip(bytes).take_while(|(left, right)| left == right).count();
            return Err(io::ErrorKind::InvalidData.into());
        }
        Ok(bytes.len())
    }

    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        // All or an error.
        self.write(bytes).map(|_| ())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use schemas::campaign::Preregistration;
    use schemas::contract::Contract;
    use schemas::entry::Entry;
    use schemas::policy_card::PolicyCard;
    use serde::de::DeserializeOwned;

    use super::*;
    use crate::canonical::{check_contract_json, check_entry_json};
    use crate::fixture::{card, honest_run, json};

    #[test]
    fn every_entry_of_a_run_has_its_own_form() {
        for entry in &honest_run().entries {
            assert_eq!(first_difference(entry, &json(entry)), None, "entry {}", entry.index);
        }
    }

    #[test]
    fn a_second_form_of_an_entry_is_seen() {
        let run = honest_run();
        let step = run.entries.iter().find(|entry| entry.body.kind() == schemas::body::Kind::Step);
        let text = String::from_utf8(json(step.expect("a step"))).expect("UTF-8");
        for (one, other) in [
            (",\"origin\":null", ""),
            (",\"overflow\":null", ""),
            (",\"worker\":null", ""),
            ("\"ledger\":\"run\"", "\"ledger\":{\"run\":null}"),
        ] {
            let Some(at) = text.find(one) else { continue };
            let forged = text.replacen(one, other, 1);
            check_entry_json(forged.as_bytes()).expect("the scanner cannot tell");
            let Ok(read) = Entry::from_slice(forged.as_bytes()) else { continue };
            let difference = first_difference(&read, forged.as_bytes()).expect("another form");
            assert!(difference >= at, "{one}");
        }
        assert!(text.contains("\"origin\":null") && text.contains("\"ledger\":\"run\""));
        let longer = format!("{text} ");
        let read = Entry::from_slice(longer.as_bytes()).expect("serde_json allows white space");
        assert_eq!(first_difference(&read, longer.as_bytes()), Some(text.len()));
    }

    /// The first other place in contract JSON that its scanner and serde let pass.
    fn place<T: DeserializeOwned + Serialize>(text: &str) -> Option<String> {
        check_contract_json(text.as_bytes()).expect("the scanner cannot tell");
        let read: T = serde_json::from_str(text).expect("serde cannot tell");
        first_other_place(&read, text.as_bytes())
    }

    /// Replaces what occurs once, and names the place that is another one then.
    fn check_second_form<T: DeserializeOwned + Serialize>(
        text: &str,
        one: &str,
        other: &str,
        expected: &str,
    ) {
        assert_eq!(text.matches(one).count(), 1, "{one}");
        assert_eq!(place::<T>(&text.replacen(one, other, 1)).as_deref(), Some(expected), "{other}");
    }

    #[test]
    fn a_second_form_of_a_preregistration_is_seen() {
        let text = include_str!("../../schemas/golden/preregistration.canonical.json");
        assert_eq!(place::<Preregistration>(text), None);
        for (one, other, expected) in [
            (r#"{"card":null,"#, "{", "/arms/0/card"),
            (r#"{"against":"adamw","arm":"adam"}"#, r#"["adamw","adam"]"#, "/claims/0/arms/0"),
            (r#""axis":"width""#, r#""axis":{"width":null}"#, "/axes/0/axis"),
        ] {
            check_second_form::<Preregistration>(text, one, other, expected);
        }
        // A whole float is an integer there.
        let whole = text.replacen("\"threshold\":2.5", "\"threshold\":2", 1);
        assert_eq!(place::<Preregistration>(&whole), None);
    }

    #[test]
    fn a_second_form_of_a_contract_is_seen() {
        let text = include_str!("../../schemas/golden/contract.canonical.json");
        assert_eq!(place::<Contract>(text), None);
        assert_eq!(place::<Contract>(include_str!("../../schemas/golden/contract.wide.json")), None);
        for (one, other, expected) in [
            // What is null there, left out, and what is left out there, null.
            (r#""max_tokens":null,"#, "", "/budget/max_tokens"),
            (r#""num_examples":null,"#, "", "/evaluation/streams/0/num_examples"),
            (r#""batch":{"#, r#""averages":null,"batch":{"#, "/averages"),
            (r#""durability":"#, r#""dropout_draws":{"scheme":"keyed/1"},"durability":"#, "/dropout_draws"),
            // A list for an object, and a member that no variant of the name has.
            (
                r#"{"accumulation":2,"data_parallel":1,"global_examples":8,"microbatch_examples":4}"#,
                "[2,1,8,4]",
                "/batch",
            ),
            (
                r#"{"rule":"backpropagation"}"#,
                r#"{"population":4,"rule":"backpropagation"}"#,
                "/credit/population",
            ),
        ] {
            check_second_form::<Contract>(text, one, other, expected);
        }
    }

    #[test]
    fn a_member_that_no_type_reads_is_seen_and_a_second_form_is_none() {
        let unread = |value: &Value| {
            let text = serde_json::to_vec_pretty(value).expect("serialises");
            let card: PolicyCard = serde_json::from_slice(&text).expect("serde cannot tell");
            first_unread_member(&card, &text)
        };
        let mut value = serde_json::to_value(card(1)).expect("serialises");
        assert_eq!(unread(&value), None);
        value.as_object_mut().expect("an object").remove("fallback").expect("it is null");
        value["distribution"] = serde_json::json!(["none", "replicated"]);
        assert_eq!(unread(&value), None);
        value["clipping"] = serde_json::json!({"kind": "none", "max_norm": 1.0});
        assert_eq!(unread(&value).as_deref(), Some("/clipping/max_norm"));
    }
}
