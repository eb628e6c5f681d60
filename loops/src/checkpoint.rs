//! Checkpoints on disk: written so that they are whole or absent, read back, and
//! loaded for a resume (`docs/FORMAT.md`, "Checkpoint").
//!
//! A staging folder on the same file system, every file flushed, the manifest
//! last, the folder flushed; one rename, and the parent flushed. The entries
//! between these stages are the attempt's.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::{Component, Path, PathBuf};

use corpus::tensors::{FileKind, NamedTensor};
use ledger::FrozenContract;
use schemas::CHECKPOINT_MANIFEST_FORMAT;
use schemas::body::Counters;
use schemas::digest::Digest;
use schemas::ids::{AttemptId, CheckpointId, LearnerId};
use schemas::state::{CapturedClass, CheckpointManifest, Shard, StateClass, StateDigest, TensorInfo};

use crate::error::LoopError;
use crate::history::{History, PastCheckpoint};

pub(crate) const MODEL_NAME: &str = "model.safetensors";
pub(crate) const CONFIG_NAME: &str = "config.json";
pub(crate) const OPTIMIZER_NAME: &str = "optimizer.safetensors";
const MANIFEST_NAME: &str = "manifest.json";

/// Largest manifest that is read: the bound of every document.
const MAX_MANIFEST_BYTES: u64 = 16 << 20;

/// A file that a checkpoint is to hold.
#[derive(Debug, Clone)]
pub(crate) struct StateFile {
    pub(crate) bytes: Vec<u8>,
    pub(crate) class: StateClass,
    pub(crate) name: &'static str,
    pub(crate) tensors: Vec<TensorInfo>,
}

impl StateFile {
    pub(crate) fn json(class: StateClass, name: &'static str, bytes: Vec<u8>) -> Self {
        Self { bytes, class, name, tensors: Vec::new() }
    }

    pub(crate) fn digest(&self) -> Digest {
        Digest::blake3(*blake3::hash(&self.bytes).as_bytes())
    }
}

/// A checkpoint that has its final name.
#[derive(Debug)]
pub(crate) struct Committed {
    pub(crate) folder: PathBuf,
    pub(crate) manifest: CheckpointManifest,
    pub(crate) manifest_digest: Digest,
    pub(crate) num_bytes: u64,
}

/// A checkpoint that is complete under a temporary name.
#[derive(Debug)]
pub(crate) struct Staged {
    folder: PathBuf,
    store: PathBuf,
    target: PathBuf,
    manifest: CheckpointManifest,
    manifest_digest: Digest,
    num_bytes: u64,
}

/// Name of the checkpoint that an attempt saves at a step.
pub(crate) fn checkpoint_id(step: u64, attempt: AttemptId) -> CheckpointId {
    CheckpointId(format!("s{step:08}-a{attempt}"))
}

fn staging_name(checkpoint: &CheckpointId, process: u32) -> String {
    format!(".staging-{checkpoint}-{process}")
}

/// Writes every file, then the manifest, into a temporary folder.
///
/// # Errors
/// When the file system refuses, or the checkpoint's name is taken.
pub(crate) fn stage(
    store: &Path,
    frozen: &FrozenContract,
    (attempt, checkpoint, step): (AttemptId, &CheckpointId, u64),
    files: &[StateFile],
) -> Result<Staged, LoopError> {
    if !store.is_dir() {
        fs::create_dir_all(store).map_err(LoopError::io("create", store))?;
        sync_folder(store.parent().filter(|path| !path.as_os_str().is_empty()).unwrap_or(Path::new(".")))?;
    }
    let target = store.join(checkpoint.as_str());
    if target.symlink_metadata().is_ok() {
        let reason = "exists already and this attempt did not write it".to_owned();
        return Err(LoopError::Checkpoint { path: target, reason, is_other_content: false });
    }
    let folder = store.join(staging_name(checkpoint, std::process::id()));
    fs::create_dir(&folder).map_err(LoopError::io("create", &folder))?;
    let mut staged = Staged {
        folder: folder.clone(),
        store: store.to_owned(),
        target,
        manifest: manifest(frozen, (attempt, checkpoint, step), files),
        manifest_digest: Digest::blake3([0; 32]),
        num_bytes: 0,
    };
    for file in files {
        write_whole(&folder.join(file.name), &file.bytes)?;
    }
    let bytes = ledger::canonical::entry_json(&staged.manifest)?;
    write_whole(&folder.join(MANIFEST_NAME), &bytes)?;
    sync_folder(&folder)?;
    staged.manifest_digest = Digest::blake3(*blake3::hash(&bytes).as_bytes());
    staged.num_bytes = files.iter().map(|file| file.bytes.len() as u64).sum::<u64>() + bytes.len() as u64;
    Ok(staged)
}

