//! Checks that one tensor is the one that a ledger committed to (`docs/FORMAT.md`,
//! "State tree"), without its checkpoint and without the other tensors.
//!
//! What it shows is bounded by the root: that a checkpoint's files have this root
//! is the audit's rule `GL614`. The root binds the leaf: class, file name, tensor
//! name, dtype, extents and the digest of the bytes. It does not bind where the leaf
//! lies nor among how many: `leaf_index` and `num_leaves` say how the proof is
//! walked, and other numbers may walk it alike.

use std::io::Read;
use std::path::{Path, PathBuf};

use schemas::body::Body;
use schemas::challenge::{OPENING_FORMAT, StateLeaf, TensorOpening};
use schemas::digest::Digest;

use crate::derive::state_tree;
use crate::error::AuditError;
use crate::evidence::MAX_DOCUMENT_BYTES;
use crate::reading::EntryReader;
use crate::row::{Looked, RowContext};
use crate::said::open_regular;
use crate::store::Access;
use crate::tree::Frontier;

use super::error::ChallengeError;
use super::heads::Heads;
use super::record::open;
use super::{check_format, read_document};

/// What to check.
#[derive(Debug, Clone)]
pub struct OpeningRequest {
    /// A head that was kept elsewhere; `None`: the last of `<ledger>.head`.
    pub head: Option<PathBuf>,
    /// The ledger: `run.db`.
    pub ledger: PathBuf,
    /// The opening.
    pub opening: PathBuf,
    /// The tensor's elements, or the shard's bytes; `None`: only what the
    /// opening says of them is checked.
    pub tensor: Option<PathBuf>,
}

/// An opening that holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenedTensor {
    /// Size of the head that covers the entry with the root.
    pub head_size: u64,
    /// Whether bytes were compared with the leaf's digest.
    pub has_bytes: bool,
    /// The opening.
    pub opening: TensorOpening,
}

/// Checks an opening against a ledger's signed head.
///
/// # Errors
/// When a file cannot be read, or the opening does not hold.
pub fn check_opening(request: &OpeningRequest) -> Result<OpenedTensor, ChallengeError> {
    const HINT: &str = "`trainer checkpoint open` writes one";
    let path = &request.opening;
    let (opening, _): (TensorOpening, _) = read_document(path, "tensor opening", HINT, MAX_DOCUMENT_BYTES)?;
    check_format(path, "tensor opening", HINT, &opening.format, OPENING_FORMAT)?;
    let refused = |reason: String| ChallengeError::Opening { path: path.clone(), reason };
    check_proof(&opening).map_err(refused)?;
    let head_size = check_entry(request, &opening)?;
    if let Some(tensor) = &request.tensor {
        let actual = digest_of(tensor, &opening.leaf).map_err(|source| AuditError::Named {
            what: "the tensor's file",
            path: tensor.clone(),
            source,
        })?;
        if actual != opening.leaf.digest {
            let expected = opening.leaf.digest;
            return Err(refused(format!("{} is {actual}, and the leaf names {expected}", tensor.display())));
        }
    }
    Ok(OpenedTensor { has_bytes: request.tensor.is_some(), head_size, opening })
}

/// That the proof leads from the leaf to the root that the opening names.
///
/// # Errors
/// In words, when it does not.
pub(crate) fn check_proof(opening: &TensorOpening) -> Result<(), String> {
    if let Some(other) = opening.proof.iter().find(|digest| **digest != Digest::sha256(digest.bytes)) {
        return Err(format!("its proof has {other}, and the tree is one of SHA-256"));
    }
    let leaf = state_tree::leaf_hash(&opening.leaf);
    let proof: Vec<[u8; 32]> = opening.proof.iter().map(|digest| digest.bytes).collect();
    let root =
        state_tree::root_of_proof(leaf, opening.leaf_index, opening.num_leaves, &proof).ok_or_else(|| {
            format!("its proof does not fit place {} of {} leaves", opening.leaf_index, opening.num_leaves)
        })?;
    let root = Digest::sha256(root);
    if root == opening.root {
        Ok(())
    } else {
        Err(format!("its proof leads to {root}, and it names {}", opening.root))
    }
}

