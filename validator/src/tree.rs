//! The hash tree of RFC 6962, section 2.1, built in one pass.
//!
//! A frontier of at most 64 complete subtrees is all that the root at any size
//! needs, so memory does not grow with the ledger.

use sha2::{Digest as _, Sha256};

/// Leaf hash: `SHA-256(0x00 || entry)`.
#[must_use]
pub fn leaf_hash(entry: &[u8]) -> [u8; 32] {
    let mut hasher = Sha256::new();
    hasher.update([0]);
    hasher.update(entry);
    hasher.finalize().into()
}

/// Node hash: `SHA-256(0x01 || left || right)`.
#[must_use]
pub fn node_hash(left: &[u8; 32], right: &[u8; 32]) -> [u8; 32] {
    let mut bytes = [0u8; 65];
    bytes[0] = 1;
    bytes[1..33].copy_from_slice(left);
    bytes[33..].copy_from_slice(right);
    Sha256::digest(bytes).into()
}

/// A growing tree: the roots of its complete subtrees, largest first.
#[derive(Debug, Clone, Default)]
pub struct Frontier {
    subtrees: Vec<[u8; 32]>,
    size: u64,
}

impl Frontier {
    /// The empty tree.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Leaves so far.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Adds a leaf by its hash.
    pub fn append(&mut self, leaf: [u8; 32]) {
        let mut node = leaf;
        // One merge for every trailing one bit of the old size.
        for _ in 0..self.size.trailing_ones() {
            if let Some(left) = self.subtrees.pop() {
                node = node_hash(&left, &node);
            }
        }
        self.subtrees.push(node);
        self.size += 1;
    }

    /// Root hash; that of the empty tree is SHA-256 of nothing.
    #[must_use]
    pub fn root(&self) -> [u8; 32] {
        let mut subtrees = self.subtrees.iter().rev();
        match subtrees.next() {
            None => Sha256::digest([]).into(),
            Some(smallest) => subtrees.fold(*smallest, |right, left| node_hash(left, &right)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The definition of RFC 6962, word for word.
    fn root_by_definition(leaves: &[[u8; 32]]) -> [u8; 32] {
        match leaves {
            [] => Sha256::digest([]).into(),
            [leaf] => *leaf,
            _ => {
                let split = 1 << (leaves.len() - 1).ilog2();
                node_hash(&root_by_definition(&leaves[..split]), &root_by_definition(&leaves[split..]))
            }
        }
    }

    #[test]
    fn the_frontier_gives_the_root_of_the_definition_at_every_size() {
        let mut frontier = Frontier::new();
        let mut leaves = Vec::new();
        for size in 0..130u64 {
            assert_eq!(frontier.size(), size);
            assert_eq!(frontier.root(), root_by_definition(&leaves), "size {size}");
            let leaf = leaf_hash(&size.to_le_bytes());
            frontier.append(leaf);
            leaves.push(leaf);
        }
    }

    #[test]
    fn known_hashes() {
        // The Certificate Transparency reference implementation's vectors.
        assert_eq!(
            schemas::digest::encode_hex(&leaf_hash(b"")),
            "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d"
        );
        assert_eq!(
            schemas::digest::encode_hex(&Frontier::new().root()),
            "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
        );
    }
}
