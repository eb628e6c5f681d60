//! A run's ledger, read once for a command.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use ledger::FrozenContract;
use ledger::links;
use ledger::reader::Reader;
use schemas::body::Body;
use schemas::ids::CheckpointId;
use schemas::state::{CheckpointManifest, Shard, StateClass};

use crate::checkpoint::CheckpointError;
use crate::checkpoint::retention::{Fact, Stage};
use crate::checkpoint::roster::Roster;
use crate::checkpoint::validate::{self, Expected};
use crate::cli::Failure;
use crate::run::error::RunError;
use crate::run::folder_of;
use crate::run::history::History;
use crate::run::refusal::Refusal;
use crate::store::working_folder;

/// What the ledger says, and where its files are.
pub(super) struct OpenedRun {
    /// Folder that the contract's paths are relative to.
    pub(super) folder: PathBuf,
    pub(super) frozen: FrozenContract,
    pub(super) history: History,
    /// Index of the entry of each retirement.
    pub(super) retired: BTreeMap<CheckpointId, u64>,
}

impl OpenedRun {
    /// Reads a private copy of the ledger.
    pub(super) fn open(ledger: &Path) -> Result<Self, Failure> {
        let reader = Reader::open(ledger).map_err(RunError::from)?;
        let frozen = reader.contract().map_err(RunError::from)?;
        let mut history = History { roster: Roster::new(&frozen), ..History::default() };
        let mut retired = BTreeMap::new();
        for entry in reader.entries(0) {
            let entry = entry.map_err(RunError::from)?;
            if let Body::CheckpointRetired(halves) = &entry.body {
                retired.insert(halves.obs.checkpoint.clone(), entry.index);
            }
            history.observe(&entry);
        }
        Ok(Self { folder: folder_of(ledger), frozen, history, retired })
    }

    pub(super) fn store(&self) -> PathBuf {
        self.folder.join(working_folder(&self.frozen.contract.checkpoints.store))
    }

    pub(super) fn checkpoint_folder(&self, checkpoint: &CheckpointId) -> PathBuf {
        self.store().join(checkpoint.as_str())
    }

    /// Refuses to act on the working folder where a symbolic link is on the way to it
    /// or to one of these checkpoints: no audit reads them there, and what is put or
    /// removed there is in a folder that is no part of the run.
    pub(super) fn refuse_links<'a>(&self, facts: impl IntoIterator<Item = &'a Fact>) -> Result<(), Failure> {
        let store = working_folder(&self.frozen.contract.checkpoints.store);
        let folders = facts.into_iter().map(|fact| Path::new(store).join(fact.checkpoint.as_str()));
        links::check(&self.folder, store, folders).map_err(Refusal::from).map_err(RunError::from)?;
        Ok(())
    }

    /// A checkpoint by its name.
    pub(super) fn fact(&self, name: &str) -> Result<&Fact, Failure> {
        self.history.roster.fact(&CheckpointId::from(name)).ok_or_else(|| Failure {
            message: format!("the ledger knows no checkpoint {name}"),
            hint: Some("`trainer checkpoint list --ledger FILE` prints their names"),
        })
    }

    /// The manifest of a committed checkpoint, compared with its entry; `None`
    /// where none was committed.
    pub(super) fn manifest(&self, fact: &Fact) -> Option<Result<CheckpointManifest, CheckpointError>> {
        let manifest = fact.manifest?;
        let expected = Expected {
            checkpoint: &fact.checkpoint,
            contract: self.frozen.digest,
            manifest,
            run: &self.frozen.run,
            step: fact.step,
        };
        Some(validate::read_manifest(&self.checkpoint_folder(&fact.checkpoint), &expected))
    }

    /// The first thing that is wrong with a checkpoint's files without reading
    /// their contents; `None` where all that should be there is.
    pub(super) fn problem(&self, fact: &Fact) -> Option<String> {
        if !fact.stage.is_usable() && fact.stage != Stage::Retired {
            return None;
        }
        let manifest = match self.manifest(fact)? {
            Ok(manifest) => manifest,
            Err(error) => return Some(crate::run::error::chain(&error)),
        };
        let folder = self.checkpoint_folder(&fact.checkpoint);
        staying(fact, &manifest).into_iter().find_map(|(_, shard)| {
            match fs::metadata(folder.join(&shard.path)) {
                Ok(metadata) if metadata.len() == shard.num_bytes => None,
                Ok(metadata) => Some(format!(
                    "{}: expected {} bytes, found {}",
                    shard.path,
                    shard.num_bytes,
                    metadata.len()
                )),
                Err(error) => Some(format!("{}: {error}", shard.path)),
            }
        })
    }
}

/// Shards that have to be there: all, or of a retired checkpoint those of the
/// classes that stayed.
pub(super) fn staying<'a>(fact: &Fact, manifest: &'a CheckpointManifest) -> Vec<(StateClass, &'a Shard)> {
    let stays = |class: StateClass| fact.stage != Stage::Retired || fact.kept.contains(&class);
    let classes = manifest.classes.iter().filter(|captured| stays(captured.class));
    classes.flat_map(|captured| captured.shards.iter().map(move |shard| (captured.class, shard))).collect()
}
