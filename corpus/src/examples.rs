//! The example table: every window of a split, by content.
//!
//! A shard of S bytes gives examples at offsets 0, C, 2C, ... with
//! `min(C, S - 1 - offset)` targets as long as that is at least one
//! (`docs/FORMAT.md`, "Examples"). Neighbours share one byte: the last target
//! of one is the first input of the next, so every byte of a shard but the
//! first is a target exactly once. Building streams; a shard may be larger
//! than memory.

use std::fs::File;
use std::io::{self, BufReader};
use std::path::{Path, PathBuf};

use schemas::data::{DataManifest, EXAMPLE_RECORD_BYTES, EXAMPLE_TABLE_MAGIC, ExampleRecord, Split};
use schemas::digest::Digest;

use crate::write::{BUFFER_BYTES, WriteError, read_full, write_whole};

/// Bytes before the first record: the magic and the number of records.
pub const EXAMPLE_TABLE_HEADER_BYTES: usize = 16;

/// Longest context that a table is built for, in tokens; a bound on memory.
pub const MAX_CONTEXT_LENGTH: u32 = 1 << 20;

/// Why an example table or a window of it cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum ExamplesError {
    /// The context length is 0 or above [`MAX_CONTEXT_LENGTH`].
    #[error("a context of {found} tokens gives no windows; it must be from 1 to {MAX_CONTEXT_LENGTH}")]
    ContextLength {
        /// What was asked for.
        found: u32,
    },
    /// The manifest has too many shards for a 32-bit index.
    #[error("the manifest names more shards than a table can number (2^32)")]
    TooManyShards,
    /// A shard is not as long as the manifest says.
    #[error("{} has {found} bytes, the manifest says {expected}; restore the file or build again", path.display())]
    ShardSize {
        /// The shard.
        path: PathBuf,
        /// Size in the manifest.
        expected: u64,
        /// Size on disk, as far as it was read.
        found: u64,
    },
    /// A shard's bytes are not those of the manifest.
    #[error("{} has digest {found}, the manifest says {expected}; restore the file or build again", path.display())]
    ShardDigest {
        /// The shard.
        path: PathBuf,
        /// Digest in the manifest.
        expected: Digest,
        /// Digest of the bytes.
        found: Digest,
    },
    /// Bytes that are not an example table.
    #[error("not an example table: {reason}; build it again from the manifest")]
    Malformed {
        /// What is wrong, with the place.
        reason: String,
    },
    /// A record points outside its shard, or at a shard that was not read.
    #[error("record {index} covers bytes {offset}.. of shard {shard}, which {reason}")]
    Window {
        /// Index of the record.
        index: usize,
        /// First byte.
        offset: u64,
        /// Index of the shard.
        shard: u32,
        /// What is wrong.
        reason: &'static str,
    },
    /// A file could not be read.
    #[error("cannot read {}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A file could not be written.
    #[error(transparent)]
    Write(#[from] WriteError),
}

impl ExamplesError {
    fn io(path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io { path, source }
    }
}

/// Number of examples that a shard of `num_bytes` gives.
#[must_use]
pub const fn num_examples(num_bytes: u64, context_length: u32) -> u64 {
    // S bytes have S - 1 targets, cut into windows of C.
    if context_length == 0 { 0 } else { num_bytes.saturating_sub(1).div_ceil(context_length as u64) }
}

/// All windows of a split, in the manifest's order.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ExampleTable {
    /// In table order.
    pub records: Vec<ExampleRecord>,
}

impl ExampleTable {
    /// Number of examples.
    #[must_use]
    pub fn num_examples(&self) -> usize {
        self.records.len()
    }

    /// Sum of the targets of the first `num_examples` records.
    #[must_use]
    pub fn num_targets(&self, num_examples: usize) -> u64 {
        self.records.iter().take(num_examples).map(|record| u64::from(record.num_targets)).sum()
    }

    /// The table's bytes.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes =
            Vec::with_capacity(EXAMPLE_TABLE_HEADER_BYTES + self.records.len() * EXAMPLE_RECORD_BYTES);
        bytes.extend_from_slice(&header(self.records.len() as u64));
        for record in &self.records {
            bytes.extend_from_slice(&encode(record));
        }
        bytes
    }

    /// Reads a table from its bytes.
    ///
    /// # Errors
    /// [`ExamplesError::Malformed`] for a wrong magic, a count that does not
    /// match the length, or a record without targets.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, ExamplesError> {
        let malformed = |reason: String| ExamplesError::Malformed { reason };
        let rest = bytes
            .strip_prefix(&EXAMPLE_TABLE_MAGIC)
            .ok_or_else(|| malformed("it does not begin with GLEXMPL1".to_owned()))?;
        let (count, records) = rest
            .split_first_chunk::<8>()
            .ok_or_else(|| malformed("it ends before the number of records".to_owned()))?;
        let count = u64::from_le_bytes(*count);
        let (records, remainder) = records.as_chunks::<EXAMPLE_RECORD_BYTES>();
        if !remainder.is_empty() || records.len() as u64 != count {
            let (whole, left) = (records.len(), remainder.len());
            return Err(malformed(format!(
                "it announces {count} records and holds {whole} and {left} bytes more"
            )));
        }
        let records = records
            .iter()
            .enumerate()
            .map(|(index, record)| {
                let record = decode(record);
                if record.num_targets == 0 {
                    return Err(malformed(format!("record {index} has no targets")));
                }
                Ok(record)
            })
            .collect::<Result<Vec<_>, _>>()?;
        Ok(Self { records })
    }
}

