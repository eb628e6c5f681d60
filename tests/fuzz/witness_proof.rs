//! Inclusion proofs as files (`c2sp.org/tlog-proof`): what `ledger proof` writes and
//! `ledger proof --check` reads.

use schemas::digest::encode_hex;
use witness::proof::InclusionProof;
use witness::verifier_key::{SignatureKind, VerifierKey};

use super::memory::bounded;
use super::run;

/// Lines are copied a few times, and the entry is decoded from base64.
const FACTOR: usize = 64;

/// Key of the run that the corpus is of.
const TRAINER: &str = "d1222683e2db530ce963250aea88eb8af47137cd1f0ef5b3b77418f037bc4d78";

fn property(bytes: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(bytes) else { return false };
    let Ok(proof) = bounded(bytes, FACTOR, || InclusionProof::parse(text)) else { return false };
    assert!(proof.to_text() == text, "read and written again it is another file");
    let head = ledger::note::parse(&proof.note).expect("a proof has a head").head;
    let key = VerifierKey::from_hex(SignatureKind::Log, &head.origin, TRAINER).expect("a key");
    // Whatever it names, checking it ends; and the signature binds all but the extra
    // data, which is compared.
    let is_shown = bounded(bytes, FACTOR, || proof.check(&[key], None)).is_ok();
    if is_shown {
        let leaf = ledger::tree::leaf_hash(proof.extra.as_deref().expect("it carries the entry"));
        let second = (head.size, encode_hex(&head.root), encode_hex(&leaf), proof.index);
        assert_eq!(second, expected(), "another statement under the same signature");
    }
    true
}

/// The one statement of the corpus that is signed: size, root, leaf, index.
fn expected() -> (u64, String, String, u64) {
    let root = "af9ee7a3c218ddfd1750ca8428e3d1cacf378618d2a253e2c9ccc1d03ff83c7e";
    (74, root.to_owned(), LEAF.to_owned(), 7)
}

const LEAF: &str = "2f1326a1c5c2efa95938c6f8a16ed420330d11826dfaa5fa67c103a4d38313c2";

#[test]
fn witness_proof() {
    run::target("witness_proof", property);
}
