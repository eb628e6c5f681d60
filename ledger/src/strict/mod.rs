//! Strict JSON: bytes to a value, or an error that names the place.
//!
//! What most readers settle silently is refused here, because two readers
//! that settle it differently would disagree on what was frozen: duplicate
//! keys (serde keeps the last, SQLite the first), `NaN` and `Infinity`,
//! numbers that overflow or vanish, integers beyond 2^53, lone surrogates,
//! invalid UTF-8, a byte-order mark, anything after the value. Nesting and
//! size are bounded, so that no document can exhaust stack or memory.
//!
//! Every error carries an RFC 6901 pointer, a line and a column.

mod scanner;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;

use serde_json::Value;

/// Deepest nesting of arrays and objects (`docs/FORMAT.md`, "Canonical JSON").
pub const MAX_DEPTH: usize = 64;

/// Largest document in bytes (`docs/FORMAT.md`, "Canonical JSON").
pub const MAX_DOCUMENT_BYTES: usize = 16 * 1024 * 1024;

/// Name of the members that explain a document and are not part of it.
pub const COMMENT_KEY: &str = "$comment";

/// How a document is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ParseOptions {
    /// Leave out members named [`COMMENT_KEY`], after reading them as strictly
    /// as the rest.
    pub drop_comments: bool,
    /// Deepest nesting of arrays and objects.
    pub max_depth: usize,
    /// Largest document in bytes.
    pub max_bytes: usize,
}

impl Default for ParseOptions {
    fn default() -> Self {
        Self { drop_comments: false, max_depth: MAX_DEPTH, max_bytes: MAX_DOCUMENT_BYTES }
    }
}

impl ParseOptions {
    /// The limits of this project, with `$comment` members left out.
    #[must_use]
    pub fn without_comments() -> Self {
        Self { drop_comments: true, ..Self::default() }
    }
}

/// A place in a text; both count from 1, the column in characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position {
    /// Line.
    pub line: usize,
    /// Character within the line.
    pub column: usize,
}

impl fmt::Display for Position {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "line {}, column {}", self.line, self.column)
    }
}

/// What is wrong with a document.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StrictErrorKind {
    /// A member that the object already has.
    #[error("duplicate key {key:?}: which of the two counts would depend on the reader")]
    DuplicateKey {
        /// The member's name.
        key: String,
    },
    /// `NaN`, `Infinity` or a spelling of these.
    #[error("{text} is not a JSON number")]
    NotFinite {
        /// What stands there.
        text: String,
    },
    /// A number whose double would be infinite.
    #[error("the number {text} is too large for a double")]
    Overflow {
        /// What stands there, cut at 40 characters.
        text: String,
    },
    /// A number other than zero whose double would be zero.
    #[error("the number {text} is too small for a double and would read as zero")]
    Underflow {
        /// What stands there, cut at 40 characters.
        text: String,
    },
    /// An integer that doubles cannot tell from its neighbours.
    #[error("the integer {text} is beyond 2^53; where all 64 bits are meant, write a decimal string")]
    IntegerTooLarge {
        /// What stands there, cut at 40 characters.
        text: String,
    },
    /// Deeper than allowed.
    #[error("nested deeper than {max_depth} levels")]
    TooDeep {
        /// The limit.
        max_depth: usize,
    },
    /// Larger than allowed.
    #[error("{num_bytes} bytes long, more than {max_bytes}")]
    TooLarge {
        /// Size of the document.
        num_bytes: usize,
        /// The limit.
        max_bytes: usize,
    },
    /// Bytes that are not UTF-8.
    #[error("not UTF-8")]
    NotUtf8,
    /// A byte-order mark.
    #[error("begins with a byte-order mark")]
    ByteOrderMark,
    /// Half of a surrogate pair.
    #[error("\\u{code:04x} is half of a surrogate pair")]
    LoneSurrogate {
        /// The code unit.
        code: u16,
    },
    /// A control character inside a string.
    #[error("control character U+{code:04X} inside a string; write it as \\u{code:04x}")]
    ControlCharacter {
        /// The character.
        code: u32,
    },
    /// An escape that JSON does not have.
    #[error("no such escape in JSON")]
    BadEscape,
    /// A number that JSON does not spell so, such as `01` or `1.`.
    #[error("{text} is not how JSON spells a number")]
    BadNumber {
        /// What stands there, cut at 40 characters.
        text: String,
    },
    /// The document ends too early.
    #[error("the document ends where {expected} was expected")]
    UnexpectedEnd {
        /// What was missing.
        expected: &'static str,
    },
    /// Something else than the grammar allows.
    #[error("{found:?} where {expected} was expected")]
    Unexpected {
        /// What stands there.
        found: char,
        /// What may stand there.
        expected: &'static str,
    },
    /// Something after the value.
    #[error("{found:?} after the end of the document")]
    TrailingText {
        /// What stands there.
        found: char,
    },
}

