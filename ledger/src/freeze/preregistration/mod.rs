//! The freeze of a campaign: from the file that a person wrote to a signed
//! preregistration that runs can be held to.
//!
//! What is missing, ambiguous or vacuous is refused, all of it at once, each
//! with a JSON pointer and a hint; so is what could only end as a claim that
//! nobody can decide. What the runs themselves have to meet is checked when
//! their contracts are frozen, when they are bound, and by an audit.

mod arms;
mod axes;
mod claims;
mod places;

use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use schemas::PREREGISTRATION_FORMAT;
use schemas::campaign::{CampaignKeys, Decision, Preregistration};
use schemas::digest::Digest;
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use super::problem::Problems;
use super::{FreezeProblem, authority, canonical_bytes, date, document, read_contract, require_tag};
use crate::canonical;
use crate::strict::ParseOptions;

/// The edition of campaign rules that this version knows.
pub const CAMPAIGN_RULESET_EDITION: &str = "2026.1";

/// Fewest seeds of a comparison: with two, a paired interval says next to
/// nothing (Student's t with one degree of freedom).
pub const MIN_SEEDS: usize = 3;

/// What to freeze.
#[derive(Debug, Clone)]
pub struct PreregistrationRequest {
    /// Keys for a preregistration whose `/keys` is null; null: such a file is
    /// refused.
    pub keys_when_null: Option<CampaignKeys>,
    /// The preregistration file.
    pub preregistration: PathBuf,
    /// The day that the expiry is compared with, `YYYY-MM-DD` in UTC; null: the
    /// clock's.
    pub today: Option<String>,
}

impl PreregistrationRequest {
    /// A preregistration that has its keys, as of today.
    #[must_use]
    pub fn new(preregistration: &Path) -> Self {
        Self { keys_when_null: None, preregistration: preregistration.to_owned(), today: None }
    }
}

/// A preregistration with nothing wrong.
#[derive(Debug, Clone)]
pub struct CheckedPreregistration {
    /// RFC 8785 bytes.
    pub canonical: Vec<u8>,
    /// SHA-256 of them.
    pub digest: Digest,
    /// The preregistration.
    pub preregistration: Preregistration,
}

/// Why a preregistration was not accepted.
#[derive(Debug, thiserror::Error)]
pub enum PreregistrationError {
    /// It could not be read.
    #[error("cannot read the preregistration {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Something is wrong with it.
    #[error("{} cannot be frozen: {} found", path.display(), super::num_problems(problems))]
    Refused {
        /// The file.
        path: PathBuf,
        /// Everything that was found.
        problems: Vec<FreezeProblem>,
    },
}

/// Reads a preregistration and checks it. Writes nothing.
///
/// # Errors
/// When the file cannot be read, or anything is wrong;
/// [`PreregistrationError::Refused`] lists all of it.
pub fn check_preregistration(
    request: &PreregistrationRequest,
) -> Result<CheckedPreregistration, PreregistrationError> {
    let path = &request.preregistration;
    let bytes =
        read_contract(path).map_err(|source| PreregistrationError::Read { path: path.clone(), source })?;
    check_preregistration_text(request, &bytes)
}

/// The same of text that was read; the request's file is named in problems alone.
///
/// # Errors
/// [`PreregistrationError::Refused`], with everything that is wrong.
pub fn check_preregistration_text(
    request: &PreregistrationRequest,
    bytes: &[u8],
) -> Result<CheckedPreregistration, PreregistrationError> {
    let path = &request.preregistration;
    let mut problems = Problems::new(path);
    let today = request.today.clone().unwrap_or_else(|| date::day_of(SystemTime::now()));
    let checked = document::parse(bytes, ParseOptions::without_comments(), &mut problems)
        .and_then(|value| fill_keys(value, request.keys_when_null.as_ref(), &mut problems))
        .and_then(|value| document::typed::<Preregistration>(value, "preregistration", &mut problems))
        .map(as_frozen)
        .and_then(|preregistration| check_content(preregistration, &today, &mut problems));
    match checked {
        Some(checked) if problems.is_empty() => Ok(checked),
        _ => Err(PreregistrationError::Refused { path: path.clone(), problems: problems.into_list() }),
    }
}

/// A refusal because of the one who signs.
pub(crate) fn refuse_owner(path: &Path, named: &str, folder: &Path, actual: &str) -> PreregistrationError {
    let mut problems = Problems::new(path);
    problems.add(
        "/keys/owner/public",
        format!("is {named}; the owner key in {} is {actual}", folder.display()),
        "name the folder of the campaign's keys with `--keys`, or put this key into the preregistration",
    );
    PreregistrationError::Refused { path: path.to_owned(), problems: problems.into_list() }
}

