//! Changes of an entry as a whole: left out, repeated, exchanged with the next,
//! given another kind.

use std::sync::Arc;

use schemas::body::Kind;

use super::super::Record;
use super::Change;
use super::fields::is_entry;

/// Every change of the entry at a place.
#[must_use]
pub fn changes(record: &Record, kind: &str, which: &'static str, place: usize) -> Vec<Change> {
    let change = |operation, edit: super::super::Edit| Change {
        kind: kind.to_owned(),
        operation,
        pointer: String::new(),
        which,
        edit,
    };
    let mut changes = vec![
        change(
            "delete",
            Arc::new(move |record: &mut Record| {
                record.entries.remove(place);
                Ok(())
            }),
        ),
        change(
            "duplicate",
            Arc::new(move |record: &mut Record| {
                let entry = record.entries[place].clone();
                record.entries.insert(place + 1, entry);
                Ok(())
            }),
        ),
    ];
    if place + 1 < record.entries.len() {
        changes.push(change(
            "reorder",
            Arc::new(move |record: &mut Record| {
                exchange(record, place);
                Ok(())
            }),
        ));
    }
    let other_kinds = Kind::ALL.iter().filter(|other| {
        let mut entry = record.entries[place].clone();
        entry["kind"] = other.name().into();
        other.name() != kind && is_entry(&entry)
    });
    changes.extend(other_kinds.map(|other| {
        let edit = move |record: &mut Record| record.set(place, "/kind", other.name());
        Change { pointer: format!("/kind={}", other.name()), ..change("retype", Arc::new(edit)) }
    }));
    changes
}

/// Exchanges an entry with the next. Times stay where they are: whoever invents
/// another order does not leave a clock that goes back.
fn exchange(record: &mut Record, place: usize) {
    let (first, second) = (place, place + 1);
    let times = [first, second].map(|place| record.entries[place]["time_us"].clone());
    record.entries.swap(first, second);
    for (place, time) in [first, second].into_iter().zip(times) {
        record.entries[place]["time_us"] = time;
    }
}
