//! Which ledgers are served, and a cache of what was read from each. A summary
//! is made again when the database or its WAL has changed.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use ledger::reader::{ReadError, Reader};

use crate::summary::{self, Snapshot};

/// Why a ledger could not be shown.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    /// No served ledger holds that run.
    #[error("no ledger here holds the run {run}")]
    NoSuchRun {
        /// What was asked for.
        run: String,
    },
    /// A folder could not be listed.
    #[error("cannot list the folder {path}")]
    Folder {
        /// The folder.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The ledger is no campaign's, or holds something that no campaign has.
    #[error("{path}: {reason}")]
    Campaign {
        /// The ledger.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// The ledger could not be read.
    #[error("cannot read the ledger {path}: {source}")]
    Read {
        /// The ledger.
        path: PathBuf,
        /// Why.
        source: ReadError,
    },
}

/// Size and time of change of a file; equal fingerprints are taken as no change.
type Fingerprint = [Option<(u64, SystemTime)>; 2];

/// The served ledgers. The cache is the only shared field; its lock is held
/// for look-ups, never while a ledger is read.
pub(crate) struct Library {
    roots: Vec<PathBuf>,
    cache: Mutex<BTreeMap<PathBuf, (Fingerprint, Arc<Snapshot>)>>,
}

impl Library {
    pub(crate) fn new(roots: Vec<PathBuf>) -> Self {
        Self { roots, cache: Mutex::new(BTreeMap::new()) }
    }

    /// Every ledger file, in path order.
    pub(crate) fn files(&self) -> Result<Vec<PathBuf>, SourceError> {
        let mut files = Vec::new();
        for root in &self.roots {
            if !root.is_dir() {
                files.push(root.clone());
                continue;
            }
            let failed = |source| SourceError::Folder { path: root.clone(), source };
            for item in std::fs::read_dir(root).map_err(failed)? {
                let path = item.map_err(failed)?.path();
                if path.extension().is_some_and(|extension| extension == "db") && path.is_file() {
                    files.push(path);
                }
            }
        }
        files.sort();
        files.dedup();
        Ok(files)
    }

    /// What a ledger holds, from the cache while the file is unchanged.
    pub(crate) fn snapshot(&self, path: &Path) -> Result<Arc<Snapshot>, SourceError> {
        let fingerprint = fingerprint(path);
        {
            let cache = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some((known, snapshot)) = cache.get(path)
                && *known == fingerprint
            {
                return Ok(Arc::clone(snapshot));
            }
        }
        let failed = |source| SourceError::Read { path: path.to_owned(), source };
        let reader = Reader::open(path).map_err(failed)?;
        let snapshot = Arc::new(summary::read(path, reader).map_err(failed)?);
        let mut cache = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        cache.insert(path.to_owned(), (fingerprint, Arc::clone(&snapshot)));
        Ok(snapshot)
    }

    /// The ledger that holds a run.
    pub(crate) fn find(&self, run: &str) -> Result<Arc<Snapshot>, SourceError> {
        for path in self.files()? {
            // A file that cannot be read is shown as such in the list of runs;
            // here it only means that the run is not in it.
            if let Ok(snapshot) = self.snapshot(&path)
                && snapshot.summary.run == run
            {
                return Ok(snapshot);
            }
        }
        Err(SourceError::NoSuchRun { run: run.to_owned() })
    }
}

fn fingerprint(path: &Path) -> Fingerprint {
    let mut wal = path.as_os_str().to_owned();
    wal.push("-wal");
    [path.to_owned(), PathBuf::from(wal)].map(|file| {
        let metadata = std::fs::metadata(file).ok()?;
        Some((metadata.len(), metadata.modified().ok()?))
    })
}
