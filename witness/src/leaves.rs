//! Leaf hashes of a ledger, made from the stored entries, for proofs.

use ledger::note::{self, NoteError, TreeHead};
use ledger::reader::{ReadError, Reader};
use ledger::tree::{Hash, Levels, leaf_hash};

/// A tree that cannot be proved to be that of a head.
#[derive(Debug, thiserror::Error)]
pub enum LeavesError {
    /// The ledger cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The stored entries are not those that the head signed.
    #[error(
        "the first {size} entries of the ledger do not give the root of the head; hint: `ledger audit` says which differ"
    )]
    Root {
        /// Size of the head.
        size: u64,
    },
    /// There are fewer entries than the head covers.
    #[error(
        "the head covers {size} entries and the ledger holds {num_entries}; hint: `ledger audit` says what is missing"
    )]
    Behind {
        /// Size of the head.
        size: u64,
        /// Entries that there are.
        num_entries: u64,
    },
    /// A size beyond the head's.
    #[error("{given} is beyond the head of size {size}")]
    Beyond {
        /// Index or size that was asked for.
        given: u64,
        /// Size of the head.
        size: u64,
    },
    /// The ledger has no head.
    #[error("the ledger has no signed head")]
    NoHead,
    /// The newest head is no note.
    #[error("the newest head of the ledger is no note")]
    Note(#[source] NoteError),
}

/// Reads the leaves of the entries that are not in `leaves` yet.
///
/// # Errors
/// When the ledger cannot be read.
pub fn extend(leaves: &mut Vec<Hash>, reader: &Reader) -> Result<(), ReadError> {
    for row in reader.rows(leaves.len() as u64) {
        leaves.push(leaf_hash(&row?.1));
    }
    Ok(())
}

/// The newest head of a ledger: that of the database, which commits first.
///
/// # Errors
/// When there is none, or it is no note.
pub fn newest_head(reader: &Reader) -> Result<String, LeavesError> {
    let heads = reader.heads()?;
    let newest = heads.into_iter().next_back().ok_or(LeavesError::NoHead)?;
    note::parse(&newest.note).map_err(LeavesError::Note)?;
    Ok(newest.note)
}

/// All nodes over the entries of a head, whose root has to be the head's.
///
/// # Errors
/// When there are fewer entries, or they give another root.
pub fn tree(leaves: &[Hash], head: &TreeHead) -> Result<Levels, LeavesError> {
    let (size, num_entries) = (head.size, leaves.len() as u64);
    let covered = usize::try_from(size).ok().and_then(|size| leaves.get(..size));
    let covered = covered.ok_or(LeavesError::Behind { size, num_entries })?;
    let levels = Levels::new(covered.to_vec());
    if levels.root(covered.len()) == Some(head.root) { Ok(levels) } else { Err(LeavesError::Root { size }) }
}

/// Proof that the tree of a head begins with that of `old_size`.
///
/// # Errors
/// When that is beyond the head.
pub fn consistency(levels: &Levels, old_size: u64, size: u64) -> Result<Vec<Hash>, LeavesError> {
    let sizes = usize::try_from(old_size).ok().zip(usize::try_from(size).ok());
    let proof = sizes.and_then(|(old, new)| levels.consistency_proof(old, new));
    proof.ok_or(LeavesError::Beyond { given: old_size, size })
}
