//! Writes a checkpoint so that it is whole or absent: a staging folder on the
//! same file system, shards hashed while they are written and flushed one by
//! one, the manifest last, the folder flushed; then one rename, and the parent
//! flushed.
//!
//! Ext4 and XFS keep a rename atomic but not a file's content behind it, so
//! everything is flushed before the rename (see `docs/FORMAT.md`,
//! "Checkpoint"). A staging folder that is dropped half-way is removed.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use schemas::digest::Digest;
use schemas::ids::CheckpointId;
use schemas::state::{CheckpointManifest, Shard, StateClass};

use crate::export::{self, ExportError, FileKind, NamedTensor, WrittenShard};
use crate::state::split::FrozenInitial;

use super::flushing::write_flushed;
use super::manifest::{self, ManifestHeader};
use super::share::Base;
use super::{CheckpointError, MANIFEST_NAME, staging_name};

/// A checkpoint that is being written.
#[derive(Debug)]
pub struct Staging {
    folder: PathBuf,
    not_shared: Option<String>,
    num_shared_bytes: u64,
    shards: BTreeMap<StateClass, Vec<Shard>>,
    store: PathBuf,
    target: PathBuf,
}

/// A checkpoint that is complete in its staging folder.
#[derive(Debug)]
pub struct Staged {
    folder: PathBuf,
    /// Its manifest.
    pub manifest: CheckpointManifest,
    /// BLAKE3 of the manifest's bytes.
    pub manifest_digest: Digest,
    /// Why a file that could have been shared was written, if one was.
    pub not_shared: Option<String>,
    /// Size of all files in bytes.
    pub num_bytes: u64,
    /// Bytes of it that an earlier checkpoint holds too, stored once.
    pub num_shared_bytes: u64,
    store: PathBuf,
    target: PathBuf,
}

/// A checkpoint under its final name.
#[derive(Debug)]
pub struct Committed {
    /// The folder.
    pub folder: PathBuf,
    /// Its manifest.
    pub manifest: CheckpointManifest,
    /// BLAKE3 of the manifest's bytes.
    pub manifest_digest: Digest,
    /// Why a file that could have been shared was written, if one was.
    pub not_shared: Option<String>,
    /// Size of all files in bytes.
    pub num_bytes: u64,
    /// Bytes of it that an earlier checkpoint holds too, stored once.
    pub num_shared_bytes: u64,
}

impl Staging {
    /// Makes the staging folder, and the store where it is missing.
    ///
    /// # Errors
    /// [`CheckpointError::Exists`] where the final name is taken, and
    /// [`CheckpointError::Io`].
    pub fn begin(store: &Path, checkpoint: &CheckpointId) -> Result<Self, CheckpointError> {
        create_store(store)?;
        let target = store.join(checkpoint.as_str());
        if target.symlink_metadata().is_ok() {
            return Err(CheckpointError::Exists { path: target });
        }
        let folder = store.join(staging_name(checkpoint, std::process::id()));
        fs::create_dir(&folder).map_err(CheckpointError::io("create", &folder))?;
        Ok(Self {
            folder,
            not_shared: None,
            num_shared_bytes: 0,
            shards: BTreeMap::new(),
            store: store.to_owned(),
            target,
        })
    }

    /// Writes tensors, hashing on the way, and flushes the file. They are in
    /// name order.
    ///
    /// # Errors
    /// [`CheckpointError::Io`], and [`CheckpointError::Export`] for tensors that
    /// do not fit their shapes.
    pub fn add_tensors(
        &mut self,
        class: StateClass,
        name: &str,
        kind: FileKind,
        tensors: &[NamedTensor],
    ) -> Result<Digest, CheckpointError> {
        let path = self.folder.join(name);
        let file = create_new(&path)?;
        let written = write_flushed(&file, |out| export::write(kind, tensors, out));
        let written = written.map_err(|error| match error {
            ExportError::Io(source) => CheckpointError::io("write", &path)(source),
            other => CheckpointError::Export { path: path.clone(), source: other },
        })?;
        let WrittenShard { digest, num_bytes, tensors } = written;
        self.push(class, Shard { digest, num_bytes, path: name.to_owned(), tensors });
        Ok(digest)
    }

