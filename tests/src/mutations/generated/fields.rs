//! Changes of one field of an entry: deleted, duplicated, exchanged with its
//! sibling, perturbed, given another type.
//!
//! Of each operation the first form that is still an entry of the schema is
//! taken, so that as much as possible counts; where there is none, the form that
//! the schema has to stop. What index, idempotency key and format say is
//! recomputed or fixed, so they are left out.

use std::sync::Arc;

use schemas::entry::Entry;
use serde_json::{Value, json};

use super::super::Record;
use super::Change;

/// Fields that sealing recomputes, or that say which schema applies.
const LEFT_OUT: [&str; 4] = ["/format", "/idem", "/index", "/kind"];

/// Whether a value is an entry of the schema.
#[must_use]
pub fn is_entry(value: &Value) -> bool {
    ledger::canonical::entry_json(value).is_ok_and(|bytes| Entry::from_slice(&bytes).is_ok())
}

/// Every change of the fields of the entry at a place.
#[must_use]
pub fn changes(record: &Record, kind: &str, which: &'static str, place: usize) -> Vec<Change> {
    let entry = &record.entries[place];
    let mut changes = Vec::new();
    for pointer in pointers(entry) {
        if LEFT_OUT.contains(&pointer.as_str()) {
            continue;
        }
        for (operation, suffix, changed) in forms(entry, &pointer) {
            let edit = move |record: &mut Record| {
                record.entries[place] = changed.clone();
                Ok(())
            };
            let pointer = format!("{pointer}{suffix}");
            changes.push(Change { kind: kind.to_owned(), operation, pointer, which, edit: Arc::new(edit) });
        }
    }
    changes
}

/// JSON pointers of every leaf and list. Of a list the first element stands for
/// all: they have one type.
fn pointers(value: &Value) -> Vec<String> {
    let mut found = Vec::new();
    walk(value, &mut String::new(), &mut found);
    found
}

fn walk(value: &Value, pointer: &mut String, found: &mut Vec<String>) {
    let length = pointer.len();
    match value {
        Value::Object(members) if !members.is_empty() => {
            for (key, member) in members {
                pointer.push_str(&format!("/{}", key.replace('~', "~0").replace('/', "~1")));
                walk(member, pointer, found);
                pointer.truncate(length);
            }
        }
        Value::Array(items) => {
            found.push(pointer.clone());
            if let Some(first) = items.first() {
                pointer.push_str("/0");
                walk(first, pointer, found);
                pointer.truncate(length);
            }
        }
        Value::Object(_) | Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {
            if !pointer.is_empty() {
                found.push(pointer.clone());
            }
        }
    }
}

/// Operation, what is added to the pointer in its name, and the changed entry.
fn forms(entry: &Value, pointer: &str) -> Vec<(&'static str, String, Value)> {
    let Some(value) = entry.pointer(pointer) else { return Vec::new() };
    let mut forms = Vec::new();
    let mut add = |operation, candidates: Vec<Value>| {
        if let Some(changed) = choose(entry, pointer, candidates) {
            forms.push((operation, String::new(), changed));
        }
    };
    if let Value::Array(items) = value {
        add("delete", without_first(items).into_iter().collect());
        add("duplicate", twice(items).into_iter().collect());
        add("reorder", exchanged(items).into_iter().collect());
    } else {
        add("perturb", perturbed(entry, pointer, value));
        add("retype", retyped(value));
        let nulled = (!value.is_null()).then_some(Value::Null);
        let nulled = nulled.and_then(|null| with(entry, pointer, null)).filter(is_entry);
        forms.extend(
            nulled.or_else(|| removed(entry, pointer)).map(|changed| ("delete", String::new(), changed)),
        );
        forms.extend(sibling(entry, pointer));
    }
    forms
}

/// The first candidate with which the entry is still one, else the first that
/// changes it.
fn choose(entry: &Value, pointer: &str, candidates: Vec<Value>) -> Option<Value> {
    let changed: Vec<Value> = candidates
        .into_iter()
        .filter_map(|candidate| with(entry, pointer, candidate))
        .filter(|changed| changed != entry)
        .collect();
    changed.iter().find(|changed| is_entry(changed)).or(changed.first()).cloned()
}

fn with(entry: &Value, pointer: &str, value: Value) -> Option<Value> {
    let mut changed = entry.clone();
    *changed.pointer_mut(pointer)? = value;
    Some(changed)
}

fn removed(entry: &Value, pointer: &str) -> Option<Value> {
    let (parent, key) = pointer.rsplit_once('/')?;
    let mut changed = entry.clone();
    changed.pointer_mut(parent)?.as_object_mut()?.remove(key)?;
    Some(changed)
}

fn without_first(items: &[Value]) -> Option<Value> {
    items.split_first().map(|(_, rest)| rest.into())
}

fn twice(items: &[Value]) -> Option<Value> {
    let first = items.first()?;
    Some(std::iter::once(first).chain(items).cloned().collect())
}

/// The first two elements that differ, exchanged.
fn exchanged(items: &[Value]) -> Option<Value> {
    let at = items.windows(2).position(|pair| pair[0] != pair[1])?;
    let mut items = items.to_vec();
    items.swap(at, at + 1);
    Some(items.into())
}

