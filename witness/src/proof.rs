//! Proofs as files: that an entry is in a ledger (`c2sp.org/tlog-proof`), and that
//! one head of it follows from another (the body of `add-checkpoint`).
//!
//! An inclusion proof that this module writes carries the entry's bytes as its
//! extra data, so that the file alone says what is in the ledger. The
//! specification has the extra data unauthenticated; here it is what is hashed,
//! and a proof whose extra data is not the entry does not verify.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ledger::note::{self, NoteError, ParsedNote};
use ledger::tree::{Hash, leaf_hash, verify_consistency, verify_inclusion};

use crate::cosignature::{self, CosignatureError};
use crate::request::{AddCheckpoint, MAX_PROOF_LINES, RequestError, parse_hash, parse_size};
use crate::verifier_key::{SignatureKind, VerifierKey};

/// First line of an inclusion proof.
const HEADER: &str = "c2sp.org/tlog-proof@v1";
/// Largest proof file: a note, hashes, and an entry in base64.
pub const MAX_PROOF_BYTES: u64 = 256 * 1024;

/// A file that is no proof, or one that proves nothing.
#[derive(Debug, thiserror::Error)]
pub enum ProofError {
    /// A line of it.
    #[error("line {line}: {what}")]
    Line {
        /// From 1.
        line: usize,
        /// What is wrong with it.
        what: &'static str,
    },
    /// The head.
    #[error("the head")]
    Note(#[from] NoteError),
    /// The body of a consistency proof.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// A key that was named did not sign.
    #[error("the head is not signed by {name}")]
    Unsigned {
        /// The key's name.
        name: String,
        /// What is wrong with its line, where there is one.
        #[source]
        source: Option<CosignatureError>,
    },
    /// No key was named that signs heads.
    #[error("no key of the log was named; hint: --vkey NAME+HASH+KEY, as `ledger proof` prints it")]
    NoKey,
    /// The hashes do not lead to the root.
    #[error("the hashes do not lead from the entry to the root")]
    Inclusion,
    /// The hashes do not lead from one root to the other.
    #[error("the hashes do not lead from the old root to the new one")]
    Consistency,
    /// The file has no entry, and none was given.
    #[error("the proof carries no entry; hint: name the file with its bytes with --entry")]
    NoEntry,
    /// The head at the old size is of another size, or ledger.
    #[error("the old head is of {origin} at size {size}, the proof begins at {old_size} of {expected}")]
    OldHead {
        /// Its origin.
        origin: String,
        /// Its size.
        size: u64,
        /// The proof's old size.
        old_size: u64,
        /// The proof's origin.
        expected: String,
    },
}

/// That an entry is in a ledger.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InclusionProof {
    /// The entry's bytes, where the file has extra data.
    pub extra: Option<Vec<u8>>,
    /// Hashes from the leaf's sibling up.
    pub hashes: Vec<Hash>,
    /// Index of the entry.
    pub index: u64,
    /// The signed head, with cosignatures where there are some.
    pub note: String,
}

/// What a proof shows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shown {
    /// The head, read.
    pub note: ParsedNote,
    /// Witnesses that were named, with their times in seconds.
    pub witnesses: Vec<(String, u64)>,
}

impl InclusionProof {
    /// The file.
    #[must_use]
    pub fn to_text(&self) -> String {
        let extra = self.extra.as_ref().map(|extra| format!("extra {}\n", STANDARD.encode(extra)));
        let hashes: String = self.hashes.iter().map(|hash| format!("{}\n", STANDARD.encode(hash))).collect();
        format!("{HEADER}\n{}index {}\n{hashes}\n{}", extra.unwrap_or_default(), self.index, self.note)
    }