impl Staged {
    /// Gives it its final name, so that it survives a power cut.
    ///
    /// # Errors
    /// When the file system refuses.
    pub(crate) fn commit(mut self) -> Result<Committed, LoopError> {
        fs::rename(&self.folder, &self.target).map_err(LoopError::io("rename", &self.folder))?;
        self.folder = PathBuf::new();
        sync_folder(&self.store)?;
        Ok(Committed {
            folder: self.target.clone(),
            manifest: self.manifest.clone(),
            manifest_digest: self.manifest_digest,
            num_bytes: self.num_bytes,
        })
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        if !self.folder.as_os_str().is_empty() {
            // What stays is reported and removed by the next attempt.
            let _ = fs::remove_dir_all(&self.folder);
        }
    }
}

fn manifest(
    frozen: &FrozenContract,
    (attempt, checkpoint, step): (AttemptId, &CheckpointId, u64),
    files: &[StateFile],
) -> CheckpointManifest {
    let mut declarations = frozen.contract.state_classes.clone();
    declarations.sort_by_key(|declaration| declaration.class);
    let captured = |declaration: &schemas::state::StateClassDeclaration| {
        let of_class = files.iter().filter(|file| file.class == declaration.class);
        let mut shards: Vec<Shard> = of_class
            .map(|file| Shard {
                digest: file.digest(),
                num_bytes: file.bytes.len() as u64,
                path: file.name.to_owned(),
                tensors: file.tensors.clone(),
            })
            .collect();
        shards.sort_by(|left, right| left.path.cmp(&right.path));
        CapturedClass {
            class: declaration.class,
            learner: LearnerId(0),
            not_applicable: declaration.not_applicable,
            shards,
            step,
            worker: None,
        }
    };
    CheckpointManifest {
        attempt,
        checkpoint: checkpoint.clone(),
        classes: declarations.iter().map(captured).collect(),
        contract: frozen.digest,
        format: CHECKPOINT_MANIFEST_FORMAT.to_owned(),
        run: frozen.run.clone(),
        step,
    }
}

/// Digest of every class (`docs/FORMAT.md`, "State digests").
pub(crate) fn state_digests(manifest: &CheckpointManifest) -> Vec<StateDigest> {
    let digest = |captured: &CapturedClass| {
        let mut hasher = blake3::Hasher::new();
        for shard in &captured.shards {
            hasher.update(shard.path.as_bytes());
            hasher.update(&[0]);
            hasher.update(&shard.digest.bytes);
        }
        let digest = Digest::blake3(*hasher.finalize().as_bytes());
        StateDigest { class: captured.class, digest: captured.not_applicable.is_none().then_some(digest) }
    };
    manifest.classes.iter().map(digest).collect()
}

/// A checkpoint that an attempt begins from.
#[derive(Debug, Clone)]
pub struct Resumed {
    pub(crate) checkpoint: CheckpointId,
    pub(crate) contents: BTreeMap<String, Vec<u8>>,
    pub(crate) counters: Counters,
    pub(crate) manifest: CheckpointManifest,
    pub(crate) manifest_digest: Digest,
    pub(crate) step: u64,
}

impl Resumed {
    /// Its name.
    #[must_use]
    pub fn checkpoint(&self) -> &str {
        self.checkpoint.as_str()
    }

    /// Its step: completed updates.
    #[must_use]
    pub const fn step(&self) -> u64 {
        self.step
    }

    /// The saved parameters, in name order.
    ///
    /// # Errors
    /// When the shard is not in its one form.
    pub fn model(&self) -> Result<Vec<NamedTensor>, LoopError> {
        self.tensors(MODEL_NAME, FileKind::Model)
    }

    /// The saved state of the update rule, in name order.
    ///
    /// # Errors
    /// When the shard is not in its one form.
    pub fn optimizer(&self) -> Result<Vec<NamedTensor>, LoopError> {
        self.tensors(OPTIMIZER_NAME, FileKind::State)
    }

    /// Examples that updates had consumed: the position to go on from.
    ///
    /// # Errors
    /// When the cursor is not readable.
    pub fn position(&self) -> Result<u64, LoopError> {
        let bytes = self.contents.get("data_cursor.json").map(Vec::as_slice).unwrap_or_default();
        let cursor: serde_json::Value = serde_json::from_slice(bytes)
            .map_err(|error| self.refuse("data_cursor.json", error.to_string()))?;
        cursor["examples"].as_u64().ok_or_else(|| self.refuse("data_cursor.json", "no examples".to_owned()))
    }

    fn tensors(&self, name: &str, kind: FileKind) -> Result<Vec<NamedTensor>, LoopError> {
        let Some(bytes) = self.contents.get(name) else {
            return Err(self.refuse(name, "is not in the checkpoint".to_owned()));
        };
        let (tensors, _) = corpus::tensors::read(kind, &mut bytes.as_slice(), bytes.len() as u64)?;
        Ok(tensors)
    }

    fn refuse(&self, name: &str, reason: String) -> LoopError {
        let path = PathBuf::from(self.checkpoint.as_str()).join(name);
        LoopError::Checkpoint { path, reason, is_other_content: false }
    }
}

/// A recorded checkpoint whose bytes are not there any more.
#[derive(Debug)]
pub(crate) struct Unusable {
    pub(crate) known: PastCheckpoint,
    pub(crate) error: LoopError,
}

