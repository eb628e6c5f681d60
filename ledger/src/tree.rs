//! The Merkle tree of RFC 6962, section 2.1, with SHA-256, and its proofs.
//!
//! Leaves are hashed with 0x00 before them and nodes with 0x01, so that no leaf
//! can be read as a node. Proofs are made from all leaf hashes, which is enough
//! for an export; checking them needs nothing but the proof (RFC 9162, 2.1).

use sha2::{Digest, Sha256};

/// A SHA-256 value of the tree.
pub type Hash = [u8; 32];

/// Hash of a leaf: `SHA-256(0x00 || entry)`.
#[must_use]
pub fn leaf_hash(entry: &[u8]) -> Hash {
    let mut hasher = Sha256::new();
    hasher.update([0x00]);
    hasher.update(entry);
    hasher.finalize().into()
}

/// Hash of a node: `SHA-256(0x01 || left || right)`.
#[must_use]
pub fn node_hash(left: &Hash, right: &Hash) -> Hash {
    let mut block = [0u8; 65];
    block[0] = 0x01;
    block[1..33].copy_from_slice(left);
    block[33..].copy_from_slice(right);
    Sha256::digest(block).into()
}

/// Root of the tree without leaves: SHA-256 of nothing.
#[must_use]
pub fn empty_root() -> Hash {
    Sha256::digest([]).into()
}

/// The right edge of a growing tree: enough to append leaves and to give the
/// root, in memory that grows with the logarithm of the size.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Frontier {
    size: u64,
    /// Roots of the perfect subtrees, largest first: one for each bit of `size`.
    subtrees: Vec<Hash>,
}

impl Frontier {
    /// The empty tree.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Leaves so far.
    #[must_use]
    pub const fn size(&self) -> u64 {
        self.size
    }

    /// Appends a leaf by its hash.
    pub fn append(&mut self, leaf: Hash) {
        let mut hash = leaf;
        for _ in 0..self.size.trailing_ones() {
            // One subtree for each set bit, so there is one to merge with.
            if let Some(left) = self.subtrees.pop() {
                hash = node_hash(&left, &hash);
            }
        }
        self.subtrees.push(hash);
        self.size += 1;
    }

    /// Root of the leaves so far.
    #[must_use]
    pub fn root(&self) -> Hash {
        let mut subtrees = self.subtrees.iter().rev();
        let Some(smallest) = subtrees.next() else { return empty_root() };
        subtrees.fold(*smallest, |right, left| node_hash(left, &right))
    }
}

/// Root of a list of leaf hashes.
#[must_use]
pub fn root_of(leaves: &[Hash]) -> Hash {
    match leaves {
        [] => empty_root(),
        [leaf] => *leaf,
        _ => {
            let (left, right) = leaves.split_at(split_point(leaves.len()));
            node_hash(&root_of(left), &root_of(right))
        }
    }
}

/// The largest power of two below `size`, for `size` of at least 2.
fn split_point(size: usize) -> usize {
    1 << (usize::BITS - 1 - (size - 1).leading_zeros())
}

/// Proof that the leaf at `index` is in the tree of all `leaves`: sibling
/// hashes from the bottom up. `None` where there is no such leaf.
#[must_use]
pub fn inclusion_proof(leaves: &[Hash], index: usize) -> Option<Vec<Hash>> {
    if index >= leaves.len() {
        return None;
    }
    let mut proof = Vec::new();
    let (mut leaves, mut index) = (leaves, index);
    while leaves.len() > 1 {
        let (left, right) = leaves.split_at(split_point(leaves.len()));
        if index < left.len() {
            proof.push(root_of(right));
            leaves = left;
        } else {
            proof.push(root_of(left));
            index -= left.len();
            leaves = right;
        }
    }
    proof.reverse();
    Some(proof)
}

/// Proof that the tree of the first `old_size` leaves is a prefix of the tree
/// of all `leaves`. Empty for sizes 0 and `leaves.len()`; `None` beyond that.
#[must_use]
pub fn consistency_proof(leaves: &[Hash], old_size: usize) -> Option<Vec<Hash>> {
    if old_size > leaves.len() {
        return None;
    }
    if old_size == 0 || old_size == leaves.len() {
        return Some(Vec::new());
    }
    let mut proof = Vec::new();
    consistency_path(leaves, old_size, true, &mut proof);
    Some(proof)
}

