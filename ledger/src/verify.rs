//! Checking one head against the stored entries: `ledger verify-head`.
//!
//! This answers one question, whether the entries that are stored now begin
//! with those that a head was signed over. It is no audit.

use std::path::{Path, PathBuf};

use crate::campaign::CampaignContract;
use crate::head_file;
use crate::keys::Role;
use crate::note::{self, NoteError, TreeHead};
use crate::reader::{ReadError, Reader};
use crate::tree::{Frontier, Hash, leaf_hash};

/// Where a head comes from.
#[derive(Debug, Clone)]
pub enum HeadChoice {
    /// The last note of the head file beside the ledger.
    Beside,
    /// The last note of a named file.
    File(PathBuf),
    /// A note that is at hand.
    Note(String),
}

/// What became of the check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VerifiedHead {
    /// The head.
    pub head: TreeHead,
    /// Entries that are stored; may be more than the head covers.
    pub num_entries: u64,
    /// Public key whose signature verified, 64 hex digits.
    pub public: String,
    /// Role under which the ledger names that key; `None` for a key that was
    /// given by the caller.
    pub role: Option<Role>,
}

/// A head that the ledger does not meet.
#[derive(Debug, thiserror::Error)]
pub enum VerifyHeadError {
    /// The ledger cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// There is no head to check.
    #[error("no head to check: {0} does not exist or holds no note")]
    NoHead(PathBuf),
    /// The head is malformed or not signed by any accepted key.
    #[error("the head does not verify")]
    Note(#[source] NoteError),
    /// The head belongs to another ledger.
    #[error("the head is of {actual:?}, the ledger is {expected:?}")]
    Origin {
        /// What the ledger's own heads say.
        expected: String,
        /// What the head says.
        actual: String,
    },
    /// Entries are missing.
    #[error("the ledger is behind the head: {num_entries} entries are stored, {size} were signed")]
    Behind {
        /// Entries that are stored.
        num_entries: u64,
        /// Entries that the head covers.
        size: u64,
    },
    /// Entries are other than those that were signed.
    #[error("the first {size} entries do not give the signed root")]
    Root {
        /// Size of the head.
        size: u64,
        /// What the entries give.
        actual: Hash,
    },
    /// No key to check with.
    #[error("the ledger names no key and none was given; name one with `--trust FILE`")]
    NoKey,
}

/// Checks a head. Accepted keys are those of `public_keys` (64 hex digits each);
/// where it is empty, those that the ledger's own contract names, which shows
/// that the ledger is consistent but not who made it.
///
/// # Errors
/// When the ledger cannot be read, or the head is malformed, unsigned, of
/// another ledger, ahead of the ledger, or of other entries.
pub fn verify_head(
    path: &Path,
    choice: &HeadChoice,
    public_keys: &[String],
) -> Result<VerifiedHead, VerifyHeadError> {
    let reader = Reader::open(path)?;
    let note = match choice {
        HeadChoice::Beside => reader
            .head_beside()
            .map(ToOwned::to_owned)
            .ok_or_else(|| VerifyHeadError::NoHead(head_file::path_for(path)))?,
        HeadChoice::File(file) => head_file::read_last(file).map_err(ReadError::from)?,
        HeadChoice::Note(note) => note.clone(),
    };
    let parsed = note::parse(&note).map_err(VerifyHeadError::Note)?;
    let (kind, run) = reader.identity()?;
    let expected = note::origin(kind, &run);
    if parsed.head.origin != expected {
        return Err(VerifyHeadError::Origin { expected, actual: parsed.head.origin });
    }
    let keys = accepted_keys(&reader, public_keys, parsed.head.size);
    let (public, role) = verify_signature(&note, &keys)?;
    let num_entries = reader.num_entries();
    if parsed.head.size > num_entries {
        return Err(VerifyHeadError::Behind { num_entries, size: parsed.head.size });
    }
    let actual = root_at(&reader, parsed.head.size)?;
    if actual != parsed.head.root {
        return Err(VerifyHeadError::Root { size: parsed.head.size, actual });
    }
    Ok(VerifiedHead { head: parsed.head, num_entries, public, role })
}

/// Root of the first `size` entries.
///
/// # Errors
/// When they cannot be read.
pub fn root_at(reader: &Reader, size: u64) -> Result<Hash, ReadError> {
    let mut frontier = Frontier::new();
    for row in reader.rows(0) {
        if frontier.size() == size {
            break;
        }
        frontier.append(leaf_hash(&row?.1));
    }
    Ok(frontier.root())
}

fn accepted_keys(reader: &Reader, given: &[String], size: u64) -> Vec<(String, Option<Role>)> {
    if !given.is_empty() {
        return given.iter().map(|public| (public.clone(), None)).collect();
    }
    let Ok(frozen) = reader.contract() else { return campaign_owner(reader) };
    let keys = frozen.contract.keys;
    let mut accepted = vec![(keys.trainer.public, Some(Role::Trainer))];
    // The owner signs the freeze and nothing after it.
    if size <= 1 {
        accepted.push((keys.owner.public, Some(Role::Owner)));
    }
    accepted
}

/// A campaign's owner signs all of its heads.
fn campaign_owner(reader: &Reader) -> Vec<(String, Option<Role>)> {
    let campaign = reader.entry(0).ok().and_then(|entry| CampaignContract::from_entry(&entry).ok());
    let owner = campaign.map(|campaign| (campaign.preregistration.keys.owner.public, Some(Role::Owner)));
    owner.into_iter().collect()
}

fn verify_signature(
    note: &str,
    keys: &[(String, Option<Role>)],
) -> Result<(String, Option<Role>), VerifyHeadError> {
    let mut failure = None;
    for (public, role) in keys {
        match note::verify(note, public) {
            Ok(_) => return Ok((public.clone(), *role)),
            Err(error) => failure = Some(error),
        }
    }
    Err(failure.map_or(VerifyHeadError::NoKey, VerifyHeadError::Note))
}