fn header(count: u64) -> [u8; EXAMPLE_TABLE_HEADER_BYTES] {
    let mut header = [0; EXAMPLE_TABLE_HEADER_BYTES];
    header[..8].copy_from_slice(&EXAMPLE_TABLE_MAGIC);
    header[8..].copy_from_slice(&count.to_le_bytes());
    header
}

fn encode(record: &ExampleRecord) -> [u8; EXAMPLE_RECORD_BYTES] {
    let mut bytes = [0; EXAMPLE_RECORD_BYTES];
    bytes[..4].copy_from_slice(&record.shard.to_le_bytes());
    bytes[4..8].copy_from_slice(&record.num_targets.to_le_bytes());
    bytes[8..16].copy_from_slice(&record.offset.to_le_bytes());
    bytes[16..].copy_from_slice(&record.id);
    bytes
}

fn decode(bytes: &[u8; EXAMPLE_RECORD_BYTES]) -> ExampleRecord {
    let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
    let mut id = [0; 32];
    id.copy_from_slice(&bytes[16..]);
    ExampleRecord {
        id,
        num_targets: word(4),
        offset: u64::from(word(8)) | u64::from(word(12)) << 32,
        shard: word(0),
    }
}

/// Reads the shards of a split and gives each window to `each`.
///
/// # Errors
/// When a shard is missing or is not what the manifest says.
fn for_each_record(
    manifest: &DataManifest,
    folder: &Path,
    split: Split,
    context_length: u32,
    mut each: impl FnMut(ExampleRecord) -> Result<(), ExamplesError>,
) -> Result<(), ExamplesError> {
    if context_length == 0 || context_length > MAX_CONTEXT_LENGTH {
        return Err(ExamplesError::ContextLength { found: context_length });
    }
    for (index, shard) in manifest.shards.iter().enumerate().filter(|(_, shard)| shard.split == split) {
        let index = u32::try_from(index).map_err(|_| ExamplesError::TooManyShards)?;
        let path = folder.join(&shard.path);
        let file = File::open(&path).map_err(ExamplesError::io(&path))?;
        let mut reader = BufReader::with_capacity(BUFFER_BYTES, file);
        let context = context_length as usize;
        let mut window = vec![0u8; context + 1];
        let mut hasher = blake3::Hasher::new();
        // `held` bytes at the front of the window come from the one before.
        let (mut held, mut offset, mut total) = (0, 0u64, 0u64);
        loop {
            let num_read = read_full(&mut reader, &mut window[held..]).map_err(ExamplesError::io(&path))?;
            hasher.update(&window[held..held + num_read]);
            total += num_read as u64;
            let covered = &window[..held + num_read];
            if covered.len() < 2 {
                break;
            }
            let num_targets = covered.len() - 1;
            each(ExampleRecord {
                id: *blake3::hash(covered).as_bytes(),
                num_targets: u32::try_from(num_targets).unwrap_or(context_length),
                offset,
                shard: index,
            })?;
            if num_targets < context {
                break;
            }
            window[0] = window[context];
            held = 1;
            offset += u64::from(context_length);
        }
        if total != shard.num_bytes {
            return Err(ExamplesError::ShardSize { path, expected: shard.num_bytes, found: total });
        }
        let found = Digest::blake3(*hasher.finalize().as_bytes());
        if found != shard.digest {
            return Err(ExamplesError::ShardDigest { path, expected: shard.digest, found });
        }
    }
    Ok(())
}

/// Builds the table of a split in memory. `folder` is the manifest's folder,
/// `context_length` is in tokens, which are bytes.
///
/// # Errors
/// When a shard is missing or is not what the manifest says.
pub fn build(
    manifest: &DataManifest,
    folder: &Path,
    split: Split,
    context_length: u32,
) -> Result<ExampleTable, ExamplesError> {
    let mut records = Vec::new();
    for_each_record(manifest, folder, split, context_length, |record| {
        records.push(record);
        Ok(())
    })?;
    Ok(ExampleTable { records })
}

/// Builds the table of a split straight into a file; memory does not grow
/// with the split. Returns the file's BLAKE3, size, and number of examples.
///
/// # Errors
/// As [`build`], and when the file cannot be written or holds something else.
pub fn build_into(
    manifest: &DataManifest,
    folder: &Path,
    split: Split,
    context_length: u32,
    table: &Path,
) -> Result<(Digest, u64, u64), ExamplesError> {
    let count: u64 = manifest
        .shards
        .iter()
        .filter(|shard| shard.split == split)
        .map(|shard| num_examples(shard.num_bytes, context_length))
        .sum();
    let (digest, num_bytes) = write_whole(table, |writer| {
        let failed = |source| WriteError::Io { action: "write", path: table.to_owned(), source };
        writer.write_all(&header(count)).map_err(failed)?;
        for_each_record(manifest, folder, split, context_length, |record| {
            writer.write_all(&encode(&record)).map_err(failed)?;
            Ok(())
        })
    })?;
    Ok((digest, num_bytes, count))
}

