//! Brings a checkpoint from the store into a folder: staged, compared with its
//! manifest, the manifest with the ledger's entry, and only then under its name.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

use ledger::FrozenContract;
use rustix::fs::{FlockOperation, flock};
use schemas::ids::CheckpointId;
use schemas::state::{CheckpointManifest, Shard, StateClass};

use crate::checkpoint::locate::RecordedCheckpoint;
use crate::checkpoint::validate::{self, Expected, MAX_MANIFEST_BYTES};
use crate::checkpoint::writer::{create_store, sync_folder};
use crate::checkpoint::{CheckpointError, MANIFEST_NAME, staging_name};
use crate::run::error;
use crate::run::progress::Console;

use super::verify::{read_manifest, read_shard};
use super::{Remote, Session, StoreError, Stored};

/// Name that a folder gets whose bytes are not those on record and in whose
/// place they are fetched. Nothing is ever read from it.
const DAMAGED: &str = ".damaged-";

/// How names of staging folders begin ([`staging_name`]).
const STAGING: &str = ".staging-";

/// What was fetched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fetched {
    /// Size of the fetched files in bytes.
    pub num_bytes: u64,
    /// How many they are.
    pub num_files: u64,
}

/// Fetches a checkpoint into `<into>/<checkpoint>`; of a retired one the classes
/// that `stays` names.
///
/// # Errors
/// [`CheckpointError`] where that folder exists, the store does not have what
/// the ledger says, or cannot be asked; nothing is left then.
pub fn fetch(
    remote: &Remote,
    console: &Console,
    into: &Path,
    expected: &Expected<'_>,
    stays: impl Fn(StateClass) -> bool,
) -> Result<Fetched, CheckpointError> {
    create_store(into)?;
    let target = into.join(expected.checkpoint.as_str());
    if target.symlink_metadata().is_ok() {
        return Err(CheckpointError::Exists { path: target });
    }
    let staging = Staging::create(into.join(staging_name(expected.checkpoint, std::process::id())))?;
    let session = remote.session(console);
    let fetched = remote.wait(run(&session, &staging.folder, expected, stays))?;
    sync_folder(&staging.folder)?;
    fs::rename(&staging.folder, &target).map_err(CheckpointError::io("rename", &staging.folder))?;
    sync_folder(into)?;
    Ok(fetched)
}

/// A folder that goes away with its owner; renamed, there is nothing left to go.
/// It is locked as long as its owner lives, so that [`remove_leftovers`] can
/// tell.
struct Staging {
    folder: PathBuf,
    _lock: File,
}

impl Staging {
    fn create(folder: PathBuf) -> Result<Self, CheckpointError> {
        fs::create_dir(&folder).map_err(CheckpointError::io("create", &folder))?;
        let lock = File::open(&folder).map_err(CheckpointError::io("open", &folder))?;
        flock(&lock, FlockOperation::NonBlockingLockExclusive)
            .map_err(|error| CheckpointError::io("lock", &folder)(error.into()))?;
        Ok(Self { folder, _lock: lock })
    }
}

/// Removes what fetches left that were killed: staging folders of checkpoints
/// that are committed, so that no save stages them any more, and that nobody
/// holds. What cannot be removed harms nothing but room, and is told.
pub fn remove_leftovers(console: &Console, folder: &Path, is_committed: impl Fn(&CheckpointId) -> bool) {
    for item in fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = item.file_name().to_string_lossy().into_owned();
        let Some((checkpoint, _)) = name.strip_prefix(STAGING).and_then(|name| name.rsplit_once('-')) else {
            continue;
        };
        let is_folder = item.file_type().is_ok_and(|kind| kind.is_dir());
        if !is_folder || !is_committed(&CheckpointId::from(checkpoint)) {
            continue;
        }
        let path = item.path();
        let Ok(lock) = File::open(&path) else { continue };
        if flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
            continue;
        }
        match fs::remove_dir_all(&path) {
            Ok(()) => {
                console.say(&format!("Removed {}, which a fetch left that was stopped", path.display()));
            }
            Err(error) => console.say(&format!("warning: could not remove {}: {error}", path.display())),
        }
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        // What stays is named as what it is, and used by nobody.
        let _ = fs::remove_dir_all(&self.folder);
    }
}

