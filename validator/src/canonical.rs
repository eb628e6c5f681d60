//! Checks that stored bytes are canonical JSON, in one pass and without
//! building a value. Specified in `docs/FORMAT.md`; written independently of
//! the writer.
//!
//! A pass over bytes that are canonical also proves that no key occurs twice,
//! since keys ascend strictly; and it tells where an entry's determined half
//! lies, so that it need not be written again to be hashed.

mod numbers;

use std::fmt;
use std::ops::Range;

pub(crate) use numbers::{Dialect, Floats, Number, read_integer};

/// Deepest nesting of either dialect.
pub(crate) const MAX_DEPTH: u32 = 64;

/// Where and how bytes differ from their canonical form.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Problem {
    /// Offset of the first byte that is wrong.
    pub offset: usize,
    /// What is wrong with it.
    pub what: &'static str,
}

impl fmt::Display for Problem {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "byte {}: {}", self.offset, self.what)
    }
}

impl std::error::Error for Problem {}

/// What a pass over canonical bytes found on its way.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Scan {
    /// Bytes of the value at `/body/det`, where there is one.
    pub det: Option<Range<usize>>,
}

/// Checks entry JSON: entries, manifests, envelopes' payloads.
///
/// # Errors
/// At the first byte that is not canonical.
pub fn check_entry_json(bytes: &[u8]) -> Result<Scan, Problem> {
    check(bytes, Dialect::Entry)
}

/// Checks contract JSON (RFC 8785).
///
/// # Errors
/// At the first byte that is not canonical.
pub fn check_contract_json(bytes: &[u8]) -> Result<(), Problem> {
    check(bytes, Dialect::Contract).map(|_| ())
}

fn check(bytes: &[u8], dialect: Dialect) -> Result<Scan, Problem> {
    if let Err(error) = std::str::from_utf8(bytes) {
        return Err(Problem { offset: error.valid_up_to(), what: "not UTF-8" });
    }
    let mut scanner = Scanner { bytes, at: 0, dialect, scan: Scan::default(), floats: Floats::new(dialect) };
    scanner.value(0, Place::Root)?;
    if scanner.at == bytes.len() {
        Ok(scanner.scan)
    } else {
        Err(scanner.problem("something follows the value"))
    }
}

/// Which object the scanner is in, as far as it matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Root,
    Body,
    Other,
}

struct Scanner<'a> {
    bytes: &'a [u8],
    at: usize,
    dialect: Dialect,
    scan: Scan,
    floats: Floats,
}

/// One key as it stands between its quotes.
struct Key {
    range: Range<usize>,
    escaped: bool,
}

