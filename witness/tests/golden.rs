//! Cosignatures are those of the generator, which shares no code with this crate,
//! and what `signed_note` knows of notes holds for them.

use std::path::PathBuf;

use ledger::keys::{KeyPair, Role};
use ledger::note;
use schemas::digest::{Digest, decode_hex, encode_hex};
use serde_json::Value;
use signed_note::{Note, StandardVerifier, Verifier, VerifierList};
use witness::cosignature::{cosigner_key_id, message, sign, verify};
use witness::verifier_key::{SignatureKind, VerifierKey};

fn cases() -> Vec<Value> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../schemas/golden/cosignatures.json");
    let value: Value = serde_json::from_slice(&std::fs::read(path).expect("golden vectors")).expect("JSON");
    value.as_array().expect("a list").clone()
}

fn text<'a>(case: &'a Value, key: &str) -> &'a str {
    case[key].as_str().expect("text")
}

/// A verifier of cosignatures for a crate that knows notes and not these.
struct Cosigner(VerifierKey);

impl Verifier for Cosigner {
    fn name(&self) -> &str {
        &self.0.name
    }

    fn key_id(&self) -> u32 {
        u32::from_be_bytes(self.0.key_id())
    }

    fn verify(&self, text: &[u8], signature: &[u8]) -> bool {
        let Some((time, signature)) = signature.split_first_chunk::<8>() else { return false };
        let message = message(std::str::from_utf8(text).expect("UTF-8"), u64::from_be_bytes(*time));
        let key = ed25519_dalek::VerifyingKey::from_bytes(&self.0.public).expect("a key");
        let signature = ed25519_dalek::Signature::from_slice(signature).expect("64 bytes");
        key.verify_strict(&message, &signature).is_ok()
    }
}

#[test]
fn cosignatures_are_those_of_the_generator() {
    for case in cases() {
        let seed = decode_hex(text(&case, "seed")).and_then(|bytes| <[u8; 32]>::try_from(bytes).ok());
        let key = KeyPair::from_seed(Role::Witness, &seed.expect("a seed"), Digest::sha256([0; 32]));
        let name = text(&case, "name");
        assert_eq!(encode_hex(&cosigner_key_id(name, &key.public_bytes())), text(&case, "key_id"));
        let time_s: u64 = text(&case, "time").parse().expect("a time");
        let log_note = note::parse(text(&case, "note")).expect("a note");
        let line = sign(&log_note.text, name, &key, time_s);
        assert_eq!(line, text(&case, "line"));
        let vkey: VerifierKey = text(&case, "vkey").parse().expect("a verifier key");
        assert_eq!((vkey.kind, vkey.public_hex()), (SignatureKind::Witness, key.public_hex()));
        assert_eq!(vkey.to_string(), text(&case, "vkey"));
        let cosigned = format!("{}{line}", text(&case, "note"));
        assert_eq!(verify(&note::parse(&cosigned).expect("a note"), &vkey), Ok(Some(time_s)));
    }
}

/// The other crate finds both keys by name and hash, and nothing unknown.
#[test]
fn signed_note_reads_a_cosigned_head() {
    for case in cases() {
        let cosigned = format!("{}{}", text(&case, "note"), text(&case, "line"));
        let parsed = Note::from_bytes(cosigned.as_bytes()).expect("a note for signed_note");
        let log = StandardVerifier::new(text(&case, "log_vkey")).expect("a verifier key for signed_note");
        let ours: VerifierKey = text(&case, "log_vkey").parse().expect("a verifier key");
        assert_eq!(ours.to_string(), text(&case, "log_vkey"));
        let (known, unknown) =
            parsed.verify(&VerifierList::new(vec![Box::new(log)])).expect("the log's signature holds");
        assert_eq!((known.len(), unknown.len()), (1, 1));
        let log = StandardVerifier::new(text(&case, "log_vkey")).expect("a verifier key for signed_note");
        let witness = Cosigner(text(&case, "vkey").parse().expect("a verifier key"));
        let both = VerifierList::new(vec![Box::new(log), Box::new(witness)]);
        let (known, unknown) = parsed.verify(&both).expect("both hold");
        assert_eq!((known.len(), unknown.len()), (2, 0));
    }
}
