//! How far apart two tensors, or two JSON documents, are: the raw numbers of a
//! probe's result, and of a comparison of two checkpoints.
//!
//! Nothing here knows what is near enough. A distance in units of the last
//! place is zero exactly where the bits are equal: zeros of both signs are one
//! apart, and a NaN is at the largest distance from everything but itself.

mod element;

use schemas::body::Distance;
use schemas::number::Float;
use serde_json::Value;

use crate::export::NamedTensor;

/// Largest distance in units of the last place: the largest integer of entry
/// JSON.
pub const MAX_ULP: u64 = 1 << 53;

/// The distance of everything that was compared so far.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Measure {
    first_step: Option<u64>,
    max_absolute: f64,
    max_absolute_beyond_relative: f64,
    max_relative: f64,
    max_ulp: u64,
    num_different: u64,
}

impl Measure {
    /// Whether everything was equal, bit by bit.
    #[must_use]
    pub const fn is_zero(&self) -> bool {
        self.num_different == 0
    }

    /// First step at which something differed.
    #[must_use]
    pub const fn first_step(&self) -> Option<u64> {
        self.first_step
    }

    /// As a result holds it.
    #[must_use]
    pub fn distance(&self) -> Distance {
        Distance {
            first_step: self.first_step,
            max_absolute: Float(self.max_absolute),
            max_absolute_beyond_relative: Float(self.max_absolute_beyond_relative),
            max_relative: Float(self.max_relative),
            max_ulp: self.max_ulp,
            num_different: self.num_different,
        }
    }

    /// Takes what was measured at a step into account. Steps come in order.
    pub fn add(&mut self, step: u64, other: &Self) {
        if other.is_zero() {
            return;
        }
        self.first_step.get_or_insert(step);
        self.max_absolute = self.max_absolute.max(other.max_absolute);
        self.max_absolute_beyond_relative =
            self.max_absolute_beyond_relative.max(other.max_absolute_beyond_relative);
        self.max_relative = self.max_relative.max(other.max_relative);
        self.max_ulp = self.max_ulp.max(other.max_ulp);
        self.num_different += other.num_different;
    }

    /// Two things that cannot be compared as numbers.
    fn incomparable(&mut self) {
        self.max_absolute = f64::INFINITY;
        self.max_absolute_beyond_relative = f64::INFINITY;
        self.max_relative = f64::INFINITY;
        self.max_ulp = MAX_ULP;
        self.num_different += 1;
    }

    /// Two numbers whose bits are `ulp` places apart; `bound` is the contract's
    /// largest relative difference.
    fn numbers(&mut self, reference: f64, resumed: f64, ulp: u64, bound: f64) {
        if ulp == 0 {
            return;
        }
        let absolute = (reference - resumed).abs();
        if !absolute.is_finite() {
            return self.incomparable();
        }
        let magnitude = reference.abs().max(resumed.abs());
        let relative = if magnitude > 0.0 { absolute / magnitude } else { 0.0 };
        self.num_different += 1;
        self.max_absolute = self.max_absolute.max(absolute);
        self.max_relative = self.max_relative.max(relative);
        if relative > bound {
            self.max_absolute_beyond_relative = self.max_absolute_beyond_relative.max(absolute);
        }
        self.max_ulp = self.max_ulp.max(ulp.min(MAX_ULP));
    }
}

/// Compares two lists of tensors, which are in name order, and gives the first
/// tensor that differs.
#[must_use]
pub fn tensors(reference: &[NamedTensor], resumed: &[NamedTensor], bound: f64) -> (Measure, Option<String>) {
    let mut measure = Measure::default();
    let mut first = None;
    for index in 0..reference.len().max(resumed.len()) {
        let before = measure;
        let name = match (reference.get(index), resumed.get(index)) {
            (Some(left), Some(right)) => {
                tensor(&mut measure, left, right, bound);
                &left.name
            }
            (Some(only), None) | (None, Some(only)) => {
                measure.incomparable();
                &only.name
            }
            (None, None) => continue,
        };
        if measure != before {
            first.get_or_insert_with(|| name.clone());
        }
    }
    (measure, first)
}

fn tensor(measure: &mut Measure, reference: &NamedTensor, resumed: &NamedTensor, bound: f64) {
    if reference.info() != resumed.info() || reference.bytes.len() != resumed.bytes.len() {
        return measure.incomparable();
    }
    if reference.bytes == resumed.bytes {
        return;
    }
    let Some((size, read)) = element::reader(&reference.dtype) else { return measure.incomparable() };
    let (left, right) = (reference.bytes.chunks_exact(size), resumed.bytes.chunks_exact(size));
    for (left, right) in left.zip(right).filter(|(left, right)| left != right) {
        match (read(left), read(right)) {
            ((left, Some(left_place)), (right, Some(right_place))) => {
                measure.numbers(left, right, left_place.abs_diff(right_place), bound);
            }
            // Integers and flags are equal or not.
            _ => measure.incomparable(),
        }
    }
}

