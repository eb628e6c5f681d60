//! Train and val text, checked against the frozen manifest, and windows of it.
//!
//! Windows and the example table are derived here from the text alone
//! (`docs/FORMAT.md`, "Examples"), so that a table is checked and not believed.

use std::path::{Path, PathBuf};

use schemas::contract::Contract;
use schemas::data::{DataManifest, DataShard, EXAMPLE_TABLE_MAGIC, Split};
use schemas::digest::Digest;

use crate::error::{EvaluateError, Refusal};
use crate::files::{below, blake3_of, check_digest, read};

/// Largest shard that is read into memory, in bytes.
const MAX_SHARD_BYTES: u64 = 8 << 30;

/// The windows of a text: context plus one byte each, neighbours sharing one.
pub fn windows(text: &[u8], context_length: usize) -> impl Iterator<Item = &[u8]> {
    let context = context_length.max(1);
    let starts = (0..text.len().saturating_sub(1)).step_by(context);
    starts.map(move |start| &text[start..text.len().min(start + context + 1)])
}

/// The data folder of a run with its frozen manifest.
pub(crate) struct DataFolder<'a> {
    pub(crate) folder: PathBuf,
    pub(crate) manifest: &'a DataManifest,
}

impl DataFolder<'_> {
    /// Path of a shard.
    pub(crate) fn path(&self, shard: &DataShard) -> Result<PathBuf, Refusal> {
        below(&self.folder, &shard.path, "/shards of the data manifest")
    }

    /// The shards of a split, read and checked, with their manifest indices.
    pub(crate) fn load(&self, split: Split) -> Result<Vec<(u32, Vec<u8>)>, EvaluateError> {
        let mut texts = Vec::new();
        for (index, shard) in (0u32..).zip(&self.manifest.shards).filter(|(_, shard)| shard.split == split) {
            let path = self.path(shard)?;
            let bytes = read(&path, MAX_SHARD_BYTES)?;
            check_digest(&path, &bytes, shard.digest, "the frozen data manifest")?;
            texts.push((index, bytes));
        }
        Ok(texts)
    }
}

/// The folder that shards lie in: `named`, else that of the manifest.
pub(crate) fn data_folder(contract: &Contract, ledger_folder: &Path, named: Option<&Path>) -> PathBuf {
    let manifest = ledger_folder.join(&contract.data.manifest.path);
    named.map_or_else(|| crate::files::folder_of(&manifest), Path::to_owned)
}

/// BLAKE3 of the example table that the texts of a split give.
pub(crate) fn table_digest(texts: &[(u32, Vec<u8>)], context_length: usize) -> Digest {
    let all = || {
        texts.iter().flat_map(|(shard, text)| windows(text, context_length).map(move |w| (*shard, text, w)))
    };
    let mut table = EXAMPLE_TABLE_MAGIC.to_vec();
    table.extend_from_slice(&(all().count() as u64).to_le_bytes());
    let (mut shard_before, mut offset) = (None, 0u64);
    for (shard, _, window) in all() {
        offset = if shard_before == Some(shard) { offset + context_length as u64 } else { 0 };
        shard_before = Some(shard);
        let num_targets = u32::try_from(window.len() - 1).unwrap_or(u32::MAX);
        table.extend_from_slice(&shard.to_le_bytes());
        table.extend_from_slice(&num_targets.to_le_bytes());
        table.extend_from_slice(&offset.to_le_bytes());
        table.extend_from_slice(blake3::hash(window).as_bytes());
    }
    blake3_of(&table)
}

/// The first `num_examples` windows of a split's texts, in table order.
pub(crate) fn first_windows(
    texts: &[(u32, Vec<u8>)],
    context_length: usize,
    num_examples: Option<u64>,
) -> Vec<&[u8]> {
    let limit = num_examples.and_then(|count| usize::try_from(count).ok()).unwrap_or(usize::MAX);
    texts.iter().flat_map(|(_, text)| windows(text, context_length)).take(limit).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(length: usize, context: usize, expected: &[usize]) {
        let text = vec![b'x'; length];
        let lengths: Vec<usize> = windows(&text, context).map(<[u8]>::len).collect();
        assert_eq!(lengths, expected, "{length} bytes, context {context}");
    }

    #[test]
    fn windows_at_every_boundary() {
        check(0, 4, &[]);
        check(1, 4, &[]);
        check(2, 4, &[2]);
        check(5, 4, &[5]);
        check(6, 4, &[5, 2]);
        check(9, 4, &[5, 5]);
        check(10, 4, &[5, 5, 2]);
        check(3, 1, &[2, 2]);
    }

    #[test]
    fn the_derived_table_is_the_one_that_the_corpus_writes() {
        let root = tempfile::tempdir().expect("a folder");
        let folder = root.path().join("data");
        let build =
            corpus::build::build_liber_primus(&folder, &root.path().join("q.txt"), 100).expect("a build");
        let data = DataFolder { folder, manifest: &build.manifest };
        for (split, file) in [(Split::Train, &build.train_examples), (Split::Val, &build.val_examples)] {
            let texts = data.load(split).expect("texts");
            assert_eq!(table_digest(&texts, 100), file.digest);
            assert_ne!(table_digest(&texts, 101), file.digest);
        }
    }
}
