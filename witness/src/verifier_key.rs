//! Verifier keys (`vkey`) of `c2sp.org/signed-note`: a key with its name and what
//! it signs, as one line of text.
//!
//! Only Ed25519 keys of logs (type 0x01) and of witnesses (type 0x04) are read;
//! a key of another type is refused by name, since nothing here could verify
//! with it.

use std::fmt;
use std::str::FromStr;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ledger::keys::public_from_hex;
use ledger::note::{is_key_name, key_hash};
use schemas::digest::{decode_hex, encode_hex};

use crate::cosignature::cosigner_key_id;

/// What a key signs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SignatureKind {
    /// A head itself: signature type 0x01.
    Log,
    /// A timestamped cosignature of a head: signature type 0x04.
    Witness,
}

impl SignatureKind {
    const fn byte(self) -> u8 {
        match self {
            Self::Log => 0x01,
            Self::Witness => 0x04,
        }
    }
}

/// A public key under its name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VerifierKey {
    /// What it signs.
    pub kind: SignatureKind,
    /// Its name in signature lines.
    pub name: String,
    /// The 32 bytes of the Ed25519 key.
    pub public: [u8; 32],
}

/// A text that is no verifier key.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is no verifier key: {what}; expected <name>+<8 hex digits>+<base64>")]
pub struct VerifierKeyError {
    /// The text.
    pub text: String,
    /// What is wrong with it.
    pub what: &'static str,
}

impl VerifierKey {
    /// The four bytes that tell keys of one name apart.
    #[must_use]
    pub fn key_id(&self) -> [u8; 4] {
        match self.kind {
            SignatureKind::Log => key_hash(&self.name, &self.public),
            SignatureKind::Witness => cosigner_key_id(&self.name, &self.public),
        }
    }

    /// The key as 64 hex digits.
    #[must_use]
    pub fn public_hex(&self) -> String {
        encode_hex(&self.public)
    }

    /// A key from the 64 hex digits that a contract or a trust file holds.
    ///
    /// # Errors
    /// When the name cannot stand in a note, or the digits are no key.
    pub fn from_hex(kind: SignatureKind, name: &str, public_hex: &str) -> Result<Self, VerifierKeyError> {
        let wrong = |what| VerifierKeyError { text: format!("{name} {public_hex}"), what };
        if !is_key_name(name) {
            return Err(wrong("the name is empty or has white space, `+` or control characters"));
        }
        let bytes = decode_hex(public_hex).and_then(|bytes| bytes.try_into().ok());
        let public: [u8; 32] = bytes.ok_or_else(|| wrong("the key is not 64 lower-case hex digits"))?;
        if public_from_hex(public_hex).is_none_or(|key| key.is_weak()) {
            return Err(wrong("the key is no point that may verify"));
        }
        Ok(Self { kind, name: name.to_owned(), public })
    }
}

impl fmt::Display for VerifierKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut blob = [0u8; 33];
        blob[0] = self.kind.byte();
        blob[1..].copy_from_slice(&self.public);
        write!(formatter, "{}+{}+{}", self.name, encode_hex(&self.key_id()), STANDARD.encode(blob))
    }
}

impl FromStr for VerifierKey {
    type Err = VerifierKeyError;

    fn from_str(text: &str) -> Result<Self, VerifierKeyError> {
        let wrong = |what| VerifierKeyError { text: text.to_owned(), what };
        let mut parts = text.splitn(3, '+');
        let (Some(name), Some(id), Some(encoded)) = (parts.next(), parts.next(), parts.next()) else {
            return Err(wrong("it has not three parts"));
        };
        let blob = STANDARD.decode(encoded).map_err(|_| wrong("its third part is not base64"))?;
        let kind = match blob.first() {
            Some(0x01) => SignatureKind::Log,
            Some(0x04) => SignatureKind::Witness,
            _ => return Err(wrong("it is neither an Ed25519 key (type 1) nor one of a witness (type 4)")),
        };
        let key = Self::from_hex(kind, name, &encode_hex(&blob[1..]))
            .map_err(|VerifierKeyError { what, .. }| wrong(what))?;
        if encode_hex(&key.key_id()) != id {
            return Err(wrong("its second part is not the hash of name and key"));
        }
        Ok(key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: &str = "PeterNeumann+c74f20a3+ARpc2QcUPDhMQegwxbzhKqiBfsVkmqq/LDE4izWy10TW";

    /// The key in the documentation of Go's `note` package, which this form is from.
    #[test]
    fn a_key_that_others_made_is_read_and_written() {
        let key: VerifierKey = LOG.parse().expect("a key");
        assert_eq!((key.name.as_str(), key.kind), ("PeterNeumann", SignatureKind::Log));
        assert_eq!(key.to_string(), LOG);
        let witness = VerifierKey { kind: SignatureKind::Witness, ..key };
        assert_eq!(witness.to_string().parse::<VerifierKey>(), Ok(witness));
    }

    #[test]
    fn other_texts_are_refused() {
        for text in [
            "",
            "a",
            "a+b",
            "PeterNeumann+c74f20a3",
            &LOG.replace("c7", "C7"),
            &LOG.replace("c7", "c8"),
            &LOG.replace("Peter", "Peter "),
            &LOG.replace("ARpc", "Arpc"),
            &LOG[..LOG.len() - 4],
        ] {
            assert!(text.parse::<VerifierKey>().is_err(), "{text}");
        }
    }
}
