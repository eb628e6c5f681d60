//! `trainer checkpoint prune`: what a running attempt does after each
//! checkpoint, between attempts or after the run's end.

use std::fmt::Write as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::Arc;

use ledger::FrozenContract;
use ledger::keys::{KeyRing, Role};
use ledger::recorder::{Record, Recorder};
use schemas::body::{AmendmentDet, Body, Halves, Nothing, RetirementReason};
use schemas::contract::Contract;
use schemas::ids::{CheckpointId, LearnerId};
use schemas::state::StateClass;
use serde::Serialize;

use crate::checkpoint::CheckpointError;
use crate::checkpoint::retention::{Decision, Fact, Kept, Retirement, Stage};
use crate::checkpoint::retire::{Removed, removable};
use crate::cli::{self, Failure};
use crate::run::error::{self, RunError};
use crate::run::progress::Console;
use crate::run::refusal::Refusal;
use crate::run::{failpoint, key_folder, retire};
use crate::store::{self, Remote};

use super::fetch::is_kept;
use super::opened::OpenedRun;
use super::{EXIT_FINDINGS, PruneArguments};

#[derive(Serialize)]
struct Pruning {
    dry_run: bool,
    format: &'static str,
    kept: Vec<Kept>,
    /// Files that should have gone and did not.
    problems: Vec<Problem>,
    retired: Vec<Retired>,
    run: String,
    /// Retired before, with files that were still there.
    unfinished: Vec<Unfinished>,
}

#[derive(Serialize)]
struct Retired {
    checkpoint: CheckpointId,
    kept: Vec<StateClass>,
    num_bytes: u64,
    /// Of what would go from a store by URL; 0 but in a dry run.
    num_stored_bytes: u64,
    reason: RetirementReason,
    removes: Vec<String>,
    /// Objects that would go from a store by URL; none but in a dry run, which
    /// asks for them.
    removes_in_store: Vec<String>,
    step: u64,
}

/// Retired before, and files of it are still there.
#[derive(Serialize)]
struct Unfinished {
    checkpoint: CheckpointId,
    num_bytes: u64,
    removes: Vec<String>,
    /// As in [`Retired`].
    removes_in_store: Vec<String>,
}

#[derive(Serialize)]
struct Problem {
    checkpoint: CheckpointId,
    reason: String,
}

pub(super) fn run(arguments: &PruneArguments) -> Result<u8, Failure> {
    failpoint::check_permission().map_err(RunError::from)?;
    let ledger = &arguments.common.ledger;
    // The lock is taken before the ledger is read, so that what is decided by
    // is still so when it is acted on.
    let recorder = if arguments.dry_run { None } else { Some(open(ledger, arguments.keys.as_deref())?) };
    let mut opened = OpenedRun::open(ledger)?;
    opened.refuse_links(opened.history.roster.facts().into_iter().filter(|fact| is_kept(fact)))?;
    let in_store = InStore::ask(&opened, arguments.dry_run)?;
    let Decision { keep, retire } = opened.history.roster.decide();
    let retired = retire.iter().map(|retirement| planned(&opened, &in_store, retirement));
    let retired = retired.collect::<Result<Vec<Retired>, Failure>>()?;
    let mut pruning = Pruning {
        dry_run: arguments.dry_run,
        format: "checkpoint-prune/1",
        kept: keep,
        problems: Vec::new(),
        retired,
        run: opened.frozen.run.0.clone(),
        unfinished: unfinished(&opened, &in_store)?,
    };
    if let Some(recorder) = recorder {
        pruning.problems = execute(&mut opened, &recorder, &retire)?;
        recorder.close().map_err(RunError::from)?;
    }
    if arguments.common.json {
        cli::print_json(&pruning)?;
    } else {
        cli::print(text(&pruning).as_bytes())?;
    }
    for problem in &pruning.problems {
        cli::say(&format!("error: {} could not be removed: {}", problem.checkpoint, problem.reason));
    }
    if pruning.problems.is_empty() {
        return Ok(0);
    }
    cli::say("hint: repair the store, then run the same command again; it goes on with what is left");
    Ok(EXIT_FINDINGS)
}

