//! How far two tensors, or two JSON documents, are apart.
//!
//! Equality is of bits: two NaN of the same bits are equal, `0.0` and `-0.0`
//! are not. Distances are in binary64, which holds every value of the narrower
//! dtypes exactly.

use schemas::number::Float;
use serde::Serialize;
use serde_json::Value;

/// Distance of two tensors of one dtype and shape.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Distance {
    /// The first element that differs, row-major.
    pub(super) first_element: u64,
    /// Its value on the left.
    pub(super) left: Float,
    /// Largest absolute difference.
    pub(super) max_absolute: Float,
    /// Largest difference by the larger magnitude of the two.
    pub(super) max_relative: Float,
    /// Largest difference in units of the last place; as a decimal string,
    /// since 64 bits do not fit a number.
    pub(super) max_ulp: String,
    /// Elements that differ.
    pub(super) num_different: u64,
    /// Its value on the right.
    pub(super) right: Float,
}

/// One element: its value, and its place among all values of its dtype, so
/// that neighbours are one apart.
type Element = (f64, i128);

/// Reads one element from its little-endian bytes.
type Read = fn(&[u8]) -> Element;

/// Size of an element and how it is read; `None` for a dtype that is not known.
fn reader(dtype: &str) -> Option<(usize, Read)> {
    Some(match dtype {
        "F64" => (8, |bytes| {
            let bits = u64::from_le_bytes(fixed(bytes));
            (f64::from_bits(bits), place(u128::from(bits), 64))
        }),
        "F32" => (4, |bytes| {
            let bits = u32::from_le_bytes(fixed(bytes));
            (f64::from(f32::from_bits(bits)), place(u128::from(bits), 32))
        }),
        "BF16" => (2, |bytes| {
            let bits = u16::from_le_bytes(fixed(bytes));
            (f64::from(f32::from_bits(u32::from(bits) << 16)), place(u128::from(bits), 16))
        }),
        "F16" => (2, |bytes| {
            let bits = u16::from_le_bytes(fixed(bytes));
            (half(bits), place(u128::from(bits), 16))
        }),
        "I64" => (8, |bytes| integer(i128::from(i64::from_le_bytes(fixed(bytes))))),
        "U64" => (8, |bytes| integer(i128::from(u64::from_le_bytes(fixed(bytes))))),
        "I32" => (4, |bytes| integer(i128::from(i32::from_le_bytes(fixed(bytes))))),
        "U32" => (4, |bytes| integer(i128::from(u32::from_le_bytes(fixed(bytes))))),
        "U8" | "BOOL" => (1, |bytes| integer(i128::from(u8::from_le_bytes(fixed(bytes))))),
        _ => return None,
    })
}

/// The bytes as an array; zeros where there are too few.
fn fixed<const N: usize>(bytes: &[u8]) -> [u8; N] {
    bytes.try_into().unwrap_or([0; N])
}

/// Sign and magnitude as one ascending count: `-0.0` and `0.0` are one apart
/// from their neighbours and not from each other's.
const fn place(bits: u128, num_bits: u32) -> i128 {
    let sign = 1_u128 << (num_bits - 1);
    let magnitude = (bits & (sign - 1)).cast_signed();
    if bits & sign == 0 { magnitude } else { -magnitude - 1 }
}

#[allow(clippy::cast_precision_loss, reason = "a distance of integers is shown, not computed with")]
const fn integer(value: i128) -> Element {
    (value as f64, value)
}

/// A binary16 value (IEEE 754-2019, 3.4).
fn half(bits: u16) -> f64 {
    let sign = if bits >> 15 == 0 { 1.0 } else { -1.0 };
    let (exponent, fraction) = (i32::from(bits >> 10 & 0x1f), f64::from(bits & 0x3ff));
    sign * match exponent {
        0 => fraction * 2_f64.powi(-24),
        31 if bits & 0x3ff == 0 => f64::INFINITY,
        31 => f64::NAN,
        _ => (1.0 + fraction / 1024.0) * 2_f64.powi(exponent - 15),
    }
}

