//! Reads the challenge that is to be executed, and compares it with the ledger.
//!
//! A replay names its challenge by the digest of these bytes, and whoever compares
//! the two takes a challenge in its one form alone. It is read as strictly here:
//! segments of any other would be executed for nothing, and a reader that takes
//! more than another can be shown what that one never saw.

use std::fs;
use std::path::Path;

use ledger::FrozenContract;
use ledger::canonical::{check_entry_json, entry_json};
use ledger::reader::Reader;
use ledger::tree::{Frontier, leaf_hash};
use schemas::challenge::{CHALLENGE_FORMAT, Challenge};
use schemas::digest::Digest;
use sha2::{Digest as _, Sha256};

use crate::checkpoint::below;

use super::error::ReplayError;

/// Largest challenge that is read.
const MAX_CHALLENGE_BYTES: u64 = 16 << 20;

/// Reads a challenge, with the SHA-256 of its bytes.
///
/// # Errors
/// [`ReplayError::Challenge`] where it cannot be read or is none.
pub(super) fn read(path: &Path) -> Result<(Challenge, Digest), ReplayError> {
    let refused = |reason: String| ReplayError::Challenge { path: path.to_owned(), reason };
    // A person named it, perhaps by a link; what it leads to is a file all the same.
    let bytes = fs::canonicalize(path)
        .and_then(|found| below::regular(&found))
        .and_then(|(file, _)| below::read_all(file, MAX_CHALLENGE_BYTES))
        .map_err(|error| refused(error.to_string()))?;
    let challenge = parse(&bytes).map_err(refused)?;
    Ok((challenge, Digest::sha256(Sha256::digest(&bytes).into())))
}

/// A challenge in its one form: canonical bytes, which written again are the same.
/// Two spellings of one value may both be canonical, such as an object and a list of
/// its members.
fn parse(bytes: &[u8]) -> Result<Challenge, String> {
    check_entry_json(bytes).map_err(|error| error.to_string())?;
    let challenge: Challenge = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
    if challenge.format != CHALLENGE_FORMAT {
        return Err(format!("its format is {:?}, expected {CHALLENGE_FORMAT:?}", challenge.format));
    }
    let written = entry_json(&challenge).map_err(|error| error.to_string())?;
    if written == bytes {
        Ok(challenge)
    } else {
        Err("something in it has another form than `ledger challenge` writes".to_owned())
    }
}