impl Scanner<'_> {
    fn problem(&self, what: &'static str) -> Problem {
        Problem { offset: self.at, what }
    }

    fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    fn value(&mut self, depth: u32, place: Place) -> Result<(), Problem> {
        match self.peek() {
            Some(b'{') => self.object(depth, place),
            Some(b'[') => self.array(depth),
            Some(b'"') => self.string().map(|_| ()),
            Some(b'-' | b'0'..=b'9') => self.number(),
            Some(b't') => self.literal(b"true"),
            Some(b'f') => self.literal(b"false"),
            Some(b'n') => self.literal(b"null"),
            Some(b' ' | b'\t' | b'\r' | b'\n') => Err(self.problem("white space outside a string")),
            Some(_) => Err(self.problem("not the start of a value")),
            None => Err(self.problem("the bytes end within a value")),
        }
    }

    fn literal(&mut self, text: &'static [u8]) -> Result<(), Problem> {
        if self.bytes[self.at..].starts_with(text) {
            self.at += text.len();
            Ok(())
        } else {
            Err(self.problem("not a literal"))
        }
    }

    fn deeper(&self, depth: u32) -> Result<u32, Problem> {
        if depth >= MAX_DEPTH { Err(self.problem("nested deeper than 64")) } else { Ok(depth + 1) }
    }

    fn array(&mut self, depth: u32) -> Result<(), Problem> {
        let depth = self.deeper(depth)?;
        self.at += 1;
        if self.peek() == Some(b']') {
            self.at += 1;
            return Ok(());
        }
        loop {
            self.value(depth, Place::Other)?;
            match self.peek() {
                Some(b',') => self.at += 1,
                Some(b']') => {
                    self.at += 1;
                    return Ok(());
                }
                _ => return Err(self.problem("neither `,` nor `]` after an element")),
            }
        }
    }

    fn object(&mut self, depth: u32, place: Place) -> Result<(), Problem> {
        let depth = self.deeper(depth)?;
        self.at += 1;
        if self.peek() == Some(b'}') {
            self.at += 1;
            return Ok(());
        }
        let mut previous: Option<Key> = None;
        loop {
            let start = self.at;
            if self.peek() != Some(b'"') {
                return Err(self.problem("an object key is not a string"));
            }
            let escaped = self.string()?;
            let key = Key { range: start + 1..self.at - 1, escaped };
            self.check_key(previous.as_ref(), &key)?;
            if self.peek() != Some(b':') {
                return Err(self.problem("no `:` after an object key"));
            }
            self.at += 1;
            let value_start = self.at;
            let name = &self.bytes[key.range.clone()];
            let (is_body, is_det) =
                (place == Place::Root && name == b"body", place == Place::Body && name == b"det");
            self.value(depth, if is_body { Place::Body } else { Place::Other })?;
            if is_det {
                self.scan.det = Some(value_start..self.at);
            }
            previous = Some(key);
            match self.peek() {
                Some(b',') => self.at += 1,
                Some(b'}') => {
                    self.at += 1;
                    return Ok(());
                }
                _ => return Err(self.problem("neither `,` nor `}` after a member")),
            }
        }
    }

    fn check_key(&self, previous: Option<&Key>, key: &Key) -> Result<(), Problem> {
        let at = |what| Problem { offset: key.range.start, what };
        let raw = &self.bytes[key.range.clone()];
        if self.dialect == Dialect::Entry {
            let is_printable = raw.iter().all(|byte| matches!(byte, 0x20..=0x7e));
            // The only escapes of printable characters are those of `"` and `\`.
            if !is_printable || (key.escaped && units(raw).any(|unit| unit < 0x20)) {
                return Err(at("an object key is not printable ASCII"));
            }
        }
        let Some(previous) = previous else { return Ok(()) };
        let before = &self.bytes[previous.range.clone()];
        let is_plain = !key.escaped && !previous.escaped;
        let is_ascii = self.dialect == Dialect::Entry || (raw.is_ascii() && before.is_ascii());
        let ascends = if is_plain && is_ascii {
            before < raw
        } else {
            // UTF-16 order equals byte order for the ASCII keys of entries.
            units(before).lt(units(raw))
        };
        if ascends { Ok(()) } else { Err(at("object keys do not ascend strictly")) }
    }

    /// Passes over a string; tells whether it has an escape.
    fn string(&mut self) -> Result<bool, Problem> {
        self.at += 1;
        let mut escaped = false;
        loop {
            let rest = &self.bytes[self.at..];
            let Some(plain) = plain_length(rest) else {
                self.at = self.bytes.len();
                return Err(self.problem("the bytes end within a string"));
            };
            self.at += plain;
            match rest[plain] {
                b'"' => {
                    self.at += 1;
                    return Ok(escaped);
                }
                b'\\' => {
                    escaped = true;
                    self.escape()?;
                }
                _ => return Err(self.problem("a control character is not escaped")),
            }
        }
    }

    fn escape(&mut self) -> Result<(), Problem> {
        let (length, _) = escape(&self.bytes[self.at..]).map_err(|what| self.problem(what))?;
        self.at += length;
        Ok(())
    }

    fn number(&mut self) -> Result<(), Problem> {
        let start = self.at;
        let mut is_float = false;
        while let Some(byte) = self.peek() {
            match byte {
                b'0'..=b'9' | b'-' => {}
                b'.' | b'e' | b'E' | b'+' => is_float = true,
                _ => break,
            }
            self.at += 1;
        }
        let text = &self.bytes[start..self.at];
        let at_start = |what| Problem { offset: start, what };
        // Contracts spell integers and floats alike, and have none beyond 2^53.
        if !is_float {
            return read_integer(text).map(|_| ()).map_err(at_start);
        }
        self.floats.read(text).map(|_| ()).map_err(at_start)
    }
}