/// `SUBPROOF` of RFC 6962, 2.1.2.
fn consistency_path(leaves: &[Hash], old_size: usize, whole: bool, proof: &mut Vec<Hash>) {
    if old_size == leaves.len() {
        if !whole {
            proof.push(root_of(leaves));
        }
        return;
    }
    let (left, right) = leaves.split_at(split_point(leaves.len()));
    if old_size <= left.len() {
        consistency_path(left, old_size, whole, proof);
        proof.push(root_of(right));
    } else {
        consistency_path(right, old_size - left.len(), false, proof);
        proof.push(root_of(left));
    }
}

/// All nodes of a tree, so that many proofs cost logarithmic time each. Holds
/// 64 bytes a leaf.
#[derive(Debug, Clone)]
pub struct Levels {
    /// `levels[k][i]` is the root of the perfect subtree over the leaves
    /// `i * 2^k .. (i + 1) * 2^k`.
    levels: Vec<Vec<Hash>>,
}

impl Levels {
    /// Computes all nodes.
    #[must_use]
    pub fn new(leaves: Vec<Hash>) -> Self {
        let mut levels = vec![leaves];
        loop {
            let below = &levels[levels.len() - 1];
            if below.len() < 2 {
                return Self { levels };
            }
            let above = below.chunks_exact(2).map(|pair| node_hash(&pair[0], &pair[1])).collect();
            levels.push(above);
        }
    }

    /// Leaves.
    #[must_use]
    pub fn size(&self) -> usize {
        self.levels[0].len()
    }

    /// Hash of a leaf; `None` beyond the end.
    #[must_use]
    pub fn leaf(&self, index: usize) -> Option<Hash> {
        self.levels[0].get(index).copied()
    }

    /// Root of the first `size` leaves; `None` beyond the end.
    #[must_use]
    pub fn root(&self, size: usize) -> Option<Hash> {
        match size {
            0 => Some(empty_root()),
            _ => (size <= self.size()).then(|| self.range_root(0, size)),
        }
    }

    /// Root of `first .. first + count`, `first` being a multiple of the
    /// largest power of two that is not above `count`.
    fn range_root(&self, first: usize, count: usize) -> Hash {
        if count.is_power_of_two() {
            let level = count.trailing_zeros();
            return self.levels[level as usize][first >> level];
        }
        let left = split_point(count);
        node_hash(&self.range_root(first, left), &self.range_root(first + left, count - left))
    }

    /// [`inclusion_proof`] in the tree of the first `size` leaves.
    #[must_use]
    pub fn inclusion_proof(&self, index: usize, size: usize) -> Option<Vec<Hash>> {
        if index >= size || size > self.size() {
            return None;
        }
        let mut proof = Vec::new();
        let (mut first, mut count) = (0, size);
        while count > 1 {
            let left = split_point(count);
            if index < first + left {
                proof.push(self.range_root(first + left, count - left));
                count = left;
            } else {
                proof.push(self.range_root(first, left));
                first += left;
                count -= left;
            }
        }
        proof.reverse();
        Some(proof)
    }

    /// [`consistency_proof`] between the first `old_size` and `size` leaves.
    #[must_use]
    pub fn consistency_proof(&self, old_size: usize, size: usize) -> Option<Vec<Hash>> {
        if old_size > size || size > self.size() {
            return None;
        }
        let mut proof = Vec::new();
        if old_size == 0 || old_size == size {
            return Some(proof);
        }
        let (mut first, mut count, mut old, mut whole) = (0, size, old_size, true);
        while old != count {
            let left = split_point(count);
            if old <= left {
                proof.push(self.range_root(first + left, count - left));
                count = left;
            } else {
                proof.push(self.range_root(first, left));
                first += left;
                count -= left;
                old -= left;
                whole = false;
            }
        }
        if !whole {
            proof.push(self.range_root(first, count));
        }
        proof.reverse();
        Some(proof)
    }
}

