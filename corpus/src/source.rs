//! Examples of one split, read from their shards on demand.
//!
//! Files are read with positioned reads into a caller's buffer, so memory does
//! not grow with the data. Every window is hashed as it is read and compared
//! with the identity that the frozen example table gives it: text that changed
//! after the freeze is refused at the moment of use, also where the digest of
//! the whole shard was checked at the start.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use schemas::data::{DataManifest, ExampleRecord, Split};
use schemas::digest::Digest;

/// Why data cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DataError {
    /// A shard that cannot be opened or read.
    #[error("{}: cannot read the data shard; restore the file that the contract froze", path.display())]
    Read {
        /// The shard.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// A shard of another size.
    #[error("{}: the manifest says {expected} bytes, the file has {actual}; restore the frozen file", path.display())]
    Size {
        /// The shard.
        path: PathBuf,
        /// In the manifest.
        expected: u64,
        /// On disk.
        actual: u64,
    },
    /// A table record that does not fit the manifest.
    #[error("{split} example table, record {record}: {reason}; build the table again from the manifest")]
    Record {
        /// Name of the split.
        split: &'static str,
        /// Index of the record.
        record: u64,
        /// What is wrong.
        reason: String,
    },
    /// A table without records.
    #[error("{split} example table: it holds no example; add text to the split")]
    Empty {
        /// Name of the split.
        split: &'static str,
    },
    /// Text that is not the frozen text.
    #[error(
        "{}: bytes {offset}..{} have digest {actual}, the frozen example has {expected}; restore the frozen file",
        path.display(), offset + num_bytes
    )]
    Changed {
        /// The shard.
        path: PathBuf,
        /// First byte of the example.
        offset: u64,
        /// Bytes of the example.
        num_bytes: u64,
        /// In the table.
        expected: Digest,
        /// What was read.
        actual: Digest,
    },
}

#[derive(Debug)]
struct ShardFile {
    path: PathBuf,
    file: File,
}

/// The examples of a split.
#[derive(Debug, Clone)]
pub struct ExampleSource {
    split: Split,
    /// By index in the manifest; only shards of the split are opened.
    /// Reads name their offset, so that copies share the open files.
    shards: Vec<Option<Arc<ShardFile>>>,
    records: Arc<Vec<ExampleRecord>>,
}

impl ExampleSource {
    /// Opens the shards of a split below the manifest's folder.
    ///
    /// The caller has checked the shards' digests; sizes are checked here, and
    /// contents window by window.
    ///
    /// # Errors
    /// When a shard cannot be opened or has another size, or a record does not
    /// lie within a shard of the split or is longer than `context_length`.
    pub fn open(
        manifest: &DataManifest,
        folder: &Path,
        split: Split,
        records: Vec<ExampleRecord>,
        context_length: u32,
    ) -> Result<Self, DataError> {
        if records.is_empty() {
            return Err(DataError::Empty { split: split.name() });
        }
        let mut shards = Vec::with_capacity(manifest.shards.len());
        for shard in &manifest.shards {
            if shard.split != split {
                shards.push(None);
                continue;
            }
            let path = folder.join(&shard.path);
            let read = |source| DataError::Read { path: path.clone(), source };
            let file = File::open(&path).map_err(read)?;
            let actual = file.metadata().map_err(read)?.len();
            if actual != shard.num_bytes {
                return Err(DataError::Size { path, expected: shard.num_bytes, actual });
            }
            shards.push(Some(Arc::new(ShardFile { path, file })));
        }
        for (index, record) in (0..).zip(&records) {
            if let Err(reason) = check_record(record, manifest, split, context_length) {
                return Err(DataError::Record { split: split.name(), record: index, reason });
            }
        }
        Ok(Self { split, shards, records: Arc::new(records) })
    }

    /// A split of which this process reads nothing.
    #[must_use]
    pub fn closed(split: Split) -> Self {
        Self { split, shards: Vec::new(), records: Arc::default() }
    }

    /// The example table.
    #[must_use]
    pub fn records(&self) -> &[ExampleRecord] {
        &self.records
    }

    /// Identity of an example.
    ///
    /// # Errors
    /// When there is no such example.
    pub fn id(&self, example: u64) -> Result<[u8; 32], DataError> {
        self.record(example).map(|record| record.id)
    }

    /// Number of examples.
    #[must_use]
    pub fn num_examples(&self) -> u64 {
        self.records.len() as u64
    }

    /// Targets of an example.
    ///
    /// # Errors
    /// When there is no such example.
    pub fn num_targets(&self, example: u64) -> Result<u32, DataError> {
        self.record(example).map(|record| record.num_targets)
    }

    /// Ids of the first examples, in table order; fewer where there are fewer.
    pub fn first_ids(&self, num_examples: u64) -> impl Iterator<Item = &[u8; 32]> {
        let num_examples = usize::try_from(num_examples).unwrap_or(usize::MAX);
        self.records.iter().take(num_examples).map(|record| &record.id)
    }

    fn record(&self, example: u64) -> Result<&ExampleRecord, DataError> {
        let record = usize::try_from(example).ok().and_then(|index| self.records.get(index));
        record.ok_or_else(|| DataError::Record {
            split: self.split.name(),
            record: example,
            reason: format!("the table has only {} records", self.records.len()),
        })
    }

    /// Reads an example's bytes (inputs and the last target) into `buffer`,
    /// which is replaced, and returns its record.
    ///
    /// # Errors
    /// When the shard cannot be read, or holds other bytes than the frozen
    /// ones, or there is no such example.
    pub fn read(&self, example: u64, buffer: &mut Vec<u8>) -> Result<ExampleRecord, DataError> {
        let record = *self.record(example)?;
        let shard = self.shards.get(record.shard as usize).and_then(Option::as_deref);
        let ShardFile { path, file } = shard.ok_or_else(|| DataError::Record {
            split: self.split.name(),
            record: example,
            reason: format!("shard {} is not of this split", record.shard),
        })?;
        buffer.clear();
        buffer.resize(record.num_targets as usize + 1, 0);
        file.read_exact_at(buffer, record.offset)
            .map_err(|source| DataError::Read { path: path.clone(), source })?;
        let actual = blake3::hash(buffer);
        if *actual.as_bytes() != record.id {
            return Err(DataError::Changed {
                path: path.clone(),
                offset: record.offset,
                num_bytes: buffer.len() as u64,
                expected: Digest::blake3(record.id),
                actual: Digest::blake3(*actual.as_bytes()),
            });
        }
        Ok(record)
    }
}

fn check_record(
    record: &ExampleRecord,
    manifest: &DataManifest,
    split: Split,
    context_length: u32,
) -> Result<(), String> {
    let Some(shard) = manifest.shards.get(record.shard as usize) else {
        return Err(format!("shard {} of {}", record.shard, manifest.shards.len()));
    };
    if shard.split != split {
        return Err(format!("shard {:?} belongs to the {} split", shard.path, shard.split.name()));
    }
    if record.num_targets == 0 || record.num_targets > context_length {
        return Err(format!("{} targets with a context of {context_length}", record.num_targets));
    }
    let end = record.offset.checked_add(u64::from(record.num_targets) + 1);
    if end.is_none_or(|end| end > shard.num_bytes) {
        return Err(format!(
            "offset {} and {} targets exceed the {} bytes of {:?}",
            record.offset, record.num_targets, shard.num_bytes, shard.path
        ));
    }
    Ok(())
}
