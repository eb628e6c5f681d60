//! What differs first between two tensors, or two JSON documents, as `trainer
//! checkpoint diff` shows it. How far apart they are is measured as in a probe
//! ([`crate::distance`]).
//!
//! Equality is of bits: two NaN of the same bits are equal, `0.0` and `-0.0`
//! are not.

use schemas::number::Float;
use serde::Serialize;
use serde_json::Value;

use crate::distance;
use crate::export::NamedTensor;

/// Distance of two tensors of one dtype and shape, and where they part.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct TensorDifference {
    /// The first element that differs, row-major; none of an unknown dtype.
    pub(super) first_element: Option<u64>,
    /// Its value on the left.
    pub(super) left: Option<Float>,
    /// Largest absolute difference.
    pub(super) max_absolute: Float,
    /// Largest difference by the larger magnitude of the two.
    pub(super) max_relative: Float,
    /// Largest difference in units of the last place, at most 2^53.
    pub(super) max_ulp: u64,
    /// Elements that differ.
    pub(super) num_different: u64,
    /// Its value on the right.
    pub(super) right: Option<Float>,
}

/// Difference of two tensors of one name; `None` where all bits are equal.
pub(super) fn tensors(left: &NamedTensor, right: &NamedTensor) -> Option<TensorDifference> {
    let (measure, _) = distance::tensors(std::slice::from_ref(left), std::slice::from_ref(right), 0.0);
    if measure.is_zero() {
        return None;
    }
    let distance = measure.distance();
    let first = distance::first_element(&left.dtype, &left.bytes, &right.bytes);
    Some(TensorDifference {
        first_element: first.map(|(index, _, _)| index),
        left: first.map(|(_, left, _)| Float(left)),
        max_absolute: distance.max_absolute,
        max_relative: distance.max_relative,
        max_ulp: distance.max_ulp,
        num_different: distance.num_different,
        right: first.map(|(_, _, right)| Float(right)),
    })
}

/// Pointer (RFC 6901) of the first value that differs, with both values;
/// `None` where the documents are equal.
pub(super) fn documents(left: &Value, right: &Value) -> Option<(String, Value, Value)> {
    let at = |key: &str, found: (String, Value, Value)| {
        let key = key.replace('~', "~0").replace('/', "~1");
        (format!("/{key}{}", found.0), found.1, found.2)
    };
    match (left, right) {
        (Value::Object(a), Value::Object(b)) => {
            let keys = a.keys().chain(b.keys().filter(|key| !a.contains_key(*key)));
            let absent = Value::String("(absent)".to_owned());
            let mut keys: Vec<&String> = keys.collect();
            keys.sort();
            keys.into_iter().find_map(|key| {
                let (a, b) = (a.get(key).unwrap_or(&absent), b.get(key).unwrap_or(&absent));
                documents(a, b).map(|found| at(key, found))
            })
        }
        (Value::Array(a), Value::Array(b)) if a.len() == b.len() => {
            let mut pairs = a.iter().zip(b).enumerate();
            pairs.find_map(|(index, (a, b))| documents(a, b).map(|found| at(&index.to_string(), found)))
        }
        _ if left == right => None,
        _ => Some((String::new(), left.clone(), right.clone())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tensor(values: &[f32]) -> NamedTensor {
        NamedTensor {
            name: "a".to_owned(),
            dtype: "F32".to_owned(),
            shape: vec![values.len() as u64],
            bytes: values.iter().flat_map(|value| value.to_le_bytes()).collect(),
        }
    }

    #[test]
    fn the_first_element_and_the_largest_distances_are_found() {
        let left = tensor(&[1.0, 2.0, -4.0, f32::NAN]);
        assert_eq!(tensors(&left, &left), None);
        let right = tensor(&[1.0, f32::from_bits(2.0_f32.to_bits() + 3), -2.0, f32::NAN]);
        let found = tensors(&left, &right).expect("two elements differ");
        assert_eq!((found.first_element, found.left), (Some(1), Some(Float(2.0))));
        assert_eq!(found.num_different, 2);
        assert_eq!((found.max_absolute, found.max_relative), (Float(2.0), Float(0.5)));
        // From 2 to 4 there is one binade of 2^23 values.
        assert_eq!(found.max_ulp, 1 << 23);
    }

    #[test]
    fn documents_differ_at_the_first_pointer() {
        let left = serde_json::json!({"a": [1, {"b/c": 2}], "z": 1});
        assert_eq!(documents(&left, &left), None);
        let right = serde_json::json!({"a": [1, {"b/c": 3}], "z": 2});
        assert_eq!(documents(&left, &right).expect("differs").0, "/a/1/b~1c");
        let right = serde_json::json!({"a": [1, {"b/c": 2}]});
        assert_eq!(documents(&left, &right).expect("differs").0, "/z");
    }
}
