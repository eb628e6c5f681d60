//! Openings of one tensor of saved state. The validator walks the proof by code of
//! its own; the second opinion is the writer's tree.

use ledger::canonical;
use ledger::tree::{Hash, leaf_hash, verify_inclusion};
use schemas::challenge::TensorOpening;
use schemas::digest::Digest;
use validator::derive::state_tree;

use super::document::{FACTOR, by_writer};
use super::memory::bounded;
use super::run;

/// Whether the writer's tree leads from the leaf to the root.
fn holds_for_writer(opening: &TensorOpening) -> bool {
    let leaf = canonical::entry_json(&opening.leaf).expect("a leaf can be written");
    let proof: Vec<Hash> = opening.proof.iter().map(|digest| digest.bytes).collect();
    let (root, size, index) = (&opening.root.bytes, opening.num_leaves, opening.leaf_index);
    verify_inclusion(root, size, index, &leaf_hash(&leaf), &proof)
}

fn property(bytes: &[u8]) -> bool {
    let validator = bounded(bytes, FACTOR, || validator::fuzzing::opening(bytes));
    let writer: Option<TensorOpening> = bounded(bytes, FACTOR, || by_writer(bytes));
    let Some((opening, holds)) = validator else {
        assert_eq!(writer, None, "both refuse it");
        return false;
    };
    assert_eq!(writer.as_ref(), Some(&opening), "both accept it, with the same values");
    let expected = bounded(bytes, FACTOR, || holds_for_writer(&opening));
    // The tree has no other hash.
    let is_sha256 = |digest: &Digest| *digest == Digest::sha256(digest.bytes);
    let are_of_tree = is_sha256(&opening.root) && opening.proof.iter().all(is_sha256);
    assert_eq!(holds, expected && are_of_tree, "both trees lead to the same root");
    // Whatever extents it names, their product is one number or none.
    let _ = state_tree::num_bytes(&opening.leaf);
    true
}

#[test]
fn opening() {
    run::target("opening", property);
}
