//! `trainer checkpoint fetch`: brings checkpoints from a store by URL into a
//! folder, where every program finds them as if they had been made there.

use std::fmt::Write as _;
use std::path::Path;

use schemas::ids::CheckpointId;
use schemas::state::StateClass;
use serde::Serialize;

use crate::checkpoint::CheckpointError;
use crate::checkpoint::retention::{Fact, Stage};
use crate::checkpoint::validate::{self, Expected};
use crate::cli::{self, Failure};
use crate::run::error::{self, RunError};
use crate::run::progress::Console;
use crate::store::{self, Remote, fetch};

use super::opened::{OpenedRun, staying};
use super::verify::committed;
use super::{EXIT_FINDINGS, FetchArguments};

#[derive(Serialize)]
struct Fetching {
    checkpoints: Vec<Fetched>,
    format: &'static str,
    problems: Vec<Problem>,
    run: String,
    store: String,
    /// Folder that holds a folder for each checkpoint.
    to: String,
}

#[derive(Serialize)]
struct Fetched {
    checkpoint: CheckpointId,
    /// False where it was there, with the bytes on record.
    fetched: bool,
    num_bytes: u64,
    num_files: u64,
}

#[derive(Serialize)]
struct Problem {
    checkpoint: CheckpointId,
    reason: String,
}

pub(super) fn run(arguments: &FetchArguments) -> Result<u8, Failure> {
    let opened = OpenedRun::open(&arguments.common.ledger)?;
    let store = &opened.frozen.contract.checkpoints.store;
    let remote = store::remote(store).map_err(|error| failure(&error.into()))?;
    let remote = remote.ok_or_else(|| Failure {
        message: format!("the run's checkpoint store {store:?} is a folder beside the ledger"),
        hint: Some("there is nothing to fetch; copy the folder"),
    })?;
    let facts: Vec<&Fact> = match &arguments.checkpoint {
        Some(name) => vec![committed(opened.fact(name)?)?],
        None => opened.history.roster.facts().into_iter().filter(|fact| is_kept(fact)).collect(),
    };
    if arguments.to.is_none() {
        opened.refuse_links(facts.iter().copied())?;
    }
    let to = arguments.to.clone().unwrap_or_else(|| opened.store());
    let is_committed =
        |id: &CheckpointId| opened.history.roster.fact(id).is_some_and(|fact| fact.manifest.is_some());
    fetch::remove_leftovers(&Console::new(false), &to, is_committed);
    let mut fetching = Fetching {
        checkpoints: Vec::new(),
        format: "checkpoint-fetch/1",
        problems: Vec::new(),
        run: opened.frozen.run.0.clone(),
        store: store.clone(),
        to: to.display().to_string(),
    };
    for fact in facts {
        match one(&opened, &remote, fact, &to) {
            Ok(fetched) => fetching.checkpoints.push(fetched),
            // Of the others nothing more would be known.
            Err(error) if fetch::is_unknown(&error) => return Err(failure(&error)),
            Err(error) => {
                let (checkpoint, reason) = (fact.checkpoint.clone(), error::chain(&error));
                fetching.problems.push(Problem { checkpoint, reason });
            }
        }
    }
    if arguments.common.json {
        cli::print_json(&fetching)?;
    } else {
        cli::print(text(&fetching).as_bytes())?;
    }
    for problem in &fetching.problems {
        cli::say(&format!("error: {} was not fetched: {}", problem.checkpoint, problem.reason));
    }
    if fetching.problems.is_empty() {
        return Ok(0);
    }
    cli::say(
        "hint: a folder that is there with other bytes has to be moved away first; an object that differs has to be restored in the store",
    );
    Ok(EXIT_FINDINGS)
}

/// What every program wants to find: everything committed that the run did not
/// give up, and of retired ones what stays.
pub(super) fn is_kept(fact: &Fact) -> bool {
    fact.manifest.is_some() && !matches!(fact.stage, Stage::Failed | Stage::Quarantined)
}

/// Fetches a checkpoint that only a store by URL has into the working folder, for
/// a command that looks at its files.
pub(super) fn bring(opened: &OpenedRun, fact: &Fact) -> Result<(), Failure> {
    let store = &opened.frozen.contract.checkpoints.store;
    let is_here = opened.checkpoint_folder(&fact.checkpoint).symlink_metadata().is_ok();
    if fact.manifest.is_none() || is_here || !store::is_url(store) {
        return Ok(());
    }
    opened.refuse_links([fact])?;
    let fetched = match store::remote(store) {
        Ok(Some(remote)) => one(opened, &remote, fact, &opened.store()).map(|_| ()),
        Ok(None) => Ok(()),
        Err(error) => Err(error.into()),
    };
    fetched.map_err(|error| {
        let Failure { message, hint } = failure(&error);
        let hint = hint.or(Some("`trainer checkpoint list --ledger FILE` says which checkpoints are where"));
        let message = format!(
            "{} is not here, and `trainer checkpoint fetch` cannot get it from {store}: {message}",
            fact.checkpoint
        );
        Failure { message, hint }
    })
}

fn failure(error: &CheckpointError) -> Failure {
    let hint = match error {
        CheckpointError::Store(error) => Some(error.hint()),
        _ => None,
    };
    Failure { message: error::chain(error), hint }
}

fn one(opened: &OpenedRun, remote: &Remote, fact: &Fact, to: &Path) -> Result<Fetched, CheckpointError> {
    let checkpoint = fact.checkpoint.clone();
    let Some(manifest) = fact.manifest else {
        return Ok(Fetched { checkpoint, fetched: false, num_bytes: 0, num_files: 0 });
    };
    let expected = Expected {
        checkpoint: &fact.checkpoint,
        contract: opened.frozen.digest,
        manifest,
        run: &opened.frozen.run,
        step: fact.step,
    };
    let folder = to.join(fact.checkpoint.as_str());
    if folder.symlink_metadata().is_ok() {
        let manifest = validate::read_manifest(&folder, &expected)?;
        let (mut num_bytes, mut num_files) = (0, 1);
        for (_, shard) in staying(fact, &manifest) {
            validate::check_shard(&folder.join(&shard.path), shard)?;
            num_bytes += shard.num_bytes;
            num_files += 1;
        }
        return Ok(Fetched { checkpoint, fetched: false, num_bytes, num_files });
    }
    let stays = |class: StateClass| fact.stage != Stage::Retired || fact.kept.contains(&class);
    let fetched = fetch::fetch(remote, &Console::new(false), to, &expected, stays)?;
    Ok(Fetched { checkpoint, fetched: true, num_bytes: fetched.num_bytes, num_files: fetched.num_files })
}

fn text(fetching: &Fetching) -> String {
    let mut text = String::new();
    for fetched in &fetching.checkpoints {
        let verb = if fetched.fetched { "Fetched" } else { "Already there" };
        let Fetched { checkpoint, num_bytes, num_files, .. } = fetched;
        let _ = writeln!(text, "{verb}: {checkpoint}, {num_files} files, {num_bytes} bytes");
    }
    let _ = writeln!(
        text,
        "{} of {} checkpoints are in {}",
        fetching.checkpoints.len(),
        fetching.checkpoints.len() + fetching.problems.len(),
        fetching.to
    );
    text
}

impl From<store::StoreError> for Failure {
    fn from(error: store::StoreError) -> Self {
        RunError::from(CheckpointError::from(error)).into()
    }
}
