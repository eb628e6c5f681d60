//! Proofs of an export, and what they are checked with. The validator reads none,
//! since it reads every entry; the second opinion is that a tree has exactly one
//! proof of each statement.

use ledger::canonical;
use ledger::export::Proofs;
use ledger::tree::{
    Hash, consistency_proof, inclusion_proof, leaf_hash, root_of, verify_consistency, verify_inclusion,
};
use schemas::digest::decode_hex;
use system_tests::random::Random;

use super::memory::bounded;
use super::run;

/// As for entries.
const FACTOR: usize = 256;

/// Leaves of the largest tree that is made.
const MAX_LEAVES: u64 = 70;

/// Trees that are tried.
const NUM_TREES: u64 = 3_000;

fn hashes(texts: &[String]) -> Option<Vec<Hash>> {
    texts.iter().map(|text| decode_hex(text)?.try_into().ok()).collect()
}

/// Numbers and hashes come from the file alone: whatever they are, checking them
/// ends.
fn check_all(proofs: &Proofs) -> bool {
    let root = hashes(std::slice::from_ref(&proofs.root)).and_then(|hashes| hashes.first().copied());
    let Some(root) = root else { return false };
    let mut are_hashes = true;
    for stated in &proofs.inclusion {
        let leaf = hashes(std::slice::from_ref(&stated.leaf)).and_then(|hashes| hashes.first().copied());
        let (Some(leaf), Some(proof)) = (leaf, hashes(&stated.proof)) else {
            are_hashes = false;
            continue;
        };
        let _ = verify_inclusion(&root, stated.size, stated.index, &leaf, &proof);
    }
    for stated in &proofs.consistency {
        let Some(proof) = hashes(&stated.proof) else {
            are_hashes = false;
            continue;
        };
        let _ = verify_consistency(stated.from, &root, stated.to, &root, &proof);
    }
    are_hashes
}

fn property(bytes: &[u8]) -> bool {
    let read = bounded(bytes, FACTOR, || {
        canonical::check_entry_json(bytes).ok()?;
        serde_json::from_slice::<Proofs>(bytes).ok()
    });
    let Some(proofs) = read else { return false };
    let again = canonical::entry_json(&proofs).expect("proofs can be written");
    assert!(again == bytes, "read and written again they are other bytes");
    check_all(&proofs)
}

#[test]
fn proof() {
    run::target("proof", property);
}

fn changed(random: &mut Random, proof: &[Hash]) -> Vec<Hash> {
    let mut proof = proof.to_vec();
    let at = usize::try_from(random.below(proof.len() as u64 + 1)).expect("small");
    match random.below(4) {
        0 => proof.insert(at, leaf_hash(b"another")),
        1 if at < proof.len() => drop(proof.remove(at)),
        2 if at < proof.len() => proof[at][0] ^= 1,
        _ if at > 0 && at < proof.len() => proof.swap(at - 1, at),
        _ => {}
    }
    proof
}

/// A changed proof, index or size never holds, unless nothing changed.
#[test]
fn a_tree_has_one_proof_of_each_statement() {
    let mut num_held = 0;
    for seed in 0..NUM_TREES {
        let mut random = Random::new(seed);
        let size = 1 + random.below(MAX_LEAVES);
        let leaves: Vec<Hash> = (0..size).map(|index| leaf_hash(&index.to_le_bytes())).collect();
        let position = |number: u64| usize::try_from(number).expect("small");
        let root = root_of(&leaves);
        let index = random.below(size);
        let proof = inclusion_proof(&leaves, position(index)).expect("it exists");
        let other = changed(&mut random, &proof);
        let leaf = leaves[position(index)];
        assert_eq!(verify_inclusion(&root, size, index, &leaf, &other), other == proof, "seed {seed}");
        num_held += u64::from(other == proof);
        let stranger = random.below(size);
        let holds = verify_inclusion(&root, size, stranger, &leaf, &proof);
        assert_eq!(holds, stranger == index, "seed {seed}: the place of another leaf");

        let old = random.below(size + 1);
        let old_root = root_of(&leaves[..position(old)]);
        let proof = consistency_proof(&leaves, position(old)).expect("not larger");
        let other = changed(&mut random, &proof);
        let holds = verify_consistency(old, &old_root, size, &root, &other);
        assert_eq!(holds, other == proof, "seed {seed}: from {old} to {size}");
    }
    assert!((NUM_TREES / 20..NUM_TREES).contains(&num_held), "{num_held}");
}
