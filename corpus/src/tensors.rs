//! Tensors as safetensors files; the Hugging Face `config.json` beside them is
//! [`crate::configuration`]'s.
//!
//! The layout is the one form that `docs/FORMAT.md` ("Checkpoint") allows:
//! tensors in name order, data without gaps, a header padded with spaces to a
//! multiple of eight. Reading is strict: the header is made again from what was
//! read and must be equal byte for byte, so that a file has one spelling and a
//! digest of it means one thing.

use std::collections::BTreeMap;
use std::io::{Read, Write};

use schemas::digest::Digest;
use schemas::state::TensorInfo;
use serde::{Deserialize, Serialize};

pub use crate::configuration::config_json;

/// Longest header that is read, in bytes; the safetensors crate's own limit.
const MAX_HEADER_BYTES: u64 = 100_000_000;

/// Largest single tensor that is read, in bytes.
const MAX_TENSOR_BYTES: u64 = 1 << 40;

/// A tensor as bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedTensor {
    /// Name in the file.
    pub name: String,
    /// safetensors spelling of the dtype: `F32`.
    pub dtype: String,
    /// Row-major extents.
    pub shape: Vec<u64>,
    /// Elements, little-endian.
    pub bytes: Vec<u8>,
}

impl NamedTensor {
    /// Everything but the bytes.
    #[must_use]
    pub fn info(&self) -> TensorInfo {
        TensorInfo { dtype: self.dtype.clone(), name: self.name.clone(), shape: self.shape.clone() }
    }
}

/// Whether a file holds a model that other tools load, or training state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileKind {
    /// With `{"format":"pt"}` in `__metadata__`, which loaders ask for.
    Model,
    /// Without `__metadata__`.
    State,
}

/// What was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WrittenShard {
    /// BLAKE3 of the bytes.
    pub digest: Digest,
    /// Number of bytes.
    pub num_bytes: u64,
    /// Tensors in name order.
    pub tensors: Vec<TensorInfo>,
}

/// Why a file cannot be written or read.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    /// The system refused.
    #[error("safetensors: cannot read or write the file")]
    Io(#[from] std::io::Error),
    /// Two tensors of one name.
    #[error("safetensors: two tensors are named {name:?}")]
    Duplicate {
        /// The name.
        name: String,
    },
    /// Bytes that do not fit dtype and shape.
    #[error("safetensors: tensor {name:?} is {dtype} {shape:?} but has {actual} bytes")]
    Bytes {
        /// The tensor.
        name: String,
        /// Its dtype.
        dtype: String,
        /// Its shape.
        shape: Vec<u64>,
        /// Bytes there are.
        actual: u64,
    },
    /// A header that is not JSON of the right shape.
    #[error("safetensors: the header is malformed")]
    Header(#[from] serde_json::Error),
    /// A file in another form than ours.
    #[error("safetensors: {reason}; restore the file or take another checkpoint")]
    Form {
        /// What is different.
        reason: String,
    },
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct HeaderTensor {
    dtype: String,
    shape: Vec<u64>,
    data_offsets: [u64; 2],
}

#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum HeaderMember {
    Tensor(HeaderTensor),
    Metadata(BTreeMap<String, String>),
}

/// Name of the header member that holds text, not a tensor.
const METADATA: &str = "__metadata__";

/// Bytes of an element, or `None` for a dtype that is not used here.
fn element_bytes(dtype: &str) -> Option<u64> {
    match dtype {
        "F32" | "I32" | "U32" => Some(4),
        "F64" | "I64" | "U64" => Some(8),
        "F16" | "BF16" | "I16" | "U16" => Some(2),
        "I8" | "U8" | "BOOL" => Some(1),
        _ => None,
    }
}

/// Bytes of a tensor, or `None` for an unknown dtype or an overflow.
fn tensor_bytes(dtype: &str, shape: &[u64]) -> Option<u64> {
    let elements = shape.iter().try_fold(1u64, |product, extent| product.checked_mul(*extent))?;
    elements.checked_mul(element_bytes(dtype)?).filter(|bytes| *bytes <= MAX_TENSOR_BYTES)
}

/// Header with its length prefix, for tensors that are in name order.
fn header_bytes(kind: FileKind, tensors: &[TensorInfo]) -> Result<Vec<u8>, ExportError> {
    let mut members = BTreeMap::new();
    if kind == FileKind::Model {
        let metadata = BTreeMap::from([("format".to_owned(), "pt".to_owned())]);
        members.insert(METADATA.to_owned(), HeaderMember::Metadata(metadata));
    }
    let mut offset = 0u64;
    for tensor in tensors {
        let size = tensor_bytes(&tensor.dtype, &tensor.shape).ok_or_else(|| ExportError::Form {
            reason: format!(
                "tensor {:?} has dtype {} and shape {:?}",
                tensor.name, tensor.dtype, tensor.shape
            ),
        })?;
        let end = offset
            .checked_add(size)
            .ok_or_else(|| ExportError::Form { reason: "the tensors exceed 64-bit offsets".to_owned() })?;
        let member = HeaderTensor {
            dtype: tensor.dtype.clone(),
            shape: tensor.shape.clone(),
            data_offsets: [offset, end],
        };
        if members.insert(tensor.name.clone(), HeaderMember::Tensor(member)).is_some() {
            return Err(ExportError::Duplicate { name: tensor.name.clone() });
        }
        offset = end;
    }
    let mut json = serde_json::to_vec(&members)?;
    json.resize(json.len().next_multiple_of(8), b' ');
    let mut bytes = (json.len() as u64).to_le_bytes().to_vec();
    bytes.append(&mut json);
    Ok(bytes)
}

/// Writes tensors, which must be in ascending order of names, and hashes what
/// is written. Nothing is written of tensors that do not fit their shapes. The
/// caller syncs the file.
///
/// # Errors
/// When writing fails, names are not ascending, or bytes do not fit a shape.
pub fn write(
    kind: FileKind,
    tensors: &[NamedTensor],
    out: &mut impl Write,
) -> Result<WrittenShard, ExportError> {
    let infos: Vec<TensorInfo> = tensors.iter().map(NamedTensor::info).collect();
    for pair in infos.windows(2) {
        if pair[0].name >= pair[1].name {
            return Err(ExportError::Form {
                reason: format!("{:?} does not come after {:?}", pair[1].name, pair[0].name),
            });
        }
    }
    for tensor in tensors {
        let actual = tensor.bytes.len() as u64;
        if tensor_bytes(&tensor.dtype, &tensor.shape) != Some(actual) {
            return Err(ExportError::Bytes {
                name: tensor.name.clone(),
                dtype: tensor.dtype.clone(),
                shape: tensor.shape.clone(),
                actual,
            });
        }
    }
    let header = header_bytes(kind, &infos)?;
    let parts = || std::iter::once(&header).chain(tensors.iter().map(|tensor| &tensor.bytes));
    let num_bytes = parts().map(|part| part.len() as u64).sum();
    // Hashing takes about half as long as writing, so it is done beside it. Both
    // read the same memory; what the disk took is compared when it is validated.
    let (digest, written) = std::thread::scope(|scope| {
        let hashing = scope.spawn(|| {
            let mut hasher = blake3::Hasher::new();
            parts().for_each(|part| _ = hasher.update(part));
            Digest::blake3(*hasher.finalize().as_bytes())
        });
        let written = parts().try_for_each(|part| out.write_all(part));
        (hashing.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)), written)
    });
    written?;
    Ok(WrittenShard { digest, num_bytes, tensors: infos })
}