/// Opens the ledger for writing with the contract's trainer key.
fn open(ledger: &Path, keys: Option<&Path>) -> Result<Recorder, Failure> {
    let folder = key_folder(keys, ledger);
    let key = KeyRing::open(&folder).and_then(|ring| ring.get(Role::Trainer)).map_err(RunError::from)?;
    let public = key.public_hex();
    let recorder = Recorder::open(ledger, key).map_err(RunError::from)?;
    let expected = contract(&recorder, ledger)?.keys.trainer.public.clone();
    if expected != public {
        let refusal = Refusal::Key { expected, actual: public, path: folder };
        return Err(RunError::from(refusal).into());
    }
    Ok(recorder)
}

fn contract<'a>(recorder: &'a Recorder, ledger: &Path) -> Result<&'a Contract, Failure> {
    let frozen: Option<&FrozenContract> = recorder.contract();
    let refusal = || RunError::from(Refusal::NoContract { path: ledger.to_owned() });
    Ok(&frozen.ok_or_else(refusal)?.contract)
}

/// A store by URL that is to be asked what would go from it.
struct InStore {
    /// What it holds of the run, by checkpoint.
    files: store::retire::Files,
    remote: Option<Arc<Remote>>,
}

impl InStore {
    /// Of a folder store, and where nobody wants to know, nothing.
    fn ask(opened: &OpenedRun, is_wanted: bool) -> Result<Self, Failure> {
        let store = &opened.frozen.contract.checkpoints.store;
        let remote = if is_wanted { store::remote(store)? } else { None };
        let files = match &remote {
            Some(remote) => store::retire::files(remote, &Console::new(false), &opened.frozen.run),
            None => Ok(store::retire::Files::new()),
        };
        Ok(Self { files: files.map_err(RunError::from)?, remote })
    }

    /// What a retirement takes from the store and that is there.
    fn present(
        &self,
        opened: &OpenedRun,
        fact: &Fact,
        kept: &[StateClass],
    ) -> Result<Removed, CheckpointError> {
        let expected = retire::expected(fact, &opened.frozen);
        match (&self.remote, expected) {
            (Some(remote), Some(expected)) if self.files.contains_key(fact.checkpoint.as_str()) => {
                store::retire::present(remote, &Console::new(false), &expected, kept)
            }
            _ => Ok(Removed::default()),
        }
    }
}

fn planned(opened: &OpenedRun, in_store: &InStore, retirement: &Retirement) -> Result<Retired, Failure> {
    let fact = opened.history.roster.fact(&retirement.checkpoint);
    let removes = fact.map_or_else(Vec::new, |fact| present(opened, fact, &retirement.kept));
    let stored = match fact {
        Some(fact) => in_store.present(opened, fact, &retirement.kept).map_err(RunError::from)?,
        None => Removed::default(),
    };
    Ok(Retired {
        checkpoint: retirement.checkpoint.clone(),
        kept: retirement.kept.clone(),
        num_bytes: num_bytes(opened, &retirement.checkpoint, &removes),
        num_stored_bytes: stored.num_bytes,
        reason: retirement.reason,
        removes,
        removes_in_store: stored.paths,
        step: retirement.step,
    })
}

/// Retirements on record whose files are still there.
fn unfinished(opened: &OpenedRun, in_store: &InStore) -> Result<Vec<Unfinished>, Failure> {
    let mut all = Vec::new();
    for fact in opened.history.roster.facts().into_iter().filter(|fact| fact.stage == Stage::Retired) {
        let removes = present(opened, fact, &fact.kept);
        let stored = match retire::is_stored(&in_store.files, fact) {
            true => in_store.present(opened, fact, &fact.kept).map_err(RunError::from)?,
            false => Removed::default(),
        };
        if !removes.is_empty() || !stored.paths.is_empty() {
            let num_bytes = num_bytes(opened, &fact.checkpoint, &removes);
            let (checkpoint, removes_in_store) = (fact.checkpoint.clone(), stored.paths);
            all.push(Unfinished { checkpoint, num_bytes, removes, removes_in_store });
        }
    }
    Ok(all)
}