async fn run(
    session: &Session<'_>,
    folder: &Path,
    expected: &Expected<'_>,
    stays: impl Fn(StateClass) -> bool,
) -> Result<Fetched, CheckpointError> {
    let stored = Stored { checkpoint: expected.checkpoint, run: expected.run };
    let bytes = read_manifest(session, stored, expected.manifest, MAX_MANIFEST_BYTES).await?;
    let mut file = create(&folder.join(MANIFEST_NAME))?;
    file.write(&bytes)?;
    file.finish()?;
    let manifest: CheckpointManifest = validate::read_manifest(folder, expected)?;
    let mut done = BTreeSet::new();
    let classes = manifest.classes.iter().filter(|captured| stays(captured.class));
    let shards = classes.flat_map(|captured| &captured.shards);
    let shards: Vec<&Shard> = shards.filter(|shard| done.insert(shard.path.as_str())).collect();
    session.begin("Fetching", shards.iter().map(|shard| shard.num_bytes).sum());
    let mut fetched = Fetched { num_bytes: bytes.len() as u64, num_files: 1 };
    for shard in shards {
        let mut file = create(&folder.join(&shard.path))?;
        read_shard(session, stored, shard, |bytes| file.write(bytes)).await?;
        file.finish()?;
        fetched.num_bytes += shard.num_bytes;
        fetched.num_files += 1;
    }
    Ok(fetched)
}

/// A file that is being written.
struct NewFile {
    file: File,
    path: PathBuf,
}

fn create(path: &Path) -> Result<NewFile, CheckpointError> {
    let file = OpenOptions::new().write(true).create_new(true).open(path);
    Ok(NewFile { file: file.map_err(CheckpointError::io("create", path))?, path: path.to_owned() })
}

impl NewFile {
    fn write(&mut self, bytes: &[u8]) -> Result<(), CheckpointError> {
        self.file.write_all(bytes).map_err(CheckpointError::io("write", &self.path))
    }

    fn finish(self) -> Result<(), CheckpointError> {
        self.file.sync_all().map_err(CheckpointError::io("flush", &self.path))
    }
}

/// Sees to it that the newest checkpoint that can be had lies in the working
/// folder, with the bytes on record: one that is not there, or is damaged there,
/// is fetched. A damaged folder is kept under another name. Under a folder
/// store there is nothing to do.
///
/// # Errors
/// Where the store cannot be asked: a checkpoint that may be there is then not
/// given up. One that the store does not have, or has with other bytes, is only
/// told; an older one is then looked for.
pub fn newest(
    console: &Console,
    frozen: &FrozenContract,
    ledger_folder: &Path,
    mut records: Vec<RecordedCheckpoint>,
) -> Result<(), CheckpointError> {
    let Some(remote) = super::remote(&frozen.contract.checkpoints.store)? else { return Ok(()) };
    let folder = ledger_folder.join(super::WORKING_FOLDER);
    remove_leftovers(console, &folder, |id| records.iter().any(|record| record.checkpoint == *id));
    records.sort_by_key(|record| (record.step, record.attempt));
    for record in records.iter().rev() {
        match one(&remote, console, frozen, &folder, record) {
            Ok(()) => return Ok(()),
            Err(error) if is_unknown(&error) => return Err(error),
            Err(error @ CheckpointError::Io { .. }) => return Err(error),
            Err(error) => {
                let reason = error::chain(&error);
                console.say(&format!("warning: {} cannot be fetched: {reason}", record.checkpoint));
            }
        }
    }
    Ok(())
}

fn one(
    remote: &Remote,
    console: &Console,
    frozen: &FrozenContract,
    folder: &Path,
    record: &RecordedCheckpoint,
) -> Result<(), CheckpointError> {
    let expected = Expected {
        checkpoint: &record.checkpoint,
        contract: frozen.digest,
        manifest: record.manifest,
        run: &frozen.run,
        step: record.step,
    };
    let local = folder.join(record.checkpoint.as_str());
    let is_there = local.symlink_metadata().is_ok();
    if is_there {
        let Err(error) = validate::reread(&local, &expected) else { return Ok(()) };
        let aside = folder.join(format!("{DAMAGED}{}-{}", record.checkpoint, std::process::id()));
        console.say(&format!("warning: {}; fetching it again from the store", error::chain(&error)));
        fs::rename(&local, &aside).map_err(CheckpointError::io("rename", &local))?;
        let fetched = fetch_one(remote, console, folder, &expected);
        if fetched.is_err() {
            // What is wrong with it stays visible under its own name.
            fs::rename(&aside, &local).map_err(CheckpointError::io("rename", &aside))?;
        }
        return fetched;
    }
    fetch_one(remote, console, folder, &expected)
}

fn fetch_one(
    remote: &Remote,
    console: &Console,
    folder: &Path,
    expected: &Expected<'_>,
) -> Result<(), CheckpointError> {
    let fetched = fetch(remote, console, folder, expected, |_| true)?;
    let stored = Stored { checkpoint: expected.checkpoint, run: expected.run };
    let url = remote.location.url(&remote.location.folder(stored));
    console.say(&format!("Fetched {url}: {} files, {} bytes", fetched.num_files, fetched.num_bytes));
    Ok(())
}

/// Whether an error says that the store could not be asked.
#[must_use]
pub const fn is_unknown(error: &CheckpointError) -> bool {
    matches!(error, CheckpointError::Store(error) if error.is_unknown())
}

impl From<StoreError> for CheckpointError {
    fn from(error: StoreError) -> Self {
        Self::Store(Box::new(error))
    }
}
