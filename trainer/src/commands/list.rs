//! `trainer checkpoint list`.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;

use schemas::contract::KeepPolicy;
use schemas::ids::{AttemptId, CheckpointId};
use schemas::number::Float;
use schemas::state::StateClass;
use serde::Serialize;

use crate::checkpoint::retention::{Fact, Protection, Stage};
use crate::cli::{self, Failure};
use crate::store;

use super::LedgerArguments;
use super::opened::OpenedRun;
use super::places::{Place, Places};

#[derive(Serialize)]
struct Listing {
    checkpoints: Vec<Row>,
    format: &'static str,
    /// What lies in the store and no entry calls committed.
    leftovers: Vec<Leftover>,
    run: String,
    /// Whether checkpoints are here, in the store, or both.
    store_is_url: bool,
}

#[derive(Serialize)]
struct Row {
    attempt: AttemptId,
    best: bool,
    candidate: bool,
    checkpoint: CheckpointId,
    /// Whether a run may go on from it, by its entries.
    complete: bool,
    /// Classes that a retirement left.
    kept: Vec<StateClass>,
    num_bytes: u64,
    pinned: bool,
    /// Where it is whole, as far as can be seen without reading it.
    places: Vec<Place>,
    /// What is wrong with its files, without reading them; null: nothing seen.
    problem: Option<String>,
    retired: bool,
    selected: bool,
    stage: Stage,
    step: u64,
    value: Option<Float>,
}

#[derive(Serialize)]
struct Leftover {
    name: String,
    what: &'static str,
}

pub(super) fn run(arguments: &LedgerArguments) -> Result<u8, Failure> {
    let opened = OpenedRun::open(&arguments.ledger)?;
    let roster = &opened.history.roster;
    let best = roster.decide().keep.into_iter().find(|kept| kept.protections.contains(&Protection::Best));
    let best = best.map(|kept| kept.checkpoint);
    let facts = roster.facts();
    let places = Places::look(&opened);
    let listing = Listing {
        checkpoints: facts
            .iter()
            .map(|fact| row(&opened, &places, fact, best.as_ref() == Some(&fact.checkpoint)))
            .collect(),
        format: "checkpoint-list/1",
        leftovers: leftovers(&opened, &places),
        run: opened.frozen.run.0.clone(),
        store_is_url: store::is_url(&opened.frozen.contract.checkpoints.store),
    };
    if arguments.json {
        cli::print_json(&listing)?;
    } else {
        cli::print(text(&listing).as_bytes())?;
    }
    Ok(0)
}

fn row(opened: &OpenedRun, known: &Places, fact: &Fact, best: bool) -> Row {
    let is_pinned = match opened.history.roster.keep() {
        KeepPolicy::All => false,
        KeepPolicy::Chosen { pinned, .. } => pinned.contains(&fact.step),
    };
    let (places, problem) = known.of(opened, fact);
    Row {
        attempt: fact.attempt,
        best,
        candidate: fact.candidate.is_some(),
        checkpoint: fact.checkpoint.clone(),
        complete: fact.stage.is_usable(),
        kept: fact.kept.clone(),
        num_bytes: fact.num_bytes,
        pinned: is_pinned,
        places,
        problem,
        retired: fact.stage == Stage::Retired,
        selected: fact.is_selected,
        stage: fact.stage,
        step: fact.step,
        value: fact.value.map(Float),
    }
}

/// Names in the store that are no committed checkpoint of the ledger.
fn leftovers(opened: &OpenedRun, places: &Places) -> Vec<Leftover> {
    let roster = &opened.history.roster;
    let items = fs::read_dir(opened.store()).into_iter().flatten();
    let names: BTreeSet<String> =
        items.flatten().map(|item| item.file_name().to_string_lossy().into_owned()).collect();
    let what = |name: &str| {
        if name.starts_with(".staging-") {
            return Some("in flight, or left by an attempt that stopped");
        }
        match roster.fact(&CheckpointId::from(name)) {
            Some(fact) if fact.manifest.is_some() => None,
            Some(_) => Some("announced and never committed"),
            None => Some("not a checkpoint of this run"),
        }
    };
    let local = names.into_iter().filter_map(|name| what(&name).map(|what| Leftover { name, what }));
    // What an upload left that did not come to its end, or to its entry.
    let in_store = places.stored().filter_map(|(name, has_manifest)| {
        let fact = roster.fact(&CheckpointId::from(name.as_str()));
        let what = match fact {
            Some(fact) if fact.manifest.is_some() => return None,
            Some(_) if has_manifest => "in the store: uploaded whole, and never committed",
            Some(_) => "in the store: an upload in flight, or left by an attempt that stopped",
            None => "in the store: not a checkpoint that this ledger knows",
        };
        Some(Leftover { name: name.clone(), what })
    });
    local.chain(in_store).collect()
}

fn text(listing: &Listing) -> String {
    let mut text = format!("Run {}\n", listing.run);
    let _ = writeln!(
        text,
        "{:>9}  {:<16} {:<18} {:>12} {:>7}  {:<10} notes",
        "step", "checkpoint", "stage", "bytes", "attempt", "value"
    );
    for row in &listing.checkpoints {
        let value = row.value.map_or_else(|| "-".to_owned(), |value| format!("{:.4}", value.0));
        let marks = [
            (row.candidate, "candidate"),
            (row.best, "best"),
            (row.selected, "selected"),
            (row.pinned, "pinned"),
            (row.retired && row.kept.is_empty(), "shards gone"),
            (row.retired && !row.kept.is_empty(), "only the model is left"),
            (row.stage.is_in_flight(), "not complete"),
        ];
        let mut notes: Vec<String> =
            marks.into_iter().filter(|(holds, _)| *holds).map(|(_, mark)| mark.to_owned()).collect();
        // Under a folder store there is one place, and nothing to tell apart.
        if listing.store_is_url && !row.places.is_empty() {
            notes.push(row.places.iter().map(|place| place.text()).collect::<Vec<_>>().join(" and "));
        }
        notes.extend(row.problem.iter().map(|problem| format!("PROBLEM: {problem}")));
        let _ = writeln!(
            text,
            "{:>9}  {:<16} {:<18} {:>12} {:>7}  {:<10} {}",
            row.step,
            row.checkpoint,
            row.stage.name(),
            row.num_bytes,
            row.attempt,
            value,
            notes.join(", ")
        );
    }
    for leftover in &listing.leftovers {
        let _ = writeln!(text, "           {}: {}", leftover.name, leftover.what);
    }
    text
}
