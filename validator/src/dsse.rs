//! DSSE envelopes, verified.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use schemas::dsse::{Envelope, EnvelopeSignature};

use crate::ed25519::{PublicKey, SignatureError};
use crate::note::decode_base64;

/// Why an envelope does not verify.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EnvelopeError {
    /// Not an envelope.
    #[error("not a DSSE envelope: {0}")]
    Shape(String),
    /// Another kind of payload.
    #[error("the payload type is {actual:?}, expected {expected:?}")]
    PayloadType {
        /// As written.
        actual: String,
        /// As asked for.
        expected: String,
    },
    /// Not exactly one signature; others would be unchecked claims.
    #[error("the envelope has {0} signatures, expected one")]
    NumSignatures(usize),
    /// Payload or signature is not canonical base64.
    #[error("{0} is not padded standard base64")]
    Base64(&'static str),
    /// The signature does not hold.
    #[error("the signature does not verify")]
    Signature(#[from] SignatureError),
}

/// The pre-authentication encoding that a signature covers.
#[must_use]
pub fn pre_authentication_encoding(payload_type: &str, payload: &[u8]) -> Vec<u8> {
    let mut bytes = format!("DSSEv1 {} {payload_type} {} ", payload_type.len(), payload.len()).into_bytes();
    bytes.extend_from_slice(payload);
    bytes
}

/// Verifies a detached signature, as the contract's entry holds it.
///
/// # Errors
/// When it is not base64 or does not hold.
pub fn verify_detached(
    signature: &EnvelopeSignature,
    payload_type: &str,
    payload: &[u8],
    key: &PublicKey,
) -> Result<(), EnvelopeError> {
    let bytes = decode_base64(&signature.sig).ok_or(EnvelopeError::Base64("the signature"))?;
    key.verify(&pre_authentication_encoding(payload_type, payload), &bytes)?;
    Ok(())
}

/// Verifies an envelope in its JSON form and returns the payload.
///
/// # Errors
/// When it is not an envelope of the expected type with exactly one signature
/// that holds for the key.
pub fn verify(bytes: &[u8], payload_type: &str, key: &PublicKey) -> Result<Vec<u8>, EnvelopeError> {
    let envelope: Envelope =
        serde_json::from_slice(bytes).map_err(|error| EnvelopeError::Shape(error.to_string()))?;
    if envelope.payload_type != payload_type {
        return Err(EnvelopeError::PayloadType {
            actual: envelope.payload_type,
            expected: payload_type.to_owned(),
        });
    }
    let [signature] = envelope.signatures.as_slice() else {
        return Err(EnvelopeError::NumSignatures(envelope.signatures.len()));
    };
    let payload = STANDARD.decode(&envelope.payload).map_err(|_| EnvelopeError::Base64("the payload"))?;
    if STANDARD.encode(&payload) != envelope.payload {
        return Err(EnvelopeError::Base64("the payload"));
    }
    verify_detached(signature, payload_type, &payload, key)?;
    Ok(payload)
}

#[cfg(test)]
mod tests {
    use ed25519_dalek::{Signer, SigningKey};
    use schemas::digest::encode_hex;

    use super::*;

    #[test]
    fn the_specifications_own_encoding() {
        // github.com/secure-systems-lab/dsse, protocol.md, test vectors.
        assert_eq!(
            pre_authentication_encoding("http://example.com/HelloWorld", b"hello world"),
            b"DSSEv1 29 http://example.com/HelloWorld 11 hello world"
        );
    }

    #[test]
    fn an_envelope_verifies_and_every_deviation_does_not() {
        let signer = SigningKey::from_bytes(&[9; 32]);
        let key = PublicKey::from_hex(&encode_hex(signer.verifying_key().as_bytes())).expect("a key");
        let signature = signer.sign(&pre_authentication_encoding("t", b"payload")).to_bytes();
        let good = Envelope {
            payload: STANDARD.encode(b"payload"),
            payload_type: "t".to_owned(),
            signatures: vec![EnvelopeSignature { keyid: "x".to_owned(), sig: STANDARD.encode(signature) }],
        };
        let check = |envelope: &Envelope, payload_type: &str| {
            verify(&serde_json::to_vec(envelope).expect("JSON"), payload_type, &key)
        };
        assert_eq!(check(&good, "t"), Ok(b"payload".to_vec()));
        assert!(matches!(check(&good, "u"), Err(EnvelopeError::PayloadType { .. })));
        let mut twice = good.clone();
        twice.signatures.push(good.signatures[0].clone());
        assert_eq!(check(&twice, "t"), Err(EnvelopeError::NumSignatures(2)));
        let mut other = good.clone();
        other.payload = STANDARD.encode(b"payloaD");
        assert!(matches!(check(&other, "t"), Err(EnvelopeError::Signature(_))));
        assert!(matches!(verify(b"{}", "t", &key), Err(EnvelopeError::Shape(_))));
    }
}