/// Checks that a challenge is of this run, and that the ledger holds what its head
/// signed.
///
/// # Errors
/// [`ReplayError::Challenge`], and where the ledger cannot be read.
pub(super) fn check(
    path: &Path,
    challenge: &Challenge,
    reader: &Reader,
    frozen: &FrozenContract,
) -> Result<(), ReplayError> {
    let refused = |reason: String| Err(ReplayError::Challenge { path: path.to_owned(), reason });
    if challenge.run != frozen.run || challenge.contract != frozen.digest {
        return refused(format!("it is of run {}, and the ledger of {}", challenge.run, frozen.run));
    }
    let mut frontier = Frontier::new();
    for row in reader.rows(0) {
        let (index, bytes) = row?;
        if index >= challenge.head.size {
            break;
        }
        frontier.append(leaf_hash(&bytes));
    }
    let root = Digest::sha256(frontier.root());
    if frontier.size() != challenge.head.size || root != challenge.head.root {
        return refused(format!(
            "the first {} entries have root {root}, and its head of size {} has {}",
            frontier.size(),
            challenge.head.size,
            challenge.head.root
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use schemas::challenge::{ChallengeHead, CommittedState, Segment, SegmentUnit};
    use schemas::ids::{CheckpointId, RunId};
    use tempfile::TempDir;

    use super::*;

    fn state(step: u64) -> CommittedState {
        CommittedState {
            checkpoint: CheckpointId(format!("s{step:08}-a1")),
            entry: step + 3,
            manifest: Digest::blake3([1; 32]),
            state_root: None,
            step,
        }
    }

    fn challenge() -> Challenge {
        Challenge {
            contract: Digest::sha256([2; 32]),
            drawn: vec![Segment { end: state(10), number: 1, start: state(5) }],
            format: CHALLENGE_FORMAT.to_owned(),
            head: ChallengeHead { origin: "run".to_owned(), root: Digest::sha256([3; 32]), size: 40 },
            nonce: "ab".repeat(16),
            num_segments: 4,
            run: RunId("0123-abcd".to_owned()),
            unit: SegmentUnit::AdjacentCheckpoints,
            unverifiable: Vec::new(),
        }
    }

    fn text() -> String {
        String::from_utf8(entry_json(&challenge()).expect("canonical")).expect("text")
    }

    #[test]
    fn a_challenge_is_read_in_its_own_form_and_by_a_link() {
        let folder = TempDir::new().expect("a folder");
        let (path, link) = (folder.path().join("challenge.json"), folder.path().join("link.json"));
        fs::write(&path, text()).expect("writable");
        std::os::unix::fs::symlink(&path, &link).expect("a link");
        let digest = Digest::sha256(Sha256::digest(text()).into());
        for named in [&path, &link] {
            assert_eq!(read(named).expect("it is one"), (challenge(), digest));
        }
        let gone = read(&folder.path().join("none.json")).expect_err("nothing is there");
        assert!(matches!(gone, ReplayError::Challenge { .. }), "{gone:?}");
    }

    #[track_caller]
    fn check_refused(bytes: &[u8], words: &str) {
        let reason = parse(bytes).expect_err("it has another form");
        assert!(reason.contains(words), "{words:?} is not in {reason:?}");
    }

    #[test]
    fn what_is_around_it_is_refused() {
        for behind in ["\n", " ", "\0", "{}", ","] {
            check_refused(format!("{}{behind}", text()).as_bytes(), "bytes follow the value");
        }
        for before in [" ", "\n", "\u{feff}"] {
            check_refused(format!("{before}{}", text()).as_bytes(), "unexpected byte or white space");
        }
        check_refused(&text().as_bytes()[..text().len() - 1], "not canonical at byte");
        check_refused(b"", "not canonical at byte 0");
    }

    #[test]
    fn a_second_form_and_an_unknown_member_are_refused() {
        let root = Digest::sha256([3; 32]);
        let (head, listed) = (
            format!("{{\"origin\":\"run\",\"root\":\"{root}\",\"size\":40}}"),
            format!("[\"run\",\"{root}\",40]"),
        );
        for (from, to, words) in [
            // Other bytes of the same value.
            ("\"num_segments\":4", "\"num_segments\": 4", "unexpected byte or white space"),
            ("\"nonce\":\"ab", "\"nonce\":\"\\u0061b", "escaped in another way"),
            ("\"num_segments\":4", "\"num_segments\":04", "leading zero"),
            (
                ",\"unit\":\"adjacent_checkpoints\",\"unverifiable\":[]",
                ",\"unverifiable\":[],\"unit\":\"adjacent_checkpoints\"",
                "not in strictly ascending byte order",
            ),
            ("\"size\":40", "\"size\":40,\"size\":40", "not in strictly ascending byte order"),
            // Canonical bytes, and read as the same value.
            (head.as_str(), listed.as_str(), "another form"),
            ("\"adjacent_checkpoints\"", "{\"adjacent_checkpoints\":null}", "another form"),
            // Members that are unknown, missing, or said to be nothing.
            (",\"num_segments\"", ",\"note\":1,\"num_segments\"", "unknown field `note`"),
            ("\"size\":40", "\"size\":40,\"time\":1", "unknown field `time`"),
            (",\"step\":10", ",\"step\":10,\"to\":1", "unknown field `to`"),
            (",\"unverifiable\":[]", "", "missing field `unverifiable`"),
            (",\"step\":10", ",\"state_root\":null,\"step\":10", "null"),
            ("segment-challenge/1", "segment-challenge/2", "its format is"),
        ] {
            let changed = text().replacen(from, to, 1);
            assert_ne!(changed, text(), "{from} is in it");
            check_refused(changed.as_bytes(), words);
        }
    }
}
