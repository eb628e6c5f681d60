//! The ledgers of a campaign's runs: each is audited as a run, and read a second
//! time for what only a campaign asks. Also looks for runs that name the campaign
//! and that it does not bind.
//!
//! Findings of a run are its own audit's. This module makes none; what it could
//! not read is a reason that the rules tell.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use schemas::body::Body;
use schemas::contract::Membership;
use schemas::digest::Digest;
use schemas::finding::Severity;
use schemas::ids::RunId;
use schemas::report::{Report, SelectionBasis};
use serde_json::Value;

use super::facts::{Collector, FrozenFacts, Opening, Quality, RunFacts};
use super::ledger::Frozen;
use super::rules::gc109_runs_bound;
use super::view::{OtherCopy, Registration, Run, Unbound};
use crate::audit::audit;
use crate::contract::{self, ContractRead, ContractSinks};
use crate::error::AuditError;
use crate::evidence;
use crate::note::Note;
use crate::reading::EntryReader;
use crate::request::AuditRequest;
use crate::row::{Looked, RowContext};
use crate::rule::Sink;
use crate::store::{Access, Store};
use crate::tree::Frontier;

/// Files that are looked at for runs that are not bound. A folder with more is
/// no folder of a campaign.
const MAX_FILES_LOOKED_AT: usize = 10_000;

/// The rule that says of a run's end that it is not that of its stopping rule.
const STOPPING_RULE: &str = "GL209";

/// Name of a qualifier's ledger beside a run's (`docs/FORMAT.md`, "Qualification").
const QUALIFICATION_LEDGER: &str = "qualification.db";