/// The first element that differs, row-major, with both values; `None` where
/// bytes are equal, or the dtype is not known.
#[must_use]
pub fn first_element(dtype: &str, left: &[u8], right: &[u8]) -> Option<(u64, f64, f64)> {
    let (size, read) = element::reader(dtype)?;
    let mut pairs = (0..).zip(left.chunks_exact(size).zip(right.chunks_exact(size)));
    let (index, (left, right)) = pairs.find(|(_, (left, right))| left != right)?;
    Some((index, read(left).0, read(right).0))
}

/// Compares two JSON documents: floats as numbers, everything else exactly.
/// Gives a JSON pointer to the first place that differs, empty for the whole.
#[must_use]
pub fn json(reference: &Value, resumed: &Value, bound: f64) -> (Measure, Option<String>) {
    let mut measure = Measure::default();
    let mut first = None;
    walk(&mut measure, &mut first, "", reference, resumed, bound);
    (measure, first)
}

fn walk(
    measure: &mut Measure,
    first: &mut Option<String>,
    pointer: &str,
    reference: &Value,
    resumed: &Value,
    bound: f64,
) {
    let before = *measure;
    match (reference, resumed) {
        (Value::Object(left), Value::Object(right)) if left.keys().eq(right.keys()) => {
            for (key, value) in left {
                let other = right.get(key).unwrap_or(&Value::Null);
                walk(measure, first, &format!("{pointer}/{key}"), value, other, bound);
            }
        }
        (Value::Array(left), Value::Array(right)) if left.len() == right.len() => {
            for (index, (value, other)) in left.iter().zip(right).enumerate() {
                walk(measure, first, &format!("{pointer}/{index}"), value, other, bound);
            }
        }
        (Value::Number(left), Value::Number(right)) if left.is_f64() && right.is_f64() => {
            if let (Some(left), Some(right)) = (left.as_f64(), right.as_f64()) {
                let place = |value: f64| element::ordered_64(value.to_bits());
                let ulp = place(left).abs_diff(place(right));
                measure.numbers(left, right, ulp, bound);
            }
        }
        (left, right) if left == right => {}
        _ => measure.incomparable(),
    }
    if *measure != before {
        first.get_or_insert_with(|| pointer.to_owned());
    }
}

#[cfg(test)]
#[allow(clippy::float_cmp, reason = "distances are exact")]
mod tests {
    use super::*;

    fn tensor_of(name: &str, values: &[f32]) -> NamedTensor {
        NamedTensor {
            name: name.to_owned(),
            dtype: "F32".to_owned(),
            shape: vec![values.len() as u64],
            bytes: values.iter().flat_map(|value| value.to_le_bytes()).collect(),
        }
    }

    fn check(reference: &[f32], resumed: &[f32], absolute: f64, relative: f64, ulp: u64, different: u64) {
        let (measure, first) = tensors(&[tensor_of("a", reference)], &[tensor_of("a", resumed)], 0.0);
        let found = (measure.max_absolute, measure.max_relative, measure.max_ulp, measure.num_different);
        assert_eq!(found, (absolute, relative, ulp, different), "{reference:?} {resumed:?}");
        assert_eq!(first.is_some(), different > 0);
    }

    #[test]
    fn distances_are_those_of_the_numbers_and_zero_only_for_equal_bits() {
        check(&[1.0, -2.0], &[1.0, -2.0], 0.0, 0.0, 0, 0);
        check(&[1.0, 4.0], &[1.0, 2.0], 2.0, 0.5, 1 << 23, 1);
        check(
            &[1.0],
            &[1.0 + f32::EPSILON],
            f64::from(f32::EPSILON),
            f64::from(f32::EPSILON) / (1.0 + f64::from(f32::EPSILON)),
            1,
            1,
        );
        check(&[0.0], &[-0.0], 0.0, 0.0, 1, 1);
        let (tiny, bits) = (f32::from_bits(1), f64::from(f32::from_bits(1)));
        check(&[tiny], &[-tiny], 2.0 * bits, 2.0, 3, 1);
        check(&[f32::NAN], &[1.0], f64::INFINITY, f64::INFINITY, MAX_ULP, 1);
        check(&[f32::NAN], &[f32::NAN], 0.0, 0.0, 0, 0);
        check(&[f32::INFINITY], &[1.0], f64::INFINITY, f64::INFINITY, MAX_ULP, 1);
    }

