//! The recursive-descent scanner. Recursion is bounded by
//! [`ParseOptions::max_depth`]; everything else is a loop over the bytes.

use serde_json::{Map, Number, Value};

use super::{COMMENT_KEY, ParseOptions, Position, StrictError, StrictErrorKind, position_at, push_pointer};

/// Longest quotation of the document in an error.
const MAX_QUOTED_CHARS: usize = 40;

/// What positions may take in memory: far more than those of a document that a
/// person writes. Values beyond have none, and are reported at an ancestor.
const MAX_POSITION_BYTES: usize = 16 * 1024 * 1024;

/// What a position takes beside its pointer, about.
const POSITION_BYTES: usize = 128;

/// Reads a document; `offsets` receives pointer and byte offset of each value.
pub(super) fn scan(
    bytes: &[u8],
    options: ParseOptions,
    offsets: Option<&mut Vec<(String, usize)>>,
) -> Result<Value, StrictError> {
    let fail = |kind, position| Err(StrictError { kind, pointer: String::new(), position });
    if bytes.len() > options.max_bytes {
        let kind = StrictErrorKind::TooLarge { num_bytes: bytes.len(), max_bytes: options.max_bytes };
        return fail(kind, Position { line: 1, column: 1 });
    }
    if bytes.starts_with(b"\xEF\xBB\xBF") {
        return fail(StrictErrorKind::ByteOrderMark, Position { line: 1, column: 1 });
    }
    let text = match std::str::from_utf8(bytes) {
        Ok(text) => text,
        Err(error) => return fail(StrictErrorKind::NotUtf8, position_at(bytes, error.valid_up_to())),
    };
    let mut scanner =
        Scanner { text, at: 0, options, pointer: String::new(), depth: 0, offsets, position_bytes: 0 };
    let value = scanner.document().map_err(|kind| StrictError {
        kind,
        pointer: scanner.pointer.clone(),
        position: position_at(bytes, scanner.at),
    })?;
    Ok(value)
}

type Scanned<T> = Result<T, StrictErrorKind>;

/// On an error, `at` and `pointer` are left at the place that is wrong.
struct Scanner<'a> {
    text: &'a str,
    at: usize,
    options: ParseOptions,
    pointer: String,
    depth: usize,
    offsets: Option<&'a mut Vec<(String, usize)>>,
    /// What `offsets` takes so far.
    position_bytes: usize,
}

