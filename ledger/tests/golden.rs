//! The writer meets the golden vectors, and crates that others wrote accept
//! what it makes.

mod common;

use common::{golden, golden_json, key};
use ledger::keys::{KeyPair, Role};
use ledger::note::{self, TreeHead};
use ledger::tree::{self, Frontier, Hash, Levels};
use ledger::{FrozenContract, canonical, dsse};
use schemas::contract::Contract;
use schemas::digest::{Digest, decode_hex, encode_hex};
use schemas::entry::Entry;
use schemas::number::Float;
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use signed_note::{Note, StandardVerifier, VerifierList};

fn hash(value: &Value) -> Hash {
    decode_hex(value.as_str().expect("hex")).and_then(|bytes| bytes.try_into().ok()).expect("32 bytes")
}

fn hashes(value: &Value) -> Vec<Hash> {
    value.as_array().expect("a list").iter().map(hash).collect()
}

fn index(value: &Value) -> usize {
    usize::try_from(value.as_u64().expect("a count")).expect("small")
}

fn seeded(case: &Value, role: Role) -> KeyPair {
    KeyPair::from_seed(role, &hash(&case["seed"]), Digest::sha256([0; 32]))
}

fn lines() -> Vec<Vec<u8>> {
    golden("entries.jsonl").lines().map(|line| line.as_bytes().to_vec()).collect()
}

#[test]
fn entries_of_every_kind_come_back_as_the_same_bytes() {
    let tree = golden_json("tree.json");
    let leaves = hashes(&tree["leaves"]);
    assert_eq!(lines().len(), leaves.len());
    for (line, leaf) in lines().iter().zip(&leaves) {
        canonical::check_entry_json(line).expect("canonical");
        let entry = Entry::from_slice(line).expect("an entry");
        let written = canonical::entry_json(&entry).expect("writable");
        assert_eq!(String::from_utf8_lossy(&written), String::from_utf8_lossy(line));
        assert_eq!(tree::leaf_hash(line), *leaf);
    }
}

#[test]
fn roots_and_proofs_are_those_of_the_generator_and_hold_for_tlog_tiles() {
    let golden = golden_json("tree.json");
    let leaves = hashes(&golden["leaves"]);
    let roots = hashes(&golden["roots"]);
    let levels = Levels::new(leaves.clone());
    let mut frontier = Frontier::new();
    for (size, root) in roots.iter().enumerate() {
        assert_eq!(frontier.root(), *root, "size {size}");
        assert_eq!(levels.root(size), Some(*root), "size {size}");
        if let Some(leaf) = leaves.get(size) {
            frontier.append(*leaf);
        }
    }
    let foreign = |hashes: &[Hash]| hashes.iter().copied().map(tlog_tiles::Hash).collect::<Vec<_>>();
    for case in golden["inclusion"].as_array().expect("cases") {
        let (position, size) = (index(&case["index"]), index(&case["size"]));
        let proof = hashes(&case["proof"]);
        assert_eq!(levels.inclusion_proof(position, size), Some(proof.clone()), "{position} in {size}");
        let (leaf, root) = (leaves[position], roots[size]);
        let (position, size) = (position as u64, size as u64);
        assert!(tree::verify_inclusion(&root, size, position, &leaf, &proof));
        let (root, leaf) = (tlog_tiles::Hash(root), tlog_tiles::Hash(leaf));
        tlog_tiles::check_record(&foreign(&proof), size, root, position, leaf).expect("accepted");
    }
    for case in golden["consistency"].as_array().expect("cases") {
        let (old, new) = (index(&case["old"]), index(&case["new"]));
        let proof = hashes(&case["proof"]);
        assert_eq!(levels.consistency_proof(old, new), Some(proof.clone()), "{old} to {new}");
        let (old_root, root) = (roots[old], roots[new]);
        assert!(tree::verify_consistency(old as u64, &old_root, new as u64, &root, &proof));
        if old > 0 {
            let (old_root, root) = (tlog_tiles::Hash(old_root), tlog_tiles::Hash(root));
            tlog_tiles::check_tree(&foreign(&proof), new as u64, root, old as u64, old_root)
                .expect("accepted");
        }
    }
}

#[test]
fn signed_heads_are_those_of_the_generator_and_verify_with_signed_note() {
    for case in golden_json("notes.json").as_array().expect("cases") {
        let key = seeded(case, Role::Trainer);
        let origin = case["origin"].as_str().expect("text").to_owned();
        let head =
            TreeHead { origin: origin.clone(), size: index(&case["size"]) as u64, root: hash(&case["root"]) };
        let note = head.sign(&key);
        assert_eq!(Some(note.as_str()), case["note"].as_str());
        assert_eq!(note::verify(&note, case["public"].as_str().expect("hex")), Ok(head.clone()));
        assert_eq!(
            encode_hex(&note::key_hash(&origin, &key.public_bytes())),
            case["key_hash"].as_str().expect("hex")
        );

        let public = ledger::keys::public_from_hex(&key.public_hex()).expect("a point");
        let verifier_key = signed_note::new_ed25519_verifier_key(&origin, &public);
        let verifier = StandardVerifier::new(&verifier_key).expect("a verifier key");
        let verifiers = VerifierList::new(vec![Box::new(verifier)]);
        let parsed = Note::from_bytes(note.as_bytes()).expect("a note for signed_note");
        let (known, unknown) = parsed.verify(&verifiers).expect("verified by signed_note");
        assert_eq!((known.len(), unknown.len()), (1, 0));
        if head.size > 0 {
            let checkpoint = tlog_tiles::Checkpoint::from_bytes(parsed.text()).expect("a checkpoint");
            assert_eq!((checkpoint.size(), checkpoint.hash().0), (head.size, head.root));
            assert_eq!((checkpoint.origin(), checkpoint.extension()), (origin.as_str(), ""));
        }
    }
}

