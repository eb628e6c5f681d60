//! Numbers that keep their bits in JSON.
//!
//! A finite double is written as the shortest decimal that reads back to the
//! same bits; a double that is not finite, and an integer that may exceed
//! 2^53, is written as a string. See `docs/FORMAT.md`, "Numbers".

use std::fmt;
use std::io;

use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// An IEEE 754 binary64 that survives JSON bit for bit.
///
/// Finite values are JSON numbers and always carry a `.` or an `e`, so that
/// an integer and a float never share a spelling. `"Infinity"` and
/// `"-Infinity"` are strings; a NaN is `"NaN:"` and its 16 hex digits.
/// Equality is of bits.
#[derive(Clone, Copy)]
pub struct Float(pub f64);

impl PartialEq for Float {
    fn eq(&self, other: &Self) -> bool {
        self.0.to_bits() == other.0.to_bits()
    }
}

impl Eq for Float {}

impl Float {
    /// Widens an f32; exact, so 0.1f32 reads 0.10000000149011612.
    #[must_use]
    pub fn from_f32(value: f32) -> Self {
        Self(f64::from(value))
    }

    /// Whether the value is neither infinite nor NaN.
    #[must_use]
    pub fn is_finite(self) -> bool {
        self.0.is_finite()
    }
}

impl From<f64> for Float {
    fn from(value: f64) -> Self {
        Self(value)
    }
}

impl fmt::Debug for Float {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, formatter)
    }
}

impl fmt::Display for Float {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, formatter)
    }
}

impl Serialize for Float {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if self.0.is_finite() {
            serializer.serialize_f64(self.0)
        } else if self.0.is_nan() {
            serializer.collect_str(&format_args!("NaN:{:016x}", self.0.to_bits()))
        } else if self.0 > 0.0 {
            serializer.serialize_str("Infinity")
        } else {
            serializer.serialize_str("-Infinity")
        }
    }
}

struct FloatVisitor;

impl Visitor<'_> for FloatVisitor {
    type Value = Float;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a float, \"Infinity\", \"-Infinity\" or \"NaN:<16 hex digits>\"")
    }

    fn visit_f64<E: de::Error>(self, value: f64) -> Result<Float, E> {
        Ok(Float(value))
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Float, E> {
        match text {
            "Infinity" => return Ok(Float(f64::INFINITY)),
            "-Infinity" => return Ok(Float(f64::NEG_INFINITY)),
            _ => {}
        }
        let value = text
            .strip_prefix("NaN:")
            .filter(|digits| digits.len() == 16 && !digits.bytes().any(|b| b.is_ascii_uppercase()))
            .and_then(|digits| u64::from_str_radix(digits, 16).ok())
            .map(f64::from_bits)
            .filter(|value| value.is_nan());
        value.map(Float).ok_or_else(|| E::invalid_value(de::Unexpected::Str(text), &self))
    }
}

impl<'de> Deserialize<'de> for Float {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(FloatVisitor)
    }
}

/// How entry JSON spells what `serde_json` would spell otherwise: the exponent
/// of a large float has no plus sign.
#[derive(Debug, Clone, Copy, Default)]
pub struct EntryFormatter;

impl serde_json::ser::Formatter for EntryFormatter {
    fn write_f64<W: ?Sized + io::Write>(&mut self, writer: &mut W, value: f64) -> io::Result<()> {
        let mut plain = serde_json::ser::CompactFormatter;
        // Only exponents from 16 on are positive.
        if value.abs() < 1e16 {
            return plain.write_f64(writer, value);
        }
        let mut text = Vec::with_capacity(32);
        plain.write_f64(&mut text, value)?;
        text.retain(|byte| *byte != b'+');
        writer.write_all(&text)
    }
}

/// An unsigned 64-bit integer written as a decimal string: seeds, and anything
/// else that uses all 64 bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DecimalU64(pub u64);

impl Serialize for DecimalU64 {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for DecimalU64 {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let value: u64 = text
            .parse()
            .map_err(|_| de::Error::custom(format_args!("{text:?} is not a 64-bit decimal integer")))?;
        // One spelling only: no sign, no leading zero.
        if value.to_string() == text {
            Ok(Self(value))
        } else {
            Err(de::Error::custom(format_args!("{text:?} is not spelled canonically")))
        }
    }
}

#[cfg(feature = "json-schema")]
impl schemars::JsonSchema for Float {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Float".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({
            "description": "A binary64 that keeps its bits; strings for values that are not finite.",
            "anyOf": [
                { "type": "number" },
                { "type": "string", "pattern": "^(-?Infinity|NaN:[0-9a-f]{16})$" }
            ]
        })
    }
}

#[cfg(feature = "json-schema")]
impl schemars::JsonSchema for DecimalU64 {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "DecimalU64".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({
            "type": "string",
            "description": "An unsigned 64-bit integer in decimal.",
            "pattern": "^(0|[1-9][0-9]{0,19})$"
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(value: f64, text: &str) {
        let mut written = Vec::new();
        let mut serializer = serde_json::Serializer::with_formatter(&mut written, EntryFormatter);
        Float(value).serialize(&mut serializer).expect("a float serialises");
        let written = String::from_utf8(written).expect("JSON is UTF-8");
        assert_eq!(written, text);
        let read: Float = serde_json::from_str(&written).expect("and reads back");
        assert_eq!(read.0.to_bits(), value.to_bits());
    }

    #[test]
    fn every_kind_of_double_keeps_its_bits() {
        check(0.0, "0.0");
        check(-0.0, "-0.0");
        check(1.0, "1.0");
        check(f64::from(0.1f32), "0.10000000149011612");
        check(f64::INFINITY, "\"Infinity\"");
        check(f64::NEG_INFINITY, "\"-Infinity\"");
        check(f64::from_bits(0x7ff8_0000_0000_0001), "\"NaN:7ff8000000000001\"");
        check(f64::from_bits(1), "5e-324");
        check(f64::MAX, "1.7976931348623157e308");
        check(1e16, "1e16");
        check(-1e16, "-1e16");
        check(9_999_999_999_999_998.0, "9999999999999998.0");
    }

    #[test]
    fn integers_and_false_nans_are_not_floats() {
        assert!(serde_json::from_str::<Float>("1").is_err());
        assert!(serde_json::from_str::<Float>("\"NaN:3ff0000000000000\"").is_err());
        assert!(serde_json::from_str::<Float>("\"nan\"").is_err());
        assert!(serde_json::from_str::<DecimalU64>("\"007\"").is_err());
        assert!(serde_json::from_str::<DecimalU64>("7").is_err());
    }
}