/// A preregistration may leave its keys to the freeze.
fn fill_keys(mut value: Value, keys: Option<&CampaignKeys>, problems: &mut Problems) -> Option<Value> {
    let Some(slot) = value.get_mut("keys").filter(|slot| slot.is_null()) else { return Some(value) };
    let Some(keys) = keys else {
        problems.add("/keys", "is null, and no keys are at hand", "make them with `ledger keygen`");
        return None;
    };
    *slot = serde_json::to_value(keys).ok()?;
    Some(value)
}

/// The preregistration as its canonical bytes will say it: RFC 8785 spells `1.0` as
/// `1`, so that two points that a person wrote differently may be one. What has no
/// canonical bytes is left to the check that says so.
fn as_frozen(preregistration: Preregistration) -> Preregistration {
    let value = serde_json::to_value(&preregistration).ok();
    let canonical = value.and_then(|value| canonical::contract_json(&value).ok());
    canonical.and_then(|bytes| serde_json::from_slice(&bytes).ok()).unwrap_or(preregistration)
}

fn check_content(
    preregistration: Preregistration,
    today: &str,
    problems: &mut Problems,
) -> Option<CheckedPreregistration> {
    let document = &preregistration;
    require_tag(&document.format, PREREGISTRATION_FORMAT, problems);
    check_frame(document, today, problems);
    check_measures(document, problems);
    check_seeds(document, problems);
    arms::check(document, problems);
    axes::check(document, problems);
    claims::check(document, problems);
    let canonical = canonical_bytes(document, problems)?;
    let digest = Digest::sha256(Sha256::digest(&canonical).into());
    Some(CheckedPreregistration { canonical, digest, preregistration })
}

/// Who asks what, by whose leave, and what the answer will not be.
fn check_frame(document: &Preregistration, today: &str, problems: &mut Problems) {
    problems.require_text(&document.name, "/name");
    problems.require_text(&document.question, "/question");
    authority::check_grant(&document.authority, "/authority", today, problems);
    let hint = "say what the campaign will not show";
    authority::check_list(&document.nonclaims, "/nonclaims", hint, problems);
    authority::check_residuals(&document.residuals, problems);
    authority::check_extensions(&document.extensions, problems);
    let edition = &document.ruleset.edition;
    problems.require(
        edition == CAMPAIGN_RULESET_EDITION,
        "/ruleset/edition",
        format!("is {edition:?}; expected {CAMPAIGN_RULESET_EDITION:?}"),
        "an edition that this version does not know could not be audited by it",
    );
    let (owner, validator) = (&document.keys.owner.public, &document.keys.validator.public);
    authority::check_public(owner, "/keys/owner/public", problems);
    authority::check_public(validator, "/keys/validator/public", problems);
    problems.require(
        owner != validator,
        "/keys/validator/public",
        "is the key of owner too",
        "one key cannot check what it signed itself; make a key for each role with `ledger keygen`",
    );
}

/// Metric and decision; costs belong to the claims that need them.
fn check_measures(document: &Preregistration, problems: &mut Problems) {
    problems.require_text(&document.metric.stream, "/metric/stream");
    require_finite(document.metric.threshold, "/metric/threshold", problems);
    let Decision::PairedInterval { confidence } = document.decision;
    problems.require_between(confidence, 0.8..1.0, "/decision/confidence");
}

/// Adds a problem where a number is not finite. RFC 8785 could not spell it;
/// this says where it stands.
fn require_finite(value: f64, pointer: impl Into<String>, problems: &mut Problems) {
    problems.require(
        value.is_finite(),
        pointer,
        format!("is {value}; expected a number"),
        "choose a finite value",
    );
}

fn check_seeds(document: &Preregistration, problems: &mut Problems) {
    let seeds = &document.seeds;
    problems.require(
        seeds.len() >= MIN_SEEDS,
        "/seeds",
        format!("has {}; expected at least {MIN_SEEDS}", seeds.len()),
        "one seed is an anecdote; name at least three, each a decimal string",
    );
    for (index, seed) in seeds.iter().enumerate() {
        problems.require(
            !seeds[..index].contains(seed),
            format!("/seeds/{index}"),
            format!("{} is an earlier seed", seed.0),
            "a seed that is repeated gives the same run again; name another one",
        );
    }
}

/// Adds a problem where a name could not stand in a command or a path.
fn require_name(name: &str, pointer: impl Into<String>, problems: &mut Problems) {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    problems.require(
        (1..=64).contains(&name.len()) && name.bytes().all(is_plain),
        pointer,
        format!("{name:?} is no name"),
        "use 1 to 64 letters, digits, `-`, `_` or `.`",
    );
}