#[test]
fn floats_keep_their_bits_and_have_one_spelling() {
    let cases = golden_json("floats.json");
    let cases = cases.as_array().expect("cases");
    assert!(cases.len() > 500, "several hundred");
    for case in cases {
        let bits = u64::from_str_radix(case["bits"].as_str().expect("hex"), 16).expect("64 bits");
        let value = Float(f64::from_bits(bits));
        let spelling = case["entry"].as_str().expect("text");
        let written = canonical::entry_json(&value).unwrap_or_else(|error| panic!("{spelling}: {error}"));
        assert_eq!(String::from_utf8_lossy(&written), spelling);
        let read: Float = serde_json::from_str(spelling).expect("readable");
        assert_eq!(read.0.to_bits(), bits, "{spelling}");
        canonical::check_entry_json(spelling.as_bytes()).expect("canonical");
        if let Some(ecmascript) = case["ecmascript"].as_str() {
            let written = canonical::contract_json(&serde_json::json!(value.0));
            let is_integer = !ecmascript.contains(['.', 'e']);
            if is_integer && value.0.abs() > 9_007_199_254_740_992.0 {
                assert!(written.is_err(), "an integer beyond 2^53 does not occur in contracts: {ecmascript}");
                continue;
            }
            let written = written.expect("finite");
            assert_eq!(String::from_utf8_lossy(&written), ecmascript);
            let read: f64 = serde_json::from_str(ecmascript).expect("readable");
            // RFC 8785 gives up the sign of zero, and nothing else.
            assert!(read.to_bits() == bits || (bits == 1 << 63 && read.to_bits() == 0), "{ecmascript}");
        }
    }
}

#[test]
fn canonical_and_other_forms_are_told_apart() {
    for case in golden_json("forms.json").as_array().expect("cases") {
        let bytes = decode_hex(case["bytes"].as_str().expect("hex")).expect("hex");
        let accepted = canonical::check_entry_json(&bytes).is_ok();
        assert_eq!(Some(accepted), case["canonical"].as_bool(), "{}: {:?}", case["why"], bytes);
    }
}

#[test]
fn the_contract_has_its_canonical_bytes_digest_and_signature() {
    let written: Value = serde_json::from_str(&golden("contract.written.json")).expect("JSON");
    let canonical = canonical::contract_json(&written).expect("canonical");
    assert_eq!(String::from_utf8_lossy(&canonical), golden("contract.canonical.json"));
    let digest = Digest::sha256(Sha256::digest(&canonical).into());
    assert_eq!(format!("{digest}\n"), golden("contract.digest.txt"));
    let entry = Entry::from_slice(&lines()[0]).expect("the freeze");
    let frozen = FrozenContract::from_entry(&entry).expect("signed by the owner");
    assert_eq!((frozen.digest, frozen.canonical), (digest, canonical));
    assert_eq!(frozen.contract.keys.owner.public, key(Role::Owner).public_hex());
}

/// What a contract may leave out is written as it was read, where it is there
/// and where it is not.
#[test]
fn contracts_are_written_as_they_were_read() {
    for name in ["contract.canonical.json", "contract.wide.json"] {
        let bytes = golden(name);
        let contract: Contract = serde_json::from_str(&bytes).expect("a contract");
        let value = serde_json::to_value(&contract).expect("JSON");
        let written = canonical::contract_json(&value).expect("canonical");
        assert_eq!(String::from_utf8_lossy(&written), bytes, "{name}");
    }
}

#[test]
fn envelopes_are_those_of_the_generator() {
    for case in golden_json("dsse.json").as_array().expect("cases") {
        let role = if case["role"] == "owner" { Role::Owner } else { Role::Validator };
        let key = seeded(case, role);
        let payload_type = case["payload_type"].as_str().expect("text");
        let signature = case["sig"].as_str().expect("base64");
        let envelope = schemas::dsse::Envelope {
            payload: case["payload"].as_str().expect("base64").to_owned(),
            payload_type: payload_type.to_owned(),
            signatures: vec![schemas::dsse::EnvelopeSignature {
                keyid: case["keyid"].as_str().expect("text").to_owned(),
                sig: signature.to_owned(),
            }],
        };
        let payload = dsse::verify(&envelope, payload_type, &key.public_hex()).expect("verified");
        assert_eq!(Some(encode_hex(&dsse::pae(payload_type, &payload)).as_str()), case["pae"].as_str());
        assert_eq!(dsse::sign(payload_type, &payload, &key), envelope);
    }
}
