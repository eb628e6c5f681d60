//! A real run's record in memory, to be changed.
//!
//! A [`Record`] is read once from the folder of a run that the programs made,
//! and cloned for each mutation: entries as JSON values in order, the contract,
//! the frozen files, and a layer over the folder that holds changed files. It
//! never writes to the folder that it was read from, so that a thousand
//! mutations start from the same run. Hashes, heads and signatures are no part
//! of it: [`Record::seal`] makes them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use ledger::keys::{KeyPair, KeyRing, Role};
use ledger::reader::Reader;
use schemas::digest::Digest;
use serde_json::Value;

use crate::run_folder::RunFolder;

/// Name of the ledger in its folder.
pub const LEDGER_NAME: &str = "run.db";

/// What the record was when it was read.
pub(super) struct Source {
    pub(super) artifacts: BTreeMap<String, Vec<u8>>,
    pub(super) contract: Value,
    pub(super) entries: Vec<Value>,
    pub(super) folder: PathBuf,
    /// Every head in the ledger: size and signed note.
    pub(super) heads: Vec<(u64, String)>,
    pub(super) owner: KeyPair,
    pub(super) trainer: KeyPair,
    /// Keeps the folder where it is a temporary one.
    _run: Option<RunFolder>,
}

/// What became of a file beside the ledger.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum FileChange {
    Removed,
    Written {
        bytes: Vec<u8>,
        /// Whether whatever names the file by digest or size follows it.
        is_carried: bool,
    },
}

/// A run's record that can be changed and sealed again.
#[derive(Clone)]
pub struct Record {
    /// Frozen files that the ledger stores, by the pointer of their binding in
    /// the contract, such as `/update/card`. A change needs the owner's key.
    pub artifacts: BTreeMap<String, Vec<u8>>,
    /// The contract. A change needs the owner's key.
    pub contract: Value,
    /// Every entry in order. `index` is set when the record is sealed.
    pub entries: Vec<Value>,
    pub(super) files: BTreeMap<PathBuf, FileChange>,
    /// Sizes whose heads are written neither into the ledger nor beside it.
    pub(super) heads_left_out: BTreeSet<u64>,
    pub(super) source: Arc<Source>,
}

impl Record {
    /// Reads the record of the run in a folder: `run.db`, with its keys in `keys/`.
    ///
    /// # Errors
    /// When the ledger or a key cannot be read.
    pub fn open(folder: &Path) -> Result<Self> {
        Self::open_with(folder, &KeyRing::open(&folder.join("keys"))?)
    }

