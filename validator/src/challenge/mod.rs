//! Segment challenges: draws segments of a run by a reviewer's nonce, and
//! compares what came out when they were executed again with the record and
//! with the checkpoints' own bytes.
//!
//! It executes nothing and believes nothing of a challenge or a replay that the
//! ledger can say: the draw is made again, the record is read again, and every
//! file is hashed again. It gives no verdict on the run, which is the audit's,
//! and its word is bounded: what was not drawn was not looked at. Who executed
//! the replay is not known here; a reviewer runs it on a machine of their own.

mod compare;
mod draw;
mod error;
mod heads;
mod manifest;
mod opening;
mod record;
mod render;

use std::path::{Path, PathBuf};

use schemas::challenge::{
    CHALLENGE_FORMAT, Challenge, MAX_REPLAY_BYTES, REPLAY_FORMAT, Replay, SegmentUnit, TrainingWitness,
};
use schemas::contract::{Contract, EquivalenceClass};
use schemas::digest::{Digest, encode_hex};
use serde::Serialize;
use serde::de::DeserializeOwned;
use sha2::{Digest as _, Sha256};

use crate::canonical;
use crate::error::AuditError;
use crate::evidence::MAX_DOCUMENT_BYTES;
use crate::form;
use crate::said::read_limited;

pub use draw::{detection, draw as drawn_places, parse_nonce};
pub use error::ChallengeError;
pub(crate) use opening::check_proof;
pub use opening::{OpenedTensor, OpeningRequest, check_opening};
pub use render::{challenge_text, witness_text};

use record::{Record, Wanted};

/// What to draw.
#[derive(Debug, Clone)]
pub struct DrawRequest {
    /// A head that was kept elsewhere; `None`: the last of `<ledger>.head`.
    pub head: Option<PathBuf>,
    /// The ledger: `run.db`.
    pub ledger: PathBuf,
    /// In lower-case hex.
    pub nonce: String,
    /// How many segments.
    pub num_drawn: u64,
    /// Between which states segments lie.
    pub unit: SegmentUnit,
}

/// What to compare.
#[derive(Debug, Clone)]
pub struct VerifyRequest {
    /// The challenge.
    pub challenge: PathBuf,
    /// Heads that were kept elsewhere, one of which has to be the challenge's;
    /// `None`: `<ledger>.head`, or the database.
    pub head: Option<PathBuf>,
    /// The ledger: `run.db`.
    pub ledger: PathBuf,
    /// The replay.
    pub replay: PathBuf,
}

/// Draws segments: a function of the head, the nonce, the unit and the number.
///
/// # Errors
/// When the ledger or its head cannot be used, or there are not so many segments.
pub fn draw_challenge(request: &DrawRequest) -> Result<Challenge, ChallengeError> {
    let record = Record::read(&request.ledger, (request.head.as_deref(), &Wanted::Newest), &[])?;
    challenge_of(&record, &request.nonce, request.unit, request.num_drawn)
}

fn challenge_of(
    record: &Record,
    nonce: &str,
    unit: SegmentUnit,
    num_drawn: u64,
) -> Result<Challenge, ChallengeError> {
    let bytes = parse_nonce(nonce).map_err(ChallengeError::Nonce)?;
    class_of(&record.contract)?;
    let (segments, unverifiable) = record.segments(unit);
    let num_segments = segments.len() as u64;
    if num_segments == 0 {
        let reason = unverifiable.first().map_or("it has no updates", |span| span.reason.text());
        return Err(ChallengeError::NoSegment { reason: reason.to_owned() });
    }
    if num_drawn == 0 || num_drawn > num_segments {
        return Err(ChallengeError::NumSegments { asked: num_drawn, available: num_segments });
    }
    let (root, size) = (&record.head.root.bytes, record.head.size);
    let places = drawn_places(root, size, &bytes, num_segments, num_drawn);
    let drawn = places.into_iter().filter_map(|place| segments.get(usize::try_from(place).ok()?).cloned());
    Ok(Challenge {
        contract: record.digest,
        drawn: drawn.collect(),
        format: CHALLENGE_FORMAT.to_owned(),
        head: record.head.clone(),
        nonce: nonce.to_owned(),
        num_segments,
        run: record.run.clone(),
        unit,
        unverifiable,
    })
}

/// The weaker of what the contract claims of executing again and of resuming.
fn class_of(contract: &Contract) -> Result<EquivalenceClass, ChallengeError> {
    let claims = [contract.numerics.determinism, contract.resume.class];
    if claims.contains(&EquivalenceClass::Statistical) {
        return Err(ChallengeError::Statistical);
    }
    let is_bounded = claims.contains(&EquivalenceClass::OperationOrderBounded);
    Ok(if is_bounded { EquivalenceClass::OperationOrderBounded } else { EquivalenceClass::Bitwise })
}

/// Compares a replay with the record and the checkpoints' bytes, and says what
/// that shows.
///
/// # Errors
/// When a file cannot be read or is not of its kind, the challenge is not the
/// one that its head and nonce give, or the replay is not of it. What the replay
/// contradicts is in the manifest.
pub fn verify(request: &VerifyRequest) -> Result<TrainingWitness, ChallengeError> {
    let (challenge, challenge_bytes) = read_challenge(&request.challenge)?;
    let (replay, replay_bytes) = read_replay(&request.replay)?;
    let steps: Vec<_> = challenge.drawn.iter().map(|segment| segment.start.step..=segment.end.step).collect();
    let wanted = Wanted::Of(challenge.head.size, challenge.head.root.bytes);
    let record = Record::read(&request.ledger, (request.head.as_deref(), &wanted), &steps)?;
    check_draw(&request.challenge, &record, &challenge)?;
    check_replay(&request.replay, &record, &challenge, &challenge_bytes, &replay)?;
    let class = class_of(&record.contract)?;
    let folder = match request.ledger.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder.to_owned(),
        _ => PathBuf::from("."),
    };
    let results = compare::segments(&record, &challenge, &replay, class, folder);
    let replay_digest = Digest::blake3(*blake3::hash(&replay_bytes).as_bytes());
    Ok(manifest::manifest(&record, challenge, &replay, replay_digest, class, results))
}

