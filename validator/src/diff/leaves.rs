//! The leaf fields of a JSON value by RFC 6901 pointer. An empty list or object
//! is a leaf, so that something and nothing differ.

use std::collections::BTreeMap;

use serde_json::Value;

/// Every leaf. The nesting of what is given was bounded by its reader.
pub(super) fn leaves(value: &Value) -> BTreeMap<String, Value> {
    let mut found = BTreeMap::new();
    collect(value, String::new(), &mut found);
    found
}

fn collect(value: &Value, pointer: String, found: &mut BTreeMap<String, Value>) {
    match value {
        Value::Object(members) if !members.is_empty() => {
            for (key, member) in members {
                let token = key.replace('~', "~0").replace('/', "~1");
                collect(member, format!("{pointer}/{token}"), found);
            }
        }
        Value::Array(items) if !items.is_empty() => {
            for (index, item) in items.iter().enumerate() {
                collect(item, format!("{pointer}/{index}"), found);
            }
        }
        leaf => {
            found.insert(pointer, leaf.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn every_leaf_has_its_pointer() {
        let found = leaves(&json!({"a": {"b/c": [1, {"d~": null}]}, "e": [], "f": {}}));
        let expected =
            [("/a/b~1c/0", json!(1)), ("/a/b~1c/1/d~0", json!(null)), ("/e", json!([])), ("/f", json!({}))];
        let expected: BTreeMap<_, _> =
            expected.into_iter().map(|(at, value)| (at.to_owned(), value)).collect();
        assert_eq!(found, expected);
        assert_eq!(leaves(&json!(7)).get(""), Some(&json!(7)));
    }
}
