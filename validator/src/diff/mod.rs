//! The difference between two contracts, or between a contract and what ran,
//! field by field: the same, a deviation that was declared, or one that nothing
//! declares.
//!
//! It is no audit: it believes what a ledger says, compares it with what was
//! frozen, and gives no verdict on the run. What a contract binds and no entry
//! states in words is the audit's to derive, and is listed as not stated.

mod declared;
mod leaves;
mod ran;
mod side;

use serde::Serialize;
use serde_json::Value;

pub use side::{DiffError, Frozen, Side};

use declared::Declared;
use leaves::leaves;

/// What became of one field.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// Equal on both sides.
    Same,
    /// Different where something that was frozen or recorded says that it may
    /// be; `why` says what.
    Declared,
    /// Different, and nothing says that it may be.
    Undeclared,
}

/// One leaf field on both sides.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Field {
    /// Its value in A; left out where A has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub a: Option<Value>,
    /// Its value in B, or what ran; left out where there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub b: Option<Value>,
    /// First entry that states B's value; left out between two contracts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub entry: Option<u64>,
    /// JSON pointer into the contract, `pointer#pointer` into a document that it
    /// binds, or the kind and pointer of an entry that no contract field has a
    /// counterpart of.
    pub pointer: String,
    /// What became of it.
    pub status: Status,
    /// What declares the difference, or why it is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

impl Field {
    fn new(pointer: impl Into<String>, a: Option<Value>, b: Option<Value>, status: Status) -> Self {
        Self { a, b, entry: None, pointer: pointer.into(), status, why: None }
    }
}

/// All fields of a comparison.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Comparison {
    /// In the order of their pointers, contracts first.
    pub fields: Vec<Field>,
    /// Leaf fields of the contract of which no entry says how they ran, since
    /// the audit derives them; empty between two contracts.
    pub not_stated: Vec<String>,
}

impl Comparison {
    /// How many fields have that status.
    #[must_use]
    pub fn count(&self, status: Status) -> usize {
        self.fields.iter().filter(|field| field.status == status).count()
    }
}

/// Compares two contracts, with the documents that they bind where both are at
/// hand. `preregistration` is that of a campaign both belong to, for the arms'
/// declared differences; where none is given, the one that a ledger holds.
#[must_use]
pub fn contracts(a: &Side, b: &Side, preregistration: Option<&Value>) -> Comparison {
    let declared = Declared::new(a, b, preregistration);
    let mut fields = Vec::new();
    let mut compare = |prefix: &str, a_value: &Value, b_value: &Value| {
        let (in_a, in_b) = (leaves(a_value), leaves(b_value));
        let pointers: std::collections::BTreeSet<&String> = in_a.keys().chain(in_b.keys()).collect();
        for pointer in pointers {
            let (left, right) = (in_a.get(pointer), in_b.get(pointer));
            let place = format!("{prefix}{pointer}");
            if is_equal(left, right) {
                fields.push(Field::new(place, left.cloned(), right.cloned(), Status::Same));
                continue;
            }
            let why = declared.covers(&place, left, right);
            let status = if why.is_some() { Status::Declared } else { Status::Undeclared };
            fields.push(Field { why, ..Field::new(place, left.cloned(), right.cloned(), status) });
        }
    };
    compare("", &a.contract, &b.contract);
    for (pointer, document) in &a.documents {
        if let Some(other) = b.documents.get(pointer).filter(|other| *other != document) {
            compare(&format!("{pointer}#"), document, other);
        }
    }
    Comparison { fields, not_stated: Vec::new() }
}

/// Equal, however a person spelled a number: `1.0` and `1` are one value.
fn is_equal(a: Option<&Value>, b: Option<&Value>) -> bool {
    let number = |value: Option<&Value>| value.and_then(Value::as_f64).map(f64::to_bits);
    a == b || (number(a).is_some() && number(a) == number(b))
}