/// Reads a challenge, in its one form.
///
/// # Errors
/// When it cannot be read or is none.
pub fn read_challenge(path: &Path) -> Result<(Challenge, Vec<u8>), ChallengeError> {
    const HINT: &str = "`ledger challenge --segments N` writes one";
    let (challenge, bytes): (Challenge, _) = read_document(path, "challenge", HINT, MAX_DOCUMENT_BYTES)?;
    check_format(path, "challenge", HINT, &challenge.format, CHALLENGE_FORMAT)?;
    Ok((challenge, bytes))
}

fn read_replay(path: &Path) -> Result<(Replay, Vec<u8>), ChallengeError> {
    const HINT: &str = "`trainer replay` writes one";
    let (replay, bytes): (Replay, _) = read_document(path, "replay", HINT, MAX_REPLAY_BYTES)?;
    check_format(path, "replay", HINT, &replay.format, REPLAY_FORMAT)?;
    Ok((replay, bytes))
}

/// Reads entry JSON that has the one form of its type.
fn read_document<T: DeserializeOwned + Serialize>(
    path: &Path,
    what: &'static str,
    hint: &'static str,
    limit: u64,
) -> Result<(T, Vec<u8>), ChallengeError> {
    let bytes = read_limited(path, limit).map_err(|source| AuditError::Named {
        what: "the document",
        path: path.to_owned(),
        source,
    })?;
    let refused = |reason: String| ChallengeError::Document { hint, path: path.to_owned(), reason, what };
    let value = document(&bytes).map_err(refused)?;
    Ok((value, bytes))
}

/// The same of bytes.
///
/// # Errors
/// In words, when they are not the one form of a document of this type.
pub(crate) fn document<T: DeserializeOwned + Serialize>(bytes: &[u8]) -> Result<T, String> {
    canonical::check_entry_json(bytes).map_err(|problem| problem.to_string())?;
    let value: T = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
    match form::first_difference(&value, bytes) {
        Some(offset) => Err(format!("byte {offset}: a field is left out or has another form")),
        None => Ok(value),
    }
}

fn check_format(
    path: &Path,
    what: &'static str,
    hint: &'static str,
    found: &str,
    expected: &str,
) -> Result<(), ChallengeError> {
    if found == expected {
        return Ok(());
    }
    let reason = format!("its format is {found:?}, and this reads {expected:?}");
    Err(ChallengeError::Document { hint, path: path.to_owned(), reason, what })
}

/// The challenge is what its own head, nonce and unit give of this ledger.
fn check_draw(path: &Path, record: &Record, challenge: &Challenge) -> Result<(), ChallengeError> {
    let num_drawn = challenge.drawn.len() as u64;
    let expected = challenge_of(record, &challenge.nonce, challenge.unit, num_drawn)?;
    if expected == *challenge {
        return Ok(());
    }
    let (expected, found) = (json(&expected), json(challenge));
    let members = expected.as_object().into_iter().flatten();
    let differs = members.filter(|(key, value)| found.get(key) != Some(value)).map(|(key, _)| key.clone());
    let names: Vec<String> = differs.collect();
    Err(ChallengeError::OtherDraw { path: path.to_owned(), reason: format!("{} differ", names.join(", ")) })
}

fn json<T: Serialize>(value: &T) -> serde_json::Value {
    serde_json::to_value(value).unwrap_or_default()
}

/// The replay is of this challenge and run, by the contract's own code, with its
/// segments in the challenge's order.
fn check_replay(
    path: &Path,
    record: &Record,
    challenge: &Challenge,
    challenge_bytes: &[u8],
    replay: &Replay,
) -> Result<(), ChallengeError> {
    let refused = |reason: String| Err(ChallengeError::OtherReplay { path: path.to_owned(), reason });
    let digest = Digest::sha256(Sha256::digest(challenge_bytes).into());
    if replay.challenge != digest {
        return refused(format!(
            "it names {}, and the challenge is sha256:{}",
            replay.challenge,
            encode_hex(&digest.bytes)
        ));
    }
    if replay.run != record.run {
        return refused(format!("it is of run {}, and the ledger of {}", replay.run, record.run));
    }
    let contract = &record.contract;
    if replay.code != contract.code {
        return refused(format!(
            "code {} executed it, and the contract names {}",
            replay.code.digest, contract.code.digest
        ));
    }
    if replay.plan.compiler != contract.plan || replay.plan.compute_dtype != contract.numerics.compute_dtype {
        return refused("another plan executed it than the contract names".to_owned());
    }
    if replay.environment != contract.environment {
        return refused("it was executed in another environment than the contract names".to_owned());
    }
    let numbers = |all: Vec<u64>| all.iter().map(u64::to_string).collect::<Vec<_>>().join(", ");
    let drawn: Vec<u64> = challenge.drawn.iter().map(|segment| segment.number).collect();
    let replayed: Vec<u64> = replay.segments.iter().map(|segment| segment.number).collect();
    if drawn != replayed {
        return refused(format!("it has segments {}, and {} were drawn", numbers(replayed), numbers(drawn)));
    }
    Ok(())
}
