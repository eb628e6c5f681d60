//! `trainer checkpoint verify`: every file is read and hashed again, and every
//! difference is listed, not only the first.

use std::fmt::Write as _;

use schemas::ids::CheckpointId;
use schemas::state::CheckpointManifest;
use serde::Serialize;

use crate::checkpoint::retention::{Fact, Stage};
use crate::checkpoint::validate::MAX_MANIFEST_BYTES;
use crate::checkpoint::{CheckpointError, MANIFEST_NAME, validate};
use crate::cli::{self, Failure};
use crate::run::error::{self, RunError};
use crate::run::progress::Console;
use crate::store::{self, Remote, Stored, fetch};

use super::opened::{OpenedRun, staying};
use super::places::Place;
use super::{EXIT_FINDINGS, VerifyArguments};

#[derive(Serialize)]
struct Verification {
    checkpoints: Vec<Verified>,
    format: &'static str,
    num_differences: usize,
    run: String,
}

#[derive(Serialize)]
struct Verified {
    checkpoint: CheckpointId,
    differences: Vec<Difference>,
    num_bytes: u64,
    num_files: u64,
    /// Where it was read.
    places: Vec<Place>,
    stage: Stage,
}

#[derive(Serialize)]
struct Difference {
    actual: String,
    expected: String,
    file: String,
}

pub(super) fn run(arguments: &VerifyArguments) -> Result<u8, Failure> {
    let opened = OpenedRun::open(&arguments.common.ledger)?;
    let facts: Vec<&Fact> = match &arguments.checkpoint {
        Some(name) => vec![committed(opened.fact(name)?)?],
        None => {
            let all = opened.history.roster.facts().into_iter();
            all.filter(|fact| fact.stage.is_usable() || fact.stage == Stage::Retired).collect()
        }
    };
    let remote = store::remote(&opened.frozen.contract.checkpoints.store)?;
    let mut checkpoints: Vec<Verified> = Vec::new();
    for fact in facts {
        checkpoints.push(verify_everywhere(&opened, remote.as_deref(), fact)?);
    }
    let num_differences = checkpoints.iter().map(|verified| verified.differences.len()).sum();
    let verification = Verification {
        checkpoints,
        format: "checkpoint-verification/1",
        num_differences,
        run: opened.frozen.run.0.clone(),
    };
    if arguments.common.json {
        cli::print_json(&verification)?;
    } else {
        cli::print(text(&verification).as_bytes())?;
    }
    if num_differences > 0 {
        cli::say(
            "hint: restore the files from a copy; a run goes on from an older checkpoint where it has to",
        );
    }
    Ok(if num_differences == 0 { 0 } else { EXIT_FINDINGS })
}

pub(super) fn committed(fact: &Fact) -> Result<&Fact, Failure> {
    if fact.manifest.is_some() {
        return Ok(fact);
    }
    Err(Failure {
        message: format!("{} is {} and was never committed", fact.checkpoint, fact.stage.name()),
        hint: Some("only a committed checkpoint has digests to compare with"),
    })
}