/// The escape that begins `bytes`, which begin with a backslash: its length, and
/// the ASCII character that it stands for.
pub(crate) fn escape(bytes: &[u8]) -> Result<(usize, u8), &'static str> {
    const UNUSED: &str = "an escape that canonical form does not use";
    let short = match bytes.get(1..).unwrap_or_default() {
        [quoted @ (b'"' | b'\\'), ..] => *quoted,
        [b'b', ..] => 8,
        [b't', ..] => b'\t',
        [b'n', ..] => b'\n',
        [b'f', ..] => 12,
        [b'r', ..] => b'\r',
        [b'u', b'0', b'0', high @ (b'0' | b'1'), low, ..] => {
            let digit = match low {
                b'0'..=b'9' => low - b'0',
                b'a'..=b'f' => low - b'a' + 10,
                _ => return Err(UNUSED),
            };
            let code = (high - b'0') * 16 + digit;
            if matches!(code, 8 | 9 | 10 | 12 | 13) {
                return Err("a long escape where a short one exists");
            }
            return Ok((6, code));
        }
        _ => return Err(UNUSED),
    };
    Ok((2, short))
}

/// Bytes before the first that ends the plain part of a string; `None` when
/// there is none. Eight at a time, since digests are most of an entry.
pub(crate) fn plain_length(bytes: &[u8]) -> Option<usize> {
    const ONES: u64 = 0x0101_0101_0101_0101;
    const HIGHS: u64 = 0x8080_8080_8080_8080;
    // Exact for the lowest byte that is zero; what borrows above it is not looked at.
    let zeros = |word: u64| word.wrapping_sub(ONES) & !word & HIGHS;
    let mut at = 0;
    while let Some(chunk) = bytes.get(at..).and_then(<[u8]>::first_chunk::<8>) {
        let word = u64::from_le_bytes(*chunk);
        let quotes = zeros(word ^ (ONES * u64::from(b'"')));
        let backslashes = zeros(word ^ (ONES * u64::from(b'\\')));
        let controls = zeros(word & (ONES * 0xe0));
        let stops = quotes | backslashes | controls;
        if stops != 0 {
            return Some(at + (stops.trailing_zeros() / 8) as usize);
        }
        at += 8;
    }
    let rest = bytes.get(at..)?;
    rest.iter().position(|&byte| STRING_STOPS[usize::from(byte)]).map(|found| at + found)
}

/// Bytes that end the plain part of a string.
static STRING_STOPS: [bool; 256] = {
    let mut table = [false; 256];
    let mut byte = 0;
    while byte < 0x20 {
        table[byte] = true;
        byte += 1;
    }
    table[b'"' as usize] = true;
    table[b'\\' as usize] = true;
    table
};

/// UTF-16 code units of a canonical string's content (RFC 8785, 3.2.3).
fn units(raw: &[u8]) -> impl Iterator<Item = u16> + '_ {
    let mut unescaped = String::with_capacity(raw.len());
    let mut characters = std::str::from_utf8(raw).unwrap_or_default().chars();
    while let Some(character) = characters.next() {
        if character != '\\' {
            unescaped.push(character);
            continue;
        }
        match characters.next() {
            Some('b') => unescaped.push('\u{8}'),
            Some('t') => unescaped.push('\t'),
            Some('n') => unescaped.push('\n'),
            Some('f') => unescaped.push('\u{c}'),
            Some('r') => unescaped.push('\r'),
            Some('u') => {
                let digits: String = characters.by_ref().take(4).collect();
                let code = u32::from_str_radix(&digits, 16).ok().and_then(char::from_u32);
                unescaped.push(code.unwrap_or('\0'));
            }
            Some(other) => unescaped.push(other),
            None => {}
        }
    }
    unescaped.encode_utf16().collect::<Vec<_>>().into_iter()
}

#[cfg(test)]
mod tests;
