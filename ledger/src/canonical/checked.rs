//! A serializer that writes entry JSON and sees, while it writes, that the
//! result is canonical: keys ascend and are printable ASCII, integers stay
//! within 2^53, nesting within 64. Scanning the bytes afterwards costs three
//! times as much, and `serde_json` with a formatter that looks on twice as much.
//!
//! It only ever accepts. What it does not follow (keys with escapes, keys that
//! are no strings, byte strings, numbers of other widths, raw fragments) it
//! refuses, and `serde_json` then writes the value and the scan says what is
//! wrong, if anything is; they would give the same bytes for what it accepts.

use std::cell::Cell;
use std::fmt;
use std::ops::Range;

use schemas::MAX_JSON_INTEGER;
use schemas::number::EntryFormatter;
use serde::Serialize;
use serde::ser::{self, Impossible};
use serde_json::ser::Formatter as _;

use super::MAX_DEPTH;

/// Appends a value's canonical bytes to `bytes`.
///
/// # Errors
/// When its form may not be canonical, or it refuses to be serialised; `bytes`
/// then has an unfinished value at its end.
pub(super) fn write<T: Serialize>(bytes: &mut Vec<u8>, value: &T) -> Result<(), Refused> {
    value.serialize(&mut Writer { bytes, depth: 0 })
}

/// The value is left to `serde_json` and the scan, which say what there is to say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Refused;

impl fmt::Display for Refused {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("not a value whose canonical form is seen while it is written")
    }
}

impl std::error::Error for Refused {}

impl ser::Error for Refused {
    fn custom<T: fmt::Display>(_: T) -> Self {
        Self
    }
}

struct Writer<'a> {
    bytes: &'a mut Vec<u8>,
    /// Open arrays and objects.
    depth: usize,
}

impl Writer<'_> {
    fn open(&mut self, bracket: u8) -> Result<(), Refused> {
        if self.depth >= MAX_DEPTH {
            return Err(Refused);
        }
        self.depth += 1;
        self.bytes.push(bracket);
        Ok(())
    }

    fn close(&mut self, bracket: u8) {
        self.depth -= 1;
        self.bytes.push(bracket);
    }

    /// Text in quotes that needs no escape.
    fn plain(&mut self, text: &str) {
        self.bytes.reserve(text.len() + 2);
        self.bytes.push(b'"');
        self.bytes.extend_from_slice(text.as_bytes());
        self.bytes.push(b'"');
    }

    /// The name of a variant as an object's only key, before its content.
    fn open_variant(&mut self, variant: &'static str) -> Result<(), Refused> {
        self.open(b'{')?;
        if !is_plain_key(variant.as_bytes()) {
            return Err(Refused);
        }
        self.plain(variant);
        self.bytes.push(b':');
        Ok(())
    }
}

/// Not zero where some byte of the word is; which bit does not matter.
const fn zeros(word: u64) -> u64 {
    word.wrapping_sub(ONES) & !word & HIGHS
}

const ONES: u64 = 0x0101_0101_0101_0101;
const HIGHS: u64 = ONES * 0x80;

/// Not zero where some byte of the word must be escaped in a string.
const fn escapes(word: u64) -> u64 {
    zeros(word ^ (ONES * b'"' as u64)) | zeros(word ^ (ONES * b'\\' as u64)) | zeros(word & (ONES * 0xe0))
}

/// Whether the test says so of any eight bytes: a word at a time, since digests
/// are most of an entry and keys most of the rest.
#[inline]
fn is_any(text: &[u8], test: impl Fn(u64) -> u64) -> bool {
    let word = |bytes: &[u8; 8]| test(u64::from_le_bytes(*bytes));
    let half = |bytes: &[u8; 4]| u64::from(u32::from_le_bytes(*bytes));
    let found = if let Some(last) = text.last_chunk() {
        // The last word overlaps the one before it.
        text.as_chunks().0.iter().fold(word(last), |found, bytes| found | word(bytes))
    } else if let (Some(first), Some(last)) = (text.first_chunk(), text.last_chunk()) {
        test(half(first) | half(last) << 32)
    } else {
        // Spaces pass every test.
        test(text.iter().fold(ONES * u64::from(b' '), |word, byte| word << 8 | u64::from(*byte)))
    };
    found != 0
}

