//! Bytes to a typed document, with a pointer for everything that does not
//! fit, and all unknown members rather than the first.
//!
//! serde alone would not do: it stops at the first unknown member, it cannot
//! say where inside a tagged object a type is wrong, and it ignores additional
//! members of a tagged variant that has no fields. The last is found by
//! writing the document back and comparing.

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use serde_path_to_error::Segment;

use super::problem::Problems;
use crate::strict::{ParseOptions, parse_located, push_pointer};

/// Members that say which variant a tagged object is; without one, every
/// error is another.
const TAGS: [&str; 4] = ["family", "kind", "rule", "scheme"];

/// A bound on how many unknown members are listed.
const MAX_UNKNOWN_MEMBERS: usize = 100;

/// Reads strict JSON; on an error the problem is added and nothing returned.
pub(super) fn parse(bytes: &[u8], options: ParseOptions, problems: &mut Problems) -> Option<Value> {
    match parse_located(bytes, options) {
        Ok(located) => {
            problems.locate(located.positions);
            Some(located.value)
        }
        Err(error) => {
            let hint = format!("correct the text at {}", error.position);
            problems.locate([(error.pointer.clone(), error.position)].into());
            problems.add(error.pointer, error.kind.to_string(), hint);
            None
        }
    }
}

/// Gives a value its type; on an error the problems are added.
pub(super) fn typed<T>(mut value: Value, schema: &str, problems: &mut Problems) -> Option<T>
where
    T: DeserializeOwned + Serialize,
{
    let see = format!("`ledger schema {schema}` prints what is expected");
    let mut num_unknown = 0;
    let document: T = loop {
        match serde_path_to_error::deserialize(&value) {
            Ok(document) => break document,
            Err(error) => {
                let (pointer, message) = (pointer_of(error.path()), error.inner().to_string());
                let removed = unknown_member(&message).and_then(|name| remove(&mut value, &pointer, &name));
                let Some(pointer) = removed.filter(|_| num_unknown < MAX_UNKNOWN_MEMBERS) else {
                    let pointer = refine::<T>(&value, pointer, &message);
                    problems.add(pointer, message, see);
                    return None;
                };
                num_unknown += 1;
                let expected = message.split_once(", ").map_or("", |(_, expected)| expected);
                problems.add(
                    pointer,
                    "unknown member",
                    format!("remove it, or put it into `extensions`; {expected}"),
                );
            }
        }
    };
    match serde_json::to_value(&document) {
        Ok(written) => compare(&value, &written, &mut String::new(), problems),
        Err(error) => problems.add("", format!("cannot be written back: {error}"), see),
    }
    Some(document)
}

/// RFC 6901 pointer of serde's path.
fn pointer_of(path: &serde_path_to_error::Path) -> String {
    let mut pointer = String::new();
    for segment in path {
        match segment {
            Segment::Seq { index } => push_pointer(&mut pointer, &index.to_string()),
            Segment::Map { key } => push_pointer(&mut pointer, key),
            Segment::Enum { .. } | Segment::Unknown => {}
        }
    }
    pointer
}

/// The member that serde's message calls unknown.
fn unknown_member(message: &str) -> Option<String> {
    let rest = message.strip_prefix("unknown field `")?;
    rest.split_once('`').map(|(name, _)| name.to_owned())
}

/// Removes a member below `pointer`, or below its parent where the pointer
/// already names the member. Returns the member's pointer.
fn remove(value: &mut Value, pointer: &str, name: &str) -> Option<String> {
    let mut token = String::new();
    push_pointer(&mut token, name);
    let parents = [Some(pointer), pointer.strip_suffix(token.as_str())];
    for parent in parents.into_iter().flatten() {
        let object = value.pointer_mut(parent).and_then(Value::as_object_mut);
        if object.is_some_and(|object| object.remove(name).is_some()) {
            return Some(format!("{parent}{token}"));
        }
    }
    None
}

