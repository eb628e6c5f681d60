//! Strict Ed25519 verification (RFC 8032) and key identifiers.
//!
//! Refuses what lenient verifiers let pass: keys of small order, points that
//! are not encoded canonically, and scalars that are not reduced. Otherwise one
//! signature could hold for several messages, or several for one.

use ed25519_dalek::{Signature, VerifyingKey};
use schemas::digest::{decode_hex, encode_hex};
use schemas::ids::KeyId;
use sha2::{Digest as _, Sha256};

/// A public key that may verify.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PublicKey {
    key: VerifyingKey,
}

/// Why bytes are not a usable public key, or a signature does not hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SignatureError {
    /// Not 64 lower-case hex digits.
    #[error("a public key is 64 lower-case hex digits")]
    KeyText,
    /// Not a point, not canonical, or of small order.
    #[error("the public key is not a canonical point of large order")]
    KeyPoint,
    /// Not 64 bytes, or not canonical.
    #[error("the signature is not 64 bytes in canonical form")]
    SignatureForm,
    /// It does not hold for the message and the key.
    #[error("the signature does not hold for this key and message")]
    Mismatch,
}

impl PublicKey {
    /// Reads a key from the 64 hex digits that the contract holds.
    ///
    /// # Errors
    /// When it is not a canonical point of large order.
    pub fn from_hex(text: &str) -> Result<Self, SignatureError> {
        let bytes = decode_hex(text).ok_or(SignatureError::KeyText)?;
        let bytes = <[u8; 32]>::try_from(bytes).map_err(|_| SignatureError::KeyText)?;
        if !is_canonical_point(&bytes) {
            return Err(SignatureError::KeyPoint);
        }
        let key = VerifyingKey::from_bytes(&bytes).map_err(|_| SignatureError::KeyPoint)?;
        if key.is_weak() { Err(SignatureError::KeyPoint) } else { Ok(Self { key }) }
    }

    /// The 32 bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8; 32] {
        self.key.as_bytes()
    }

    /// Verifies a signature over a message.
    ///
    /// # Errors
    /// When the signature is malformed or does not hold.
    pub fn verify(&self, message: &[u8], signature: &[u8]) -> Result<(), SignatureError> {
        let signature = <[u8; 64]>::try_from(signature).map_err(|_| SignatureError::SignatureForm)?;
        let mut commitment = [0; 32];
        commitment.copy_from_slice(&signature[..32]);
        if !is_canonical_point(&commitment) {
            return Err(SignatureError::SignatureForm);
        }
        self.key
            .verify_strict(message, &Signature::from_bytes(&signature))
            .map_err(|_| SignatureError::Mismatch)
    }
}

/// Whether the y coordinate is below the field's prime, 2^255 - 19.
fn is_canonical_point(bytes: &[u8; 32]) -> bool {
    let is_at_least_prime =
        bytes[31] & 0x7f == 0x7f && bytes[1..31].iter().all(|&byte| byte == 0xff) && bytes[0] >= 0xed;
    !is_at_least_prime
}

/// `<role>:<first 16 hex digits of SHA-256(public key)>`; `None` where the text
/// is not hex.
#[must_use]
pub fn key_id(role: &str, public_hex: &str) -> Option<KeyId> {
    let bytes = decode_hex(public_hex)?;
    let digest = Sha256::digest(bytes);
    Some(KeyId(format!("{role}:{}", encode_hex(&digest[..8]))))
}

#[cfg(test)]
mod tests {
    use ed25519_dalek::{Signer, SigningKey};

    use super::*;

    #[test]
    fn a_signature_holds_for_its_key_and_message_only() {
        let signer = SigningKey::from_bytes(&[7; 32]);
        let key = PublicKey::from_hex(&encode_hex(signer.verifying_key().as_bytes())).expect("a key");
        let signature = signer.sign(b"message").to_bytes();
        assert_eq!(key.verify(b"message", &signature), Ok(()));
        assert_eq!(key.verify(b"massage", &signature), Err(SignatureError::Mismatch));
        assert_eq!(key.verify(b"message", &signature[..63]), Err(SignatureError::SignatureForm));
        for index in 0..64 {
            let mut forged = signature;
            forged[index] ^= 1;
            assert!(key.verify(b"message", &forged).is_err(), "byte {index}");
        }
    }

    #[test]
    fn weak_and_non_canonical_keys_are_refused() {
        let mut identity = [0u8; 32];
        identity[0] = 1;
        assert_eq!(PublicKey::from_hex(&encode_hex(&identity)), Err(SignatureError::KeyPoint));
        let mut beyond = [0xff; 32];
        beyond[31] = 0x7f;
        assert_eq!(PublicKey::from_hex(&encode_hex(&beyond)), Err(SignatureError::KeyPoint));
        assert_eq!(PublicKey::from_hex("00"), Err(SignatureError::KeyText));
    }

    #[test]
    fn scalars_that_are_not_reduced_are_refused() {
        let signer = SigningKey::from_bytes(&[7; 32]);
        let key = PublicKey::from_hex(&encode_hex(signer.verifying_key().as_bytes())).expect("a key");
        let mut signature = signer.sign(b"message").to_bytes();
        // s + L, with L the group order: the same residue, another spelling.
        const ORDER: [u8; 32] = [
            0xed, 0xd3, 0xf5, 0x5c, 0x1a, 0x63, 0x12, 0x58, 0xd6, 0x9c, 0xf7, 0xa2, 0xde, 0xf9, 0xde, 0x14,
            0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x10,
        ];
        let mut carry = 0u16;
        for (byte, order) in signature[32..].iter_mut().zip(ORDER) {
            let sum = u16::from(*byte) + u16::from(order) + carry;
            *byte = sum.to_le_bytes()[0];
            carry = sum >> 8;
        }
        assert!(key.verify(b"message", &signature).is_err());
    }
}