/// Whether a key is printable ASCII without anything to escape.
fn is_plain_key(key: &[u8]) -> bool {
    !key.is_empty() && !is_any(key, |word| escapes(word) | word & HIGHS | zeros(word ^ (ONES * 0x7f)))
}

/// Names of two fields, of which the second follows the first, by where they
/// are. They live as long as the program, so a place and a length mean one name.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Pair {
    first: (usize, usize),
    second: (usize, usize),
}

impl Pair {
    /// More than the pairs of all usual entries.
    const NUM_SLOTS: usize = 256;

    /// `first` is `None` for the first field of a struct.
    fn of(first: Option<&'static str>, second: &'static str) -> Self {
        let place = |name: &'static str| (name.as_ptr().addr(), name.len());
        Self { first: first.map_or((0, 0), place), second: place(second) }
    }

    fn slot(self) -> usize {
        // Fibonacci hashing (Knuth, volume 3, 6.4); the top byte is the best one.
        let word = (self.first.0.rotate_left(5) ^ self.second.0) as u64;
        let [.., top] = word.wrapping_mul(0x9E37_79B9_7F4A_7C15).to_le_bytes();
        usize::from(top)
    }

    /// Whether the second was found to be plain and to follow the first.
    fn is_judged(self) -> bool {
        JUDGED.with(|judged| judged.get(self.slot()).is_some_and(|slot| slot.get() == Some(self)))
    }

    fn judged(self) {
        JUDGED.with(|judged| {
            if let Some(slot) = judged.get(self.slot()) {
                slot.set(Some(self));
            }
        });
    }
}

thread_local! {
    /// What this thread has judged; it saves time and changes no answer.
    static JUDGED: [Cell<Option<Pair>>; Pair::NUM_SLOTS] = const { [const { Cell::new(None) }; Pair::NUM_SLOTS] };
}

/// Byte order; the first bytes of keys mostly tell.
fn precedes(left: &[u8], right: &[u8]) -> bool {
    match (left.first(), right.first()) {
        (Some(first), Some(second)) if first != second => first < second,
        _ => left < right,
    }
}

impl<'w, 'a> ser::Serializer for &'w mut Writer<'a> {
    type Ok = ();
    type Error = Refused;
    type SerializeSeq = List<'w, 'a>;
    type SerializeTuple = List<'w, 'a>;
    type SerializeTupleStruct = List<'w, 'a>;
    type SerializeTupleVariant = Impossible<(), Refused>;
    type SerializeMap = Object<'w, 'a>;
    type SerializeStruct = Object<'w, 'a>;
    type SerializeStructVariant = Object<'w, 'a>;

    fn serialize_bool(self, value: bool) -> Result<(), Refused> {
        self.bytes.extend_from_slice(if value { b"true" } else { b"false" });
        Ok(())
    }

    fn serialize_i8(self, value: i8) -> Result<(), Refused> {
        self.serialize_i64(value.into())
    }

    fn serialize_i16(self, value: i16) -> Result<(), Refused> {
        self.serialize_i64(value.into())
    }

    fn serialize_i32(self, value: i32) -> Result<(), Refused> {
        self.serialize_i64(value.into())
    }

    fn serialize_i64(self, value: i64) -> Result<(), Refused> {
        if value.unsigned_abs() > MAX_JSON_INTEGER {
            return Err(Refused);
        }
        EntryFormatter.write_i64(self.bytes, value).map_err(|_| Refused)
    }

    fn serialize_u8(self, value: u8) -> Result<(), Refused> {
        self.serialize_u64(value.into())
    }

    fn serialize_u16(self, value: u16) -> Result<(), Refused> {
        self.serialize_u64(value.into())
    }

    fn serialize_u32(self, value: u32) -> Result<(), Refused> {
        self.serialize_u64(value.into())
    }

    fn serialize_u64(self, value: u64) -> Result<(), Refused> {
        if value > MAX_JSON_INTEGER {
            return Err(Refused);
        }
        EntryFormatter.write_u64(self.bytes, value).map_err(|_| Refused)
    }

    fn serialize_f32(self, _: f32) -> Result<(), Refused> {
        Err(Refused)
    }

    fn serialize_f64(self, value: f64) -> Result<(), Refused> {
        if !value.is_finite() {
            return Err(Refused);
        }
        EntryFormatter.write_f64(self.bytes, value).map_err(|_| Refused)
    }