    #[test]
    fn an_element_within_the_relative_bound_is_not_counted_beyond_it() {
        let (left, right) = ([tensor_of("a", &[100.0, 1e-6])], [tensor_of("a", &[101.0, 2e-6])]);
        let (measure, _) = tensors(&left, &right, 0.1);
        assert_eq!(measure.max_absolute.to_bits(), 1.0_f64.to_bits());
        assert!((measure.max_absolute_beyond_relative - 1e-6).abs() < 1e-12, "{measure:?}");
    }

    #[test]
    fn missing_renamed_and_reshaped_tensors_are_infinitely_far() {
        let one = [tensor_of("a", &[1.0])];
        for other in [vec![], vec![tensor_of("b", &[1.0])], vec![tensor_of("a", &[1.0, 1.0])]] {
            let (measure, first) = tensors(&one, &other, 0.0);
            assert_eq!((measure.max_absolute, measure.max_ulp), (f64::INFINITY, MAX_ULP));
            assert_eq!(first.as_deref(), Some("a"));
        }
    }

    #[test]
    fn half_precision_is_read_as_ieee_754_says() {
        for (bits, value) in [
            (0x3c00, 1.0),
            (0xc000, -2.0),
            (0x7bff, 65504.0),
            (0x0001, 5.960_464_477_539_063e-8),
            (0x7c00, f64::INFINITY),
        ] {
            assert_eq!(element::half(bits).to_bits(), f64::to_bits(value));
        }
        assert!(element::half(0x7e00).is_nan());
    }

    #[test]
    fn the_first_element_has_a_place_and_two_values_in_every_dtype() {
        let bytes =
            |values: &[f32]| -> Vec<u8> { values.iter().flat_map(|value| value.to_le_bytes()).collect() };
        let (left, right) = (bytes(&[1.0, 2.0, 3.0]), bytes(&[1.0, 2.5, 4.0]));
        assert_eq!(first_element("F32", &left, &right), Some((1, 2.0, 2.5)));
        assert_eq!(first_element("F32", &left, &left), None);
        assert_eq!(first_element("BF16", &[0x80, 0x3f], &[0x00, 0x40]), Some((0, 1.0, 2.0)));
        assert_eq!(first_element("U64", &7_u64.to_le_bytes(), &9_u64.to_le_bytes()), Some((0, 7.0, 9.0)));
        assert_eq!(first_element("F8", &[1], &[2]), None);
        // Integers have no distance: they are equal or not.
        let tensor = |value: u64| NamedTensor {
            name: "n".to_owned(),
            dtype: "U64".to_owned(),
            shape: vec![1],
            bytes: value.to_le_bytes().to_vec(),
        };
        let (measure, _) = tensors(&[tensor(7)], &[tensor(9)], 0.0);
        assert_eq!((measure.max_absolute, measure.max_ulp), (f64::INFINITY, MAX_ULP));
    }

    #[test]
    fn json_is_compared_by_number_and_named_by_pointer() {
        let value = |text: &str| serde_json::from_str::<Value>(text).expect("JSON");
        let (left, right) = (value(r#"{"a":1,"b":[1.5,2]}"#), value(r#"{"a":1,"b":[2.0,2]}"#));
        let (measure, first) = json(&left, &right, 0.0);
        assert_eq!((measure.max_absolute, measure.num_different, first.as_deref()), (0.5, 1, Some("/b/0")));
        for other in [r#"{"a":2,"b":[1.5,2]}"#, r#"{"a":1,"b":[1.5]}"#, r#"{"a":1,"c":[1.5,2]}"#, "null"] {
            let (measure, first) = json(&left, &value(other), 0.0);
            assert!(measure.max_absolute.is_infinite() && first.is_some(), "{other}");
        }
        assert_eq!(json(&left, &left, 0.0), (Measure::default(), None));
    }

    #[test]
    fn the_first_step_stays_and_the_largest_distance_wins() {
        let (near, _) = tensors(&[tensor_of("a", &[1.0])], &[tensor_of("a", &[1.5])], 0.0);
        let (far, _) = tensors(&[tensor_of("a", &[1.0])], &[tensor_of("a", &[3.0])], 0.0);
        let mut total = Measure::default();
        total.add(4, &Measure::default());
        total.add(5, &near);
        total.add(6, &far);
        assert_eq!((total.first_step(), total.max_absolute, total.num_different), (Some(5), 2.0, 2));
    }
}