    /// Reads the record of the run in a folder whose keys lie somewhere else.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn open_with(folder: &Path, keys: &KeyRing) -> Result<Self> {
        Self::read(folder, keys, None)
    }

    /// Reads the record of a run and keeps its folder.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn of_run(run: RunFolder) -> Result<Self> {
        let folder = run.path().to_owned();
        let keys = KeyRing::open(&folder.join("keys"))?;
        Self::read(&folder, &keys, Some(run))
    }

    fn read(folder: &Path, keys: &KeyRing, run: Option<RunFolder>) -> Result<Self> {
        let path = folder.join(LEDGER_NAME);
        let reader = Reader::open(&path).with_context(|| path.display().to_string())?;
        let mut entries: Vec<Value> = Vec::new();
        for row in reader.rows(0) {
            let (index, bytes) = row?;
            entries.push(serde_json::from_slice(&bytes).with_context(|| format!("entry {index}"))?);
        }
        let contract = serde_json::from_slice(&reader.contract()?.canonical)?;
        let mut artifacts = BTreeMap::new();
        let listed = entries.first().and_then(|entry| entry.pointer("/body/det/artifacts"));
        for item in listed.and_then(Value::as_array).context("entry 0 lists its artifacts")? {
            let text = |key: &str| item.get(key).and_then(Value::as_str).context("an artifact's fields");
            let digest: Digest = text("digest")?.parse()?;
            artifacts.insert(text("pointer")?.to_owned(), reader.artifact(&digest)?);
        }
        let heads = reader.heads()?.into_iter().map(|head| (head.size, head.note)).collect();
        let source = Source {
            artifacts: artifacts.clone(),
            contract,
            entries: entries.clone(),
            folder: folder.to_owned(),
            heads,
            owner: keys.get(Role::Owner)?,
            trainer: keys.get(Role::Trainer)?,
            _run: run,
        };
        let contract = source.contract.clone();
        let (files, heads_left_out) = (BTreeMap::new(), BTreeSet::new());
        Ok(Self { artifacts, contract, entries, files, heads_left_out, source: Arc::new(source) })
    }

    /// The folder that it was read from, which no mutation changes.
    #[must_use]
    pub fn source_folder(&self) -> &Path {
        &self.source.folder
    }

    /// Places of all entries of a kind, in order.
    #[must_use]
    pub fn places(&self, kind: &str) -> Vec<usize> {
        (0..self.entries.len()).filter(|place| self.entries[*place]["kind"] == kind).collect()
    }

    /// Place of the first entry of a kind.
    ///
    /// # Errors
    /// When there is none: then the mutation does not fit the record.
    pub fn first(&self, kind: &str) -> Result<usize> {
        self.places(kind).first().copied().with_context(|| format!("the record has no {kind}"))
    }

    /// Place of the last entry of a kind.
    ///
    /// # Errors
    /// When there is none.
    pub fn last(&self, kind: &str) -> Result<usize> {
        self.places(kind).last().copied().with_context(|| format!("the record has no {kind}"))
    }

    /// Place of the first entry of a kind with a step in its header.
    ///
    /// # Errors
    /// When there is none.
    pub fn at_step(&self, kind: &str, step: u64) -> Result<usize> {
        let place = self.places(kind).into_iter().find(|place| self.entries[*place]["step"] == step);
        place.with_context(|| format!("the record has no {kind} of step {step}"))
    }

    /// A value within an entry.
    ///
    /// # Errors
    /// When the entry or the value is not there.
    pub fn value(&self, place: usize, pointer: &str) -> Result<&Value> {
        let found = self.entries.get(place).and_then(|entry| entry.pointer(pointer));
        found.with_context(|| format!("entry {place} has no {pointer}"))
    }

    /// Replaces a value within an entry.
    ///
    /// # Errors
    /// When the value is not there, or is already this one: a mutation that
    /// changes nothing tests nothing.
    pub fn set(&mut self, place: usize, pointer: &str, value: impl Into<Value>) -> Result<()> {
        let found = self.entries.get_mut(place).and_then(|entry| entry.pointer_mut(pointer));
        replace(found, value.into()).with_context(|| format!("entry {place}, {pointer}"))
    }

    /// Replaces a value within the contract.
    ///
    /// # Errors
    /// As [`Self::set`].
    pub fn set_contract(&mut self, pointer: &str, value: impl Into<Value>) -> Result<()> {
        replace(self.contract.pointer_mut(pointer), value.into())
            .with_context(|| format!("the contract's {pointer}"))
    }

    /// Changes a frozen JSON file; its binding in the contract follows.
    ///
    /// # Errors
    /// When there is none at that pointer, it is not JSON, or the edit fails.
    pub fn edit_artifact(
        &mut self,
        pointer: &str,
        edit: impl FnOnce(&mut Value) -> Result<()>,
    ) -> Result<()> {
        let bytes = self.artifacts.get_mut(pointer).with_context(|| format!("no artifact {pointer}"))?;
        let mut value = serde_json::from_slice(bytes)?;
        edit(&mut value)?;
        *bytes = ledger::canonical::entry_json(&value)?;
        Ok(())
    }

    /// Bytes of a file below the run's folder, as the record has it now.
    ///
    /// # Errors
    /// When it is not there.
    pub fn file(&self, path: impl AsRef<Path>) -> Result<Vec<u8>> {
        let path = path.as_ref();
        match self.files.get(path) {
            Some(FileChange::Written { bytes, .. }) => Ok(bytes.clone()),
            Some(FileChange::Removed) => bail!("{} was removed", path.display()),
            None => {
                let path = self.source.folder.join(path);
                std::fs::read(&path).with_context(|| path.display().to_string())
            }
        }
    }

    /// Replaces a file, and with it every digest and size that follows from
    /// its bytes: of a checkpoint's file those in its manifest, and those of
    /// manifest, class and model in the entries of its step.
    pub fn replace_file(&mut self, path: impl Into<PathBuf>, bytes: Vec<u8>) {
        self.files.insert(path.into(), FileChange::Written { bytes, is_carried: true });
    }

    /// Writes a file and changes nothing else.
    pub fn write_file(&mut self, path: impl Into<PathBuf>, bytes: Vec<u8>) {
        self.files.insert(path.into(), FileChange::Written { bytes, is_carried: false });
    }

    /// Removes a file.
    pub fn remove_file(&mut self, path: impl Into<PathBuf>) {
        self.files.insert(path.into(), FileChange::Removed);
    }

    /// Leaves the head of a size out of the ledger and of the file beside it.
    ///
    /// # Errors
    /// When there is none: then nothing is left out.
    pub fn leave_head_out(&mut self, size: u64) -> Result<()> {
        let is_there = self.source.heads.iter().any(|(signed, _)| *signed == size);
        anyhow::ensure!(is_there, "the record has no head of size {size}");
        self.heads_left_out.insert(size);
        Ok(())
    }

    /// Changes a JSON file of a checkpoint as [`Self::replace_file`] does.
    ///
    /// # Errors
    /// When it is not there, is not JSON, or the edit fails.
    pub fn edit_json(
        &mut self,
        path: impl Into<PathBuf>,
        edit: impl FnOnce(&mut Value) -> Result<()>,
    ) -> Result<()> {
        let path = path.into();
        let mut value = serde_json::from_slice(&self.file(&path)?)?;
        edit(&mut value)?;
        let bytes = ledger::canonical::entry_json(&value)?;
        self.replace_file(path, bytes);
        Ok(())
    }

    /// Folder of a committed checkpoint, relative to the run's: of the last one
    /// that was committed at a step.
    ///
    /// # Errors
    /// When none was.
    pub fn checkpoint(&self, step: u64) -> Result<PathBuf> {
        let mut places = self.places("checkpoint.durably_committed").into_iter().rev();
        let place = places.find(|place| self.entries[*place]["step"] == step);
        let place = place.with_context(|| format!("no checkpoint of step {step}"))?;
        Ok(self.value(place, "/body/obs/path")?.as_str().context("a path")?.into())
    }

    /// Whether nothing was changed since it was read.
    #[must_use]
    pub fn is_as_read(&self) -> bool {
        let source = &self.source;
        self.entries == source.entries
            && self.contract == source.contract
            && self.artifacts == source.artifacts
            && self.files.is_empty()
            && self.heads_left_out.is_empty()
    }

    /// Every file below the run's folder, relative to it, as the record has it.
    ///
    /// # Errors
    /// When a folder cannot be read.
    pub fn file_names(&self) -> Result<BTreeSet<PathBuf>> {
        let mut names: BTreeSet<PathBuf> = crate::dump::names(&self.source.folder)?.into_iter().collect();
        for (path, change) in &self.files {
            match change {
                FileChange::Removed => names.remove(path),
                FileChange::Written { .. } => names.insert(path.clone()),
            };
        }
        Ok(names)
    }
}

fn replace(found: Option<&mut Value>, value: Value) -> Result<()> {
    let found = found.context("there is no such value")?;
    if *found == value {
        bail!("the value is already {value}");
    }
    *found = value;
    Ok(())
}