/// The entry is the checkpoint's, holds the root, and lies below a signed head.
fn check_entry(request: &OpeningRequest, opening: &TensorOpening) -> Result<u64, ChallengeError> {
    let refused = |reason: String| ChallengeError::Opening { path: request.opening.clone(), reason };
    let (store, read) = open(&request.ledger, Access::Copy)?;
    let note = Heads::read(&request.ledger, request.head.as_deref())?.newest(&read)?;
    if opening.run != read.run || opening.contract != read.digest {
        return Err(refused(format!("it is of run {}, and the ledger of {}", opening.run, read.run)));
    }
    let mut reader = EntryReader::new();
    let mut frontier = Frontier::new();
    let mut found = None;
    let end = store.for_each_row(&mut |row| {
        let position = frontier.size();
        if position >= note.size {
            return;
        }
        let context = RowContext::new(position, row, Looked::at(row.entry, &mut reader), None);
        if position == opening.entry
            && let Some(entry) = context.canonical_entry()
            && let Body::CheckpointDurablyCommitted(halves) = &entry.body
        {
            found = Some((halves.obs.checkpoint.clone(), halves.det.step, halves.det.state_root));
        }
        frontier.append(context.leaf);
    });
    end.whole().map_err(|error| ChallengeError::Ledger {
        path: request.ledger.clone(),
        reason: format!("SQLite finds the file damaged: {error}"),
    })?;
    if frontier.size() < note.size || frontier.root() != note.root {
        let reason = format!("it holds {} entries below it, or others", frontier.size());
        return Err(ChallengeError::OtherEntries { size: note.size, reason });
    }
    match found {
        Some((checkpoint, step, root)) if checkpoint == opening.checkpoint && step == opening.step => {
            let word = root.map_or("none".to_owned(), |root| root.to_string());
            if root == Some(opening.root) {
                return Ok(note.size);
            }
            Err(refused(format!("entry {} has root {word}, and it names {}", opening.entry, opening.root)))
        }
        Some((checkpoint, step, _)) => {
            Err(refused(format!("entry {} commits {checkpoint} of step {step}", opening.entry)))
        }
        None => Err(refused(format!("entry {} below the head commits no checkpoint", opening.entry))),
    }
}

/// BLAKE3 of a file; of a tensor's only where it has as many bytes as dtype and
/// shape say.
fn digest_of(path: &Path, leaf: &StateLeaf) -> std::io::Result<Digest> {
    let (file, num_bytes) = open_regular(path)?;
    if let Some(expected) = state_tree::num_bytes(leaf).filter(|expected| *expected != num_bytes) {
        let message = format!("it has {num_bytes} bytes, and the tensor has {expected}");
        return Err(std::io::Error::new(std::io::ErrorKind::InvalidData, message));
    }
    // One that grows meanwhile has another digest anyway, and an end.
    let mut file = file.take(num_bytes.saturating_add(1));
    let mut hasher = blake3::Hasher::new();
    let mut buffer = vec![0; 128 << 10];
    loop {
        let num_read = file.read(&mut buffer)?;
        if num_read == 0 {
            return Ok(Digest::blake3(*hasher.finalize().as_bytes()));
        }
        hasher.update(&buffer[..num_read]);
    }
}

#[cfg(test)]
mod tests {
    use schemas::state::StateClass;

    use super::*;

    fn leaf(shape: &[u64]) -> StateLeaf {
        StateLeaf {
            class: StateClass::Model,
            digest: Digest::blake3([0; 32]),
            dtype: Some("F32".to_owned()),
            name: Some("w".to_owned()),
            path: "model.safetensors".to_owned(),
            shape: Some(shape.to_vec()),
        }
    }

    #[test]
    fn only_a_regular_file_of_the_tensors_size_is_hashed() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("tensor");
        std::fs::write(&path, [7; 8]).expect("written");
        let expected = Digest::blake3(*blake3::hash(&[7; 8]).as_bytes());
        assert_eq!(digest_of(&path, &leaf(&[2])).expect("it fits"), expected);
        let refused = digest_of(&path, &leaf(&[3])).expect_err("another size").to_string();
        assert!(refused.contains("8 bytes, and the tensor has 12"), "{refused}");
        for place in [folder.path(), Path::new("/dev/zero")] {
            let refused = digest_of(place, &leaf(&[2])).expect_err("no regular file").to_string();
            assert!(refused.contains("not a regular file"), "{}: {refused}", place.display());
        }
    }
}