/// All runs that were bound, in the order of their first entries.
///
/// # Errors
/// When a ledger is there and cannot be looked at.
pub(crate) fn read_all(
    registrations: Vec<Registration>,
    frozen: &Frozen,
    folder: &Path,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Vec<Run>, AuditError> {
    let mut order: Vec<RunId> = Vec::new();
    let mut by_run: BTreeMap<RunId, Vec<Registration>> = BTreeMap::new();
    for registration in registrations {
        let run = registration.det.run.clone();
        let of_run = by_run.entry(run.clone()).or_default();
        if of_run.is_empty() {
            order.push(run);
        }
        of_run.push(registration);
    }
    let total = order.len() as u64;
    let mut runs = Vec::new();
    for id in order {
        progress(runs.len() as u64, total);
        let mut of_run = by_run.remove(&id).unwrap_or_default().into_iter();
        let Some(first) = of_run.next() else { continue };
        runs.push(read_one(id, first, of_run.collect(), frozen, folder)?);
    }
    progress(total, total);
    Ok(runs)
}

fn read_one(
    id: RunId,
    first: Registration,
    later: Vec<Registration>,
    frozen: &Frozen,
    folder: &Path,
) -> Result<Run, AuditError> {
    let mut run = Run {
        facts: Err(String::new()),
        verdict: None,
        first_error: None,
        is_incomplete_alone: false,
        reported_value: None,
        is_by_evaluator: false,
        first,
        later,
        id,
    };
    let path = match locate(folder, run.path()) {
        Ok(path) => path,
        Err(reason) => {
            run.facts = Err(reason);
            return Ok(run);
        }
    };
    let request = AuditRequest { ledger: path.clone(), ..AuditRequest::default() };
    let report = audit(&request, &mut |_| {})?;
    let sizes = run.registrations().filter_map(|one| Some(Note::parse(one.obs.head.as_bytes()).ok()?.size));
    let sizes: BTreeSet<u64> = sizes.collect();
    let facts = facts(&path, frozen, &sizes)?;
    if facts.as_ref().is_ok_and(|facts| facts.num_entries != report.num_entries) {
        return Err(AuditError::Busy { path });
    }
    run.verdict = Some(report.verdict);
    run.first_error = first_error(&report);
    run.is_incomplete_alone = is_incomplete_alone(&report);
    if let (Some(selected), Ok(facts)) = (&report.selected, &facts) {
        let stream = facts.frozen.contract.selection.stream.clone();
        run.reported_value = Some((stream, selected.value.0));
        run.is_by_evaluator = report.selection_basis == SelectionBasis::Evaluator;
    }
    run.facts = facts.map(Box::new);
    Ok(run)
}

/// Whether the outcome of its end is all that a report has against a run.
fn is_incomplete_alone(report: &Report) -> bool {
    use schemas::report::{RuleStatus, Verdict};
    report.verdict == Verdict::Incomplete
        && report.rules.iter().all(|rule| match rule.status {
            RuleStatus::Passed | RuleStatus::NotApplicable => true,
            RuleStatus::Failed => rule.code == STOPPING_RULE,
            RuleStatus::NotEvaluated => false,
        })
}

fn first_error(report: &Report) -> Option<String> {
    let error = report.findings.iter().find(|finding| finding.severity == Severity::Error);
    error.map(|finding| format!("{} {}: {}", finding.code, finding.rule, finding.message)).or_else(|| {
        let rule =
            report.rules.iter().find(|rule| rule.status == schemas::report::RuleStatus::NotEvaluated)?;
        Some(format!("{} {} was not evaluated", rule.code, rule.rule))
    })
}

/// The ledger's file, if the path is one below the campaign's folder.
fn locate(folder: &Path, relative: &str) -> Result<PathBuf, String> {
    evidence::open_below(folder, relative).map_err(|error| evidence::describe(&error))?;
    Ok(folder.join(relative))
}

/// What a run's ledger says; in words why it says nothing.
fn facts(
    path: &Path,
    frozen: &Frozen,
    sizes: &BTreeSet<u64>,
) -> Result<Result<RunFacts, String>, AuditError> {
    for access in [Access::InPlace, Access::Copy] {
        let Some(store) = open(path, access)? else {
            return Ok(Err(format!("{} is not a ledger that can be read", path.display())));
        };
        let found = collect(&store, path, frozen, sizes);
        if store.is_unchanged() {
            return Ok(found);
        }
    }
    Err(AuditError::Busy { path: path.to_owned() })
}

/// Opens a ledger whose layout somebody else judges.
fn open(path: &Path, access: Access) -> Result<Option<Store>, AuditError> {
    Store::open(path, access, &mut Sink::new(&gc109_runs_bound::INFO))
}

fn read_contract(store: &Store) -> Option<ContractRead> {
    let sink = || Sink::new(&gc109_runs_bound::INFO);
    let mut sinks = ContractSinks { frozen: sink(), signature: sink(), identity: sink() };
    contract::read(store.first_entry().as_deref(), &mut sinks).0
}

fn collect(store: &Store, path: &Path, campaign: &Frozen, sizes: &BTreeSet<u64>) -> Result<RunFacts, String> {
    let read = read_contract(store).ok_or_else(|| format!("{} freezes no contract", path.display()))?;
    let metric = &campaign.prereg.metric;
    let mut collector = Collector::new(Quality {
        stream: metric.stream.clone(),
        direction: metric.direction,
        threshold: metric.threshold,
    });
    let documents = documents(store, &read);
    let mut reader = EntryReader::new();
    let mut frontier = Frontier::new();
    let mut roots = BTreeMap::new();
    // A damaged file ends the rows early; the run's own audit says so.
    let _ = store.for_each_row(&mut |row| {
        let context = RowContext::new(frontier.size(), row, Looked::at(row.entry, &mut reader), None);
        if let Some(entry) = context.canonical_entry() {
            collector.entry(entry);
        }
        frontier.append(context.leaf);
        if sizes.contains(&frontier.size()) {
            roots.insert(frontier.size(), frontier.root());
        }
    });
    let card = documents.get("/update/card").ok_or("the ledger does not hold its policy card".to_owned());
    let card = card.and_then(|card| serde_json::from_value(card.clone()).map_err(|error| error.to_string()));
    let openings = openings(path, &read.digest);
    let frozen = FrozenFacts {
        card,
        contract: read.contract,
        value: read.value,
        documents,
        digest: read.digest,
        run: read.run,
    };
    Ok(collector.finish(frozen, frontier.size(), roots, openings))
}

/// JSON documents that the ledger holds, by the place that binds each, where
/// their bytes are those that are bound.
fn documents(store: &Store, read: &ContractRead) -> BTreeMap<String, Value> {
    let mut by_digest: BTreeMap<Digest, Value> = BTreeMap::new();
    let _ = store.for_each_artifact(|name, bytes| {
        let digest = Digest::blake3(*blake3::hash(bytes).as_bytes());
        // Example tables are bound too, and are no JSON.
        if name == digest.bytes
            && bytes.first() == Some(&b'{')
            && let Ok(value) = serde_json::from_slice(bytes)
        {
            by_digest.insert(digest, value);
        }
    });
    let listed = read.det.artifacts.iter();
    let of = |pointer: &str| read.value.pointer(pointer)?.get("digest")?.as_str()?.parse::<Digest>().ok();
    listed
        .filter(|artifact| of(&artifact.pointer) == Some(artifact.digest))
        .filter_map(|artifact| Some((artifact.pointer.clone(), by_digest.get(&artifact.digest)?.clone())))
        .collect()
}

/// Openings of the sealed set that the qualifier's ledger beside a run records.
fn openings(path: &Path, contract: &Digest) -> Result<Vec<Opening>, String> {
    let ledger = path.with_file_name(QUALIFICATION_LEDGER);
    if !ledger.is_file() {
        return Ok(Vec::new());
    }
    let unreadable = || format!("{} is not a ledger that can be read", ledger.display());
    let store = open(&ledger, Access::InPlace).map_err(|error| error.to_string())?.ok_or_else(unreadable)?;
    let own = format!("qualification-{}", &contract.hex()[..16]);
    let mut found = Vec::new();
    let mut reader = EntryReader::new();
    let mut position = 0;
    let end = store.for_each_row(&mut |row| {
        let context = RowContext::new(position, row, Looked::at(row.entry, &mut reader), None);
        position += 1;
        if let Some(entry) = context.canonical_entry()
            && entry.header.run.as_str() == own
            && let Body::QualificationOpened(halves) = &entry.body
        {
            found.push(Opening {
                place: format!("{}, entry {}", ledger.display(), entry.index),
                sealed: halves.det.sealed,
                time_us: entry.time_us,
            });
        }
    });
    end.whole().map_err(|error| format!("{}: {error}", ledger.display()))?;
    Ok(found)
}

/// What lies in the campaign's folders beside what it binds.
#[derive(Default)]
pub(crate) struct Beside {
    /// Runs that name the campaign and are not among those that it binds.
    pub(crate) unbound: Vec<Unbound>,
    /// Other histories of runs that it binds.
    pub(crate) copies: Vec<OtherCopy>,
    /// What could not be looked at, and why.
    pub(crate) unread: Vec<(String, String)>,
}

/// Looks through the databases in the campaign's folder, in those below it and in
/// those of its runs, whatever they are called.
pub(crate) fn beside(frozen: &Frozen, ledger: &Path, folder: &Path, runs: &[Run]) -> Beside {
    let own = fs::canonicalize(ledger).ok();
    let mut found = Beside::default();
    let told = |path: &Path| path.strip_prefix(folder).unwrap_or(path).display().to_string();
    for (place, path) in databases(folder, runs).into_iter().enumerate() {
        if place >= MAX_FILES_LOOKED_AT {
            found.unread.push((told(folder), format!("more than {MAX_FILES_LOOKED_AT} databases lie there")));
            break;
        }
        let is_own = own.is_some() && fs::canonicalize(&path).ok() == own;
        // What lies where a run should is compared with that run.
        let is_bound = runs.iter().any(|run| folder.join(run.path()) == path);
        if is_own || is_bound {
            continue;
        }
        let store = match open(&path, Access::InPlace) {
            Ok(Some(store)) => store,
            Ok(None) => continue,
            Err(error) => {
                found.unread.push((told(&path), error.to_string()));
                continue;
            }
        };
        let Some(read) = read_contract(&store) else { continue };
        let Membership::Campaign { campaign, preregistration, .. } = &read.contract.membership else {
            continue;
        };
        let is_named = *campaign == frozen.id || preregistration.digest == Some(frozen.file_digest);
        let bound = runs.iter().find(|run| run.id == read.run);
        match bound {
            None if is_named => found.unbound.push(Unbound {
                path: told(&path),
                run: read.run,
                has_begun: store.num_rows() > 1,
            }),
            None => {}
            // A run whose own ledger is missing is told by the rule that looks for it.
            Some(run) if run.known().is_none() => {}
            Some(run) => match other_history(&store, &folder.join(run.path())) {
                Ok(None) => {}
                Ok(Some(what)) => found.copies.push(OtherCopy { path: told(&path), run: read.run, what }),
                Err(reason) => found.unread.push((told(&path), reason)),
            },
        }
    }
    found
}

/// What a ledger of a bound run says that the shown one does not. One that stops
/// earlier and agrees up to there is a copy that was kept.
fn other_history(other: &Store, shown: &Path) -> Result<Option<String>, String> {
    let unreadable = || format!("{} is not a ledger that can be read", shown.display());
    let shown = open(shown, Access::InPlace).map_err(|error| error.to_string())?.ok_or_else(unreadable)?;
    let (own, others) = (shown.num_rows(), other.num_rows());
    let common = own.min(others);
    if root_at(&shown, common) != root_at(other, common) {
        return Ok(Some(format!("other entries, among the first {common}")));
    }
    Ok((others > own).then(|| format!("{others} entries, where {own} are shown")))
}

/// Root over the first entries of a ledger, as they are stored.
fn root_at(store: &Store, size: u64) -> (u64, [u8; 32]) {
    let mut frontier = Frontier::new();
    let mut reader = EntryReader::new();
    let _ = store.for_each_row(&mut |row| {
        if frontier.size() < size {
            let context = RowContext::new(frontier.size(), row, Looked::at(row.entry, &mut reader), None);
            frontier.append(context.leaf);
        }
    });
    (frontier.size(), frontier.root())
}

/// Database files in the campaign's folder, in the folders below it and in those
/// of its runs, sorted.
fn databases(folder: &Path, runs: &[Run]) -> BTreeSet<PathBuf> {
    let mut folders: BTreeSet<PathBuf> = BTreeSet::from([folder.to_owned()]);
    folders.extend(listed(folder).into_iter().filter(|path| path.is_dir()));
    // A path that leaves the folder is not followed here either.
    let located = |run: &Run| Some(locate(folder, run.path()).ok()?.parent()?.to_owned());
    folders.extend(runs.iter().filter_map(located));
    let is_database = |path: &PathBuf| path.extension().is_some_and(|end| end == "db") && path.is_file();
    folders.iter().flat_map(|folder| listed(folder)).filter(is_database).collect()
}

/// What lies in a folder, but no links.
fn listed(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let is_plain = |entry: &fs::DirEntry| entry.file_type().is_ok_and(|kind| !kind.is_symlink());
    let mut paths: Vec<PathBuf> =
        entries.filter_map(Result::ok).filter(is_plain).map(|entry| entry.path()).collect();
    paths.sort();
    paths
}