/// Files that a retirement takes and that are there.
fn present(opened: &OpenedRun, fact: &Fact, kept: &[StateClass]) -> Vec<String> {
    let folder = opened.checkpoint_folder(&fact.checkpoint);
    let Some(Ok(manifest)) = opened.manifest(fact) else { return Vec::new() };
    let is_there = |path: &&str| folder.join(path).symlink_metadata().is_ok();
    removable(&manifest, kept).into_iter().filter(is_there).map(str::to_owned).collect()
}

/// Bytes that go with these files: those of a file that another checkpoint has
/// too stay.
fn num_bytes(opened: &OpenedRun, checkpoint: &CheckpointId, paths: &[String]) -> u64 {
    let folder = opened.checkpoint_folder(checkpoint);
    paths
        .iter()
        .filter_map(|path| std::fs::metadata(folder.join(path)).ok())
        .filter(|metadata| metadata.nlink() == 1)
        .map(|metadata| metadata.len())
        .sum()
}

/// Announces what is new, and removes what was announced, now or before.
fn execute(
    opened: &mut OpenedRun,
    recorder: &Recorder,
    retire: &[Retirement],
) -> Result<Vec<Problem>, Failure> {
    for retirement in retire {
        let body = retire::retired(retirement);
        opened.history.roster.observe(None, Some(retirement.step), &body);
        let record = Record::new(body).learner(LearnerId(0)).step(retirement.step);
        let receipt = recorder.append_durable(record).map_err(RunError::from)?;
        failpoint::pass("checkpoint.retired");
        opened.retired.insert(retirement.checkpoint.clone(), receipt.index);
    }
    let mut problems = Vec::new();
    let console = Console::new(false);
    for (checkpoint, entry) in &opened.retired {
        let fact = opened.history.roster.fact(checkpoint);
        let Err(failure) = retire::remove(&console, fact, &opened.frozen, &opened.folder) else { continue };
        let reason = error::chain(&failure);
        // After the run's end only an amendment may say so.
        let body = if opened.history.end.is_some() {
            let statement = format!("{}: {checkpoint}: {reason}", retire::INCOMPLETE);
            let det = AmendmentDet { amends: *entry, statement };
            Body::Amendment(Box::new(Halves { det, obs: Nothing {} }))
        } else {
            retire::incomplete(checkpoint, &failure)
        };
        recorder.append_durable(Record::new(body)).map_err(RunError::from)?;
        problems.push(Problem { checkpoint: checkpoint.clone(), reason });
    }
    Ok(problems)
}

fn text(pruning: &Pruning) -> String {
    let mut text = String::new();
    let verb = if pruning.dry_run { "Would retire" } else { "Retired" };
    for retired in &pruning.retired {
        let kept = if retired.kept.is_empty() { "" } else { "; a candidate, so that its model stays" };
        let _ = writeln!(
            text,
            "{verb} {}: {} ({} files, {} bytes{kept})",
            retired.checkpoint,
            retired.reason.text(),
            retired.removes.len(),
            retired.num_bytes
        );
        if !retired.removes_in_store.is_empty() {
            let (num, bytes) = (retired.removes_in_store.len(), retired.num_stored_bytes);
            let _ = writeln!(text, "  and in the store: {num} objects, {bytes} bytes");
        }
    }
    let verb = if pruning.dry_run { "Would finish" } else { "Finished" };
    for retired in &pruning.unfinished {
        let num_files = retired.removes.len() + retired.removes_in_store.len();
        let _ = writeln!(text, "{verb} {}: retired before, {num_files} files were left", retired.checkpoint);
    }
    for kept in &pruning.kept {
        let reasons: Vec<&str> = kept.protections.iter().map(|protection| protection.text()).collect();
        let _ = writeln!(text, "Keeps {}: {}", kept.checkpoint, reasons.join("; "));
    }
    let verb = if pruning.dry_run { "would be retired" } else { "retired" };
    let _ = writeln!(text, "{} {verb}, {} kept", pruning.retired.len(), pruning.kept.len());
    text
}
