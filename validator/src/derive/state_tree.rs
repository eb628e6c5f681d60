//! The state tree (`docs/FORMAT.md`, "State tree"): a leaf for each tensor of
//! saved state and for each shard without tensors, hashed as RFC 6962 says.

use schemas::challenge::StateLeaf;
use schemas::number::EntryFormatter;
use serde::Serialize;

use super::llama::num_elements;
use super::safetensors::element_bytes;
use crate::tree::{self, Frontier, node_hash};

/// Hash of a leaf: that of its entry JSON.
#[must_use]
pub fn leaf_hash(leaf: &StateLeaf) -> [u8; 32] {
    let mut bytes = Vec::with_capacity(256);
    // A leaf always serialises; a failure would leave bytes that no leaf has.
    let _ = leaf.serialize(&mut serde_json::Serializer::with_formatter(&mut bytes, EntryFormatter));
    tree::leaf_hash(&bytes)
}

/// Root over leaves in their order: by class, then path, then name.
#[must_use]
pub fn root<'a>(leaves: impl IntoIterator<Item = &'a StateLeaf>) -> [u8; 32] {
    let mut frontier = Frontier::new();
    leaves.into_iter().for_each(|leaf| frontier.append(leaf_hash(leaf)));
    frontier.root()
}

/// Bytes of a tensor by its dtype and shape; `None` of a shard without tensors,
/// and of what has no known size.
#[must_use]
pub fn num_bytes(leaf: &StateLeaf) -> Option<u64> {
    num_elements(leaf.shape.as_ref()?)?.checked_mul(element_bytes(leaf.dtype.as_ref()?)?)
}

/// The root that an inclusion proof of RFC 6962 leads to; `None` where it has
/// another length than place and size ask for.
#[must_use]
pub fn root_of_proof(leaf: [u8; 32], index: u64, size: u64, proof: &[[u8; 32]]) -> Option<[u8; 32]> {
    if index >= size {
        return None;
    }
    // RFC 9162, section 2.1.3.2.
    let (mut place, mut last) = (index, size - 1);
    let mut hash = leaf;
    for sibling in proof {
        if last == 0 {
            return None;
        }
        if place & 1 == 1 || place == last {
            hash = node_hash(sibling, &hash);
            while place & 1 == 0 && place != 0 {
                place >>= 1;
                last >>= 1;
            }
        } else {
            hash = node_hash(&hash, sibling);
        }
        place >>= 1;
        last >>= 1;
    }
    (last == 0).then_some(hash)
}

#[cfg(test)]
mod tests {
    use schemas::digest::{Digest, encode_hex};
    use schemas::state::StateClass;

    use super::*;

    fn leaf(number: u8) -> StateLeaf {
        StateLeaf {
            class: StateClass::Model,
            digest: Digest::blake3([number; 32]),
            dtype: Some("F32".to_owned()),
            name: Some(format!("tensor-{number:03}")),
            path: "model.safetensors".to_owned(),
            shape: Some(vec![2, 3]),
        }
    }

    /// The path of a leaf by the definition of RFC 6962, section 2.1.1.
    fn path(index: usize, hashes: &[[u8; 32]]) -> Vec<[u8; 32]> {
        if hashes.len() <= 1 {
            return Vec::new();
        }
        let split = 1 << (hashes.len() - 1).ilog2();
        let of = |hashes: &[[u8; 32]]| {
            let mut frontier = Frontier::new();
            hashes.iter().for_each(|hash| frontier.append(*hash));
            frontier.root()
        };
        let (inner, sibling) = if index < split {
            (path(index, &hashes[..split]), of(&hashes[split..]))
        } else {
            (path(index - split, &hashes[split..]), of(&hashes[..split]))
        };
        inner.into_iter().chain([sibling]).collect()
    }

    #[test]
    fn every_leaf_of_every_small_tree_opens_to_its_root_and_nowhere_else() {
        for size in 1..40u8 {
            let leaves: Vec<StateLeaf> = (0..size).map(leaf).collect();
            let hashes: Vec<[u8; 32]> = leaves.iter().map(leaf_hash).collect();
            let expected = root(&leaves);
            for index in 0..size {
                let proof = path(usize::from(index), &hashes);
                let (index, count) = (u64::from(index), u64::from(size));
                let hash = hashes[usize::try_from(index).expect("small")];
                assert_eq!(root_of_proof(hash, index, count, &proof), Some(expected));
                assert_ne!(root_of_proof([0; 32], index, count, &proof), Some(expected));
                let longer: Vec<[u8; 32]> = proof.iter().copied().chain([[1; 32]]).collect();
                assert_eq!(root_of_proof(hash, index, count, &longer), None);
                if let Some((_, shorter)) = proof.split_last() {
                    assert_eq!(root_of_proof(hash, index, count, shorter), None);
                }
            }
            assert_eq!(root_of_proof(hashes[0], u64::from(size), u64::from(size), &[]), None);
        }
    }

    /// Why an opening says nothing of where its leaf lies, nor among how many.
    #[test]
    fn another_size_may_lead_to_the_same_root() {
        let hashes = [[1; 32], [2; 32], [3; 32]];
        let proof = path(0, &hashes);
        let of_three = root_of_proof(hashes[0], 0, 3, &proof);
        assert!(of_three.is_some());
        assert_eq!(root_of_proof(hashes[0], 0, 4, &proof), of_three);
        assert_ne!(root_of_proof(hashes[1], 0, 3, &proof), of_three);
    }

    #[test]
    fn a_leaf_is_hashed_over_its_entry_json() {
        use sha2::{Digest as _, Sha256};
        let text = format!(
            r#"{{"class":"model","digest":"blake3:{}","dtype":"F32","name":"tensor-001","path":"model.safetensors","shape":[2,3]}}"#,
            encode_hex(&[1; 32])
        );
        let expected: [u8; 32] = Sha256::digest([&[0], text.as_bytes()].concat()).into();
        assert_eq!(leaf_hash(&leaf(1)), expected);
        assert_eq!(num_bytes(&leaf(1)), Some(24));
        let shard = StateLeaf { dtype: None, name: None, shape: None, ..leaf(1) };
        assert_eq!(num_bytes(&shard), None);
        assert_ne!(leaf_hash(&shard), expected);
    }
}