    /// Writes parameters that no update changes, or gives the file that holds
    /// them already another name. Either way the tensors in memory are hashed,
    /// and refused where they are not what they were made as.
    ///
    /// # Errors
    /// [`CheckpointError::FrozenMoved`], and as [`Self::add_tensors`].
    pub fn add_frozen(
        &mut self,
        class: StateClass,
        name: &str,
        tensors: &[NamedTensor],
        initial: &FrozenInitial,
        base: Option<&Base>,
    ) -> Result<Digest, CheckpointError> {
        let path = self.folder.join(name);
        let Some(base) = base else {
            let digest = self.add_tensors(class, name, FileKind::Model, tensors)?;
            return check_frozen(&path, digest, tensors, initial);
        };
        let written = export::write(FileKind::Model, tensors, &mut io::sink())
            .map_err(|source| CheckpointError::Export { path: path.clone(), source })?;
        check_frozen(&path, written.digest, tensors, initial)?;
        match base.link(name, written.digest, written.num_bytes, &path) {
            Ok(true) => {
                self.num_shared_bytes += written.num_bytes;
                let WrittenShard { digest, num_bytes, tensors } = written;
                self.push(class, Shard { digest, num_bytes, path: name.to_owned(), tensors });
                return Ok(digest);
            }
            Ok(false) => {}
            Err(reason) => self.not_shared = Some(reason),
        }
        // A name that was given and could not be flushed is in the way.
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(CheckpointError::io("remove", &path)(error));
            }
            _ => {}
        }
        let digest = self.add_tensors(class, name, FileKind::Model, tensors)?;
        check_frozen(&path, digest, tensors, initial)
    }

    /// Writes a shard that is no tensor file, and flushes it.
    ///
    /// # Errors
    /// [`CheckpointError::Io`].
    pub fn add_bytes(
        &mut self,
        class: StateClass,
        name: &str,
        bytes: &[u8],
    ) -> Result<Digest, CheckpointError> {
        let path = self.folder.join(name);
        write_whole(&path, bytes)?;
        let digest = Digest::blake3(*blake3::hash(bytes).as_bytes());
        let num_bytes = bytes.len() as u64;
        self.push(class, Shard { digest, num_bytes, path: name.to_owned(), tensors: Vec::new() });
        Ok(digest)
    }

    fn push(&mut self, class: StateClass, shard: Shard) {
        self.shards.entry(class).or_default().push(shard);
    }

    /// Writes the manifest last and flushes the folder.
    ///
    /// # Errors
    /// [`CheckpointError::Io`] and [`CheckpointError::Encode`].
    pub fn finish(mut self, header: &ManifestHeader<'_>) -> Result<Staged, CheckpointError> {
        let manifest = manifest::build(header, std::mem::take(&mut self.shards));
        let bytes = ledger::canonical::entry_json(&manifest)?;
        let path = self.folder.join(MANIFEST_NAME);
        write_whole(&path, &bytes)?;
        sync_folder(&self.folder)?;
        let staged = Staged {
            // Taking the path disarms the removal in `drop`.
            folder: std::mem::take(&mut self.folder),
            manifest_digest: Digest::blake3(*blake3::hash(&bytes).as_bytes()),
            not_shared: self.not_shared.take(),
            num_shared_bytes: self.num_shared_bytes,
            num_bytes: manifest::num_shard_bytes(&manifest) + bytes.len() as u64,
            manifest,
            store: self.store.clone(),
            target: self.target.clone(),
        };
        Ok(staged)
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        if !self.folder.as_os_str().is_empty() {
            // Nothing better can be done: the folder is then reported, and
            // removed, by the next attempt.
            let _ = fs::remove_dir_all(&self.folder);
        }
    }
}

impl Staged {
    /// The staging folder.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Gives the folder its final name and flushes the store.
    ///
    /// # Errors
    /// [`CheckpointError::Io`]. Where the rename itself failed the staging
    /// folder is removed; where flushing the store failed the folder stays,
    /// since it may or may not survive a power cut.
    pub fn commit(mut self) -> Result<Committed, CheckpointError> {
        // The target was free when staging began and the store has one writer;
        // a folder that is not empty makes the rename fail in any case.
        fs::rename(&self.folder, &self.target).map_err(CheckpointError::io("rename", &self.folder))?;
        self.folder = PathBuf::new();
        sync_folder(&self.store)?;
        Ok(Committed {
            folder: std::mem::take(&mut self.target),
            manifest: self.manifest.clone(),
            manifest_digest: self.manifest_digest,
            not_shared: self.not_shared.take(),
            num_bytes: self.num_bytes,
            num_shared_bytes: self.num_shared_bytes,
        })
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        if !self.folder.as_os_str().is_empty() {
            let _ = fs::remove_dir_all(&self.folder);
        }
    }
}

/// Compares the digest of the file that was or would be written with that of
/// the initial values.
fn check_frozen(
    path: &Path,
    digest: Digest,
    tensors: &[NamedTensor],
    initial: &FrozenInitial,
) -> Result<Digest, CheckpointError> {
    if digest == initial.digest {
        return Ok(digest);
    }
    let (tensor, expected, actual) = initial.moved(tensors).map_or_else(
        || ("(their number, dtype or shape)".to_owned(), initial.digest, digest.to_string()),
        |(tensor, expected, actual)| {
            let actual = actual.map_or_else(|| "no such tensor".to_owned(), |digest| digest.to_string());
            (tensor, expected, actual)
        },
    );
    Err(CheckpointError::FrozenMoved { path: path.to_owned(), tensor, expected, actual })
}

fn create_new(path: &Path) -> Result<File, CheckpointError> {
    OpenOptions::new().write(true).create_new(true).open(path).map_err(CheckpointError::io("create", path))
}

fn write_whole(path: &Path, bytes: &[u8]) -> Result<(), CheckpointError> {
    let mut file = create_new(path)?;
    file.write_all(bytes).map_err(CheckpointError::io("write", path))?;
    file.sync_all().map_err(CheckpointError::io("flush", path))
}

/// Makes a folder of checkpoints where it is missing, and flushes its parent.
///
/// # Errors
/// [`CheckpointError::Io`].
pub fn create_store(store: &Path) -> Result<(), CheckpointError> {
    if store.is_dir() {
        return Ok(());
    }
    fs::create_dir_all(store).map_err(CheckpointError::io("create", store))?;
    match store.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => sync_folder(parent),
        _ => Ok(()),
    }
}

/// Flushes a folder's own entries: what its files are called.
///
/// # Errors
/// [`CheckpointError::Io`].
pub fn sync_folder(folder: &Path) -> Result<(), CheckpointError> {
    File::open(folder).and_then(|folder| folder.sync_all()).map_err(CheckpointError::io("flush", folder))
}
