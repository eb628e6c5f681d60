//! The state tree (`docs/FORMAT.md`, "State tree"): a leaf for each tensor of
//! saved state and for each shard without tensors, whose root goes on record, so
//! that one tensor can be opened without the others.
//!
//! It is kept only where the contract asks for it: each tensor is then hashed
//! once more than its file needs.

use ledger::tree::{Levels, leaf_hash, root_of as merkle_root};
use schemas::challenge::StateLeaf;
use schemas::contract::{Contract, StateTree};
use schemas::digest::Digest;
use schemas::state::{StateClass, StateDigest};

use crate::checkpoint;
use crate::export::{self, NamedTensor};

use super::registry::{CapturedState, Content};
use super::{StateError, split};

/// What a step, or a checkpoint, records of a state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordedState {
    /// Of every class of the contract, in its order.
    pub digests: Vec<StateDigest>,
    /// Root of the state tree; none where the contract has no such tree.
    pub root: Option<Digest>,
}

fn hash(bytes: &[u8]) -> Digest {
    Digest::blake3(*blake3::hash(bytes).as_bytes())
}

fn of_tensor(class: StateClass, path: &str, tensor: &NamedTensor) -> StateLeaf {
    StateLeaf {
        class,
        digest: hash(&tensor.bytes),
        dtype: Some(tensor.dtype.clone()),
        name: Some(tensor.name.clone()),
        path: path.to_owned(),
        shape: Some(tensor.shape.clone()),
    }
}

fn of_shard(class: StateClass, path: &str, digest: Digest) -> StateLeaf {
    StateLeaf { class, digest, dtype: None, name: None, path: path.to_owned(), shape: None }
}

/// By class, then path, then name: the order of the tree.
fn sorted(mut leaves: Vec<StateLeaf>) -> Vec<StateLeaf> {
    leaves.sort_by(|left, right| {
        (left.class, &left.path, &left.name).cmp(&(right.class, &right.path, &right.name))
    });
    leaves
}

/// Leaves of a state that was captured, in the tree's order.
///
/// # Errors
/// When tensors do not make a file.
pub fn leaves_of(state: &CapturedState) -> Result<Vec<StateLeaf>, StateError> {
    let mut leaves = Vec::new();
    for (class, shards) in &state.classes {
        for shard in shards {
            match &shard.content {
                Content::Tensors(_, tensors) | Content::Frozen(tensors, _) => {
                    leaves.extend(tensors.iter().map(|tensor| of_tensor(*class, shard.name, tensor)));
                }
                Content::Json(bytes) => leaves.push(of_shard(*class, shard.name, hash(bytes))),
                Content::Index(_) => {
                    let digests = split::digests(*class, shards)?;
                    let digest = digests.get(shard.name).copied().ok_or_else(|| StateError::Inventory {
                        class: *class,
                        reason: format!("{} was not made", shard.name),
                    })?;
                    leaves.push(of_shard(*class, shard.name, digest));
                }
            }
        }
    }
    Ok(sorted(leaves))
}

/// Leaves of a state in files: class, file name and bytes of each.
///
/// # Errors
/// When a file of tensors is not one.
pub fn leaves_of_files<'a>(
    files: impl IntoIterator<Item = (StateClass, &'a str, &'a [u8])>,
) -> Result<Vec<StateLeaf>, StateError> {
    let mut leaves = Vec::new();
    for (class, path, bytes) in files {
        if path.ends_with(".safetensors") {
            let mut reader = bytes;
            let read = export::read(checkpoint::file_kind(path), &mut reader, bytes.len() as u64);
            let (tensors, _) =
                read.map_err(|source| StateError::Tensors { class, source: Box::new(source) })?;
            leaves.extend(tensors.iter().map(|tensor| of_tensor(class, path, tensor)));
        } else {
            leaves.push(of_shard(class, path, hash(bytes)));
        }
    }
    Ok(sorted(leaves))
}