    /// Reads a file.
    ///
    /// # Errors
    /// At the first line that is not as specified.
    pub fn parse(text: &str) -> Result<Self, ProofError> {
        let (mut rest, mut line) = (text, 0);
        let mut next = || {
            line += 1;
            let cut = rest
                .split_once('\n')
                .ok_or(ProofError::Line { line, what: "it does not end with a newline" });
            let (text, after) = cut?;
            rest = after;
            Ok::<_, ProofError>((line, text, after))
        };
        let wrong = |line, what| ProofError::Line { line, what };
        let (_, header, _) = next()?;
        if header != HEADER {
            return Err(wrong(1, "expected c2sp.org/tlog-proof@v1"));
        }
        let (mut at, mut text, _) = next()?;
        let mut extra = None;
        if let Some(encoded) = text.strip_prefix("extra ") {
            let bytes = STANDARD.decode(encoded).map_err(|_| wrong(at, "the extra data is not base64"))?;
            extra = Some(bytes);
            (at, text, _) = next()?;
        }
        let index = text.strip_prefix("index ").and_then(parse_size);
        let index = index.ok_or(wrong(at, "expected `index`, a space and a number"))?;
        let mut hashes = Vec::new();
        let note = loop {
            let (at, text, after) = next()?;
            if text.is_empty() {
                break after.to_owned();
            }
            if hashes.len() > MAX_PROOF_LINES {
                return Err(wrong(at, "more hashes than a tree has levels"));
            }
            hashes.push(parse_hash(text).ok_or(wrong(at, "expected base64 of 32 bytes"))?);
        };
        note::parse(&note)?;
        Ok(Self { extra, hashes, index, note })
    }

    /// Checks that every named key signed the head, and that the entry leads to
    /// its root. `entry`: its bytes, where they are not to be taken from the file.
    ///
    /// # Errors
    /// At the first of these that does not hold.
    pub fn check(&self, keys: &[VerifierKey], entry: Option<&[u8]>) -> Result<Shown, ProofError> {
        let shown = check_signatures(&self.note, keys)?;
        let entry = entry.or(self.extra.as_deref()).ok_or(ProofError::NoEntry)?;
        let head = &shown.note.head;
        let leads = verify_inclusion(&head.root, head.size, self.index, &leaf_hash(entry), &self.hashes);
        if leads { Ok(shown) } else { Err(ProofError::Inclusion) }
    }
}

/// Checks a consistency proof in a file: that the head in it is signed by every
/// named key and follows from an old head, which has to be so signed too but for
/// the witnesses.
///
/// # Errors
/// At the first of these that does not hold.
pub fn check_consistency(body: &[u8], old_note: &str, keys: &[VerifierKey]) -> Result<Shown, ProofError> {
    let request = AddCheckpoint::parse(body)?;
    let shown = check_signatures(&request.note, keys)?;
    let logs: Vec<VerifierKey> = keys.iter().filter(|key| key.kind == SignatureKind::Log).cloned().collect();
    let old = signed_by_one(old_note, &logs)?;
    let head = &shown.note.head;
    if old.head.origin != head.origin || old.head.size != request.old_size {
        return Err(ProofError::OldHead {
            origin: old.head.origin,
            size: old.head.size,
            old_size: request.old_size,
            expected: head.origin.clone(),
        });
    }
    let leads = verify_consistency(old.head.size, &old.head.root, head.size, &head.root, &request.proof);
    if leads { Ok(shown) } else { Err(ProofError::Consistency) }
}

/// The head, signed by one of the log's keys and by every witness.
fn check_signatures(note: &str, keys: &[VerifierKey]) -> Result<Shown, ProofError> {
    let logs: Vec<VerifierKey> = keys.iter().filter(|key| key.kind == SignatureKind::Log).cloned().collect();
    let parsed = signed_by_one(note, &logs)?;
    let mut witnesses = Vec::new();
    for key in keys.iter().filter(|key| key.kind == SignatureKind::Witness) {
        let unsigned = |source| ProofError::Unsigned { name: key.name.clone(), source };
        match cosignature::verify(&parsed, key) {
            Ok(Some(time_s)) => witnesses.push((key.name.clone(), time_s)),
            Ok(None) => return Err(unsigned(None)),
            Err(error) => return Err(unsigned(Some(error))),
        }
    }
    Ok(Shown { note: parsed, witnesses })
}

/// A log changes hands once (owner, then trainer), so one of its keys suffices.
fn signed_by_one(note: &str, logs: &[VerifierKey]) -> Result<ParsedNote, ProofError> {
    let parsed = note::parse(note)?;
    let Some(first) = logs.first() else { return Err(ProofError::NoKey) };
    let of_origin = logs.iter().filter(|key| key.name == parsed.head.origin);
    if of_origin.into_iter().any(|key| note::verify(note, &key.public_hex()).is_ok()) {
        return Ok(parsed);
    }
    Err(ProofError::Unsigned { name: first.name.clone(), source: None })
}
