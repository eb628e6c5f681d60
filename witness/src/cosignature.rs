//! Cosignatures: `cosignature/v1` of `c2sp.org/tlog-cosignature`, Ed25519.
//!
//! The message is the line `cosignature/v1`, the line `time <seconds>`, and the
//! note's text with its last newline; the signature in the note's line is the
//! time as eight bytes, big-endian, and the 64 bytes of Ed25519. ML-DSA-44, the
//! other type of that page, is not read: its lines are of unknown keys here.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ed25519_dalek::{Signature, VerifyingKey};
use ledger::keys::KeyPair;
use ledger::note::ParsedNote;
use sha2::{Digest, Sha256};

use crate::verifier_key::{SignatureKind, VerifierKey};

/// Signature type of a timestamped Ed25519 cosignature in the key's hash.
const COSIGNATURE_TYPE: u8 = 0x04;

/// Bytes of the time in front of the signature.
const TIME_BYTES: usize = 8;

/// Largest time: 2^63 - 1 seconds.
const MAX_TIME_S: u64 = i64::MAX.unsigned_abs();

/// A line of a known witness that does not hold.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the cosignature of {name} does not hold: {what}")]
pub struct CosignatureError {
    /// The witness.
    pub name: String,
    /// What is wrong with it.
    pub what: &'static str,
}

/// First four bytes of `SHA-256(name || 0x0A || 0x04 || public key)`.
#[must_use]
pub fn cosigner_key_id(name: &str, public: &[u8; 32]) -> [u8; 4] {
    let mut hasher = Sha256::new();
    hasher.update(name.as_bytes());
    hasher.update([b'\n', COSIGNATURE_TYPE]);
    hasher.update(public);
    let digest = hasher.finalize();
    [digest[0], digest[1], digest[2], digest[3]]
}

/// What is signed: header, time in seconds since 1970, the text of the note.
#[must_use]
pub fn message(text: &str, time_s: u64) -> Vec<u8> {
    format!("cosignature/v1\ntime {time_s}\n{text}").into_bytes()
}

/// Cosigns the text of a note at a time in seconds; the signature line with its
/// newline.
#[must_use]
pub fn sign(text: &str, name: &str, key: &KeyPair, time_s: u64) -> String {
    let mut blob = cosigner_key_id(name, &key.public_bytes()).to_vec();
    blob.extend(time_s.to_be_bytes());
    blob.extend(key.sign(&message(text, time_s)));
    format!("\u{2014} {name} {}\n", STANDARD.encode(blob))
}

/// Verifies the line of a witness in a note; the time in seconds that it states,
/// `None` where no line is of this key.
///
/// # Errors
/// When a line is of this key by name and hash, and does not hold.
pub fn verify(note: &ParsedNote, witness: &VerifierKey) -> Result<Option<u64>, CosignatureError> {
    let wrong = |what| CosignatureError { name: witness.name.clone(), what };
    if witness.kind != SignatureKind::Witness {
        return Err(wrong("the key is that of a log"));
    }
    let key = VerifyingKey::from_bytes(&witness.public).map_err(|_| wrong("the key is no point"))?;
    let id = witness.key_id();
    let mut found = None;
    for line in note.signatures.iter().filter(|line| line.name == witness.name && line.key_hash == id) {
        let (time, signature) =
            line.signature.split_first_chunk::<TIME_BYTES>().ok_or_else(|| wrong("it is too short"))?;
        let time_s = u64::from_be_bytes(*time);
        if time_s > MAX_TIME_S {
            return Err(wrong("its time is beyond 2^63 - 1"));
        }
        let signature = <[u8; 64]>::try_from(signature).map_err(|_| wrong("it has not 72 bytes"))?;
        key.verify_strict(&message(&note.text, time_s), &Signature::from_bytes(&signature))
            .map_err(|_| wrong("the signature is not over this head and time"))?;
        found = Some(found.map_or(time_s, |earlier: u64| earlier.min(time_s)));
    }
    Ok(found)
}

/// Now, in seconds since 1970; 0 where the clock stands before that.
#[must_use]
pub fn now_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO).as_secs()
}

#[cfg(test)]
mod tests {
    use super::*;
    use ledger::keys::Role;
    use ledger::note::{self, TreeHead};
    use schemas::digest::Digest as DigestText;

    fn key(seed: u8, role: Role) -> KeyPair {
        KeyPair::from_seed(role, &[seed; 32], DigestText::sha256([0; 32]))
    }

    fn witness(seed: u8) -> VerifierKey {
        let public = key(seed, Role::Witness).public_bytes();
        VerifierKey { kind: SignatureKind::Witness, name: "witness.example/w1".to_owned(), public }
    }

    fn cosigned(time_s: u64) -> String {
        let head = TreeHead { origin: "governed-ledger/run/a-b".to_owned(), size: 5, root: [3; 32] };
        let signed = head.sign(&key(1, Role::Trainer));
        let line = sign(&head.text(), "witness.example/w1", &key(2, Role::Witness), time_s);
        format!("{signed}{line}")
    }

    #[test]
    fn a_cosignature_holds_for_its_key_and_says_when() {
        let parsed = note::parse(&cosigned(1_700_000_000)).expect("a note");
        assert_eq!(verify(&parsed, &witness(2)), Ok(Some(1_700_000_000)));
        assert_eq!(verify(&parsed, &witness(3)), Ok(None), "another key of that name");
        let named = VerifierKey { name: "other".to_owned(), ..witness(2) };
        assert_eq!(verify(&parsed, &named), Ok(None), "another name of that key");
        let log = VerifierKey { kind: SignatureKind::Log, ..witness(2) };
        assert!(verify(&parsed, &log).is_err());
    }

    /// Of a note that is changed in any byte of text or line, the cosignature is
    /// gone, does not hold, or is not read.
    #[test]
    fn every_changed_byte_is_refused() {
        let text = cosigned(1_700_000_000);
        let log_line = text.find('\u{2014}').expect("a line")..text.rfind('\u{2014}').expect("a line");
        for position in 0..text.len() {
            let mut bytes = text.clone().into_bytes();
            bytes[position] ^= 1;
            let changed = String::from_utf8(bytes).ok().and_then(|text| note::parse(&text).ok());
            let held = changed.is_some_and(|note| matches!(verify(&note, &witness(2)), Ok(Some(_))));
            assert!(!held || log_line.contains(&position), "byte {position}");
        }
    }

    #[test]
    fn times_are_those_of_the_line() {
        for time_s in [0, 1, MAX_TIME_S] {
            let parsed = note::parse(&cosigned(time_s)).expect("a note");
            assert_eq!(verify(&parsed, &witness(2)), Ok(Some(time_s)));
        }
        let parsed = note::parse(&cosigned(MAX_TIME_S + 1)).expect("a note");
        assert!(verify(&parsed, &witness(2)).is_err());
    }
}
