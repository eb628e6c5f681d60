//! Examples derived again from shard bytes (`docs/FORMAT.md`, "Examples").
//!
//! One window is held at a time, whatever sizes a manifest claims.

use std::io::{self, Read};

use schemas::data::ExampleRecord;

use crate::frozen::ExampleTable;

/// The windows of a shard: offset and number of targets of each example.
pub fn windows(num_bytes: u64, context_length: u32) -> impl Iterator<Item = (u64, u32)> {
    let context = u64::from(context_length.max(1));
    (0..num_bytes.div_ceil(context)).filter_map(move |index| {
        let offset = index * context;
        let num_targets = context.min((num_bytes - offset).checked_sub(1)?);
        // At most the context length, which has 32 bits.
        u32::try_from(num_targets).ok().filter(|count| *count > 0).map(|count| (offset, count))
    })
}

/// Derives the records of one shard from its bytes, calling `record` for each;
/// holds one window in memory. Returns the number of bytes read.
///
/// # Errors
/// When reading fails, or the shard does not have `num_bytes` bytes.
pub fn derive_shard(
    reader: &mut dyn Read,
    shard: u32,
    num_bytes: u64,
    context_length: u32,
    record: &mut dyn FnMut(ExampleRecord),
) -> io::Result<()> {
    let mut window: Vec<u8> = Vec::new();
    for (offset, num_targets) in windows(num_bytes, context_length) {
        // The window's last byte is the first input of the next one.
        let carried = usize::from(!window.is_empty());
        if carried == 1 {
            window.drain(..window.len() - 1);
        }
        let wanted = u64::from(num_targets) + 1 - carried as u64;
        if reader.take(wanted).read_to_end(&mut window)? as u64 != wanted {
            return Err(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                "the shard is shorter than the manifest says",
            ));
        }
        let id = *blake3::hash(&window).as_bytes();
        record(ExampleRecord { id, num_targets, offset, shard });
    }
    Ok(())
}

/// Target tokens of the first `num_examples` examples of a table, or of all.
#[must_use]
pub fn num_targets(table: &ExampleTable, num_examples: Option<u64>) -> u64 {
    let limit = num_examples.unwrap_or(u64::MAX).min(table.num_examples());
    (0..limit).filter_map(|index| table.get(index)).map(|record| u64::from(record.num_targets)).sum()
}

/// Bytes that are gathered before they are hashed.
const MAX_GATHERED_BYTES: usize = 64 << 10;

/// BLAKE3 over many small pieces: one hash of all bytes is several times faster
/// than a hasher fed with them. What is held stays bounded whatever a contract
/// claims.
#[derive(Debug, Default)]
pub struct Pieces {
    gathered: Vec<u8>,
    hasher: Option<blake3::Hasher>,
}

impl Pieces {
    /// Adds a piece.
    #[inline]
    pub fn add(&mut self, piece: &[u8]) {
        if self.gathered.len().saturating_add(piece.len()) > MAX_GATHERED_BYTES {
            let hasher = self.hasher.get_or_insert_with(blake3::Hasher::new);
            hasher.update(&self.gathered).update(piece);
            self.gathered.clear();
        } else {
            self.gathered.extend_from_slice(piece);
        }
    }

    /// The digest of all pieces since the last one; keeps the space for the next.
    pub fn finish(&mut self) -> [u8; 32] {
        let digest = match self.hasher.take() {
            Some(mut hasher) => hasher.update(&self.gathered).finalize(),
            None => blake3::hash(&self.gathered),
        };
        self.gathered.clear();
        *digest.as_bytes()
    }
}

/// BLAKE3 over example ids in the order of consumption, in which `examples`
/// visits them; `None` when an index is beyond the table. `pieces` is scratch
/// space that a caller keeps.
#[must_use]
pub fn ids_digest(
    table: &ExampleTable,
    examples: impl FnOnce(&mut dyn FnMut(u64)),
    pieces: &mut Pieces,
) -> Option<[u8; 32]> {
    let mut is_within = true;
    examples(&mut |index| match table.get(index) {
        Some(record) => pieces.add(&record.id),
        None => is_within = false,
    });
    let digest = pieces.finish();
    is_within.then_some(digest)
}

#[cfg(test)]
mod tests {
    use schemas::data::EXAMPLE_TABLE_MAGIC;

    use super::*;

    fn check_windows(num_bytes: u64, expected: &[(u64, u32)]) {
        assert_eq!(windows(num_bytes, 4).collect::<Vec<_>>(), expected, "{num_bytes} bytes");
    }

    #[test]
    fn windows_by_hand() {
        check_windows(0, &[]);
        check_windows(1, &[]);
        check_windows(2, &[(0, 1)]);
        check_windows(5, &[(0, 4)]);
        check_windows(6, &[(0, 4), (4, 1)]);
        check_windows(9, &[(0, 4), (4, 4)]);
    }

    #[test]
    fn records_hash_what_they_cover() {
        let text = b"abcdefghij";
        let mut records = Vec::new();
        derive_shard(&mut &text[..], 3, 10, 4, &mut |record| records.push(record)).expect("readable");
        assert_eq!(records.len(), 3);
        assert_eq!(records[1].id, *blake3::hash(b"efghi").as_bytes());
        assert_eq!((records[2].offset, records[2].num_targets, records[2].shard), (8, 1, 3));
        assert!(derive_shard(&mut &b"abc"[..], 0, 10, 4, &mut |_| {}).is_err());
    }

    #[test]
    fn sums_and_digests_over_a_table() {
        let mut bytes = EXAMPLE_TABLE_MAGIC.to_vec();
        bytes.extend(2u64.to_le_bytes());
        for (num_targets, id) in [(4u32, [1u8; 32]), (3, [2; 32])] {
            bytes.extend(0u32.to_le_bytes());
            bytes.extend(num_targets.to_le_bytes());
            bytes.extend(0u64.to_le_bytes());
            bytes.extend(id);
        }
        let table = ExampleTable::parse(bytes).expect("a table");
        assert_eq!((num_targets(&table, None), num_targets(&table, Some(1))), (7, 4));
        let both = [[2u8; 32], [1; 32]].concat();
        let many: Vec<u64> = (0..5000).map(|index| index % 2).collect();
        let all: Vec<u8> =
            many.iter().flat_map(|index| [u8::try_from(index + 1).expect("small"); 32]).collect();
        let digest = |examples: &[u64], pieces: &mut Pieces| {
            ids_digest(&table, |visit| examples.iter().copied().for_each(visit), pieces)
        };
        let mut pieces = Pieces::default();
        assert_eq!(digest(&many, &mut pieces), Some(*blake3::hash(&all).as_bytes()));
        assert!(pieces.gathered.capacity() <= 2 * MAX_GATHERED_BYTES);
        // What is left of one digest is no part of the next.
        assert_eq!(digest(&[0, 2], &mut pieces), None);
        assert_eq!(digest(&[1, 0], &mut pieces), Some(*blake3::hash(&both).as_bytes()));
        pieces.add(&all);
        pieces.add(&both);
        assert_eq!(pieces.finish(), *blake3::hash(&[&all[..], &both[..]].concat()).as_bytes());
    }
}