fn hashes(leaves: &[StateLeaf]) -> Result<Vec<[u8; 32]>, StateError> {
    let hash = |leaf: &StateLeaf| {
        let bytes = ledger::canonical::entry_json(leaf)
            .map_err(|source| StateError::Encode { class: leaf.class, source })?;
        Ok(leaf_hash(&bytes))
    };
    leaves.iter().map(hash).collect()
}

/// Root over leaves in the tree's order.
///
/// # Errors
/// When a leaf cannot be written.
pub fn root(leaves: &[StateLeaf]) -> Result<Digest, StateError> {
    Ok(Digest::sha256(merkle_root(&hashes(leaves)?)))
}

/// Sibling hashes from a leaf to the root; none where there is no such leaf.
///
/// # Errors
/// When a leaf cannot be written.
pub fn proof(leaves: &[StateLeaf], index: usize) -> Result<Option<Vec<Digest>>, StateError> {
    let levels = Levels::new(hashes(leaves)?);
    let proof = levels.inclusion_proof(index, leaves.len());
    Ok(proof.map(|proof| proof.into_iter().map(Digest::sha256).collect()))
}

/// Root of the tree over a captured state, where the contract keeps one.
///
/// # Errors
/// As [`leaves_of`].
pub fn root_of(state: &CapturedState, contract: &Contract) -> Result<Option<Digest>, StateError> {
    match contract.state_tree {
        None => Ok(None),
        Some(StateTree::Tensors) => root(&leaves_of(state)?).map(Some),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::export::FileKind;
    use crate::state::registry::CapturedShard;

    fn tensor(name: &str, value: f32) -> NamedTensor {
        let bytes = value.to_le_bytes().to_vec();
        NamedTensor { name: name.to_owned(), dtype: "F32".to_owned(), shape: vec![1], bytes }
    }

    fn state(value: f32) -> CapturedState {
        let model = vec![
            CapturedShard { name: "config.json", content: Content::Json(b"{}".to_vec()) },
            CapturedShard {
                name: "model.safetensors",
                content: Content::Tensors(FileKind::Model, vec![tensor("a", value), tensor("b", 2.0)]),
            },
        ];
        let topology = vec![CapturedShard { name: "topology.json", content: Content::Json(b"1".to_vec()) }];
        CapturedState { classes: vec![(StateClass::Topology, topology), (StateClass::Model, model)], step: 0 }
    }

    #[test]
    fn a_state_in_memory_and_its_files_have_one_root() {
        let captured = state(1.0);
        let leaves = leaves_of(&captured).expect("leaves");
        let mut files = Vec::new();
        for (class, shards) in &captured.classes {
            for (name, bytes) in split::files(*class, shards).expect("files") {
                files.push((*class, name, bytes));
            }
        }
        let listed = files.iter().map(|(class, name, bytes)| (*class, *name, bytes.as_slice()));
        assert_eq!(leaves, leaves_of_files(listed).expect("leaves"));
        let names: Vec<_> = leaves.iter().map(|leaf| leaf.name.as_deref().unwrap_or(&leaf.path)).collect();
        assert_eq!(names, ["config.json", "a", "b", "topology.json"]);
    }

    #[test]
    fn one_element_changes_the_root_and_every_leaf_opens() {
        let (leaves, other) =
            (leaves_of(&state(1.0)).expect("leaves"), leaves_of(&state(1.5)).expect("leaves"));
        let expected = root(&leaves).expect("a root");
        assert_ne!(expected, root(&other).expect("a root"));
        let hashes = hashes(&leaves).expect("hashes");
        for (index, hash) in hashes.iter().enumerate() {
            let proof = proof(&leaves, index).expect("a proof").expect("there is such a leaf");
            let proof: Vec<[u8; 32]> = proof.iter().map(|digest| digest.bytes).collect();
            let (size, index) = (leaves.len() as u64, index as u64);
            assert!(ledger::tree::verify_inclusion(&expected.bytes, size, index, hash, &proof));
        }
        assert_eq!(proof(&leaves, leaves.len()).expect("no error"), None);
    }
}
