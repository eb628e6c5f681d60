//! DSSE v1 signatures, made and checked (github.com/secure-systems-lab/dsse).
//!
//! A signature covers the type and the payload, so that bytes signed as one
//! kind of document are never accepted as another.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ed25519_dalek::Signature;
use schemas::dsse::{Envelope, EnvelopeSignature};

use crate::keys::{KeyPair, public_from_hex};

/// An envelope whose signature does not hold.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DsseError {
    /// The payload is of another type.
    #[error("payload type is {actual:?}, expected {expected:?}")]
    PayloadType {
        /// What was asked for.
        expected: String,
        /// What the envelope says.
        actual: String,
    },
    /// A field is not standard base64.
    #[error("{field} is not standard base64")]
    Base64 {
        /// `payload` or `sig`.
        field: &'static str,
    },
    /// Not exactly one signature; others would be claims that nobody checked.
    #[error("the envelope has {num_signatures} signatures, expected one")]
    NumSignatures {
        /// What it has.
        num_signatures: usize,
    },
    /// The public key is not one.
    #[error("{public:?} is not an Ed25519 public key of 64 hex digits")]
    PublicKey {
        /// What was given.
        public: String,
    },
    /// No signature verifies under the key.
    #[error("no signature verifies under public key {public}")]
    Signature {
        /// The key, 64 hex digits.
        public: String,
    },
}

/// The pre-authentication encoding: what a signature covers.
#[must_use]
pub fn pae(payload_type: &str, payload: &[u8]) -> Vec<u8> {
    let mut bytes = format!("DSSEv1 {} {payload_type} {} ", payload_type.len(), payload.len()).into_bytes();
    bytes.extend_from_slice(payload);
    bytes
}

/// Signs a payload into an envelope.
#[must_use]
pub fn sign(payload_type: &str, payload: &[u8], key: &KeyPair) -> Envelope {
    Envelope {
        payload: STANDARD.encode(payload),
        payload_type: payload_type.to_owned(),
        signatures: vec![sign_detached(payload_type, payload, key)],
    }
}

/// Signs a payload that is kept elsewhere.
#[must_use]
pub fn sign_detached(payload_type: &str, payload: &[u8], key: &KeyPair) -> EnvelopeSignature {
    EnvelopeSignature { keyid: key.id().0, sig: STANDARD.encode(key.sign(&pae(payload_type, payload))) }
}

/// Checks an envelope and returns its payload. `keyid` is a hint and ignored:
/// the one signature must verify under the given key.
///
/// # Errors
/// When the type is another, a field is not base64, there is not one signature,
/// or it does not verify.
pub fn verify(envelope: &Envelope, payload_type: &str, public_hex: &str) -> Result<Vec<u8>, DsseError> {
    if envelope.payload_type != payload_type {
        return Err(DsseError::PayloadType {
            expected: payload_type.to_owned(),
            actual: envelope.payload_type.clone(),
        });
    }
    let payload = STANDARD.decode(&envelope.payload).map_err(|_| DsseError::Base64 { field: "payload" })?;
    let [signature] = envelope.signatures.as_slice() else {
        return Err(DsseError::NumSignatures { num_signatures: envelope.signatures.len() });
    };
    verify_detached(signature, payload_type, &payload, public_hex)?;
    Ok(payload)
}

/// Checks one signature over a payload that is kept elsewhere.
///
/// # Errors
/// When the key or signature is malformed or does not verify strictly.
pub fn verify_detached(
    signature: &EnvelopeSignature,
    payload_type: &str,
    payload: &[u8],
    public_hex: &str,
) -> Result<(), DsseError> {
    let public =
        public_from_hex(public_hex).ok_or_else(|| DsseError::PublicKey { public: public_hex.to_owned() })?;
    let bytes = STANDARD.decode(&signature.sig).map_err(|_| DsseError::Base64 { field: "sig" })?;
    let refused = || DsseError::Signature { public: public_hex.to_owned() };
    let bytes = <[u8; 64]>::try_from(bytes).map_err(|_| refused())?;
    public.verify_strict(&pae(payload_type, payload), &Signature::from_bytes(&bytes)).map_err(|_| refused())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::Role;
    use schemas::digest::Digest;

    fn key(seed: u8) -> KeyPair {
        KeyPair::from_seed(Role::Owner, &[seed; 32], Digest::sha256([0; 32]))
    }

    #[test]
    fn pre_authentication_encoding_is_that_of_the_specification() {
        assert_eq!(
            pae("http://example.com/HelloWorld", b"hello world"),
            b"DSSEv1 29 http://example.com/HelloWorld 11 hello world"
        );
    }

    #[test]
    fn only_the_same_type_payload_and_key_verify() {
        let envelope = sign("a/b", b"payload", &key(1));
        assert_eq!(verify(&envelope, "a/b", &key(1).public_hex()), Ok(b"payload".to_vec()));
        assert!(matches!(verify(&envelope, "a/c", &key(1).public_hex()), Err(DsseError::PayloadType { .. })));
        assert!(matches!(verify(&envelope, "a/b", &key(2).public_hex()), Err(DsseError::Signature { .. })));
        let mut changed = envelope.clone();
        changed.payload = STANDARD.encode(b"another");
        assert!(matches!(verify(&changed, "a/b", &key(1).public_hex()), Err(DsseError::Signature { .. })));
        let mut twice = envelope.clone();
        twice.signatures.extend(envelope.signatures.clone());
        let refused = verify(&twice, "a/b", &key(1).public_hex());
        assert_eq!(refused, Err(DsseError::NumSignatures { num_signatures: 2 }));
        let mut retyped = envelope;
        retyped.payload_type = "a/c".to_owned();
        assert!(verify(&retyped, "a/c", &key(1).public_hex()).is_err());
    }
}
