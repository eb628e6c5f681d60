//! A place in canonical bytes, and the tokens that may stand there.

use std::borrow::Cow;
use std::fmt;
use std::ops::Range;

use super::{Absence, Memory};
use crate::canonical::{MAX_DEPTH, Number, escape, plain_length};

/// The bytes are not canonical, or not of the type that is asked for, or have a
/// form that this reader leaves to others. Which of these, and where, is found
/// by the passes that then follow, so nothing is formatted here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Refused;

impl fmt::Display for Refused {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("not canonical bytes of this type")
    }
}

impl std::error::Error for Refused {}

impl serde::de::Error for Refused {
    fn custom<T: fmt::Display>(_: T) -> Self {
        Self
    }
}

/// Reads forward through one document.
pub(super) struct Cursor<'de, 'm> {
    text: &'de str,
    at: usize,
    depth: u32,
    pub(super) memory: &'m mut Memory,
    /// Bytes of the value at `/body/det`, where it has been read.
    pub(super) det: Option<Range<usize>>,
    /// Whether something was read whose form only a comparison can tell.
    pub(super) is_form_unseen: bool,
    /// Members that are absent, where it is not known yet that this is their form.
    pub(super) absences: Vec<Absence>,
}

impl<'de, 'm> Cursor<'de, 'm> {
    pub(super) fn new(text: &'de str, memory: &'m mut Memory) -> Self {
        Self { text, at: 0, depth: 0, memory, det: None, is_form_unseen: false, absences: Vec::new() }
    }

    /// Offset of the next byte.
    pub(super) const fn at(&self) -> usize {
        self.at
    }

    /// Objects and arrays that have begun and not ended.
    pub(super) const fn depth(&self) -> u32 {
        self.depth
    }

    pub(super) fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn rest(&self) -> &'de [u8] {
        self.text.as_bytes().get(self.at..).unwrap_or_default()
    }

    /// Passes over exactly these bytes.
    pub(super) fn expect(&mut self, bytes: &[u8]) -> Result<(), Refused> {
        if !self.rest().starts_with(bytes) {
            return Err(Refused);
        }
        self.at += bytes.len();
        Ok(())
    }

    /// Passes over one byte.
    pub(super) fn expect_byte(&mut self, byte: u8) -> Result<(), Refused> {
        if self.peek() != Some(byte) {
            return Err(Refused);
        }
        self.at += 1;
        Ok(())
    }

    /// Passes over `"name":`, of a name that needs no escape.
    #[inline]
    pub(super) fn expect_key(&mut self, name: &str) -> Result<(), Refused> {
        let Some((b'"', rest)) = self.rest().split_first() else { return Err(Refused) };
        match rest.split_at_checked(name.len()) {
            Some((key, [b'"', b':', ..])) if is_same(key, name.as_bytes()) => {
                self.at += name.len() + 3;
                Ok(())
            }
            _ => Err(Refused),
        }
    }

    /// Passes over a member that is not there. Whether its type leaves it out, or
    /// writes null for it, is found by a comparison of the first entry that lacks it.
    /// `None` stands for a member that is not remembered.
    pub(super) fn pass_over(&mut self, absence: Option<Absence>) {
        if !absence.is_some_and(|absence| self.memory.is_form(absence)) {
            self.is_form_unseen = true;
            self.absences.extend(absence);
        }
    }

    /// Whether the bytes end here.
    pub(super) const fn is_at_end(&self) -> bool {
        self.at == self.text.len()
    }

    /// Begins an object or array.
    pub(super) fn open(&mut self, bracket: u8) -> Result<(), Refused> {
        if self.depth >= MAX_DEPTH {
            return Err(Refused);
        }
        self.expect_byte(bracket)?;
        self.depth += 1;
        Ok(())
    }

    /// Ends an object or array.
    pub(super) fn close(&mut self, bracket: u8) -> Result<(), Refused> {
        self.expect_byte(bracket)?;
        self.depth -= 1;
        Ok(())
    }

    /// A string, borrowed where it has no escape.
    pub(super) fn string(&mut self) -> Result<Cow<'de, str>, Refused> {
        self.expect_byte(b'"')?;
        let plain = self.plain()?;
        if self.peek() == Some(b'"') {
            self.at += 1;
            return Ok(Cow::Borrowed(plain));
        }
        let mut unescaped = plain.to_owned();
        while self.peek() != Some(b'"') {
            // At any other byte that ended the plain part there is no escape.
            self.peek().filter(|byte| *byte == b'\\').ok_or(Refused)?;
            let (length, byte) = escape(self.rest()).map_err(|_| Refused)?;
            self.at += length;
            unescaped.push(char::from(byte));
            unescaped.push_str(self.plain()?);
        }
        self.at += 1;
        Ok(Cow::Owned(unescaped))
    }

    /// The part of a string that stands for itself.
    fn plain(&mut self) -> Result<&'de str, Refused> {
        let start = self.at;
        self.at += plain_length(self.rest()).ok_or(Refused)?;
        self.text.get(start..self.at).ok_or(Refused)
    }

    #[inline]
    pub(super) fn number(&mut self) -> Result<Number, Refused> {
        let rest = self.rest();
        match self.memory.floats.read_entry_number(rest) {
            Some((number, length)) => {
                self.at += length;
                Ok(number)
            }
            None => self.float(),
        }
    }

    /// A number that is not read quickly: a float, or not canonical.
    fn float(&mut self) -> Result<Number, Refused> {
        let rest = self.rest();
        let is_part = |byte: &&u8| matches!(byte, b'0'..=b'9' | b'-' | b'.' | b'e' | b'E' | b'+');
        let text = &rest[..rest.iter().take_while(is_part).count()];
        if !text.iter().any(|byte| matches!(byte, b'.' | b'e' | b'E' | b'+')) {
            return Err(Refused);
        }
        self.at += text.len();
        self.memory.floats.read(text).map(Number::Float).map_err(|_| Refused)
    }
}

/// Equality of keys, which are too short to be worth a call.
#[inline]
fn is_same(left: &[u8], right: &[u8]) -> bool {
    let word = |bytes: &[u8; 8]| u64::from_le_bytes(*bytes);
    let both = |left: Option<&[u8; 8]>, right: Option<&[u8; 8]>| left.map(word) == right.map(word);
    if left.len() != right.len() {
        false
    } else if left.len() < 8 {
        left.iter().zip(right).all(|(left, right)| left == right)
    } else if left.len() <= 16 {
        both(left.first_chunk(), right.first_chunk()) && both(left.last_chunk(), right.last_chunk())
    } else {
        left == right
    }
}
