//! Tree heads as C2SP signed notes (`c2sp.org/tlog-checkpoint`,
//! `c2sp.org/signed-note`), Ed25519 only, without extension lines.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ed25519_dalek::Signature;
use schemas::MAX_JSON_INTEGER;
use schemas::entry::LedgerKind;
use schemas::ids::RunId;
use sha2::{Digest, Sha256};

use crate::keys::{KeyPair, public_from_hex};
use crate::tree::Hash;

/// Largest note that is read, in bytes; a head with many cosignatures is far below.
pub const MAX_NOTE_BYTES: usize = 64 * 1024;

/// More signature lines than any head here has; bounds what a hostile one costs.
const MAX_SIGNATURES: usize = 16;

/// Signature type of Ed25519 in the key hash.
const ED25519_TYPE: u8 = 0x01;

/// A tree head: what a note signs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TreeHead {
    /// `governed-ledger/<ledger kind>/<run id>`.
    pub origin: String,
    /// Number of entries.
    pub size: u64,
    /// Root hash.
    pub root: Hash,
}

/// One signature line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NoteSignature {
    /// Name of the key.
    pub name: String,
    /// First four bytes that tell keys of one name apart.
    pub key_hash: [u8; 4],
    /// The rest; 64 bytes for Ed25519.
    pub signature: Vec<u8>,
}

/// A note that was read but not verified.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParsedNote {
    /// What it says.
    pub head: TreeHead,
    /// Who signed, as the note claims.
    pub signatures: Vec<NoteSignature>,
    /// The signed text, with its last newline.
    pub text: String,
}

/// A note that is malformed or does not verify.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoteError {
    /// The text is not a signed note around a tree head.
    #[error("not a signed tree head: {what}")]
    Malformed {
        /// The first departure.
        what: &'static str,
    },
    /// The public key is not one.
    #[error("{public:?} is not an Ed25519 public key of 64 hex digits")]
    PublicKey {
        /// What was given.
        public: String,
    },
    /// No signature is by the key.
    #[error("the head of {origin} at size {size} has no valid signature by public key {public}")]
    Signature {
        /// Origin of the note.
        origin: String,
        /// Its tree size.
        size: u64,
        /// The key, 64 hex digits.
        public: String,
    },
}

/// Origin line of a ledger.
#[must_use]
pub fn origin(kind: LedgerKind, run: &RunId) -> String {
    format!("governed-ledger/{}/{run}", kind_name(kind))
}

/// Takes an origin line apart; `None` for an origin that is not of a ledger.
#[must_use]
pub fn parse_origin(origin: &str) -> Option<(LedgerKind, RunId)> {
    let (kind, run) = origin.strip_prefix("governed-ledger/")?.split_once('/')?;
    let kinds = [LedgerKind::Run, LedgerKind::Campaign, LedgerKind::Qualification, LedgerKind::Maintenance];
    let kind = kinds.into_iter().find(|candidate| kind_name(*candidate) == kind)?;
    is_run_id(run).then(|| (kind, RunId::from(run)))
}

/// Whether a text can be a run's identifier: it stands in key names, where
/// C2SP forbids white space and plus signs.
#[must_use]
pub fn is_run_id(text: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    (1..=128).contains(&text.len()) && text.bytes().all(allowed)
}

/// Name of a ledger kind, as in entries.
#[must_use]
pub const fn kind_name(kind: LedgerKind) -> &'static str {
    match kind {
        LedgerKind::Run => "run",
        LedgerKind::Campaign => "campaign",
        LedgerKind::Qualification => "qualification",
        LedgerKind::Maintenance => "maintenance",
    }
}

/// Key hash of an Ed25519 key under a name.
#[must_use]
pub fn key_hash(name: &str, public: &[u8; 32]) -> [u8; 4] {
    let mut hasher = Sha256::new();
    hasher.update(name.as_bytes());
    hasher.update([b'\n', ED25519_TYPE]);
    hasher.update(public);
    let digest = hasher.finalize();
    [digest[0], digest[1], digest[2], digest[3]]
}

impl TreeHead {
    /// The text that is signed: three lines.
    #[must_use]
    pub fn text(&self) -> String {
        format!("{}\n{}\n{}\n", self.origin, self.size, STANDARD.encode(self.root))
    }

    /// Signs the head; the key's name is the origin.
    #[must_use]
    pub fn sign(&self, key: &KeyPair) -> String {
        let text = self.text();
        let mut line = [0u8; 68];
        line[..4].copy_from_slice(&key_hash(&self.origin, &key.public_bytes()));
        line[4..].copy_from_slice(&key.sign(text.as_bytes()));
        format!("{text}\n\u{2014} {} {}\n", self.origin, STANDARD.encode(line))
    }
}

