//! Tree heads as C2SP signed notes, read strictly.
//!
//! One spelling only: no extension lines, no leading zeros, padded standard
//! base64, one line break after every line. A note that could be written in
//! two ways could be changed without breaking its signature.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sha2::{Digest as _, Sha256};

use crate::ed25519::{PublicKey, SignatureError};

/// Starts a signature line: an em dash and a space.
const SIGNATURE_PREFIX: &str = "\u{2014} ";
/// Signature type byte of Ed25519 in a key hash.
const ED25519_TYPE: u8 = 0x01;
/// More lines than any honest note has; bounds what a hostile one costs.
const MAX_SIGNATURES: usize = 16;

/// Longest note that is read, in bytes; one with all its lines is far below.
pub(crate) const MAX_NOTE_BYTES: usize = 64 * 1024;

/// One signature line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NoteSignature {
    /// First four bytes of the hash of name, type and key.
    pub key_hash: [u8; 4],
    /// Key name.
    pub name: String,
    /// What follows the key hash.
    pub signature: Vec<u8>,
}

/// A tree head with its signatures, none of them verified yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Note {
    /// Origin line.
    pub origin: String,
    /// Root hash.
    pub root: [u8; 32],
    /// In the order of their lines; at least one.
    pub signatures: Vec<NoteSignature>,
    /// Tree size.
    pub size: u64,
    text: String,
}

/// Why bytes are not a tree head.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {what}")]
pub struct NoteError {
    /// 1-based line within the note.
    pub line: usize,
    /// What is wrong with it.
    pub what: &'static str,
}

impl Note {
    /// Reads exactly one note.
    ///
    /// # Errors
    /// At the first line that is not as specified.
    pub fn parse(bytes: &[u8]) -> Result<Self, NoteError> {
        let (note, rest) = Self::parse_prefix(bytes)?;
        if rest.is_empty() {
            Ok(note)
        } else {
            Err(NoteError { line: 5 + note.signatures.len(), what: "something follows the signatures" })
        }
    }

    /// Reads a note from the front; returns what follows its last signature line.
    ///
    /// # Errors
    /// As [`Note::parse`].
    pub fn parse_prefix(bytes: &[u8]) -> Result<(Self, &[u8]), NoteError> {
        let mut lines = Lines { rest: bytes, line: 0 };
        let origin = lines.take()?.to_owned();
        if !is_name(&origin) {
            return Err(lines.error("the origin is empty or has white space or `+` in it"));
        }
        let size_text = lines.take()?.to_owned();
        let size = parse_decimal(&size_text).ok_or(lines.error("the tree size is not a plain decimal"))?;
        let root_text = lines.take()?.to_owned();
        let root = decode_base64(&root_text)
            .and_then(|bytes| <[u8; 32]>::try_from(bytes).ok())
            .ok_or(lines.error("the root is not base64 of 32 bytes"))?;
        if !lines.take()?.is_empty() {
            return Err(lines.error("an extension line, or no empty line before the signatures"));
        }
        let mut signatures = Vec::new();
        while lines.rest.starts_with(SIGNATURE_PREFIX.as_bytes()) {
            let line = lines.take()?;
            let signature = parse_signature(line);
            signatures.push(signature.ok_or(lines.error("not a signature line"))?);
            if signatures.len() > MAX_SIGNATURES {
                return Err(lines.error("more signature lines than are read"));
            }
        }
        if signatures.is_empty() {
            return Err(NoteError { line: lines.line + 1, what: "no signature line" });
        }
        if bytes.len() - lines.rest.len() > MAX_NOTE_BYTES {
            return Err(lines.error("the note is longer than 64 KiB"));
        }
        let text = format!("{origin}\n{size_text}\n{root_text}\n");
        Ok((Self { origin, root, signatures, size, text }, lines.rest))
    }

    /// The text that is signed, with its last newline.
    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    /// Verifies the one signature line of a key. The key's name is the origin.
    ///
    /// # Errors
    /// [`SignatureError::Mismatch`] when no line is of this key or its
    /// signature does not hold.
    pub fn verify(&self, key: &PublicKey) -> Result<(), SignatureError> {
        let expected = key_hash(&self.origin, key);
        let line = self
            .signatures
            .iter()
            .find(|line| line.name == self.origin && line.key_hash == expected)
            .ok_or(SignatureError::Mismatch)?;
        key.verify(self.text.as_bytes(), &line.signature)
    }
}

/// First four bytes of `SHA-256(name || 0x0A || 0x01 || public key)`.
#[must_use]
pub fn key_hash(name: &str, key: &PublicKey) -> [u8; 4] {
    let mut hasher = Sha256::new();
    hasher.update(name.as_bytes());
    hasher.update([b'\n', ED25519_TYPE]);
    hasher.update(key.bytes());
    let digest = hasher.finalize();
    [digest[0], digest[1], digest[2], digest[3]]
}

