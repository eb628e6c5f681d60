//! The tree head that a challenge is bound to: read, and its signature checked
//! with the contract's key for its size.
//!
//! Which head counts is the reviewer's choice: one that was kept before the
//! nonce was named. A head that the ledger does not meet is no head of it. Where
//! a file is named, no other place is looked in: the heads in the database are the
//! trainer's, who could have tried heads until one drew what it likes.

use std::path::{Path, PathBuf};

use schemas::digest::encode_hex;

use crate::contract::ContractRead;
use crate::error::AuditError;
use crate::heads::MAX_HEAD_FILE_BYTES;
use crate::note::Note;
use crate::said::read_limited;
use crate::store::{Store, beside};

use super::error::ChallengeError;

/// Where a head may be found.
pub(super) struct Heads {
    /// Whether the reviewer named the file.
    is_named: bool,
    notes: Vec<Note>,
    path: PathBuf,
}

impl Heads {
    /// The notes of the named head file, or of the one beside the ledger.
    pub(super) fn read(ledger: &Path, named: Option<&Path>) -> Result<Self, ChallengeError> {
        let path = named.map_or_else(|| beside(ledger, ".head"), Path::to_owned);
        let bytes = match read_limited(&path, MAX_HEAD_FILE_BYTES) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound && named.is_none() => Vec::new(),
            Err(source) => return Err(AuditError::Named { what: "the head file", path, source }.into()),
        };
        Ok(Self { is_named: named.is_some(), notes: parse(&bytes), path })
    }

    /// The newest head, which its key signed.
    pub(super) fn newest(self, read: &ContractRead) -> Result<Note, ChallengeError> {
        let reason = "it holds no signed tree head".to_owned();
        let Some(note) = self.notes.into_iter().next_back() else {
            return Err(ChallengeError::Head { path: self.path, reason });
        };
        check(note, read, &self.path)
    }

    /// A head of this size and root, which its key signed: from the named file, or
    /// where none is named from the one beside the ledger or the database.
    pub(super) fn of(
        self,
        (size, root): (u64, [u8; 32]),
        read: &ContractRead,
        store: &Store,
    ) -> Result<Note, ChallengeError> {
        let stored = if self.is_named { Vec::new() } else { store.heads().unwrap_or_default() };
        let stored = stored.iter().filter_map(|row| Note::parse(&row.note).ok());
        let mut all = self.notes.into_iter().chain(stored);
        match all.find(|note| note.size == size && note.root == root) {
            Some(note) => check(note, read, &self.path),
            None => {
                let root = encode_hex(&root);
                let reason = if self.is_named {
                    format!("it does not have the challenge's head, of size {size} with root {root}")
                } else {
                    format!("neither it nor the ledger has a head of size {size} with root {root}")
                };
                Err(ChallengeError::Head { path: self.path, reason })
            }
        }
    }
}

/// Notes in order, up to the first that is not whole: what a power cut leaves
/// at the end is no head.
fn parse(bytes: &[u8]) -> Vec<Note> {
    let mut notes = Vec::new();
    let mut rest = bytes;
    while let Ok((note, after)) = Note::parse_prefix(rest) {
        notes.push(note);
        let Some(after) = after.strip_prefix(b"\n") else { break };
        rest = after;
    }
    notes
}

fn check(note: Note, read: &ContractRead, path: &Path) -> Result<Note, ChallengeError> {
    let wrong = |reason: String| ChallengeError::Head { path: path.to_owned(), reason };
    let signers = read.signers.as_ref();
    let signers = signers.ok_or_else(|| wrong("the contract's keys cannot verify a head".to_owned()))?;
    if note.origin != signers.origin {
        return Err(wrong(format!("the head is of {}, and the ledger is {}", note.origin, signers.origin)));
    }
    let (role, key) = if note.size <= 1 { ("owner", &signers.owner) } else { ("trainer", &signers.trainer) };
    match note.verify(key) {
        Ok(()) => Ok(note),
        Err(error) => Err(wrong(format!("the head is not signed by the contract's {role} key: {error}"))),
    }
}
