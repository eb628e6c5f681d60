//! The body of `add-checkpoint` (`c2sp.org/tlog-witness`): a size that the
//! witness has, a consistency proof from there, and a signed head. It is also
//! the form of a consistency proof in a file.
//!
//! One spelling only: every line ends with a newline, sizes have no leading
//! zeros, hashes are padded base64 of 32 bytes. Heads with extension lines are
//! refused, since nothing that this project signs has any.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ledger::note::{self, MAX_NOTE_BYTES, NoteError, ParsedNote};
use ledger::tree::Hash;

/// Most lines of a consistency proof, by the specification.
pub const MAX_PROOF_LINES: usize = 63;

/// Largest body: a note, 63 lines of 44 characters and a newline, the first line
/// and the empty one.
pub const MAX_BODY_BYTES: usize = MAX_NOTE_BYTES + MAX_PROOF_LINES * 45 + 32;

/// A request to cosign a head.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AddCheckpoint {
    /// Size of the tree that the proof begins with.
    pub old_size: u64,
    /// Proof that the head's tree begins with it (RFC 6962, 2.1.2).
    pub proof: Vec<Hash>,
    /// The signed head as it was sent.
    pub note: String,
    /// The same, read.
    pub parsed: ParsedNote,
}

/// A body that is none.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// A line of it.
    #[error("line {line}: {what}")]
    Line {
        /// From 1.
        line: usize,
        /// What is wrong with it.
        what: &'static str,
    },
    /// The head behind the empty line.
    #[error("the head: {0}")]
    Note(#[from] NoteError),
}

impl AddCheckpoint {
    /// Reads a body.
    ///
    /// # Errors
    /// At the first line that is not as specified.
    pub fn parse(body: &[u8]) -> Result<Self, RequestError> {
        let wrong = |line, what| RequestError::Line { line, what };
        if body.len() > MAX_BODY_BYTES {
            return Err(wrong(1, "the body is larger than a note and 63 hashes"));
        }
        let text = std::str::from_utf8(body).map_err(|_| wrong(1, "the body is not UTF-8"))?;
        let (first, mut rest) = text.split_once('\n').ok_or(wrong(1, "it does not end with a newline"))?;
        let old_size = first.strip_prefix("old ").and_then(parse_size);
        let old_size = old_size.ok_or(wrong(1, "expected `old`, a space and a size"))?;
        let mut proof = Vec::new();
        for line in 2.. {
            let (text, after) = rest.split_once('\n').ok_or(wrong(line, "it does not end with a newline"))?;
            rest = after;
            if text.is_empty() {
                break;
            }
            if proof.len() == MAX_PROOF_LINES {
                return Err(wrong(line, "more than 63 lines of a proof"));
            }
            proof.push(parse_hash(text).ok_or(wrong(line, "expected base64 of 32 bytes"))?);
        }
        let parsed = note::parse(rest)?;
        Ok(Self { old_size, proof, note: rest.to_owned(), parsed })
    }

    /// The body of a request.
    #[must_use]
    pub fn body(old_size: u64, proof: &[Hash], note: &str) -> String {
        let lines: String = proof.iter().map(|hash| format!("{}\n", STANDARD.encode(hash))).collect();
        format!("old {old_size}\n{lines}\n{note}")
    }
}

/// A decimal without leading zeros.
pub(crate) fn parse_size(text: &str) -> Option<u64> {
    let size: u64 = text.parse().ok()?;
    (size.to_string() == text && size <= schemas::MAX_JSON_INTEGER).then_some(size)
}

/// A hash in its one base64 spelling.
pub(crate) fn parse_hash(text: &str) -> Option<Hash> {
    let bytes = STANDARD.decode(text).ok()?;
    Hash::try_from(bytes).ok().filter(|hash| STANDARD.encode(hash) == text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ledger::keys::{KeyPair, Role};
    use ledger::note::TreeHead;
    use schemas::digest::Digest;

    fn note() -> String {
        let key = KeyPair::from_seed(Role::Trainer, &[1; 32], Digest::sha256([0; 32]));
        TreeHead { origin: "governed-ledger/run/a-b".to_owned(), size: 9, root: [3; 32] }.sign(&key)
    }

    #[test]
    fn a_body_is_read_as_it_was_written() {
        for proof in [vec![], vec![[1; 32]], vec![[2; 32]; MAX_PROOF_LINES]] {
            let body = AddCheckpoint::body(4, &proof, &note());
            let read = AddCheckpoint::parse(body.as_bytes()).expect("a request");
            assert_eq!((read.old_size, &read.proof, read.note.as_str()), (4, &proof, note().as_str()));
            assert_eq!(read.parsed.head.size, 9);
            assert_eq!(AddCheckpoint::body(read.old_size, &read.proof, &read.note), body);
        }
    }

    #[test]
    fn other_bodies_are_refused() {
        let body = AddCheckpoint::body(4, &[[1; 32]], &note());
        let hash = STANDARD.encode([1; 32]);
        let long = AddCheckpoint::body(4, &[[1; 32]; MAX_PROOF_LINES + 1], &note());
        for other in [
            String::new(),
            "old 4".to_owned(),
            body.replace("old 4", "old 04"),
            body.replace("old 4", "old +4"),
            body.replace("old 4", "old  4"),
            body.replace("old 4\n", "old 4\r\n"),
            body.replace("old 4", "Old 4"),
            body.replace(&hash, &hash[1..]),
            body.replace(&hash, &format!("{hash} ")),
            body.replace("\n\ngoverned", "\ngoverned"),
            body.trim_end().to_owned(),
            format!("{body}\n"),
            long,
            body.replace("\n9\n", "\n9\n\n"),
            "old 4\n\n".to_owned(),
        ] {
            assert!(AddCheckpoint::parse(other.as_bytes()).is_err(), "{other:?}");
        }
        for length in 0..body.len() {
            assert!(AddCheckpoint::parse(&body.as_bytes()[..length]).is_err(), "cut at {length}");
        }
        assert!(AddCheckpoint::parse(&[0xff; 9]).is_err());
        assert!(AddCheckpoint::parse(&vec![b'a'; MAX_BODY_BYTES + 1]).is_err());
    }
}
