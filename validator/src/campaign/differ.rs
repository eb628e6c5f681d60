//! Where two frozen contracts differ, leaf by leaf, with the documents that
//! they bind.
//!
//! A binding is its document: where both documents are JSON, their leaves are
//! compared in place of digest and size. The path of a bound file is no part of
//! what is bound.

use std::collections::BTreeSet;
use std::fmt;

use schemas::campaign::ContractPointer;
use serde_json::Value;

use super::facts::FrozenFacts;

/// One leaf that differs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Difference {
    place: String,
    inner: Option<String>,
    /// What the first has there.
    pub(crate) left: String,
    /// What the second has there.
    pub(crate) right: String,
}

impl Difference {
    /// Whether one of the pointers names the place or one above it.
    pub(crate) fn is_covered<'a>(&self, by: impl IntoIterator<Item = &'a ContractPointer>) -> bool {
        by.into_iter().any(|pointer| pointer.covers(&self.place, self.inner.as_deref()))
    }

    /// Whether it is one of these places of the contract, or below one.
    pub(crate) fn is_at(&self, places: &[&str]) -> bool {
        self.is_covered(&places.iter().map(|place| ContractPointer((*place).to_owned())).collect::<Vec<_>>())
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.place)?;
        match &self.inner {
            Some(inner) => write!(formatter, "#{inner}"),
            None => Ok(()),
        }
    }
}

/// Every leaf in which two contracts differ, in the order of their places.
pub(crate) fn differences(left: &FrozenFacts, right: &FrozenFacts) -> Vec<Difference> {
    let mut found = Vec::new();
    walk("", &left.value, &right.value, &mut |place, one, other| {
        contract_leaf(place, one, other, (left, right), &mut found);
    });
    found
}

fn contract_leaf(
    place: &str,
    one: Option<&Value>,
    other: Option<&Value>,
    (left, right): (&FrozenFacts, &FrozenFacts),
    found: &mut Vec<Difference>,
) {
    if let Some((binding, member)) = place.rsplit_once('/')
        && is_binding(&left.value, binding)
        && is_binding(&right.value, binding)
    {
        match (member, left.documents.get(binding), right.documents.get(binding)) {
            ("path", ..) => return,
            ("num_bytes", Some(_), Some(_)) => return,
            ("digest", Some(one), Some(other)) => {
                let before = found.len();
                walk("", one, other, &mut |inner, one, other| {
                    found.push(Difference {
                        place: binding.to_owned(),
                        inner: Some(inner.to_owned()),
                        left: told(one),
                        right: told(other),
                    });
                });
                // Other bytes that say the same are other bytes still.
                if found.len() > before {
                    return;
                }
            }
            _ => {}
        }
    }
    found.push(Difference { place: place.to_owned(), inner: None, left: told(one), right: told(other) });
}

fn is_binding(contract: &Value, place: &str) -> bool {
    let Some(Value::Object(members)) = contract.pointer(place) else { return false };
    members.len() == 3 && ["digest", "num_bytes", "path"].iter().all(|name| members.contains_key(*name))
}

/// Longest value that is told.
const MAX_CHARACTERS: usize = 120;

fn told(value: Option<&Value>) -> String {
    let Some(value) = value else { return "absent".to_owned() };
    let text = value.to_string();
    if text.chars().count() <= MAX_CHARACTERS {
        return text;
    }
    text.chars().take(MAX_CHARACTERS).chain("...".chars()).collect()
}

/// Takes a place and what either side has there.
type VisitLeaf<'a> = dyn FnMut(&str, Option<&Value>, Option<&Value>) + 'a;

/// Visits every leaf that differs. A list is compared item by item where both
/// are as long; else it differs as a whole, because places after an insertion
/// would not be the same things.
fn walk(place: &str, left: &Value, right: &Value, visit: &mut VisitLeaf<'_>) {
    if left == right {
        return;
    }
    match (left, right) {
        (Value::Object(one), Value::Object(other)) => {
            let names: BTreeSet<&String> = one.keys().chain(other.keys()).collect();
            for name in names {
                let below = format!("{place}/{}", name.replace('~', "~0").replace('/', "~1"));
                match (one.get(name), other.get(name)) {
                    (Some(one), Some(other)) => walk(&below, one, other, visit),
                    (one, other) => visit(&below, one, other),
                }
            }
        }
        (Value::Array(one), Value::Array(other)) if one.len() == other.len() => {
            for (index, (one, other)) in one.iter().zip(other).enumerate() {
                walk(&format!("{place}/{index}"), one, other, visit);
            }
        }
        _ => visit(place, Some(left), Some(right)),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn leaves_are_told_by_their_places() {
        let left = json!({"a": 1, "b": {"c~/d": [1, 2], "e": [1]}, "only": null});
        let right = json!({"a": 1, "b": {"c~/d": [1, 3], "e": [1, 2]}});
        let mut places = Vec::new();
        walk("", &left, &right, &mut |place, one, other| {
            places.push((place.to_owned(), one.is_some(), other.is_some()));
        });
        let expected = [("/b/c~0~1d/1", true, true), ("/b/e", true, true), ("/only", true, false)];
        assert_eq!(places, expected.map(|(place, one, other)| (place.to_owned(), one, other)));
    }
}