/// The value exchanged with that of the next sibling of its type.
fn sibling(entry: &Value, pointer: &str) -> Option<(&'static str, String, Value)> {
    let (parent, key) = pointer.rsplit_once('/')?;
    let members = entry.pointer(parent)?.as_object()?;
    let value = members.get(key)?;
    let is_kin = |other: &Value| {
        !other.is_null()
            && *other != *value
            && std::mem::discriminant(other) == std::mem::discriminant(value)
            && other.is_f64() == value.is_f64()
            && !other.is_object()
            && !other.is_array()
    };
    let mut later = members.iter().skip_while(|(name, _)| *name != key).skip(1);
    let (name, other) = later
        .find(|(name, other)| is_kin(other) && !LEFT_OUT.contains(&format!("{parent}/{name}").as_str()))?;
    let mut changed = with(entry, pointer, other.clone())?;
    *changed.pointer_mut(&format!("{parent}/{name}"))? = value.clone();
    is_entry(&changed).then(|| ("reorder", format!("~{name}"), changed))
}

fn perturbed(entry: &Value, pointer: &str, value: &Value) -> Vec<Value> {
    match value {
        Value::Null => guesses(),
        Value::Bool(flag) => vec![json!(!flag)],
        Value::Number(number) => match (number.as_u64(), number.as_f64()) {
            (Some(count), _) => {
                let (more, less) = (count.checked_add(1), count.checked_sub(1));
                // A part of a total may always be smaller by what its clock rounds.
                let order = if pointer.ends_with("_us") { [less, more] } else { [more, less] };
                order.into_iter().flatten().map(Value::from).collect()
            }
            (None, Some(float)) => vec![json!(float.next_up()), json!(float.next_down())],
            (None, None) => Vec::new(),
        },
        Value::String(text) => {
            let mut candidates = Vec::new();
            candidates.extend(other_digit(text).map(Value::from));
            candidates.push(json!(format!("{text}x")));
            candidates.extend(variants(entry, pointer).into_iter().map(Value::from));
            candidates
        }
        Value::Array(_) | Value::Object(_) => Vec::new(),
    }
}

/// Values for a field that has none.
fn guesses() -> Vec<Value> {
    let digest = |algorithm| format!("{algorithm}:{}", "0f".repeat(32));
    vec![json!(1), json!(1.0), json!(digest("blake3")), json!("x"), json!(true), json!([])]
}

fn retyped(value: &Value) -> Vec<Value> {
    match value {
        Value::Null => vec![json!({}), json!("")],
        Value::Bool(flag) => vec![json!(flag.to_string())],
        Value::Number(number) if number.is_f64() => {
            vec![json!("NaN:7ff8000000000000"), json!(number.to_string())]
        }
        Value::Number(number) => vec![json!(number.to_string()), json!(number.as_f64())],
        Value::String(text) => {
            let other = match text.split_once(':') {
                Some(("blake3", hex)) => Some(format!("sha256:{hex}")),
                Some(("sha256", hex)) => Some(format!("blake3:{hex}")),
                _ => None,
            };
            other.map(Value::from).into_iter().chain([json!(text.len()), json!([text])]).collect()
        }
        Value::Array(_) | Value::Object(_) => Vec::new(),
    }
}

/// A text of hex digits at its end with another last digit.
fn other_digit(text: &str) -> Option<String> {
    let hex = text.rsplit(':').next()?;
    let is_hex = hex.len() >= 16 && hex.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    let (head, last) = text.split_at_checked(text.len().checked_sub(1)?)?;
    is_hex.then(|| format!("{head}{}", if last == "0" { "1" } else { "0" }))
}

/// Other variants of an enum: the reader's own message names them.
fn variants(entry: &Value, pointer: &str) -> Vec<String> {
    const NO_VARIANT: &str = "no such variant";
    let Some(changed) = with(entry, pointer, json!(NO_VARIANT)) else { return Vec::new() };
    let Ok(bytes) = ledger::canonical::entry_json(&changed) else { return Vec::new() };
    let Err(error) = Entry::from_slice(&bytes) else { return Vec::new() };
    let message = error.to_string();
    let Some((_, expected)) = message.split_once("expected ") else { return Vec::new() };
    expected.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leaves_and_lists_are_found_and_the_first_element_stands_for_all() {
        let value = json!({"a": {"b": 1, "c": []}, "d": [{"e": null}, {"e": 2}], "f": {}});
        assert_eq!(pointers(&value), ["/a/b", "/a/c", "/d", "/d/0/e", "/f"]);
    }

    #[test]
    fn a_digest_keeps_its_form_and_a_float_its_neighbour() {
        assert_eq!(other_digit("blake3:00ff00ff00ff00ff").as_deref(), Some("blake3:00ff00ff00ff00f0"));
        assert_eq!(other_digit("s00000010-a1"), None);
        assert_eq!(perturbed(&json!({}), "", &json!(1.0))[0], json!(1.000_000_000_000_000_2));
        assert_eq!(retyped(&json!("sha256:00"))[0], json!("blake3:00"));
    }

    #[test]
    fn a_sibling_is_of_the_same_type_and_differs() {
        let entry = json!({"a": 1, "b": "x", "c": 1, "d": 2});
        assert!(sibling(&entry, "/b").is_none());
        // No entry of the schema comes of it, so it is not offered.
        assert!(sibling(&entry, "/a").is_none());
        assert_eq!(exchanged(&[json!(1), json!(1), json!(2)]), Some(json!([1, 2, 1])));
        assert_eq!(removed(&entry, "/d"), Some(json!({"a": 1, "b": "x", "c": 1})));
    }
}