    fn serialize_char(self, value: char) -> Result<(), Refused> {
        self.serialize_str(value.encode_utf8(&mut [0; 4]))
    }

    fn serialize_str(self, value: &str) -> Result<(), Refused> {
        if is_any(value.as_bytes(), escapes) {
            return serde_json::to_writer(&mut *self.bytes, value).map_err(|_| Refused);
        }
        self.plain(value);
        Ok(())
    }

    fn serialize_bytes(self, _: &[u8]) -> Result<(), Refused> {
        Err(Refused)
    }

    fn serialize_none(self) -> Result<(), Refused> {
        self.serialize_unit()
    }

    fn serialize_some<T: ?Sized + Serialize>(self, value: &T) -> Result<(), Refused> {
        value.serialize(self)
    }

    fn serialize_unit(self) -> Result<(), Refused> {
        self.bytes.extend_from_slice(b"null");
        Ok(())
    }

    fn serialize_unit_struct(self, _: &'static str) -> Result<(), Refused> {
        self.serialize_unit()
    }

    fn serialize_unit_variant(self, _: &'static str, _: u32, variant: &'static str) -> Result<(), Refused> {
        self.serialize_str(variant)
    }

    fn serialize_newtype_struct<T: ?Sized + Serialize>(
        self,
        _: &'static str,
        value: &T,
    ) -> Result<(), Refused> {
        value.serialize(self)
    }

    fn serialize_newtype_variant<T: ?Sized + Serialize>(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        value: &T,
    ) -> Result<(), Refused> {
        self.open_variant(variant)?;
        value.serialize(&mut *self)?;
        self.close(b'}');
        Ok(())
    }

    fn serialize_seq(self, _: Option<usize>) -> Result<List<'w, 'a>, Refused> {
        self.open(b'[')?;
        Ok(List { writer: self, is_first: true })
    }

    fn serialize_tuple(self, length: usize) -> Result<List<'w, 'a>, Refused> {
        self.serialize_seq(Some(length))
    }

    fn serialize_tuple_struct(self, _: &'static str, length: usize) -> Result<List<'w, 'a>, Refused> {
        self.serialize_seq(Some(length))
    }

    fn serialize_tuple_variant(
        self,
        _: &'static str,
        _: u32,
        _: &'static str,
        _: usize,
    ) -> Result<Self::SerializeTupleVariant, Refused> {
        Err(Refused)
    }

    fn serialize_map(self, _: Option<usize>) -> Result<Object<'w, 'a>, Refused> {
        self.open(b'{')?;
        Ok(Object { writer: self, closing: b"}", previous: None, field: None })
    }

    fn serialize_struct(self, name: &'static str, _: usize) -> Result<Object<'w, 'a>, Refused> {
        // `serde_json` passes raw fragments to its own serializer by such names.
        if name.starts_with('$') {
            return Err(Refused);
        }
        self.serialize_map(None)
    }

    fn serialize_struct_variant(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        _: usize,
    ) -> Result<Object<'w, 'a>, Refused> {
        self.open_variant(variant)?;
        self.open(b'{')?;
        Ok(Object { writer: self, closing: b"}}", previous: None, field: None })
    }
}

/// An array that has begun.
struct List<'w, 'a> {
    writer: &'w mut Writer<'a>,
    is_first: bool,
}

impl List<'_, '_> {
    fn element<T: ?Sized + Serialize>(&mut self, value: &T) -> Result<(), Refused> {
        if !self.is_first {
            self.writer.bytes.push(b',');
        }
        self.is_first = false;
        value.serialize(&mut *self.writer)
    }
}

impl ser::SerializeSeq for List<'_, '_> {
    type Ok = ();
    type Error = Refused;

    fn serialize_element<T: ?Sized + Serialize>(&mut self, value: &T) -> Result<(), Refused> {
        self.element(value)
    }

    fn end(self) -> Result<(), Refused> {
        self.writer.close(b']');
        Ok(())
    }
}

impl ser::SerializeTuple for List<'_, '_> {
    type Ok = ();
    type Error = Refused;

    fn serialize_element<T: ?Sized + Serialize>(&mut self, value: &T) -> Result<(), Refused> {
        self.element(value)
    }