/// Here where it is here, and in a store by URL in any case.
fn verify_everywhere(opened: &OpenedRun, remote: Option<&Remote>, fact: &Fact) -> Result<Verified, Failure> {
    let Some(remote) = remote else { return Ok(verify(opened, fact)) };
    let is_here = opened.checkpoint_folder(&fact.checkpoint).symlink_metadata().is_ok();
    let mut verified = if is_here { verify(opened, fact) } else { Verified::new(fact, Vec::new()) };
    verified.places.push(Place::Store);
    let console = Console::new(false);
    let session = remote.session(&console);
    let stored = Stored { checkpoint: &fact.checkpoint, run: &opened.frozen.run };
    let Some(recorded) = fact.manifest else { return Ok(verified) };
    let url = |name: &str| remote.location.url(&remote.location.file(stored, name));
    let read = store::verify::read_manifest(&session, stored, recorded, MAX_MANIFEST_BYTES);
    let manifest: CheckpointManifest = match remote.wait(read) {
        // Its digest is the one on record, so that it is the manifest.
        Ok(bytes) => serde_json::from_slice(&bytes)
            .map_err(|error| Failure { message: format!("{}: {error}", url(MANIFEST_NAME)), hint: None })?,
        Err(error) if fetch::is_unknown(&error) => return Err(RunError::from(error).into()),
        Err(error) => {
            verified.differences.push(difference(&error, url(MANIFEST_NAME), recorded.to_string()));
            return Ok(verified);
        }
    };
    let (mut num_files, mut num_bytes) = (1, 0);
    for (_, shard) in staying(fact, &manifest) {
        num_files += 1;
        num_bytes += shard.num_bytes;
        match remote.wait(store::verify::check_shard(&session, stored, shard)) {
            Ok(()) => {}
            Err(error) if fetch::is_unknown(&error) => return Err(RunError::from(error).into()),
            Err(error) => {
                let expected = format!("{} with {} bytes", shard.digest, shard.num_bytes);
                verified.differences.push(difference(&error, url(&shard.path), expected));
            }
        }
    }
    (verified.num_files, verified.num_bytes) = (num_files, num_bytes);
    Ok(verified)
}

impl Verified {
    fn new(fact: &Fact, places: Vec<Place>) -> Self {
        Self {
            checkpoint: fact.checkpoint.clone(),
            differences: Vec::new(),
            num_bytes: 0,
            num_files: 1,
            places,
            stage: fact.stage,
        }
    }
}

fn verify(opened: &OpenedRun, fact: &Fact) -> Verified {
    let folder = opened.checkpoint_folder(&fact.checkpoint);
    let mut verified = Verified::new(fact, vec![Place::Local]);
    let manifest = match opened.manifest(fact) {
        Some(Ok(manifest)) => manifest,
        Some(Err(error)) => {
            let recorded = fact.manifest.map_or_else(String::new, |digest| digest.to_string());
            let file = folder.join(MANIFEST_NAME).display().to_string();
            verified.differences.push(difference(&error, file, recorded));
            return verified;
        }
        None => return verified,
    };
    for (_, shard) in staying(fact, &manifest) {
        verified.num_files += 1;
        verified.num_bytes += shard.num_bytes;
        let path = folder.join(&shard.path);
        if let Err(error) = validate::check_shard(&path, shard) {
            let expected = format!("{} with {} bytes", shard.digest, shard.num_bytes);
            verified.differences.push(difference(&error, path.display().to_string(), expected));
        }
    }
    verified
}

fn difference(error: &CheckpointError, file: String, recorded: String) -> Difference {
    match error {
        CheckpointError::Digest { expected, actual, .. } => {
            Difference { actual: actual.to_string(), expected: expected.to_string(), file }
        }
        CheckpointError::Size { expected, actual, .. } => {
            Difference { actual: format!("{actual} bytes"), expected: format!("{expected} bytes"), file }
        }
        CheckpointError::Io { source, .. } => {
            Difference { actual: source.to_string(), expected: recorded, file }
        }
        other => Difference { actual: error::chain(other), expected: recorded, file },
    }
}

fn text(verification: &Verification) -> String {
    let mut text = String::new();
    for verified in &verification.checkpoints {
        let Verified { checkpoint, differences, num_bytes, num_files, places, stage } = verified;
        let result = if differences.is_empty() { "as recorded" } else { "DIFFERS" };
        let places = match places.contains(&Place::Store) {
            true => {
                format!(", {}", places.iter().map(|place| place.text()).collect::<Vec<_>>().join(" and "))
            }
            false => String::new(),
        };
        let _ = writeln!(
            text,
            "{checkpoint} ({}): {result}, {num_files} files, {num_bytes} bytes in shards{places}",
            stage.name()
        );
        for difference in differences {
            let Difference { actual, expected, file } = difference;
            let _ = writeln!(text, "  {file}\n    expected {expected}\n    found    {actual}");
        }
    }
    let _ = writeln!(
        text,
        "Verified {} checkpoints: {} differences",
        verification.checkpoints.len(),
        verification.num_differences
    );
    text
}
