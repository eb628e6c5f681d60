//! Headers of safetensors files. The validator has a parser of its own; what it
//! accepts has to be what the format's own crate, which trainer and evaluator
//! use, reads in it.

use ::safetensors::SafeTensors;
use validator::derive::safetensors::{Header, header_length, parse};

use super::memory::bounded;
use super::run;

/// A tensor of a few characters takes a name, a dtype and a shape of their own,
/// and the lists of them grow by doubling.
const FACTOR: usize = 128;

/// Longest data that an input is given to its header.
const MAX_DATA_BYTES: u64 = 1 << 20;

/// The largest offset that a header names, as far as it can be read.
fn end_of_data(header: &[u8]) -> u64 {
    let value: serde_json::Value = serde_json::from_slice(header).unwrap_or_default();
    let members = value.as_object().into_iter().flatten();
    let ends = members.filter_map(|(_, tensor)| tensor["data_offsets"][1].as_u64());
    ends.max().unwrap_or(0).min(MAX_DATA_BYTES)
}

fn by_validator(bytes: &[u8], file_bytes: u64) -> Option<Header> {
    let (first, rest) = bytes.split_first_chunk::<8>()?;
    let length = usize::try_from(header_length(*first, file_bytes).ok()?).ok()?;
    parse(rest.get(..length)?, file_bytes).ok()
}

/// The corpus holds length and header; the data are as many zeros as these say.
fn property(bytes: &[u8]) -> bool {
    let mut file = bytes.to_vec();
    if let Some((first, rest)) = bytes.split_first_chunk::<8>() {
        let length = usize::try_from(u64::from_le_bytes(*first)).unwrap_or(usize::MAX).min(rest.len());
        let end = usize::try_from(end_of_data(&rest[..length])).expect("at most a mebibyte");
        file.truncate(8 + length);
        file.resize(file.len() + end, 0);
    }
    let file_bytes = file.len() as u64;
    // Only the header is measured: it is all that is looked at.
    let Some(header) = bounded(bytes, FACTOR, || by_validator(&file, file_bytes)) else { return false };
    let other = SafeTensors::deserialize(&file).expect("what the validator reads is a safetensors file");
    let mut names: Vec<&str> = other.names();
    names.sort_unstable();
    assert!(names.iter().copied().eq(header.tensors.iter().map(|tensor| tensor.info.name.as_str())));
    for tensor in &header.tensors {
        let view = other.tensor(&tensor.info.name).expect("it is named");
        let shape: Vec<u64> = view.shape().iter().map(|size| *size as u64).collect();
        assert_eq!(
            (format!("{:?}", view.dtype()), shape),
            (tensor.info.dtype.clone(), tensor.info.shape.clone())
        );
        let from = view.data().as_ptr().addr() - file.as_ptr().addr();
        assert_eq!((from as u64, view.data().len() as u64), (tensor.offset, tensor.num_bytes));
    }
    true
}

#[test]
fn safetensors() {
    run::target("safetensors", property);
}