    fn end(self) -> Result<(), Refused> {
        ser::SerializeSeq::end(self)
    }
}

impl ser::SerializeTupleStruct for List<'_, '_> {
    type Ok = ();
    type Error = Refused;

    fn serialize_field<T: ?Sized + Serialize>(&mut self, value: &T) -> Result<(), Refused> {
        self.element(value)
    }

    fn end(self) -> Result<(), Refused> {
        ser::SerializeSeq::end(self)
    }
}

/// An object that has begun.
struct Object<'w, 'a> {
    writer: &'w mut Writer<'a>,
    /// What ends it: more than a bracket where it is a variant's content.
    closing: &'static [u8],
    /// Where the last key stands in the bytes.
    previous: Option<Range<usize>>,
    /// The last key, where it is a struct's field.
    field: Option<&'static str>,
}

impl Object<'_, '_> {
    /// Writes what stands before a key, and says where that key starts.
    fn before_key(&mut self) -> usize {
        if self.previous.is_some() {
            self.writer.bytes.push(b',');
        }
        self.writer.bytes.len() + 1
    }

    /// Judges the key that stands from `start` on, and writes what follows it.
    fn after_key(&mut self, start: usize) -> Result<(), Refused> {
        let bytes = &mut *self.writer.bytes;
        let range = start..bytes.len().saturating_sub(1);
        let key = bytes.get(range.clone()).ok_or(Refused)?;
        let previous = self.previous.replace(range).unwrap_or_default();
        // Before the first key stands nothing, which precedes it.
        let follows = bytes.get(previous).is_some_and(|previous| precedes(previous, key));
        if !follows || !is_plain_key(key) {
            return Err(Refused);
        }
        bytes.push(b':');
        Ok(())
    }

    /// Writes a field's name, which is judged once for each field before it.
    #[inline]
    fn field(&mut self, key: &'static str) -> Result<(), Refused> {
        let pair = Pair::of(self.field.replace(key), key);
        if pair.is_judged() {
            let bytes = &mut *self.writer.bytes;
            bytes.reserve(key.len() + 4);
            bytes.extend_from_slice(if self.previous.is_some() { b",\"" } else { b"\"" });
            let start = bytes.len();
            bytes.extend_from_slice(key.as_bytes());
            self.previous = Some(start..bytes.len());
            bytes.extend_from_slice(b"\":");
            return Ok(());
        }
        let start = self.before_key();
        self.writer.plain(key);
        self.after_key(start)?;
        pair.judged();
        Ok(())
    }

    fn close(self) {
        self.closing.iter().for_each(|bracket| self.writer.close(*bracket));
    }
}

impl ser::SerializeMap for Object<'_, '_> {
    type Ok = ();
    type Error = Refused;

    fn serialize_key<T: ?Sized + Serialize>(&mut self, key: &T) -> Result<(), Refused> {
        let start = self.before_key();
        key.serialize(&mut *self.writer)?;
        // Other keys than strings are written in quotes by `serde_json` alone.
        let is_string = self.writer.bytes.get(start - 1) == Some(&b'"');
        if is_string { self.after_key(start) } else { Err(Refused) }
    }

    fn serialize_value<T: ?Sized + Serialize>(&mut self, value: &T) -> Result<(), Refused> {
        value.serialize(&mut *self.writer)
    }

    fn end(self) -> Result<(), Refused> {
        self.close();
        Ok(())
    }
}

impl ser::SerializeStruct for Object<'_, '_> {
    type Ok = ();
    type Error = Refused;

    fn serialize_field<T: ?Sized + Serialize>(
        &mut self,
        key: &'static str,
        value: &T,
    ) -> Result<(), Refused> {
        self.field(key)?;
        value.serialize(&mut *self.writer)
    }

    fn end(self) -> Result<(), Refused> {
        self.close();
        Ok(())
    }
}

impl ser::SerializeStructVariant for Object<'_, '_> {
    type Ok = ();
    type Error = Refused;

    fn serialize_field<T: ?Sized + Serialize>(
        &mut self,
        key: &'static str,
        value: &T,
    ) -> Result<(), Refused> {
        ser::SerializeStruct::serialize_field(self, key, value)
    }

    fn end(self) -> Result<(), Refused> {
        self.close();
        Ok(())
    }
}

#[cfg(test)]
mod tests;