/// Compares A's contract with what B's ledger says of what ran.
///
/// # Errors
/// When B is no ledger, or cannot be read.
pub fn ran(a: &Side, b: &Side) -> Result<Comparison, DiffError> {
    ran::compare(a, b)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::fixture::{StoredRun, honest_run};

    fn side(run: &StoredRun) -> Side {
        Side::open(&run.beside("run.db")).expect("a ledger")
    }

    fn different(comparison: &Comparison) -> Vec<(&str, Status)> {
        let fields = comparison.fields.iter().filter(|field| field.status != Status::Same);
        fields.map(|field| (field.pointer.as_str(), field.status)).collect()
    }

    /// `contract` in the place of a side's own, as a person's file would be.
    fn edited(side: &Side, edit: impl FnOnce(&mut Value)) -> Side {
        let mut contract = side.contract.clone();
        edit(&mut contract);
        Side { contract, documents: side.documents.clone(), frozen: None, path: "contract.json".into() }
    }

    #[test]
    fn a_contract_is_the_same_as_itself_and_every_leaf_is_looked_at() {
        let run = StoredRun::new(honest_run());
        let a = side(&run);
        let comparison = contracts(&a, &a, None);
        assert_eq!(comparison.count(Status::Same), comparison.fields.len());
        assert!(comparison.fields.len() > 100, "{}", comparison.fields.len());
        for (pointer, value) in leaves(&a.contract) {
            let other = edited(&a, |contract| {
                *contract.pointer_mut(&pointer).expect("a leaf") = json!(["another", value]);
            });
            // Nothing is open between two freezes.
            let other = Side { frozen: a.frozen.clone(), ..other };
            let comparison = contracts(&a, &other, None);
            let found = different(&comparison);
            assert!(!found.is_empty(), "{pointer} is not looked at");
            let is_there =
                |(at, status): &(&str, Status)| at.starts_with(&pointer) && *status == Status::Undeclared;
            assert!(found.iter().all(is_there), "{pointer}: {found:?}");
        }
    }

    #[test]
    fn what_a_file_leaves_to_the_freeze_is_declared_and_nothing_else_is() {
        let run = StoredRun::new(honest_run());
        let b = side(&run);
        let a = edited(&b, |contract| {
            contract["data"]["manifest"]["digest"] = Value::Null;
            contract["data"]["manifest"]["num_bytes"] = Value::Null;
            contract["keys"] = Value::Null;
            contract["state_digest_every_steps"] = json!(77);
        });
        let comparison = contracts(&a, &b, None);
        for (pointer, status) in different(&comparison) {
            let is_filled = pointer.starts_with("/keys") || pointer.starts_with("/data/manifest/");
            assert_eq!(status == Status::Declared, is_filled, "{pointer}");
        }
        assert_eq!(comparison.count(Status::Undeclared), 1);
        // A frozen contract leaves nothing open.
        let frozen = Side { frozen: b.frozen.clone(), ..a };
        assert!(contracts(&frozen, &b, None).count(Status::Undeclared) > 3);
    }

    #[test]
    fn a_number_is_one_value_however_it_is_spelled() {
        let check = |a: Value, b: Value, expected: bool| {
            assert_eq!(is_equal(Some(&a), Some(&b)), expected, "{a} {b}");
        };
        check(json!(1), json!(1.0), true);
        check(json!(0.001), json!(1e-3), true);
        check(json!(1), json!(2.0), false);
        check(json!("1"), json!(1), false);
        assert!(!is_equal(Some(&json!(null)), None));
    }

    #[test]
    fn another_number_of_workers_is_declared_where_the_contract_permits_it() {
        let run = StoredRun::new(honest_run());
        let own = side(&run);
        let permitted =
            |rewrites: Value| edited(&own, |contract| contract["topology"]["permitted_rewrites"] = rewrites);
        let twice = |side: &Side, also: &str, value: Value| {
            edited(side, |contract| {
                contract["topology"]["workers"] = json!(2);
                contract["batch"]["data_parallel"] = json!(2);
                *contract.pointer_mut(also).expect("a field") = value;
            })
        };
        let count = |a: &Side, also: &str, value: Value| {
            let comparison = contracts(a, &twice(a, also, value), None);
            (comparison.count(Status::Declared), comparison.count(Status::Undeclared))
        };
        let accumulation = ("/batch/accumulation", json!(77));
        assert_eq!(
            count(&permitted(json!(["worker_count"])), accumulation.0, accumulation.1.clone()),
            (3, 0)
        );
        assert_eq!(count(&permitted(json!(["thread_count"])), accumulation.0, accumulation.1), (0, 3));
        // Another batch is another learning process.
        let other_batch = count(&permitted(json!(["worker_count"])), "/batch/global_examples", json!(77));
        assert_eq!(other_batch, (0, 3));
    }

    #[test]
    fn fields_of_a_bound_document_are_compared_too() {
        let run = StoredRun::new(honest_run());
        let a = side(&run);
        let mut b = side(&run);
        let card = b.documents.get_mut("/update/card").expect("the card is stored");
        card["groups"][0]["name"] = json!("another");
        b.contract["update"]["card"]["digest"] = json!("blake3:00");
        let comparison = contracts(&a, &b, None);
        let found: Vec<&str> = different(&comparison).iter().map(|(pointer, _)| *pointer).collect();
        assert_eq!(found, ["/update/card/digest", "/update/card#/groups/0/name"]);
    }
}
