//! The generated suite: every kind of entry and every field of it, changed in
//! every way that makes sense for a value of its type.
//!
//! For one entry of each kind, and one more in the middle of a run's steps, in
//! the first run that has the kind and in later ones where they have a field
//! that it did not have: the entry is left out, repeated, exchanged with the next and given
//! another kind; of its fields each is deleted, duplicated, exchanged with a
//! sibling, perturbed and given another type. Most of what changes a type is
//! stopped by the schema and does not count; what counts has to be killed by one
//! of the rules that `generated.tsv` names for it, or is explained in
//! [`unknowable`]. Kinds that no run here has are excused in [`kinds`]. The table is written by `scripts/mutations --update`, and its
//! difference is to be read: a rule that vanished from it sees less than before.

pub mod entries;
pub mod expected;
pub mod fields;
pub mod kinds;
pub mod unknowable;

use anyhow::Result;
use serde_json::Value;

use std::collections::BTreeSet;

use super::named::runs::RETIRED;
use super::records::{ANNOTATED, EVENTFUL, HANDED_OFF, ODD, PLAIN, PROBED, SCALED, SHARED};
use super::{Mutation, Origin, Record, Records, Suite};

/// Name of the suite.
pub const NAME: &str = "generated";

/// The suite.
pub const SUITE: Suite = Suite { has_to_count: false, mutations, name: NAME };

/// Fewest mutations of the whole suite that have to count. Those that do are
/// several times as many; below this the suite has lost what it is for, and a
/// table that was written anew must not make that look as if it held.
pub const NUM_COUNTED_MIN: usize = 150;

/// Runs whose entries are mutated, each field in the first that has it.
const ORIGINS: [Origin; 9] = [PLAIN, EVENTFUL, PROBED, HANDED_OFF, ODD, SHARED, SCALED, ANNOTATED, RETIRED];

/// One change of one entry, before anything is said about what follows.
pub struct Change {
    /// Kind of the entry.
    pub kind: String,
    /// What is done: `perturb`.
    pub operation: &'static str,
    /// Where within the entry; empty for the entry as a whole.
    pub pointer: String,
    /// Which entry of its kind: `first` or `middle`.
    pub which: &'static str,
    /// The change.
    pub edit: super::Edit,
}

fn mutations(records: &Records) -> Result<Vec<Mutation>> {
    of(records, &ORIGINS)
}

/// Names in the table of expected killers that none of these mutations has: what
/// was killed once and is not even tried now.
///
/// # Errors
/// When the table cannot be read.
pub fn stale(mutations: &[Mutation]) -> Result<Vec<String>> {
    let is_tried = |name: &String| mutations.iter().any(|mutation| mutation.name == *name);
    Ok(expected::read()?.into_keys().filter(|name| !is_tried(name)).collect())
}

/// What is wrong with how many mutations of the whole suite counted, a line.
#[must_use]
pub fn too_few(num_counted: usize) -> Option<String> {
    let is_enough = num_counted >= NUM_COUNTED_MIN;
    (!is_enough).then(|| format!("{NAME}: {num_counted} mutations count, and {NUM_COUNTED_MIN} have to"))
}

/// The part of the suite that some runs give.
///
/// # Errors
/// When one cannot be made, or the table of expected killers cannot be read.
pub fn of(records: &Records, origins: &[Origin]) -> Result<Vec<Mutation>> {
    let expected = expected::read()?;
    // What was changed in an earlier run: kind and pointer.
    let mut seen: BTreeSet<(String, String)> = BTreeSet::new();
    let mut mutations = Vec::new();
    for origin in origins {
        let record = records.get(*origin)?;
        let mut seen_here = BTreeSet::new();
        for (kind, which, place) in representatives(&record) {
            for change in changes(&record, &kind, which, place) {
                let key = (kind.clone(), change.pointer.clone());
                if !seen.contains(&key) {
                    mutations.push(mutation(*origin, change, &expected));
                    seen_here.insert(key);
                }
            }
        }
        seen.append(&mut seen_here);
    }
    Ok(mutations)
}

fn mutation(origin: Origin, change: Change, expected: &expected::Table) -> Mutation {
    let Change { kind, operation, pointer, which, edit } = change;
    let place = if pointer.is_empty() { "entry" } else { &pointer };
    let name = format!("{} {kind} {which} {place} {operation}", origin.name);
    let codes = expected.get(&name).cloned().unwrap_or_default();
    let survivor = unknowable::reason(&format!("{kind} {which}"), &pointer, operation);
    Mutation {
        attacker: super::Attacker::Trainer,
        edit,
        expected: codes,
        fits_norms: false,
        is_sole: false,
        name,
        names_keys: false,
        origin,
        suite: NAME,
        survivor,
    }
}

fn kind_of(entry: &Value) -> String {
    entry["kind"].as_str().unwrap_or_default().to_owned()
}

/// Kinds of a record in order of their first entry.
fn kinds(record: &Record) -> Vec<String> {
    let mut kinds = Vec::new();
    for kind in record.entries.iter().map(kind_of) {
        if !kinds.contains(&kind) {
            kinds.push(kind);
        }
    }
    kinds
}

/// Kind, which of it, and place of the entries that are changed. Entry 0 is the
/// owner's: nobody without that key can change it.
fn representatives(record: &Record) -> Vec<(String, &'static str, usize)> {
    let mut found = Vec::new();
    for kind in kinds(record) {
        let places = record.places(&kind);
        if kind == "contract.frozen" {
            continue;
        }
        found.extend(places.first().map(|place| (kind.clone(), "first", *place)));
        if kind == "step" && places.len() > 2 {
            found.extend(places.get(places.len() / 2).map(|place| (kind, "middle", *place)));
        }
    }
    found
}

fn changes(record: &Record, kind: &str, which: &'static str, place: usize) -> Vec<Change> {
    let mut changes = entries::changes(record, kind, which, place);
    changes.extend(fields::changes(record, kind, which, place));
    changes
}
