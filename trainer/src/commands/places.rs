//! Where checkpoints are: in the folder beside the ledger, in a store by URL, or
//! in both.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::checkpoint::MANIFEST_NAME;
use crate::checkpoint::retention::{Fact, Stage};
use crate::cli;
use crate::run::error;
use crate::run::progress::Console;
use crate::store::{self, StoreError};

use super::opened::{OpenedRun, staying};

/// A place of a checkpoint's files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Place {
    /// The folder beside the ledger.
    Local,
    /// The store by URL.
    Store,
}

impl Place {
    pub(super) const fn text(self) -> &'static str {
        match self {
            Self::Local => "here",
            Self::Store => "in the store",
        }
    }
}

/// What a store by URL was seen to hold: files with sizes, by checkpoint.
type Seen = BTreeMap<String, BTreeMap<String, u64>>;

/// What is known of the places of a run's checkpoints.
pub(super) enum Places {
    /// The store is a folder.
    Folder,
    /// The store was asked.
    Asked(Seen),
    /// The store could not be asked.
    Unknown,
}

impl Places {
    /// Asks the store once for everything of the run. Where it does not answer
    /// that is told, and what lies beside the ledger is still looked at.
    pub(super) fn look(opened: &OpenedRun) -> Self {
        match seen(opened) {
            Ok(None) => Self::Folder,
            Ok(Some(seen)) => Self::Asked(seen),
            Err(error) => {
                cli::say(&format!("warning: the store was not looked at: {}", error::chain(&error)));
                cli::say(&format!("hint: {}", error.hint()));
                Self::Unknown
            }
        }
    }

    /// Names of checkpoints of which the store holds anything.
    pub(super) fn stored(&self) -> impl Iterator<Item = (&String, bool)> {
        let seen = if let Self::Asked(seen) = self { Some(seen) } else { None };
        seen.into_iter().flatten().map(|(name, files)| (name, files.contains_key(MANIFEST_NAME)))
    }

    /// Where a committed checkpoint is whole, as far as can be seen without
    /// reading it, and the first thing that is wrong.
    pub(super) fn of(&self, opened: &OpenedRun, fact: &Fact) -> (Vec<Place>, Option<String>) {
        let is_here = opened.checkpoint_folder(&fact.checkpoint).join(MANIFEST_NAME).is_file();
        let mut places = Vec::new();
        let mut problem = opened.problem(fact);
        if is_here && problem.is_none() {
            places.push(Place::Local);
        }
        if !matches!(self, Self::Folder) && !is_here {
            problem = None;
        }
        let is_expected = fact.stage.is_usable() || fact.stage == Stage::Retired;
        let in_store = match self {
            Self::Folder => return (places, problem),
            Self::Asked(seen) => in_store(seen.get(fact.checkpoint.as_str()), opened, fact),
            Self::Unknown => Err("the store was not looked at".to_owned()),
        };
        match in_store {
            Ok(()) => places.push(Place::Store),
            Err(reason) if is_expected && (matches!(self, Self::Asked(_)) || !is_here) => {
                problem = problem.or(Some(reason));
            }
            Err(_) => {}
        }
        (places, problem)
    }
}

fn seen(opened: &OpenedRun) -> Result<Option<Seen>, StoreError> {
    let Some(remote) = store::remote(&opened.frozen.contract.checkpoints.store)? else { return Ok(None) };
    let below = remote.location.run(&opened.frozen.run);
    let console = Console::new(false);
    let session = remote.short_session(&console, store::retire::LIMIT);
    let mut seen = Seen::new();
    for (key, size) in remote.wait(session.list(&below))? {
        let rest = key.strip_prefix(&below).and_then(|rest| rest.strip_prefix('/')).unwrap_or_default();
        if let Some((checkpoint, file)) = rest.split_once('/') {
            seen.entry(checkpoint.to_owned()).or_default().insert(file.to_owned(), size);
        }
    }
    Ok(Some(seen))
}

/// Whether the store has the manifest, and every file that the manifest here
/// lists in its size; without one here only the manifest's presence is seen.
fn in_store(files: Option<&BTreeMap<String, u64>>, opened: &OpenedRun, fact: &Fact) -> Result<(), String> {
    let files = files.filter(|files| files.contains_key(MANIFEST_NAME));
    let files = files.ok_or_else(|| "the store has no manifest of it".to_owned())?;
    let Some(Ok(manifest)) = opened.manifest(fact) else { return Ok(()) };
    for (_, shard) in staying(fact, &manifest) {
        match files.get(&shard.path) {
            Some(size) if *size == shard.num_bytes => {}
            Some(size) => {
                let (path, expected) = (&shard.path, shard.num_bytes);
                return Err(format!("in the store {path} has {size} bytes, expected {expected}"));
            }
            None => return Err(format!("the store has no {}", shard.path)),
        }
    }
    Ok(())
}
