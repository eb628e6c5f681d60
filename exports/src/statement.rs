//! Statements of in-toto (attestation spec v1) in DSSE envelopes, signed with an
//! Ed25519 key, and that key in the form that other tools read.

use std::collections::BTreeMap;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ledger::canonical::entry_json;
use ledger::dsse;
use ledger::keys::KeyPair;
use ledger::note::TreeHead;
use schemas::digest::{Algorithm, Digest, decode_hex};
use schemas::dsse::{IN_TOTO_PAYLOAD_TYPE, IN_TOTO_STATEMENT_TYPE, Statement, Subject};
use schemas::report::HeadSeen;
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use crate::{Document, ExportError, HashedFile};

/// Name of the document that holds the key which signed the others.
pub(crate) const KEY_NAME: &str = "validator.pub.pem";

/// Name of the contract's canonical bytes, which need not be a file anywhere.
pub(crate) const CONTRACT_NAME: &str = "contract";

/// `SubjectPublicKeyInfo` of an Ed25519 key up to the key's 32 bytes (RFC 8410,
/// section 4).
const ED25519_SPKI_PREFIX: [u8; 12] =
    [0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00];

/// The statement in its envelope, signed.
pub(crate) fn signed(
    name: &str,
    predicate_type: &str,
    subject: Vec<Subject>,
    predicate: Value,
    signer: &KeyPair,
) -> Result<Document, ExportError> {
    let statement = Statement {
        statement_type: IN_TOTO_STATEMENT_TYPE.to_owned(),
        predicate,
        predicate_type: predicate_type.to_owned(),
        subject,
    };
    let payload = entry_json(&statement)?;
    let envelope = dsse::sign(IN_TOTO_PAYLOAD_TYPE, &payload, signer);
    Ok(Document::new(name, entry_json(&envelope)?))
}

/// The public key as PEM. A key that comes with what it verifies proves nothing:
/// whoever checks compares it with the contract's.
pub(crate) fn public_key(signer: &KeyPair) -> Document {
    let der = [&ED25519_SPKI_PREFIX[..], &signer.public_bytes()].concat();
    let pem = format!("-----BEGIN PUBLIC KEY-----\n{}\n-----END PUBLIC KEY-----\n", STANDARD.encode(der));
    Document::new(KEY_NAME, pem.into_bytes())
}

/// A set of digests by the names that in-toto gives them.
pub(crate) fn digest_set<'a>(digests: impl IntoIterator<Item = &'a Digest>) -> BTreeMap<String, String> {
    digests.into_iter().map(|digest| (digest.algorithm.name().to_owned(), digest.hex())).collect()
}

/// A file as a subject, by both of its digests.
#[must_use]
pub fn file_subject(file: &HashedFile) -> Subject {
    Subject { digest: digest_set([&file.blake3, &file.sha256]), name: file.name.clone() }
}

/// SHA-256 of the head's three lines, which are what its signature covers:
/// `head -n 3` of a note gives them.
pub(crate) fn head_digest(head: &HeadSeen) -> Option<Digest> {
    let root = decode_hex(&head.root)?.try_into().ok()?;
    let text = TreeHead { origin: head.origin.clone(), root, size: head.size }.text();
    Some(Digest { algorithm: Algorithm::Sha256, bytes: Sha256::digest(text).into() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use ledger::keys::Role;
    use schemas::report::HeadSource;

    #[test]
    fn a_key_is_written_as_openssl_writes_it() {
        // RFC 8032, 7.1, test 1; `openssl pkey -pubin -text` reads it.
        let seed = decode_hex("9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60");
        let seed: [u8; 32] = seed.and_then(|bytes| bytes.try_into().ok()).expect("32 bytes");
        let document = public_key(&KeyPair::from_seed(Role::Validator, &seed, Digest::sha256([0; 32])));
        let text = String::from_utf8(document.bytes).expect("text");
        assert_eq!(
            text,
            "-----BEGIN PUBLIC KEY-----\n\
             MCowBQYDK2VwAyEA11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo=\n\
             -----END PUBLIC KEY-----\n"
        );
    }

    #[test]
    fn a_head_is_named_by_its_three_lines() {
        let root = "aa".repeat(32);
        let head = HeadSeen {
            origin: "governed-ledger/run/x".to_owned(),
            root,
            size: 7,
            source: HeadSource::Beside,
        };
        let lines = format!("governed-ledger/run/x\n7\n{}\n", STANDARD.encode([0xaa; 32]));
        assert_eq!(head_digest(&head), Some(Digest::sha256(Sha256::digest(lines).into())));
        let head = HeadSeen { root: "xx".to_owned(), ..head };
        assert_eq!(head_digest(&head), None);
    }
}
