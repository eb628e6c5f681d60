//! Files that a checkpoint has in common with the one before it: stored once,
//! as a second name (hard link) of the same file.
//!
//! Content decides, and nothing else does: a file is shared when the bytes that
//! would be written have the digest that the earlier manifest lists, and when
//! the earlier file, read back from the disk, still has it. So a file that
//! rotted is not passed on; it is written again from memory. Each name is as
//! good as the other: a folder that is copied, moved or removed takes its own
//! along, and the bytes go when the last name goes. The price is that bytes
//! which are damaged on the disk are damaged in every checkpoint that has them,
//! until one is saved after that.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use ledger::FrozenContract;
use schemas::digest::Digest;
use schemas::state::{CheckpointManifest, Shard};

use crate::run::error::chain;

use super::retention;
use super::roster::Roster;
use super::validate::{self, Expected};

/// The checkpoint whose files a new one may share.
#[derive(Debug, Clone)]
pub struct Base {
    folder: PathBuf,
    shards: Vec<Shard>,
}

impl Base {
    /// Of a checkpoint whose manifest was read.
    #[must_use]
    pub fn new(folder: PathBuf, manifest: &CheckpointManifest) -> Self {
        let shards = manifest.classes.iter().flat_map(|captured| &captured.shards).cloned().collect();
        Self { folder, shards }
    }

    /// The run's newest usable checkpoint, which no policy lets go before there
    /// is a newer one; `None` where there is none, or its manifest is not the
    /// recorded one any more.
    #[must_use]
    pub fn newest(roster: &Roster, frozen: &FrozenContract, store: &Path) -> Option<Self> {
        let fact = retention::newest_usable(roster.facts())?;
        let folder = store.join(fact.checkpoint.as_str());
        let expected = Expected {
            checkpoint: &fact.checkpoint,
            contract: frozen.digest,
            manifest: fact.manifest?,
            run: &frozen.run,
            step: fact.step,
        };
        let manifest = validate::read_manifest(&folder, &expected).ok()?;
        Some(Self::new(folder, &manifest))
    }

    /// Gives the file with this content a second name. `Ok(false)` where the
    /// checkpoint has no such file.
    ///
    /// # Errors
    /// In words, where the file is not what was recorded any more, or the file
    /// system gives no second name; the bytes then have to be written.
    pub fn link(&self, name: &str, digest: Digest, num_bytes: u64, target: &Path) -> Result<bool, String> {
        let same =
            |shard: &&Shard| shard.path == name && shard.digest == digest && shard.num_bytes == num_bytes;
        let Some(shard) = self.shards.iter().find(same) else { return Ok(false) };
        let source = self.folder.join(name);
        validate::drop_cache(&source);
        validate::check_shard(&source, shard).map_err(|error| chain(&error))?;
        let failed = |error: std::io::Error| format!("{}: {error}", source.display());
        fs::hard_link(&source, target).map_err(failed)?;
        // The file was flushed by the save that wrote it; what is new is its
        // number of names.
        let flushed = fs::File::open(target).and_then(|file| file.sync_all());
        flushed.map_err(|error| format!("{}: {error}", target.display()))?;
        Ok(true)
    }
}

/// Bytes of the files of a checkpoint that have another name too.
#[must_use]
pub fn num_shared_bytes<'a>(folder: &Path, shards: impl IntoIterator<Item = &'a Shard>) -> u64 {
    let shared = |shard: &&Shard| {
        fs::symlink_metadata(folder.join(&shard.path)).is_ok_and(|metadata| metadata.nlink() > 1)
    };
    shards.into_iter().filter(shared).map(|shard| shard.num_bytes).sum()
}

/// Whether two names are of one file.
#[must_use]
pub fn is_one_file(left: &Path, right: &Path) -> bool {
    let (Ok(left), Ok(right)) = (fs::symlink_metadata(left), fs::symlink_metadata(right)) else {
        return false;
    };
    (left.dev(), left.ino()) == (right.dev(), right.ino())
}
