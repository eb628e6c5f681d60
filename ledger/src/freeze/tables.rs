//! Example tables, derived again from the shards and compared with the files
//! that the contract names, record by record (`docs/FORMAT.md`, "Examples").
//!
//! One pass digests shard and table and compares them, so that what is
//! compared is what is frozen; memory does not grow with either.

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::{Path, PathBuf};

use schemas::data::{DataManifest, EXAMPLE_RECORD_BYTES, EXAMPLE_TABLE_MAGIC, Split};

use super::files::{BUFFER_BYTES, Content, Folder, HashingReader, Refusal};

/// What the other checks need of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TableSummary {
    pub(super) num_examples: u64,
    /// Over all examples.
    pub(super) num_targets: u64,
}

/// A shard as it was read.
pub(super) struct ShardRead {
    /// Index in the manifest.
    pub(super) index: usize,
    pub(super) content: Content,
}

/// A table as it was read.
pub(super) struct TableRead {
    pub(super) content: Content,
    pub(super) shards: Vec<ShardRead>,
    pub(super) summary: TableSummary,
    /// First difference between the table and the shards, if there is one.
    pub(super) difference: Option<String>,
}

/// The table under comparison; after the first difference it is only digested.
struct Table {
    path: PathBuf,
    reader: HashingReader<BufReader<File>>,
    num_records: u64,
    difference: Option<String>,
}

impl Table {
    fn open(path: &Path) -> Result<Self, Refusal> {
        let file = File::open(path).map_err(|error| Refusal::read(path, &error))?;
        let reader = HashingReader::new(BufReader::with_capacity(BUFFER_BYTES, file));
        let mut table = Self { path: path.to_owned(), reader, num_records: 0, difference: None };
        let mut header = [0; 16];
        let num_read = table.fill(&mut header)?;
        if num_read < header.len() || header[..8] != EXAMPLE_TABLE_MAGIC {
            table.difference = Some("it does not begin as an example table does".to_owned());
        }
        table.num_records = u64::from_le_bytes(header[8..].try_into().unwrap_or_default());
        Ok(table)
    }

    fn fill(&mut self, buffer: &mut [u8]) -> Result<usize, Refusal> {
        read_full(&mut self.reader, buffer).map_err(|error| Refusal::read(&self.path, &error))
    }

    /// Compares the next record with the one that the shards give.
    fn expect(&mut self, index: u64, expected: &[u8; EXAMPLE_RECORD_BYTES]) -> Result<(), Refusal> {
        if self.difference.is_some() {
            return Ok(());
        }
        let mut found = [0; EXAMPLE_RECORD_BYTES];
        if self.fill(&mut found)? < EXAMPLE_RECORD_BYTES {
            self.difference = Some(format!("it ends before record {index}"));
        } else if found != *expected {
            self.difference = Some(format!(
                "record {index} is {}; the shards give {}",
                describe(&found),
                describe(expected)
            ));
        }
        Ok(())
    }

    /// Reads to the end, so that the digest covers everything.
    fn finish(mut self, num_examples: u64) -> Result<(Content, Option<String>), Refusal> {
        let num_left =
            io::copy(&mut self.reader, &mut io::sink()).map_err(|error| Refusal::read(&self.path, &error))?;
        if self.difference.is_none() && self.num_records != num_examples {
            let found = self.num_records;
            self.difference = Some(format!("it announces {found} records; the shards give {num_examples}"));
        }
        if self.difference.is_none() && num_left > 0 {
            self.difference = Some(format!("{num_left} bytes follow its last record"));
        }
        Ok((self.reader.content(), self.difference))
    }
}

/// Reads the table of a split together with the split's shards.
///
/// Errors carry the index of the shard that they are about, or none for the
/// table.
pub(super) fn read(
    manifest: &DataManifest,
    shard_paths: &[Option<PathBuf>],
    split: Split,
    context_length: u32,
    table: (&Folder, &str),
) -> Result<TableRead, (Option<usize>, Refusal)> {
    let path = table.0.resolve(table.1).map_err(|refusal| (None, refusal))?;
    let mut table = Table::open(&path).map_err(|refusal| (None, refusal))?;
    let mut shards = Vec::new();
    let mut summary = TableSummary { num_examples: 0, num_targets: 0 };
    for (index, (shard, path)) in manifest.shards.iter().zip(shard_paths).enumerate() {
        let Some(path) = path.as_ref().filter(|_| shard.split == split) else { continue };
        let content = windows(path, context_length, |offset, window| {
            let num_targets = u32::try_from(window.len() - 1).unwrap_or(context_length);
            let record = record(index, num_targets, offset, window);
            table.expect(summary.num_examples, &record)?;
            summary.num_examples += 1;
            summary.num_targets += u64::from(num_targets);
            Ok(())
        });
        let content = content.map_err(|refusal| (Some(index), refusal))?;
        shards.push(ShardRead { index, content });
    }
    let (content, difference) = table.finish(summary.num_examples).map_err(|refusal| (None, refusal))?;
    Ok(TableRead { content, shards, summary, difference })
}