impl Scanner<'_> {
    fn document(&mut self) -> Scanned<Value> {
        let value = self.value()?;
        self.skip_space();
        match self.character() {
            None => Ok(value),
            Some(found) => Err(StrictErrorKind::TrailingText { found }),
        }
    }

    fn value(&mut self) -> Scanned<Value> {
        self.skip_space();
        if let Some(offsets) = &mut self.offsets {
            // One long name above many values would take a copy of it for each.
            self.position_bytes += POSITION_BYTES + self.pointer.len();
            if self.position_bytes <= MAX_POSITION_BYTES {
                offsets.push((self.pointer.clone(), self.at));
            }
        }
        match self.byte() {
            Some(b'{') => self.nested(Self::object),
            Some(b'[') => self.nested(Self::array),
            Some(b'"') => self.string().map(Value::String),
            Some(b'-' | b'0'..=b'9' | b'+' | b'.') => self.number(),
            Some(_) => self.word(),
            None => Err(StrictErrorKind::UnexpectedEnd { expected: "a value" }),
        }
    }

    /// Runs the scanner of an array or object one level deeper.
    fn nested(&mut self, scan: fn(&mut Self) -> Scanned<Value>) -> Scanned<Value> {
        if self.depth == self.options.max_depth {
            return Err(StrictErrorKind::TooDeep { max_depth: self.options.max_depth });
        }
        self.depth += 1;
        self.at += 1;
        let value = scan(self)?;
        self.depth -= 1;
        Ok(value)
    }

    fn object(&mut self) -> Scanned<Value> {
        let mut members = Map::new();
        let mut has_comment = false;
        self.skip_space();
        if self.take(b'}') {
            return Ok(Value::Object(members));
        }
        loop {
            self.skip_space();
            let key_at = self.at;
            if self.byte() != Some(b'"') {
                return Err(self.unexpected("a member's name in quotes"));
            }
            let key = self.string()?;
            let parent = self.pointer.len();
            push_pointer(&mut self.pointer, &key);
            let is_comment = self.options.drop_comments && key == COMMENT_KEY;
            if members.contains_key(&key) || (is_comment && has_comment) {
                self.at = key_at;
                return Err(StrictErrorKind::DuplicateKey { key });
            }
            self.skip_space();
            if !self.take(b':') {
                return Err(self.unexpected("a colon"));
            }
            let value = self.value()?;
            self.pointer.truncate(parent);
            if is_comment {
                has_comment = true;
            } else {
                members.insert(key, value);
            }
            self.skip_space();
            if self.take(b'}') {
                return Ok(Value::Object(members));
            }
            if !self.take(b',') {
                return Err(self.unexpected("a comma or a closing brace"));
            }
        }
    }

    fn array(&mut self) -> Scanned<Value> {
        let mut elements = Vec::new();
        self.skip_space();
        if self.take(b']') {
            return Ok(Value::Array(elements));
        }
        loop {
            let parent = self.pointer.len();
            push_pointer(&mut self.pointer, &elements.len().to_string());
            elements.push(self.value()?);
            self.pointer.truncate(parent);
            self.skip_space();
            if self.take(b']') {
                return Ok(Value::Array(elements));
            }
            if !self.take(b',') {
                return Err(self.unexpected("a comma or a closing bracket"));
            }
        }
    }

    fn string(&mut self) -> Scanned<String> {
        self.at += 1;
        let mut string = String::new();
        loop {
            let rest = &self.text[self.at..];
            let stop = rest.find(|c: char| c == '"' || c == '\\' || c < ' ');
            let Some(stop) = stop else {
                self.at = self.text.len();
                return Err(StrictErrorKind::UnexpectedEnd { expected: "the end of a string" });
            };
            string.push_str(&rest[..stop]);
            self.at += stop;
            match self.byte() {
                Some(b'"') => {
                    self.at += 1;
                    return Ok(string);
                }
                Some(b'\\') => string.push(self.escape()?),
                _ => return Err(StrictErrorKind::ControlCharacter { code: u32::from(self.current()) }),
            }
        }
    }

    fn escape(&mut self) -> Scanned<char> {
        let bytes = self.text.as_bytes();
        let character = match bytes.get(self.at + 1) {
            Some(b'"') => '"',
            Some(b'\\') => '\\',
            Some(b'/') => '/',
            Some(b'b') => '\u{8}',
            Some(b'f') => '\u{c}',
            Some(b'n') => '\n',
            Some(b'r') => '\r',
            Some(b't') => '\t',
            Some(b'u') => return self.unicode_escape(),
            _ => return Err(StrictErrorKind::BadEscape),
        };
        self.at += 2;
        Ok(character)
    }

    fn unicode_escape(&mut self) -> Scanned<char> {
        let first = self.code_unit(self.at).ok_or(StrictErrorKind::BadEscape)?;
        let lone = StrictErrorKind::LoneSurrogate { code: first };
        match first {
            0xD800..=0xDBFF => {
                let second = self.code_unit(self.at + 6).filter(|unit| (0xDC00..=0xDFFF).contains(unit));
                let second = second.ok_or(lone.clone())?;
                let code = 0x1_0000 + ((u32::from(first) - 0xD800) << 10) + (u32::from(second) - 0xDC00);
                self.at += 12;
                char::from_u32(code).ok_or(lone)
            }
            _ => {
                let character = char::from_u32(u32::from(first)).ok_or(lone)?;
                self.at += 6;
                Ok(character)
            }
        }
    }

    /// The code unit of `\uXXXX` at a byte offset.
    fn code_unit(&self, at: usize) -> Option<u16> {
        let escape = self.text.as_bytes().get(at..at + 6)?;
        let digits = escape.strip_prefix(b"\\u")?;
        if !digits.iter().all(u8::is_ascii_hexdigit) {
            return None;
        }
        u16::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
    }

    fn number(&mut self) -> Scanned<Value> {
        let rest = &self.text[self.at..];
        let is_part = |c: char| c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.' | '_');
        let token = &rest[..rest.find(|c| !is_part(c)).unwrap_or(rest.len())];
        let shape = NumberShape::of(token);
        if shape == NumberShape::Wrong {
            let word = token.trim_start_matches(['+', '-']).to_ascii_lowercase();
            return Err(if matches!(word.as_str(), "nan" | "inf" | "infinity") {
                StrictErrorKind::NotFinite { text: quoted(token) }
            } else {
                StrictErrorKind::BadNumber { text: quoted(token) }
            });
        }
        let number = if shape == NumberShape::Integer { integer(token)? } else { float(token)? };
        self.at += token.len();
        Ok(Value::Number(number))
    }

    /// `null`, `true`, `false`, or a mistake.
    fn word(&mut self) -> Scanned<Value> {
        let rest = &self.text[self.at..];
        let word = &rest[..rest.find(|c: char| !c.is_ascii_alphanumeric()).unwrap_or(rest.len())];
        let value = match word {
            "null" => Value::Null,
            "true" => Value::Bool(true),
            "false" => Value::Bool(false),
            "NaN" | "nan" | "Infinity" | "inf" => {
                return Err(StrictErrorKind::NotFinite { text: word.to_owned() });
            }
            _ => return Err(self.unexpected("a value")),
        };
        self.at += word.len();
        Ok(value)
    }

    fn byte(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn character(&self) -> Option<char> {
        self.text.get(self.at..).and_then(|rest| rest.chars().next())
    }

    /// The character at hand; NUL at the end, where no caller asks.
    fn current(&self) -> char {
        self.character().unwrap_or('\0')
    }

    fn take(&mut self, byte: u8) -> bool {
        let found = self.byte() == Some(byte);
        self.at += usize::from(found);
        found
    }

    fn skip_space(&mut self) {
        while matches!(self.byte(), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }

    fn unexpected(&self, expected: &'static str) -> StrictErrorKind {
        match self.character() {
            Some(found) => StrictErrorKind::Unexpected { found, expected },
            None => StrictErrorKind::UnexpectedEnd { expected },
        }
    }
}

/// How a token is spelled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NumberShape {
    Integer,
    Float,
    Wrong,
}