struct Lines<'a> {
    rest: &'a [u8],
    line: usize,
}

impl<'a> Lines<'a> {
    fn take(&mut self) -> Result<&'a str, NoteError> {
        self.line += 1;
        let end = self.rest.iter().position(|&byte| byte == b'\n');
        let end = end.ok_or(self.error("the note ends within a line"))?;
        let line = std::str::from_utf8(&self.rest[..end]).map_err(|_| self.error("not UTF-8"))?;
        self.rest = &self.rest[end + 1..];
        Ok(line)
    }

    fn error(&self, what: &'static str) -> NoteError {
        NoteError { line: self.line, what }
    }
}

fn parse_decimal(text: &str) -> Option<u64> {
    let is_plain = text == "0" || (!text.starts_with('0') && !text.is_empty());
    if !is_plain || !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    // A larger one could not be the index of an entry.
    text.parse().ok().filter(|size| *size <= schemas::MAX_JSON_INTEGER)
}

/// Whether a text can be an origin, which is the name of a key: not empty, and
/// without white space, `+` and control characters.
pub(crate) fn is_name(text: &str) -> bool {
    !text.is_empty() && !text.chars().any(|c| c.is_whitespace() || c == '+' || c.is_control())
}

/// Standard base64 in its one canonical spelling.
pub(crate) fn decode_base64(text: &str) -> Option<Vec<u8>> {
    let bytes = STANDARD.decode(text).ok()?;
    (STANDARD.encode(&bytes) == text).then_some(bytes)
}

fn parse_signature(line: &str) -> Option<NoteSignature> {
    let (name, encoded) = line.strip_prefix(SIGNATURE_PREFIX)?.split_once(' ')?;
    let bytes = decode_base64(encoded)?;
    let (key_hash, signature) = bytes.split_first_chunk::<4>()?;
    if !is_name(name) || signature.is_empty() {
        return None;
    }
    Some(NoteSignature { key_hash: *key_hash, name: name.to_owned(), signature: signature.to_vec() })
}

#[cfg(test)]
mod tests {
    use ed25519_dalek::{Signer, SigningKey};
    use schemas::digest::encode_hex;

    use super::*;

    const ORIGIN: &str = "governed-ledger/run/0123456789abcdef-0123456789abcdef";

    fn signed(size: u64) -> (Vec<u8>, PublicKey) {
        let signer = SigningKey::from_bytes(&[3; 32]);
        let key = PublicKey::from_hex(&encode_hex(signer.verifying_key().as_bytes())).expect("a key");
        let text = format!("{ORIGIN}\n{size}\n{}\n", STANDARD.encode([5; 32]));
        let mut blob = key_hash(ORIGIN, &key).to_vec();
        blob.extend(signer.sign(text.as_bytes()).to_bytes());
        (format!("{text}\n\u{2014} {ORIGIN} {}\n", STANDARD.encode(blob)).into_bytes(), key)
    }

    #[test]
    fn a_note_is_read_and_verified() {
        let (bytes, key) = signed(42);
        let note = Note::parse(&bytes).expect("a note");
        assert_eq!((note.origin.as_str(), note.size, note.root), (ORIGIN, 42, [5; 32]));
        assert_eq!(note.verify(&key), Ok(()));
        let other = SigningKey::from_bytes(&[4; 32]).verifying_key();
        let other = PublicKey::from_hex(&encode_hex(other.as_bytes())).expect("a key");
        assert_eq!(note.verify(&other), Err(SignatureError::Mismatch));
    }

    #[test]
    fn every_changed_byte_breaks_form_or_signature() {
        let (bytes, key) = signed(42);
        for index in 0..bytes.len() {
            for flip in [1u8, 0x20, 0x80] {
                let mut forged = bytes.clone();
                forged[index] ^= flip;
                let holds = Note::parse(&forged).is_ok_and(|note| note.verify(&key).is_ok());
                assert!(!holds, "byte {index} xor {flip:#x}");
            }
        }
    }

    #[test]
    fn other_spellings_are_refused() {
        let (bytes, _) = signed(42);
        let text = String::from_utf8(bytes).expect("UTF-8");
        for (from, to) in [("\n42\n", "\n042\n"), ("\n42\n", "\n+42\n"), ("=\n\n", "=\nextension\n\n")] {
            assert!(Note::parse(text.replacen(from, to, 1).as_bytes()).is_err(), "{to:?}");
        }
        assert!(Note::parse(format!("{text}\n").as_bytes()).is_err());
        assert!(Note::parse(text.trim_end().as_bytes()).is_err());
    }
}
