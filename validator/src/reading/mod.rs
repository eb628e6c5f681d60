//! Reads an entry in one pass that sees both what it says and that it says it
//! in the one canonical form: spelling, order of keys, and the form of every
//! type.
//!
//! It only ever accepts. What it refuses is looked at by the passes of
//! `canonical`, `serde_json` and `form`, one after the other, which say what is
//! wrong and where; they would accept whatever this pass accepts, with the same
//! values. An entry whose form cannot be seen while it is read (a map, an
//! extension's value, a member that is absent for the first time) is compared by
//! `form` afterwards.

mod cursor;
mod de;

use schemas::body::{Body, Kind};
use schemas::entry::{Entry, Header};
use serde::Deserialize;
use serde::de::value::BorrowedStrDeserializer;

use crate::canonical::{Dialect, Floats, Scan};
use crate::form;
use cursor::Cursor;
pub(crate) use cursor::Refused;

/// Reads entries; what it remembers from one to the next saves time and changes
/// no answer.
pub(crate) struct EntryReader {
    memory: Memory,
}

impl EntryReader {
    pub(crate) const fn new() -> Self {
        Self { memory: Memory::new() }
    }

    /// The entry and what the scanner would have found, where the bytes are the
    /// canonical form of an entry.
    ///
    /// # Errors
    /// When they are not, or may not be.
    pub(crate) fn read(&mut self, bytes: &[u8]) -> Result<(Entry, Scan), Refused> {
        let text = std::str::from_utf8(bytes).map_err(|_| Refused)?;
        let kind = find_kind(text, &mut self.memory)?;
        let mut cursor = Cursor::new(text, &mut self.memory);
        let entry = envelope(&mut cursor, kind)?;
        let is_other_form = || form::first_difference(&entry, bytes).is_some();
        if !cursor.is_at_end() || (cursor.is_form_unseen && is_other_form()) {
            return Err(Refused);
        }
        let Cursor { det, absences, .. } = cursor;
        // The comparison wrote each of them as it was read: not at all.
        absences.into_iter().for_each(|absence| self.memory.note_form(absence));
        Ok((entry, Scan { det }))
    }
}

/// The kind as it stands after the body, which cannot be read without it. A key
/// cannot occur within a string, where its quotes would be escaped; if this is
/// not the envelope's key, the reader of the envelope finds another one.
fn find_kind(text: &str, memory: &mut Memory) -> Result<Kind, Refused> {
    const KEY: &str = ",\"kind\":\"";
    // It stands mostly as far from the end as in the entry before.
    let hinted = text.len().checked_sub(memory.kind_from_end).and_then(|at| text.get(at..));
    let rest = match hinted.and_then(|rest| rest.strip_prefix(KEY)) {
        Some(rest) => rest,
        None => text.rsplit_once(KEY).ok_or(Refused)?.1,
    };
    memory.kind_from_end = rest.len() + KEY.len();
    let (name, _) = rest.split_once('"').ok_or(Refused)?;
    Kind::deserialize(BorrowedStrDeserializer::new(name))
}

/// The envelope, key by key, in the order of `docs/FORMAT.md`.
fn envelope(cursor: &mut Cursor<'_, '_>, kind: Kind) -> Result<Entry, Refused> {
    cursor.open(b'{')?;
    cursor.expect_key("actor")?;
    let actor = Deserialize::deserialize(&mut *cursor)?;
    let attempt = member(cursor, "attempt")?;
    cursor.expect_byte(b',')?;
    cursor.expect_key("body")?;
    let body = Body::deserialize(kind, &mut *cursor)?;
    let extensions = member(cursor, "extensions")?;
    literal(cursor, "format", schemas::ENTRY_FORMAT)?;
    let idem = member(cursor, "idem")?;
    let index = member(cursor, "index")?;
    literal(cursor, "kind", kind.name())?;
    let header = Header {
        actor,
        attempt,
        extensions,
        idem,
        learner: member(cursor, "learner")?,
        ledger: member(cursor, "ledger")?,
        origin: member(cursor, "origin")?,
        run: member(cursor, "run")?,
        segment: member(cursor, "segment")?,
        step: member(cursor, "step")?,
        worker: None,
    };
    let time_us = member(cursor, "time_us")?;
    let worker = member(cursor, "worker")?;
    cursor.close(b'}')?;
    Ok(Entry { body, header: Header { worker, ..header }, index, time_us })
}

/// A member that is not the first.
fn member<'de, T: Deserialize<'de>>(cursor: &mut Cursor<'de, '_>, name: &str) -> Result<T, Refused> {
    cursor.expect_byte(b',')?;
    cursor.expect_key(name)?;
    T::deserialize(cursor)
}

/// A member with a known string that needs no escape.
fn literal(cursor: &mut Cursor<'_, '_>, name: &str, value: &str) -> Result<(), Refused> {
    cursor.expect_byte(b',')?;
    cursor.expect_key(name)?;
    cursor.expect_byte(b'"')?;
    cursor.expect(value.as_bytes())?;
    cursor.expect_byte(b'"')
}

/// A member that is not there: the visitor of its struct, whose type has one
/// name, and its place among the fields. What stands for an absent member is the
/// same each time, and whether it is written depends on nothing else.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Absence {
    of: &'static str,
    index: usize,
}

impl Absence {
    /// Names of types live as long as the program, so one place is one name.
    fn is(self, other: Self) -> bool {
        self.index == other.index && (std::ptr::eq(self.of, other.of) || self.of == other.of)
    }
}

/// What was found before: spellings of floats, lists of fields, members that are
/// left out, and where the kind was.
struct Memory {
    floats: Floats,
    absences: [Option<Absence>; Memory::NUM_ABSENCES],
    kind_from_end: usize,
    orders: [&'static [&'static str]; Memory::NUM_ORDERS],
}

impl Memory {
    /// More than the struct types of a usual entry.
    const NUM_ORDERS: usize = 32;

    /// More than the members that usual entries leave out.
    const NUM_ABSENCES: usize = 16;

    const fn new() -> Self {
        Self {
            floats: Floats::new(Dialect::Entry),
            absences: [None; Self::NUM_ABSENCES],
            kind_from_end: 0,
            orders: [&[]; Self::NUM_ORDERS],
        }
    }

    /// Whether its type was seen to leave the member out.
    fn is_form(&self, absence: Absence) -> bool {
        // The few that there are stand at the beginning.
        self.absences.iter().map_while(Option::as_ref).any(|known| known.is(absence))
    }

    /// Where there is no room for another one, it is found anew each time.
    fn note_form(&mut self, absence: Absence) {
        if !self.is_form(absence)
            && let Some(free) = self.absences.iter_mut().find(|slot| slot.is_none())
        {
            *free = Some(absence);
        }
    }

    /// Whether fields are declared in the order that their keys must have, so
    /// that what is read in this order is in canonical order.
    fn is_canonical_order(&mut self, fields: &'static [&'static str]) -> bool {
        // Lists of fields live as long as the program, so an address means one list.
        let slot = &mut self.orders[(fields.as_ptr().addr() >> 4) % Self::NUM_ORDERS];
        if std::ptr::eq(*slot, fields) {
            return true;
        }
        let is_plain = |name: &&str| {
            name.bytes().all(|byte| matches!(byte, 0x20..=0x7e) && !matches!(byte, b'"' | b'\\'))
        };
        let is_canonical = fields.iter().all(is_plain) && fields.is_sorted_by(|a, b| a < b);
        if is_canonical {
            *slot = fields;
        }
        is_canonical
    }
}

#[cfg(test)]
mod tests;