/// A document that was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{kind} (at {}, {position})", pointer_for_people(.pointer))]
pub struct StrictError {
    /// What is wrong.
    pub kind: StrictErrorKind,
    /// RFC 6901 pointer of the value concerned; empty for the whole document.
    pub pointer: String,
    /// Where in the text.
    pub position: Position,
}

/// The pointer, or words for the empty one.
fn pointer_for_people(pointer: &str) -> &str {
    if pointer.is_empty() { "the whole document" } else { pointer }
}

/// A value together with where each part of it stands.
#[derive(Debug, Clone, PartialEq)]
pub struct Located {
    /// The document.
    pub value: Value,
    /// Start of every value, by pointer; of a document with very many, of the
    /// first ones.
    pub positions: BTreeMap<String, Position>,
}

impl Located {
    /// Where a pointer's value begins, or the nearest ancestor that exists:
    /// a missing member is reported at its object.
    #[must_use]
    pub fn position(&self, pointer: &str) -> Option<Position> {
        let mut pointer = pointer;
        loop {
            if let Some(position) = self.positions.get(pointer) {
                return Some(*position);
            }
            pointer = &pointer[..pointer.rfind('/')?];
        }
    }
}

/// Reads a document.
///
/// # Errors
/// When the bytes are not one JSON value, or are one that readers could take
/// differently; see [`StrictErrorKind`].
pub fn parse(bytes: &[u8], options: ParseOptions) -> Result<Value, StrictError> {
    scanner::scan(bytes, options, None)
}

/// Reads a document and remembers where its parts stand; for small documents
/// that people write.
///
/// # Errors
/// As [`parse`].
pub fn parse_located(bytes: &[u8], options: ParseOptions) -> Result<Located, StrictError> {
    let mut offsets = Vec::new();
    let value = scanner::scan(bytes, options, Some(&mut offsets))?;
    Ok(Located { value, positions: positions(bytes, offsets) })
}

/// Turns byte offsets, which ascend, into positions in one pass.
fn positions(bytes: &[u8], offsets: Vec<(String, usize)>) -> BTreeMap<String, Position> {
    let (mut line, mut column, mut at) = (1, 1, 0);
    let mut positions = BTreeMap::new();
    for (pointer, offset) in offsets {
        for byte in &bytes[at..offset.max(at)] {
            advance(*byte, &mut line, &mut column);
        }
        at = offset.max(at);
        positions.insert(pointer, Position { line, column });
    }
    positions
}

/// Moves past one byte; continuation bytes of UTF-8 do not count.
fn advance(byte: u8, line: &mut usize, column: &mut usize) {
    if byte == b'\n' {
        *line += 1;
        *column = 1;
    } else if byte & 0xC0 != 0x80 {
        *column += 1;
    }
}

/// Position of a byte offset.
fn position_at(bytes: &[u8], offset: usize) -> Position {
    let (mut line, mut column) = (1, 1);
    for byte in &bytes[..offset.min(bytes.len())] {
        advance(*byte, &mut line, &mut column);
    }
    Position { line, column }
}

/// Appends one reference token to an RFC 6901 pointer.
pub fn push_pointer(pointer: &mut String, token: &str) {
    pointer.push('/');
    for character in token.chars() {
        match character {
            '~' => pointer.push_str("~0"),
            '/' => pointer.push_str("~1"),
            _ => pointer.push(character),
        }
    }
}
