//! Header of a safetensors file, parsed strictly.
//!
//! The format (huggingface/safetensors, "Format") leaves freedom that would let
//! two readers see two models: repeated names, gaps, overlapping offsets,
//! tensors in any order. `docs/FORMAT.md` ("Checkpoint") takes that freedom
//! away, and this parser refuses what is left out there.

use std::fmt;

use schemas::state::TensorInfo;
use serde::de::{self, Deserialize, Deserializer, MapAccess, Visitor};

/// Largest header that is read: the bound of every document.
pub const MAX_HEADER_BYTES: u64 = 16 << 20;
/// Bytes of the length that precedes the header.
const LENGTH_BYTES: u64 = 8;

/// What is wrong with a safetensors header.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("safetensors header: {0}")]
pub struct HeaderError(String);

/// One tensor and where its bytes are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tensor {
    /// Name, dtype, shape.
    pub info: TensorInfo,
    /// Size of its data in bytes.
    pub num_bytes: u64,
    /// First byte of its data within the file.
    pub offset: u64,
}

/// A parsed header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Header {
    /// Whether the header carries `{"format":"pt"}`.
    pub is_marked_pt: bool,
    /// Tensors in name order, which is the order of their data.
    pub tensors: Vec<Tensor>,
}

/// Length of the header that follows the first 8 bytes of a file.
///
/// # Errors
/// When it exceeds the file or [`MAX_HEADER_BYTES`], or is no multiple of 8.
pub fn header_length(first: [u8; 8], file_bytes: u64) -> Result<u64, HeaderError> {
    let length = u64::from_le_bytes(first);
    if length > MAX_HEADER_BYTES || length > file_bytes.saturating_sub(LENGTH_BYTES) {
        return Err(HeaderError(format!(
            "its length of {length} bytes does not fit a file of {file_bytes} bytes"
        )));
    }
    if !length.is_multiple_of(8) {
        return Err(HeaderError(format!("its length of {length} bytes is no multiple of 8")));
    }
    Ok(length)
}

/// Parses the header of a file of `file_bytes` bytes.
///
/// # Errors
/// When it is not JSON of the known shape, names repeat or are not in order,
/// offsets leave gaps or overlap, or sizes do not agree with dtype and shape.
pub fn parse(header: &[u8], file_bytes: u64) -> Result<Header, HeaderError> {
    let text = std::str::from_utf8(header).map_err(|_| HeaderError("it is not UTF-8".to_owned()))?;
    let json = text.trim_end_matches(' ');
    // Only spaces may pad it; JSON itself would allow other white space.
    if !json.starts_with('{') || !json.ends_with('}') {
        return Err(HeaderError("it is not one object of tensors, padded with spaces".to_owned()));
    }
    let members: Members = serde_json::from_str(json).map_err(|error| HeaderError(error.to_string()))?;
    let data_start = LENGTH_BYTES + header.len() as u64;
    let mut end = 0u64;
    let mut tensors: Vec<Tensor> = Vec::with_capacity(members.tensors.len());
    for (name, raw) in members.tensors {
        if tensors.last().is_some_and(|last| last.info.name >= name) {
            return Err(HeaderError(format!("tensor {name:?} is out of name order or repeated")));
        }
        let num_bytes = data_bytes(&raw).ok_or_else(|| {
            HeaderError(format!("tensor {name:?} has no known size: {} {:?}", raw.dtype, raw.shape))
        })?;
        let expected = end.checked_add(num_bytes).map(|next| [end, next]);
        if expected != Some(raw.data_offsets) {
            let offsets = raw.data_offsets;
            return Err(HeaderError(format!(
                "tensor {name:?} is at {offsets:?}, expected {num_bytes} bytes from {end}"
            )));
        }
        let info = TensorInfo { dtype: raw.dtype, name, shape: raw.shape };
        tensors.push(Tensor { info, num_bytes, offset: data_start.saturating_add(end) });
        end = raw.data_offsets[1];
    }
    if data_start.checked_add(end) != Some(file_bytes) {
        return Err(HeaderError(format!("data end at byte {end}, the file has {file_bytes} bytes")));
    }
    Ok(Header { is_marked_pt: members.is_marked_pt, tensors })
}

/// Bytes of one element, by the format's spelling of the dtype.
#[must_use]
pub fn element_bytes(dtype: &str) -> Option<u64> {
    Some(match dtype {
        "BOOL" | "U8" | "I8" => 1,
        "U16" | "I16" | "F16" | "BF16" => 2,
        "U32" | "I32" | "F32" => 4,
        "U64" | "I64" | "F64" => 8,
        _ => return None,
    })
}

