//! Checkpoint stores by URL: `s3://bucket/prefix`, through the `object_store`
//! crate. A store that is a folder is no concern of this module.
//!
//! A checkpoint is staged, committed and read back in a working folder beside
//! the ledger, as under a folder store, and then uploaded: shards first, in
//! parts, hashed while they are read, and the manifest last and only where none
//! is there, so that a checkpoint in the store is whole or absent. What counts
//! is the store: `checkpoint.durably_committed` follows its acknowledgement of
//! the manifest, and `checkpoint.validated` a second reading of every byte from
//! it. The working folder is a copy, which may be thrown away and fetched again.
//!
//! Credentials come from the environment and go nowhere but into the signatures
//! of requests. Nothing here writes an entry.

pub mod fetch;
pub mod leftovers;
pub mod location;
pub mod open_uploads;
pub mod remote;
pub mod retire;
pub mod session;
pub mod settings;
pub mod upload;
pub mod verify;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use schemas::ids::{CheckpointId, RunId};

pub use location::{Location, is_url};
pub use remote::Remote;
pub use session::Session;

/// Folder beside the ledger in which the checkpoints of a run with a store by
/// URL are made, and into which they are fetched (`docs/FORMAT.md`,
/// "Checkpoint stores by URL").
pub const WORKING_FOLDER: &str = "checkpoints";

/// Name of the object that says who writes a checkpoint; put before anything
/// else and only where it is not there, so that no two writers ever mix shards.
pub const WRITER_NAME: &str = "writer.json";

/// Why a store by URL could not be used.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The URL is none of this edition.
    #[error("the checkpoint store {url} cannot be used: {reason}")]
    Url {
        /// The URL.
        url: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A setting is missing, or is not one.
    #[error("the environment variable {variable} {reason}")]
    Environment {
        /// Its name; never its value, where that is a secret.
        variable: &'static str,
        /// What is wrong with it.
        reason: String,
    },
    /// No client can be made.
    #[error("the client of the checkpoint store cannot be set up: {reason}")]
    Setup {
        /// In words.
        reason: String,
    },
    /// Somebody else wrote there.
    #[error("{url} is there already and this process did not write it; nothing was overwritten")]
    Taken {
        /// The object.
        url: String,
    },
    /// What should be there is not.
    #[error("{url} is not in the store")]
    Missing {
        /// The object.
        url: String,
    },
    /// The store refused, and trying again would change nothing.
    #[error("the store refused to {action} {url}: {reason}")]
    Refused {
        /// What was attempted.
        action: &'static str,
        /// On what.
        url: String,
        /// What it said.
        reason: String,
    },
    /// The store did not do it in time.
    #[error(
        "the store did not {action} {url} in {tries} tries within the limit of {} s: {reason}",
        limit.as_secs()
    )]
    TimedOut {
        /// What was attempted.
        action: &'static str,
        /// Limit of the whole operation, such as the upload of a checkpoint.
        limit: Duration,
        /// What the last try ended with.
        reason: String,
        /// How often it was tried.
        tries: u32,
        /// On what.
        url: String,
    },
}

impl StoreError {
    /// Whether the store could not be asked, so that nothing is known of what
    /// it holds.
    #[must_use]
    pub const fn is_unknown(&self) -> bool {
        !matches!(self, Self::Missing { .. } | Self::Taken { .. })
    }

    /// What can be done about it.
    #[must_use]
    pub const fn hint(&self) -> &'static str {
        match self {
            Self::Url { .. } => "a store is a folder below the ledger's, or s3://bucket/prefix",
            Self::Environment { .. } | Self::Setup { .. } => {
                "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, and AWS_REGION or AWS_ENDPOINT_URL where \
                 the store asks for it"
            }
            Self::Taken { .. } => {
                "another process writes for the same run: stop it, or go on with the copy of the ledger that \
                 it writes to"
            }
            Self::Missing { .. } => "`trainer checkpoint list` says which checkpoints are where",
            Self::Refused { .. } => "look at the bucket's name, its region and what the key may do there",
            Self::TimedOut { .. } => {
                "when the store answers again, run the same command again; CHECKPOINT_STORE_TIMEOUT_S raises \
                 the limit"
            }
        }
    }
}

/// Folder of a run's checkpoints relative to the ledger's: the contract's store,
/// or the working folder where that is a URL.
#[must_use]
pub fn working_folder(store: &str) -> &str {
    if is_url(store) { WORKING_FOLDER } else { store.trim_end_matches('/') }
}

/// Clients of this process by URL, since each has threads' worth of state: a
/// runtime, a pool of connections and the system's certificates.
static REMOTES: Mutex<BTreeMap<String, Arc<Remote>>> = Mutex::new(BTreeMap::new());

/// The client of a contract's store; none where that is a folder. Settings are
/// read from the environment when it is first asked for.
///
/// # Errors
/// [`StoreError`] where URL or environment cannot be used. Nothing is asked of
/// the store yet.
pub fn remote(store: &str) -> Result<Option<Arc<Remote>>, StoreError> {
    if !is_url(store) {
        return Ok(None);
    }
    let mut remotes = REMOTES.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(remote) = remotes.get(store) {
        return Ok(Some(Arc::clone(remote)));
    }
    let location = Location::parse(store)?;
    let settings = settings::Settings::from_environment(&|name| std::env::var(name).ok())?;
    let remote = Arc::new(Remote::open(location, settings)?);
    remotes.insert(store.to_owned(), Arc::clone(&remote));
    Ok(Some(remote))
}

/// A checkpoint of a run: where its objects are.
#[derive(Debug, Clone, Copy)]
pub struct Stored<'a> {
    /// Its name.
    pub checkpoint: &'a CheckpointId,
    /// The run that it is of.
    pub run: &'a RunId,
}