/// The file as bytes; for small models and tests.
///
/// # Errors
/// As [`write`].
pub fn safetensors_bytes(kind: FileKind, tensors: &[NamedTensor]) -> Result<Vec<u8>, ExportError> {
    let mut bytes = Vec::new();
    write(kind, tensors, &mut bytes)?;
    Ok(bytes)
}

/// Reads a whole file strictly, hashing it.
///
/// Memory is bounded by `num_bytes`, the size that the caller knows of the
/// file: a header that announces more is refused before anything is allocated.
///
/// # Errors
/// When reading fails or the file is not in the one form that [`write`] gives.
pub fn read(
    kind: FileKind,
    input: &mut impl Read,
    num_bytes: u64,
) -> Result<(Vec<NamedTensor>, WrittenShard), ExportError> {
    let form = |reason: String| ExportError::Form { reason };
    let mut hasher = blake3::Hasher::new();
    let mut prefix = [0u8; 8];
    input.read_exact(&mut prefix)?;
    let length = u64::from_le_bytes(prefix);
    if length > MAX_HEADER_BYTES.min(num_bytes.saturating_sub(8)) {
        return Err(form(format!("the header announces {length} bytes in a file of {num_bytes}")));
    }
    let mut json = vec![0u8; usize::try_from(length).map_err(|_| form("the header is too long".to_owned()))?];
    input.read_exact(&mut json)?;
    let infos = parse_header(kind, &json)?;
    let header = header_bytes(kind, &infos)?;
    if header[..8] != prefix || header[8..] != json {
        return Err(form("the header is not in canonical form".to_owned()));
    }
    hasher.update(&header);
    let sizes = infos.iter().map(|info| tensor_bytes(&info.dtype, &info.shape).unwrap_or(0));
    let data: u64 = sizes.fold(0, u64::saturating_add);
    if (header.len() as u64).saturating_add(data) != num_bytes {
        return Err(form(format!("the header describes {data} bytes of data in a file of {num_bytes}")));
    }
    let mut tensors = Vec::with_capacity(infos.len());
    for info in &infos {
        let size = tensor_bytes(&info.dtype, &info.shape).unwrap_or(0);
        let size = usize::try_from(size).map_err(|_| form(format!("tensor {:?} is too large", info.name)))?;
        let mut bytes = vec![0u8; size];
        input.read_exact(&mut bytes)?;
        hasher.update(&bytes);
        tensors.push(NamedTensor {
            name: info.name.clone(),
            dtype: info.dtype.clone(),
            shape: info.shape.clone(),
            bytes,
        });
    }
    if input.read(&mut [0u8])? != 0 {
        return Err(form("bytes follow the last tensor".to_owned()));
    }
    let digest = Digest::blake3(*hasher.finalize().as_bytes());
    Ok((tensors, WrittenShard { digest, num_bytes, tensors: infos }))
}

fn parse_header(kind: FileKind, json: &[u8]) -> Result<Vec<TensorInfo>, ExportError> {
    let members: BTreeMap<String, HeaderMember> = serde_json::from_slice(json)?;
    let mut infos = Vec::with_capacity(members.len());
    for (name, member) in members {
        match member {
            HeaderMember::Tensor(tensor) => {
                infos.push(TensorInfo { dtype: tensor.dtype, name, shape: tensor.shape });
            }
            HeaderMember::Metadata(_) if name == METADATA && kind == FileKind::Model => {}
            HeaderMember::Metadata(_) => {
                return Err(ExportError::Form { reason: format!("header member {name:?} is not a tensor") });
            }
        }
    }
    Ok(infos)
}