/// Checks an inclusion proof (RFC 9162, 2.1.3.2).
#[must_use]
pub fn verify_inclusion(root: &Hash, size: u64, index: u64, leaf: &Hash, proof: &[Hash]) -> bool {
    if index >= size {
        return false;
    }
    let (mut node, mut last, mut hash) = (index, size - 1, *leaf);
    for sibling in proof {
        if last == 0 {
            return false;
        }
        if node & 1 == 1 || node == last {
            hash = node_hash(sibling, &hash);
            while node & 1 == 0 && node != 0 {
                node >>= 1;
                last >>= 1;
            }
        } else {
            hash = node_hash(&hash, sibling);
        }
        node >>= 1;
        last >>= 1;
    }
    last == 0 && hash == *root
}

/// Checks a consistency proof (RFC 9162, 2.1.4.2).
#[must_use]
pub fn verify_consistency(old_size: u64, old_root: &Hash, size: u64, root: &Hash, proof: &[Hash]) -> bool {
    if old_size > size {
        return false;
    }
    if old_size == size {
        return proof.is_empty() && old_root == root;
    }
    if old_size == 0 {
        return proof.is_empty() && *old_root == empty_root();
    }
    let mut path = proof.iter();
    let (mut node, mut last) = (old_size - 1, size - 1);
    while node & 1 == 1 {
        node >>= 1;
        last >>= 1;
    }
    // A prefix that is one perfect subtree is its own first proof element.
    let first = if old_size.is_power_of_two() { Some(old_root) } else { path.next() };
    let Some(first) = first else { return false };
    let (mut old_hash, mut hash) = (*first, *first);
    for sibling in path {
        if last == 0 {
            return false;
        }
        if node & 1 == 1 || node == last {
            old_hash = node_hash(sibling, &old_hash);
            hash = node_hash(sibling, &hash);
            while node & 1 == 0 && node != 0 {
                node >>= 1;
                last >>= 1;
            }
        } else {
            hash = node_hash(&hash, sibling);
        }
        node >>= 1;
        last >>= 1;
    }
    last == 0 && old_hash == *old_root && hash == *root
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn leaves(count: usize) -> Vec<Hash> {
        (0..count).map(|index| leaf_hash(format!("leaf {index}").as_bytes())).collect()
    }

    #[test]
    fn the_frontier_gives_the_root_of_the_recursive_definition() {
        let mut frontier = Frontier::new();
        for size in 0..200 {
            assert_eq!(frontier.root(), root_of(&leaves(size)), "size {size}");
            frontier.append(leaf_hash(format!("leaf {size}").as_bytes()));
        }
    }

    proptest! {
        #[test]
        fn proofs_verify_and_break_under_any_change(
            size in 1usize..130, index in any::<prop::sample::Index>(), old in any::<prop::sample::Index>(),
            bit in 0usize..256,
        ) {
            let leaves = leaves(size);
            let root = root_of(&leaves);
            let levels = Levels::new(leaves.clone());
            prop_assert_eq!(levels.root(size), Some(root));
            let index = index.index(size);
            let proof = inclusion_proof(&leaves, index).expect("the leaf exists");
            prop_assert_eq!(levels.inclusion_proof(index, size), Some(proof.clone()));
            let (size_u64, index_u64) = (size as u64, index as u64);
            prop_assert!(verify_inclusion(&root, size_u64, index_u64, &leaves[index], &proof));
            let mut other = leaves[index];
            other[bit / 8] ^= 1 << (bit % 8);
            prop_assert!(!verify_inclusion(&root, size_u64, index_u64, &other, &proof));
            prop_assert!(!verify_inclusion(&root, size_u64, index_u64 + size_u64, &leaves[index], &proof));
            let mut longer = proof.clone();
            longer.push(root);
            prop_assert!(!verify_inclusion(&root, size_u64, index_u64, &leaves[index], &longer));

            let old_size = old.index(size + 1);
            let old_root = root_of(&leaves[..old_size]);
            let proof = consistency_proof(&leaves, old_size).expect("not larger");
            prop_assert_eq!(levels.consistency_proof(old_size, size), Some(proof.clone()));
            prop_assert!(verify_consistency(old_size as u64, &old_root, size_u64, &root, &proof));
            let mut wrong = old_root;
            wrong[bit / 8] ^= 1 << (bit % 8);
            prop_assert!(!verify_consistency(old_size as u64, &wrong, size_u64, &root, &proof));
            if old_size != size {
                prop_assert!(!verify_consistency(size_u64, &root, old_size as u64, &old_root, &proof));
            }
        }
    }
}