/// Distance of the elements of two tensors; `None` where all bits are equal.
/// Of a dtype that is not known the elements are bytes.
pub(super) fn tensors(dtype: &str, left: &[u8], right: &[u8]) -> Option<Distance> {
    if left == right {
        return None;
    }
    let (size, read) = reader(dtype).or_else(|| reader("U8"))?;
    let mut distance: Option<Distance> = None;
    let mut max_ulp = 0_u128;
    for (index, (a, b)) in (0..).zip(left.chunks_exact(size).zip(right.chunks_exact(size))) {
        if a == b {
            continue;
        }
        let ((left, left_place), (right, right_place)) = (read(a), read(b));
        // Where a side is not finite there is no distance but the largest.
        let absolute = (left - right).abs();
        let absolute = if absolute.is_nan() { f64::INFINITY } else { absolute };
        let scale = left.abs().max(right.abs());
        let relative = if absolute.is_infinite() {
            f64::INFINITY
        } else if scale > 0.0 {
            absolute / scale
        } else {
            0.0
        };
        max_ulp = max_ulp.max(left_place.abs_diff(right_place));
        let known = distance.get_or_insert(Distance {
            first_element: index,
            left: Float(left),
            max_absolute: Float(0.0),
            max_relative: Float(0.0),
            max_ulp: String::new(),
            num_different: 0,
            right: Float(right),
        });
        known.max_absolute = Float(known.max_absolute.0.max(absolute));
        known.max_relative = Float(known.max_relative.0.max(relative));
        known.num_different += 1;
    }
    if let Some(distance) = &mut distance {
        distance.max_ulp = max_ulp.to_string();
    }
    distance
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

    fn bytes(values: &[f32]) -> Vec<u8> {
        values.iter().flat_map(|value| value.to_le_bytes()).collect()
    }

    #[test]
    fn the_first_element_and_the_largest_distances_are_found() {
        let left = bytes(&[1.0, 2.0, -4.0, f32::NAN]);
        assert_eq!(tensors("F32", &left, &left), None);
        let right = bytes(&[1.0, f32::from_bits(2.0_f32.to_bits() + 3), -2.0, f32::NAN]);
        let distance = tensors("F32", &left, &right).expect("two elements differ");
        assert_eq!((distance.first_element, distance.num_different), (1, 2));
        assert_eq!((distance.max_absolute, distance.max_relative), (Float(2.0), Float(0.5)));
        // From 2 to 4 there is one binade of 2^23 values.
        assert_eq!(distance.max_ulp, (1_u32 << 23).to_string());
    }

    #[test]
    fn signs_of_zero_and_values_that_are_not_finite_differ() {
        let distance = tensors("F32", &bytes(&[0.0]), &bytes(&[-0.0])).expect("other bits");
        assert_eq!((distance.max_absolute, distance.max_ulp.as_str()), (Float(0.0), "1"));
        let distance = tensors("F32", &bytes(&[1.0]), &bytes(&[f32::NAN])).expect("other bits");
        assert_eq!(distance.max_absolute, Float(f64::INFINITY));
    }

    #[test]
    fn narrow_floats_have_the_values_that_their_bits_say() {
        for (bits, value) in [(0x3c00, 1.0), (0xc000, -2.0), (0x0001, 2_f64.powi(-24)), (0x7bff, 65504.0)] {
            assert_eq!(half(bits).to_bits(), f64::to_bits(value), "{bits:#x}");
        }
        let distance = tensors("BF16", &[0x80, 0x3f], &[0x00, 0x40]).expect("1 and 2");
        assert_eq!((distance.left, distance.right), (Float(1.0), Float(2.0)));
        let distance = tensors("U64", &7_u64.to_le_bytes(), &9_u64.to_le_bytes()).expect("7 and 9");
        assert_eq!(distance.max_ulp, "2");
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
