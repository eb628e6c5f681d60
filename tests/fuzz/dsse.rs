//! DSSE envelopes: signed reports, handoffs and numbers.

use ledger::canonical;
use ledger::keys::{KeyPair, Role};
use schemas::digest::Digest;
use schemas::dsse::Envelope;
use validator::ed25519::PublicKey;

use super::corpus::{self, Seed};
use super::memory::{self, bounded};
use super::run;

/// The payload is decoded, encoded again, and signed with its type before it.
const FACTOR: usize = 64;

/// Type that is asked for where there is no envelope.
const NO_TYPE: &str = "application/none";

fn key() -> KeyPair {
    KeyPair::from_seed(Role::Validator, &[7; 32], Digest::sha256([0; 32]))
}

fn property(bytes: &[u8]) -> bool {
    let key = key();
    let public = PublicKey::from_hex(&key.public_hex()).expect("a key");
    let envelope = bounded(bytes, FACTOR, || serde_json::from_slice::<Envelope>(bytes).ok());
    let payload_type = envelope.as_ref().map_or(NO_TYPE, |envelope| envelope.payload_type.as_str());
    let validator = bounded(bytes, FACTOR, || validator::dsse::verify(bytes, payload_type, &public));
    let writer = envelope.as_ref().map(|envelope| {
        bounded(bytes, FACTOR, || ledger::dsse::verify(envelope, payload_type, &key.public_hex()))
    });
    let writer = writer.and_then(Result::ok);
    assert_eq!(writer.is_some(), validator.is_ok(), "both accept the same: {validator:?}");
    assert_eq!(writer, validator.ok(), "with the same payload");
    if let Some(envelope) = envelope {
        let written = canonical::entry_json(&envelope).expect("an envelope can be written");
        let again: Envelope = serde_json::from_slice(&written).expect("a written envelope is one");
        assert_eq!(again, envelope, "written and read again");
    }
    writer.is_some()
}

/// Real envelopes, signed once more by a key that is known here.
fn signed_here() -> Vec<Seed> {
    let sign = |seed: Seed| {
        if !seed.is_accepted() {
            return seed;
        }
        let envelope: Envelope = serde_json::from_slice(&seed.bytes).expect("the corpus holds envelopes");
        let again = ledger::dsse::sign(&envelope.payload_type, &payload(&envelope), &key());
        Seed { bytes: canonical::entry_json(&again).expect("an envelope"), ..seed }
    };
    corpus::read("dsse").into_iter().map(sign).collect()
}

/// Base64 by a decoder of its own: of what is signed anew here, nothing is checked.
fn payload(envelope: &Envelope) -> Vec<u8> {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let digits = envelope.payload.bytes().filter_map(|byte| ALPHABET.iter().position(|other| *other == byte));
    let (mut bytes, mut word, mut num_bits) = (Vec::new(), 0usize, 0);
    for digit in digits {
        word = (word << 6 | digit) & 0xffff;
        num_bits += 6;
        if num_bits >= 8 {
            num_bits -= 8;
            bytes.push(u8::try_from(word >> num_bits & 0xff).expect("one byte"));
        }
    }
    bytes
}

#[test]
fn dsse() {
    let alone = memory::alone();
    let seeds = signed_here();
    run::with_seeds(&alone, "dsse", &seeds, property);
}