/// Finds the member of a tagged object that an error is about. serde reads
/// members in order, so it is the one with which the error first appears.
fn refine<T: DeserializeOwned>(value: &Value, pointer: String, message: &str) -> String {
    // A missing member is the object's own fault.
    let object = value.pointer(&pointer).and_then(Value::as_object);
    let Some(object) = object.filter(|_| !message.starts_with("missing field")) else { return pointer };
    let is_tag = |name: &String| TAGS.contains(&name.as_str());
    let mut partial = value.clone();
    if let Some(partial) = partial.pointer_mut(&pointer).and_then(Value::as_object_mut) {
        partial.retain(|name, _| is_tag(name));
    }
    for (name, member) in object.iter().filter(|(name, _)| !is_tag(name)) {
        if let Some(partial) = partial.pointer_mut(&pointer).and_then(Value::as_object_mut) {
            partial.insert(name.clone(), member.clone());
        }
        let error = serde_path_to_error::deserialize::<_, T>(&partial).err();
        if error.is_some_and(|error| error.inner().to_string() == message) {
            let mut refined = pointer;
            push_pointer(&mut refined, name);
            return refined;
        }
    }
    pointer
}

/// Adds what the text has and the typed document does not.
fn compare(read: &Value, written: &Value, pointer: &mut String, problems: &mut Problems) {
    match (read, written) {
        (Value::Object(read), Value::Object(written)) => {
            for (name, value) in read {
                let parent = pointer.len();
                push_pointer(pointer, name);
                match written.get(name) {
                    Some(other) => compare(value, other, pointer, problems),
                    None => problems.add(pointer.clone(), "unknown member", "remove it"),
                }
                pointer.truncate(parent);
            }
        }
        (Value::Array(read), Value::Array(written)) => {
            for (index, (value, other)) in read.iter().zip(written).enumerate() {
                let parent = pointer.len();
                push_pointer(pointer, &index.to_string());
                compare(value, other, pointer, problems);
                pointer.truncate(parent);
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use schemas::contract::{Architecture, CreditRule, GroupSchedule};
    use serde_json::json;

    use super::*;

    fn check<T: DeserializeOwned + Serialize>(value: Value, expected: &[&str]) {
        let mut problems = Problems::new(Path::new("x"));
        let _: Option<T> = typed(value, "contract", &mut problems);
        let found: Vec<String> = problems.into_list().into_iter().map(|problem| problem.pointer).collect();
        assert_eq!(found, expected);
    }

    fn architecture() -> Value {
        json!({
            "family": "llama_decoder", "context_length": 8, "dropout": 0, "head_dim": 2, "hidden_size": 4,
            "initializer_std": 0.02, "intermediate_size": 8, "num_heads": 2, "num_kv_heads": 1, "num_layers": 1,
            "rms_norm_eps": 1e-5, "rope_theta": 10000, "tied_embeddings": true, "vocab_size": 256
        })
    }

    #[test]
    fn every_unknown_member_is_named() {
        check::<Architecture>(architecture(), &[]);
        let mut value = architecture();
        value["bias"] = json!(true);
        value["a/b"] = json!(1);
        check::<Architecture>(value, &["/a~1b", "/bias"]);
        // serde ignores these: the variant has no fields.
        check::<CreditRule>(json!({"rule": "backpropagation", "population": 4}), &["/population"]);
        check::<Vec<GroupSchedule>>(
            json!([{"group": "a", "shape": {"kind": "constant", "rate": 1.0, "peak": 2.0}, "also": 1}]),
            &["/0/also", "/0/shape/peak"],
        );
    }

    #[test]
    fn a_wrong_type_is_named_inside_a_tagged_object() {
        let mut value = architecture();
        value["hidden_size"] = json!("4");
        check::<Architecture>(value, &["/hidden_size"]);
        let mut value = architecture();
        value["num_layers"] = json!(-1);
        value["vocab_size"] = json!(-1);
        check::<Architecture>(value, &["/num_layers"]);
        check::<Vec<GroupSchedule>>(
            json!([{"group": "a", "shape": {"kind": "constant", "rate": "fast"}}]),
            &["/0/shape/rate"],
        );
        check::<CreditRule>(json!({"rule": "hope"}), &["/rule"]);
    }
}
