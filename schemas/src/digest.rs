//! Digests as text: `blake3:<64 hex>` and `sha256:<64 hex>`.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Which hash function made a digest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Algorithm {
    /// BLAKE3, 256-bit output: names artifacts and examples.
    Blake3,
    /// SHA-256 (FIPS 180-4): contracts, tree nodes, keys.
    Sha256,
}

impl Algorithm {
    /// The prefix in text, without the colon.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Blake3 => "blake3",
            Self::Sha256 => "sha256",
        }
    }
}

/// A 32-byte digest together with the function that made it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest {
    /// The hash function.
    pub algorithm: Algorithm,
    /// The 32 output bytes.
    pub bytes: [u8; 32],
}

/// A text that is not a digest.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("not a digest: {text:?}; expected \"blake3:\" or \"sha256:\" and 64 lower-case hex digits")]
pub struct ParseDigestError {
    /// What was found, cut at 80 characters.
    pub text: String,
}

impl Digest {
    /// A BLAKE3 digest from its bytes.
    #[must_use]
    pub const fn blake3(bytes: [u8; 32]) -> Self {
        Self { algorithm: Algorithm::Blake3, bytes }
    }

    /// A SHA-256 digest from its bytes.
    #[must_use]
    pub const fn sha256(bytes: [u8; 32]) -> Self {
        Self { algorithm: Algorithm::Sha256, bytes }
    }

    /// The 64 lower-case hex digits, without the prefix.
    #[must_use]
    pub fn hex(&self) -> String {
        encode_hex(&self.bytes)
    }
}

/// Lower-case hex of any bytes.
#[must_use]
pub fn encode_hex(bytes: &[u8]) -> String {
    let mut text = Vec::with_capacity(bytes.len() * 2);
    for byte in bytes {
        text.extend_from_slice(&hex_pair(*byte));
    }
    // Hex digits are ASCII, so nothing is replaced.
    String::from_utf8(text).unwrap_or_default()
}

fn hex_pair(byte: u8) -> [u8; 2] {
    HEX_PAIRS[usize::from(byte)]
}

/// The two digits of every byte: entries are mostly digests.
static HEX_PAIRS: [[u8; 2]; 256] = {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut pairs = [[0; 2]; 256];
    let mut byte = 0;
    while byte < 256 {
        pairs[byte] = [DIGITS[byte >> 4], DIGITS[byte & 15]];
        byte += 1;
    }
    pairs
};

/// Bytes from lower-case hex; `None` for an odd length or any other character.
#[must_use]
pub fn decode_hex(text: &str) -> Option<Vec<u8>> {
    let (pairs, []) = text.as_bytes().as_chunks() else { return None };
    pairs.iter().map(|pair| byte_of(*pair)).collect()
}

/// Values of lower-case hex digits by their character; of others, a value that no
/// digit has.
const DIGIT_VALUES: [u8; 256] = {
    let mut values = [NO_DIGIT; 256];
    let mut value = 0;
    while value < 16 {
        values[b"0123456789abcdef"[value as usize] as usize] = value;
        value += 1;
    }
    values
};

const NO_DIGIT: u8 = 0xff;

fn byte_of([high, low]: [u8; 2]) -> Option<u8> {
    let (high, low) = (DIGIT_VALUES[usize::from(high)], DIGIT_VALUES[usize::from(low)]);
    (high != NO_DIGIT && low != NO_DIGIT).then_some(high << 4 | low)
}

/// Exactly 64 digits. An audit reads several digests for every step, so nothing is
/// allocated and no digit decides where the next one is looked at.
fn decode_32(text: &str) -> Option<[u8; 32]> {
    let digits: &[u8; 64] = text.as_bytes().try_into().ok()?;
    let (mut bytes, mut seen) = ([0; 32], 0);
    for (byte, [high, low]) in bytes.iter_mut().zip(digits.as_chunks().0) {
        let (high, low) = (DIGIT_VALUES[usize::from(*high)], DIGIT_VALUES[usize::from(*low)]);
        seen |= high | low;
        *byte = high << 4 | low;
    }
    // Values of digits have four bits.
    (seen < 16).then_some(bytes)
}

impl fmt::Display for Digest {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}:{}", self.algorithm.name(), self.hex())
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, formatter)
    }
}

impl FromStr for Digest {
    type Err = ParseDigestError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let error = || ParseDigestError { text: text.chars().take(80).collect() };
        let (prefix, digits) = text.split_once(':').ok_or_else(error)?;
        let algorithm = match prefix {
            "blake3" => Algorithm::Blake3,
            "sha256" => Algorithm::Sha256,
            _ => return Err(error()),
        };
        let bytes = decode_32(digits).ok_or_else(error)?;
        Ok(Self { algorithm, bytes })
    }
}

impl Serialize for Digest {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        // A step holds several digests, so they are written without allocation.
        let mut text = [0u8; 71];
        text[..6].copy_from_slice(self.algorithm.name().as_bytes());
        text[6] = b':';
        for (pair, byte) in text[7..].as_chunks_mut().0.iter_mut().zip(self.bytes) {
            *pair = hex_pair(byte);
        }
        serializer.serialize_str(std::str::from_utf8(&text).map_err(serde::ser::Error::custom)?)
    }
}

impl<'de> Deserialize<'de> for Digest {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(DigestVisitor)
    }
}

/// Parses where the text stands: a step holds several digests.
struct DigestVisitor;

impl serde::de::Visitor<'_> for DigestVisitor {
    type Value = Digest;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a digest")
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Digest, E> {
        text.parse().map_err(E::custom)
    }
}

#[cfg(feature = "json-schema")]
impl schemars::JsonSchema for Digest {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Digest".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({
            "type": "string",
            "description": "Hash function, colon, 64 lower-case hex digits.",
            "pattern": "^(blake3|sha256):[0-9a-f]{64}$"
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_round_trips_and_rejects_upper_case() {
        let digest = Digest::blake3([0xab; 32]);
        let text = digest.to_string();
        assert_eq!(text.parse::<Digest>(), Ok(digest));
        assert_eq!(serde_json::to_string(&digest).ok(), Some(format!("\"{text}\"")));
        assert!(text.to_uppercase().parse::<Digest>().is_err());
        assert!(format!("md5:{}", digest.hex()).parse::<Digest>().is_err());
        assert!(text[..text.len() - 2].parse::<Digest>().is_err());
    }

    #[test]
    fn every_character_in_every_place_is_a_digit_or_refused() {
        let text: String = "0123456789abcdef".repeat(4);
        for at in 0..text.len() {
            for character in (0..=0x7f_u8).chain([0xc3]) {
                let mut bytes = text.clone().into_bytes();
                bytes[at] = character;
                // Half of a character of two bytes is no text.
                let Ok(changed) = String::from_utf8(bytes) else { continue };
                let expected = matches!(character, b'0'..=b'9' | b'a'..=b'f');
                let read = format!("blake3:{changed}").parse::<Digest>().ok();
                assert_eq!(read.is_some(), expected, "{changed}");
                assert_eq!(decode_hex(&changed).is_some(), expected, "{changed}");
                if let Some(read) = read {
                    assert_eq!(read.hex(), changed);
                    assert_eq!(decode_hex(&changed), Some(read.bytes.to_vec()));
                }
            }
        }
    }
}
