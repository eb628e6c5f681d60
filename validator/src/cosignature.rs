//! Cosignatures of witnesses (`c2sp.org/tlog-cosignature`, Ed25519), verified
//! from the page and not with the code that makes them.

use sha2::{Digest as _, Sha256};

use crate::ed25519::{PublicKey, SignatureError};
use crate::note::Note;

/// Signature type byte of a timestamped cosignature in a key hash.
const COSIGNATURE_TYPE: u8 = 0x04;
/// First line of what is signed; keeps it apart from a note's own text.
const HEADER: &str = "cosignature/v1";

/// A witness as a contract names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cosigner {
    key: PublicKey,
    key_hash: [u8; 4],
    name: String,
}

/// A line of a witness that does not hold.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CosignatureError {
    /// Not a time of eight bytes and a signature behind it, or a time beyond
    /// 2^63 - 1.
    #[error("the line holds no time and signature")]
    Form,
    /// The signature.
    #[error(transparent)]
    Signature(#[from] SignatureError),
}

impl Cosigner {
    /// A witness by name and key.
    ///
    /// # Errors
    /// When the key is not 64 hex digits of a usable point.
    pub fn new(name: &str, public_hex: &str) -> Result<Self, SignatureError> {
        let key = PublicKey::from_hex(public_hex)?;
        let mut hasher = Sha256::new();
        hasher.update(name.as_bytes());
        hasher.update([b'\n', COSIGNATURE_TYPE]);
        hasher.update(key.bytes());
        let digest = hasher.finalize();
        let key_hash = [digest[0], digest[1], digest[2], digest[3]];
        Ok(Self { key, key_hash, name: name.to_owned() })
    }

    /// Its name in signature lines.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// First four bytes of `SHA-256(name || 0x0A || 0x04 || public key)`.
    #[must_use]
    pub const fn key_hash(&self) -> [u8; 4] {
        self.key_hash
    }

    /// The earliest time, in seconds since 1970, at which this witness cosigned
    /// the note; `None` where it has no line in it.
    ///
    /// # Errors
    /// When a line is the witness's by name and hash and does not hold.
    pub fn verify(&self, note: &Note) -> Result<Option<u64>, CosignatureError> {
        let own =
            note.signatures.iter().filter(|line| line.name == self.name && line.key_hash == self.key_hash);
        let mut earliest: Option<u64> = None;
        for line in own {
            let (time, signature) = line.signature.split_first_chunk::<8>().ok_or(CosignatureError::Form)?;
            let time_s = u64::from_be_bytes(*time);
            if i64::try_from(time_s).is_err() {
                return Err(CosignatureError::Form);
            }
            let message = format!("{HEADER}\ntime {time_s}\n{}", note.text());
            self.key.verify(message.as_bytes(), signature)?;
            earliest = Some(earliest.map_or(time_s, |earlier| earlier.min(time_s)));
        }
        Ok(earliest)
    }
}