/// Reads a note without verifying it.
///
/// # Errors
/// When it is not a signed note whose text is a tree head without extensions.
pub fn parse(note: &str) -> Result<ParsedNote, NoteError> {
    let malformed = |what| NoteError::Malformed { what };
    if note.len() > MAX_NOTE_BYTES {
        return Err(malformed("longer than 64 KiB"));
    }
    if note.bytes().any(|byte| byte < 0x20 && byte != b'\n') {
        return Err(malformed("control characters"));
    }
    let (text, signatures) = note.split_once("\n\n").ok_or(malformed("no blank line before signatures"))?;
    let mut lines = text.split('\n');
    let origin = lines.next().filter(|line| is_key_name(line)).ok_or(malformed("no origin line"))?;
    let size = lines.next().and_then(parse_size).ok_or(malformed("no tree size on the second line"))?;
    let root = lines.next().and_then(|line| STANDARD.decode(line).ok());
    let root =
        root.and_then(|bytes| Hash::try_from(bytes).ok()).ok_or(malformed("no root on the third line"))?;
    if lines.next().is_some() {
        return Err(malformed("extension lines, which this format does not use"));
    }
    let signatures = signatures.strip_suffix('\n').ok_or(malformed("the last line is not complete"))?;
    let signatures: Option<Vec<NoteSignature>> = signatures.split('\n').map(parse_signature).collect();
    let signatures = signatures.ok_or(malformed("a signature line that is not one"))?;
    if signatures.len() > MAX_SIGNATURES {
        return Err(malformed("more than 16 signature lines"));
    }
    let head = TreeHead { origin: origin.to_owned(), size, root };
    Ok(ParsedNote { head, signatures, text: format!("{text}\n") })
}

/// Reads a note and checks that one of its signatures is by the given key,
/// under the origin's name.
///
/// # Errors
/// When it is malformed or no signature verifies strictly.
pub fn verify(note: &str, public_hex: &str) -> Result<TreeHead, NoteError> {
    let parsed = parse(note)?;
    let public =
        public_from_hex(public_hex).ok_or_else(|| NoteError::PublicKey { public: public_hex.to_owned() })?;
    let expected = key_hash(&parsed.head.origin, public.as_bytes());
    let verified = parsed.signatures.iter().any(|line| {
        line.name == parsed.head.origin
            && line.key_hash == expected
            && <[u8; 64]>::try_from(line.signature.as_slice()).is_ok_and(|bytes| {
                public.verify_strict(parsed.text.as_bytes(), &Signature::from_bytes(&bytes)).is_ok()
            })
    });
    if verified {
        return Ok(parsed.head);
    }
    Err(NoteError::Signature {
        origin: parsed.head.origin,
        size: parsed.head.size,
        public: public_hex.to_owned(),
    })
}

/// Whether a text can be the name of a key: C2SP forbids white space and plus
/// signs in it. The origin is one here.
#[must_use]
pub fn is_key_name(text: &str) -> bool {
    !text.is_empty() && !text.chars().any(|c| c.is_whitespace() || c.is_control() || c == '+')
}

fn parse_size(line: &str) -> Option<u64> {
    let size: u64 = line.parse().ok()?;
    (size.to_string() == line && size <= MAX_JSON_INTEGER).then_some(size)
}

fn parse_signature(line: &str) -> Option<NoteSignature> {
    let (name, encoded) = line.strip_prefix("\u{2014} ")?.split_once(' ')?;
    let bytes = STANDARD.decode(encoded).ok()?;
    let (key_hash, signature) = bytes.split_first_chunk::<4>()?;
    let valid = is_key_name(name) && !signature.is_empty();
    valid.then(|| NoteSignature { name: name.to_owned(), key_hash: *key_hash, signature: signature.to_vec() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::Role;
    use schemas::digest::Digest as DigestText;

    fn key(seed: u8) -> KeyPair {
        KeyPair::from_seed(Role::Trainer, &[seed; 32], DigestText::sha256([0; 32]))
    }

    fn head() -> TreeHead {
        let origin = origin(LedgerKind::Run, &RunId::from("0123456789abcdef-0123456789abcdef"));
        TreeHead { origin, size: 17, root: [7; 32] }
    }

    #[test]
    fn a_signed_head_verifies_under_its_key_only() {
        let note = head().sign(&key(1));
        assert_eq!(verify(&note, &key(1).public_hex()), Ok(head()));
        assert!(matches!(verify(&note, &key(2).public_hex()), Err(NoteError::Signature { size: 17, .. })));
        assert_eq!(
            parse_origin(&head().origin),
            Some((LedgerKind::Run, RunId::from("0123456789abcdef-0123456789abcdef")))
        );
    }

    #[test]
    fn every_changed_byte_is_refused() {
        let note = head().sign(&key(1));
        for position in 0..note.len() {
            let mut bytes = note.clone().into_bytes();
            bytes[position] ^= 0x01;
            let accepted =
                String::from_utf8(bytes).is_ok_and(|changed| verify(&changed, &key(1).public_hex()).is_ok());
            assert!(!accepted, "byte {position}");
        }
        for length in 0..note.len() {
            let cut = note.get(..length).unwrap_or("");
            assert!(verify(cut, &key(1).public_hex()).is_err(), "length {length}");
        }
    }

    #[test]
    fn extension_lines_and_loose_sizes_are_refused() {
        let note = head().sign(&key(1));
        assert!(parse(&note.replacen("\n17\n", "\n017\n", 1)).is_err());
        assert!(parse(&note.replacen("\n\n", "\nextension\n\n", 1)).is_err());
    }
}