/// The newest usable checkpoint whose bytes still are what was recorded, and
/// the newer ones whose are not.
pub(crate) fn newest_usable(
    history: &History,
    frozen: &FrozenContract,
    folder: &Path,
) -> (Option<Resumed>, Vec<Unusable>) {
    let mut unusable = Vec::new();
    for known in history.usable_checkpoints() {
        match load(known, frozen, folder) {
            Ok(resumed) => return (Some(resumed), unusable),
            Err(error) => unusable.push(Unusable { known: known.clone(), error }),
        }
    }
    (None, unusable)
}

fn load(known: &PastCheckpoint, frozen: &FrozenContract, folder: &Path) -> Result<Resumed, LoopError> {
    let refuse = |reason: &str| LoopError::Checkpoint {
        path: folder.join(known.checkpoint.as_str()),
        reason: reason.to_owned(),
        is_other_content: false,
    };
    let (manifest_digest, _, path) = known.committed.as_ref().ok_or_else(|| refuse("was not committed"))?;
    let path = folder.join(path);
    let (manifest, contents) = read_back(&path, *manifest_digest)?;
    if manifest.run != frozen.run || manifest.contract != frozen.digest || manifest.step != known.step {
        return Err(refuse("is of another run, contract or step"));
    }
    Ok(Resumed {
        checkpoint: known.checkpoint.clone(),
        contents,
        counters: known.counters,
        manifest,
        manifest_digest: *manifest_digest,
        step: known.step,
    })
}

/// Reads manifest and files back, and compares every digest.
///
/// # Errors
/// For the first file that differs.
pub(crate) fn read_back(
    folder: &Path,
    manifest_digest: Digest,
) -> Result<(CheckpointManifest, BTreeMap<String, Vec<u8>>), LoopError> {
    let refuse = |path: &Path, reason: String, is_other_content| LoopError::Checkpoint {
        path: path.to_owned(),
        reason,
        is_other_content,
    };
    let path = folder.join(MANIFEST_NAME);
    let size = fs::metadata(&path).map_err(LoopError::io("read", &path))?.len();
    if size > MAX_MANIFEST_BYTES {
        return Err(refuse(
            &path,
            format!("has {size} bytes, a manifest {MAX_MANIFEST_BYTES} at most"),
            true,
        ));
    }
    let bytes = fs::read(&path).map_err(LoopError::io("read", &path))?;
    check_digest(&path, &bytes, manifest_digest)?;
    let manifest: CheckpointManifest =
        serde_json::from_slice(&bytes).map_err(|error| refuse(&path, error.to_string(), false))?;
    let mut contents = BTreeMap::new();
    for shard in manifest.classes.iter().flat_map(|captured| &captured.shards) {
        let mut parts = Path::new(&shard.path).components();
        if !matches!((parts.next(), parts.next()), (Some(Component::Normal(_)), None)) {
            return Err(refuse(&path, format!("names {:?}, which leaves the folder", shard.path), false));
        }
        let path = folder.join(&shard.path);
        let bytes = fs::read(&path).map_err(LoopError::io("read", &path))?;
        check_digest(&path, &bytes, shard.digest)?;
        contents.insert(shard.path.clone(), bytes);
    }
    Ok((manifest, contents))
}

fn check_digest(path: &Path, bytes: &[u8], expected: Digest) -> Result<(), LoopError> {
    let actual = Digest::blake3(*blake3::hash(bytes).as_bytes());
    if actual == expected {
        return Ok(());
    }
    let reason = format!("expected {expected}, found {actual}");
    Err(LoopError::Checkpoint { path: path.to_owned(), reason, is_other_content: true })
}

/// Removes what an unfinished save left: its staging folder, and a folder of its
/// final name that was never on record as committed and says that it is it.
/// Returns what could not be removed.
pub(crate) fn remove_leftovers(
    known: &PastCheckpoint,
    process: u32,
    frozen: &FrozenContract,
    store: &Path,
) -> Vec<LoopError> {
    let mut folders = vec![store.join(staging_name(&known.checkpoint, process))];
    let renamed = store.join(known.checkpoint.as_str());
    let is_its = fs::read(renamed.join(MANIFEST_NAME))
        .ok()
        .and_then(|bytes| serde_json::from_slice::<CheckpointManifest>(&bytes).ok())
        .is_some_and(|manifest| manifest.run == frozen.run && manifest.checkpoint == known.checkpoint);
    if known.committed.is_none() && is_its {
        folders.push(renamed);
    }
    let there = folders.into_iter().filter(|folder| folder.is_dir());
    there
        .filter_map(|folder| fs::remove_dir_all(&folder).map_err(LoopError::io("remove", &folder)).err())
        .collect()
}

fn write_whole(path: &Path, bytes: &[u8]) -> Result<(), LoopError> {
    let file = OpenOptions::new().write(true).create_new(true).open(path);
    let mut file = file.map_err(LoopError::io("create", path))?;
    file.write_all(bytes).map_err(LoopError::io("write", path))?;
    file.sync_all().map_err(LoopError::io("flush", path))
}

fn sync_folder(folder: &Path) -> Result<(), LoopError> {
    File::open(folder).and_then(|file| file.sync_all()).map_err(LoopError::io("flush", folder))
}