fn data_bytes(raw: &RawTensor) -> Option<u64> {
    super::llama::num_elements(&raw.shape)?.checked_mul(element_bytes(&raw.dtype)?)
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct RawTensor {
    data_offsets: [u64; 2],
    dtype: String,
    shape: Vec<u64>,
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Metadata {
    format: String,
}

/// Members in the order of the file, so that repetition shows.
struct Members {
    is_marked_pt: bool,
    tensors: Vec<(String, RawTensor)>,
}

impl<'de> Deserialize<'de> for Members {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct MembersVisitor;

        impl<'de> Visitor<'de> for MembersVisitor {
            type Value = Members;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("an object of tensors")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Members, A::Error> {
                let mut members = Members { is_marked_pt: false, tensors: Vec::new() };
                while let Some(name) = map.next_key::<String>()? {
                    if name == "__metadata__" {
                        let metadata: Metadata = map.next_value()?;
                        if metadata.format != "pt" || members.is_marked_pt {
                            return Err(de::Error::custom("metadata is not one {\"format\":\"pt\"}"));
                        }
                        members.is_marked_pt = true;
                    } else {
                        members.tensors.push((name, map.next_value()?));
                    }
                }
                Ok(members)
            }
        }

        deserializer.deserialize_map(MembersVisitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(json: &str, data_bytes: u64, expected: Result<usize, &str>) {
        let actual = parse(json.as_bytes(), 8 + json.len() as u64 + data_bytes);
        match (actual, expected) {
            (Ok(header), Ok(count)) => assert_eq!(header.tensors.len(), count, "{json}"),
            (Err(error), Err(part)) => assert!(error.to_string().contains(part), "{json}: {error}"),
            (actual, _) => panic!("{json}: {actual:?}"),
        }
    }

    #[test]
    fn well_formed_headers() {
        check("{}  ", 0, Ok(0));
        let json = r#"{"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},"b":{"dtype":"U8","shape":[],"data_offsets":[24,25]}}"#;
        check(json, 25, Ok(2));
        let header = parse(json.as_bytes(), 8 + json.len() as u64 + 25).expect("well-formed");
        assert!(header.is_marked_pt);
        assert_eq!(header.tensors[1].offset, 8 + json.len() as u64 + 24);
        assert_eq!((header.tensors[0].num_bytes, header.tensors[1].num_bytes), (24, 1));
    }

    #[test]
    fn every_freedom_is_refused() {
        let tensor = |name: &str, from: u64, to: u64| {
            format!(r#""{name}":{{"dtype":"F32","shape":[2],"data_offsets":[{from},{to}]}}"#)
        };
        let object = |tensors: &[String]| format!("{{{}}}", tensors.join(","));
        check(&object(&[tensor("a", 0, 8), tensor("b", 12, 20)]), 20, Err("expected 8 bytes from 8"));
        check(&object(&[tensor("a", 0, 8), tensor("b", 4, 12)]), 12, Err("expected 8 bytes from 8"));
        check(&object(&[tensor("b", 0, 8), tensor("a", 8, 16)]), 16, Err("out of name order"));
        check(&object(&[tensor("a", 0, 8), tensor("a", 8, 16)]), 16, Err("repeated"));
        check(&object(&[tensor("a", 0, 12)]), 12, Err("expected 8 bytes from 0"));
        check(&object(&[tensor("a", 0, 8)]), 9, Err("data end at byte 8"));
        check(r#"{"a":{"dtype":"F33","shape":[],"data_offsets":[0,4]}}"#, 4, Err("no known size"));
        check(
            r#"{"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]}}"#,
            0,
            Err("no known size"),
        );
        check(r#"{"__metadata__":{"format":"np"}}"#, 0, Err("metadata"));
        check(r#"{"__metadata__":{"format":"pt","x":"y"}}"#, 0, Err("unknown field"));
        check("{}\n", 0, Err("padded with spaces"));
        check("[]", 0, Err("object of tensors"));
    }

    #[test]
    fn false_lengths_are_refused_before_anything_is_read() {
        assert!(header_length(u64::MAX.to_le_bytes(), u64::MAX).is_err());
        assert!(header_length(100u64.to_le_bytes(), 50).is_err());
        assert!(header_length(12u64.to_le_bytes(), 50).is_err());
        assert_eq!(header_length(16u64.to_le_bytes(), 24), Ok(16));
        assert!(header_length(8u64.to_le_bytes(), 3).is_err());
    }
}