/// Reads a table from a file.
///
/// # Errors
/// When the file cannot be read or is not a table.
pub fn read(path: &Path) -> Result<ExampleTable, ExamplesError> {
    let bytes = std::fs::read(path).map_err(ExamplesError::io(path))?;
    ExampleTable::from_bytes(&bytes)
}

/// The bytes of the shards of one split, checked against the manifest.
#[derive(Debug, Clone, Default)]
pub struct ShardBytes {
    /// By index into the manifest's shards; `None` for another split's.
    shards: Vec<Option<Vec<u8>>>,
}

impl ShardBytes {
    /// Reads every shard of a split. `folder` is the manifest's folder.
    ///
    /// # Errors
    /// When a shard is missing or is not what the manifest says.
    pub fn load(manifest: &DataManifest, folder: &Path, split: Split) -> Result<Self, ExamplesError> {
        let mut shards = Vec::with_capacity(manifest.shards.len());
        for shard in &manifest.shards {
            if shard.split != split {
                shards.push(None);
                continue;
            }
            let path = folder.join(&shard.path);
            let bytes = std::fs::read(&path).map_err(ExamplesError::io(&path))?;
            if bytes.len() as u64 != shard.num_bytes {
                let (expected, found) = (shard.num_bytes, bytes.len() as u64);
                return Err(ExamplesError::ShardSize { path, expected, found });
            }
            let found = Digest::blake3(*blake3::hash(&bytes).as_bytes());
            if found != shard.digest {
                return Err(ExamplesError::ShardDigest { path, expected: shard.digest, found });
            }
            shards.push(Some(bytes));
        }
        Ok(Self { shards })
    }

    /// The bytes of one shard; `None` when it is not of this split.
    #[must_use]
    pub fn shard(&self, index: u32) -> Option<&[u8]> {
        self.shards.get(index as usize)?.as_deref()
    }

    /// The bytes that record `index` of `table` covers: `num_targets + 1`.
    ///
    /// # Errors
    /// [`ExamplesError::Window`] when there is no such record, it points
    /// outside its shard, or its identity is not that of the bytes.
    pub fn window(&self, table: &ExampleTable, index: usize) -> Result<&[u8], ExamplesError> {
        let none = ExampleRecord { id: [0; 32], num_targets: 0, offset: 0, shard: 0 };
        let record = table.records.get(index).copied().unwrap_or(none);
        let error =
            |reason| ExamplesError::Window { index, offset: record.offset, shard: record.shard, reason };
        if record.num_targets == 0 {
            return Err(error("is not in the table"));
        }
        let shard = self.shard(record.shard).ok_or_else(|| error("is not a shard of this split"))?;
        let first = usize::try_from(record.offset).map_err(|_| error("ends before them"))?;
        let covered = first
            .checked_add(record.num_targets as usize + 1)
            .and_then(|end| shard.get(first..end))
            .ok_or_else(|| error("ends before them"))?;
        if *blake3::hash(covered).as_bytes() != record.id {
            return Err(error("holds other bytes there than the record's identity says"));
        }
        Ok(covered)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(num_bytes: u64, context_length: u32, expected: u64) {
        assert_eq!(
            num_examples(num_bytes, context_length),
            expected,
            "{num_bytes} bytes, context {context_length}"
        );
    }

    #[test]
    fn boundaries_of_the_number_of_examples() {
        check(0, 4, 0);
        check(1, 4, 0);
        check(2, 4, 1);
        check(4, 4, 1);
        check(5, 4, 1);
        check(6, 4, 2);
        check(8, 4, 2);
        check(9, 4, 2);
        check(10, 4, 3);
        check(7, 1, 6);
        check(7, 0, 0);
        check(u64::MAX, 1, u64::MAX - 1);
    }

    #[test]
    fn malformed_tables_are_refused_with_the_place() {
        let table = ExampleTable {
            records: vec![ExampleRecord { id: [7; 32], num_targets: 3, offset: 1 << 40, shard: 2 }],
        };
        let bytes = table.to_bytes();
        assert_eq!(bytes.len(), EXAMPLE_TABLE_HEADER_BYTES + EXAMPLE_RECORD_BYTES);
        assert_eq!(ExampleTable::from_bytes(&bytes).expect("a table reads back"), table);
        for cut in 0..bytes.len() {
            assert!(ExampleTable::from_bytes(&bytes[..cut]).is_err(), "cut at {cut}");
        }
        let mut no_targets = bytes.clone();
        no_targets[20..24].fill(0);
        let error = ExampleTable::from_bytes(&no_targets).expect_err("a record needs targets");
        assert!(error.to_string().contains("record 0 has no targets"), "{error}");
        let mut huge = bytes;
        huge[8..16].fill(0xff);
        assert!(ExampleTable::from_bytes(&huge).is_err());
    }
}