impl NumberShape {
    /// RFC 8259, section 6.
    fn of(token: &str) -> Self {
        fn digits(bytes: &[u8]) -> usize {
            bytes.iter().take_while(|byte| byte.is_ascii_digit()).count()
        }
        let bytes = token.strip_prefix('-').unwrap_or(token).as_bytes();
        let num_whole = digits(bytes);
        if num_whole == 0 || (num_whole > 1 && bytes[0] == b'0') {
            return Self::Wrong;
        }
        let mut rest = &bytes[num_whole..];
        let mut shape = Self::Integer;
        if let Some(fraction) = rest.strip_prefix(b".") {
            let num_fraction = digits(fraction);
            if num_fraction == 0 {
                return Self::Wrong;
            }
            rest = &fraction[num_fraction..];
            shape = Self::Float;
        }
        if let Some((b'e' | b'E', exponent)) = rest.split_first() {
            let exponent = match exponent.split_first() {
                Some((b'+' | b'-', unsigned)) => unsigned,
                _ => exponent,
            };
            let num_exponent = digits(exponent);
            if num_exponent == 0 {
                return Self::Wrong;
            }
            rest = &exponent[num_exponent..];
            shape = Self::Float;
        }
        if rest.is_empty() { shape } else { Self::Wrong }
    }
}

fn integer(token: &str) -> Scanned<Number> {
    let too_large = || StrictErrorKind::IntegerTooLarge { text: quoted(token) };
    // serde_json reads `-0` as the double, and so keeps its sign.
    if token == "-0" {
        return float(token);
    }
    let value: i64 = token.parse().map_err(|_| too_large())?;
    if value.unsigned_abs() > schemas::MAX_JSON_INTEGER {
        return Err(too_large());
    }
    // serde_json keeps what is not negative as u64, and compares by that.
    Ok(u64::try_from(value).map_or_else(|_| Number::from(value), Number::from))
}

fn float(token: &str) -> Scanned<Number> {
    let value: f64 = token.parse().map_err(|_| StrictErrorKind::BadNumber { text: quoted(token) })?;
    let mantissa = token.split(['e', 'E']).next().unwrap_or(token);
    if value == 0.0 && mantissa.bytes().any(|byte| (b'1'..=b'9').contains(&byte)) {
        return Err(StrictErrorKind::Underflow { text: quoted(token) });
    }
    Number::from_f64(value).ok_or_else(|| StrictErrorKind::Overflow { text: quoted(token) })
}

fn quoted(token: &str) -> String {
    if token.chars().count() <= MAX_QUOTED_CHARS {
        return token.to_owned();
    }
    let mut cut: String = token.chars().take(MAX_QUOTED_CHARS).collect();
    cut.push_str("...");
    cut
}