/// Cuts a shard into windows of `context_length + 1` bytes that share one byte
/// each, and digests it.
fn windows(
    path: &Path,
    context_length: u32,
    mut each: impl FnMut(u64, &[u8]) -> Result<(), Refusal>,
) -> Result<Content, Refusal> {
    let file = File::open(path).map_err(|error| Refusal::read(path, &error))?;
    let mut reader = HashingReader::new(BufReader::with_capacity(BUFFER_BYTES, file));
    let context = context_length as usize;
    let mut window = vec![0; context + 1];
    let (mut num_held, mut offset) = (0, 0);
    loop {
        let num_read =
            read_full(&mut reader, &mut window[num_held..]).map_err(|error| Refusal::read(path, &error))?;
        let num_covered = num_held + num_read;
        // One byte alone is the last target of the window before it.
        if num_covered < 2 {
            break;
        }
        each(offset, &window[..num_covered])?;
        if num_covered <= context {
            break;
        }
        window[0] = window[context];
        num_held = 1;
        offset += u64::from(context_length);
    }
    Ok(reader.content())
}

fn record(shard: usize, num_targets: u32, offset: u64, window: &[u8]) -> [u8; EXAMPLE_RECORD_BYTES] {
    let shard = u32::try_from(shard).unwrap_or(u32::MAX);
    let mut bytes = [0; EXAMPLE_RECORD_BYTES];
    bytes[..4].copy_from_slice(&shard.to_le_bytes());
    bytes[4..8].copy_from_slice(&num_targets.to_le_bytes());
    bytes[8..16].copy_from_slice(&offset.to_le_bytes());
    bytes[16..].copy_from_slice(blake3::hash(window).as_bytes());
    bytes
}

fn describe(record: &[u8; EXAMPLE_RECORD_BYTES]) -> String {
    let word = |at: usize| u32::from_le_bytes([record[at], record[at + 1], record[at + 2], record[at + 3]]);
    let offset = u64::from(word(8)) | u64::from(word(12)) << 32;
    let id = schemas::digest::encode_hex(&record[16..24]);
    format!("(shard {}, offset {offset}, {} targets, id {id}...)", word(0), word(4))
}

/// Reads until the buffer is full or the end is reached.
fn read_full(reader: &mut impl Read, buffer: &mut [u8]) -> io::Result<usize> {
    let mut num_filled = 0;
    while num_filled < buffer.len() {
        match reader.read(&mut buffer[num_filled..]) {
            Ok(0) => break,
            Ok(num_read) => num_filled += num_read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(num_filled)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(num_bytes: usize, context_length: u32, expected: &[(u64, usize)]) {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("shard");
        let bytes: Vec<u8> = (0..num_bytes).map(|index| u8::try_from(index % 251).unwrap_or(0)).collect();
        std::fs::write(&path, &bytes).expect("written");
        let mut found = Vec::new();
        let content = windows(&path, context_length, |offset, window| {
            let first = usize::try_from(offset).unwrap_or(usize::MAX);
            assert_eq!(window, &bytes[first..first + window.len()]);
            found.push((offset, window.len() - 1));
            Ok(())
        })
        .expect("readable");
        assert_eq!(found, expected, "{num_bytes} bytes, context {context_length}");
        assert_eq!(content.num_bytes, num_bytes as u64);
        assert_eq!(content.digest.bytes, *blake3::hash(&bytes).as_bytes());
    }

    #[test]
    fn windows_cover_every_target_once() {
        check(0, 4, &[]);
        check(1, 4, &[]);
        check(2, 4, &[(0, 1)]);
        check(5, 4, &[(0, 4)]);
        check(6, 4, &[(0, 4), (4, 1)]);
        check(9, 4, &[(0, 4), (4, 4)]);
        check(3, 1, &[(0, 1), (1, 1)]);
    }
}
