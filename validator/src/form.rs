//! Whether a document's bytes are the one form of what was read from them.
//!
//! The scanner of `canonical` sees one spelling of every string and number; it
//! cannot see what the types let pass: a key that may be null left out, a list
//! in the place of an object, a name written as an object. So what was read is
//! written again and compared with the stored bytes on the fly. Floats are
//! passed over: the scanner has judged their spelling, and writing them again
//! costs more than everything else together.
//!
//! Entries come here only where `reading` did not see their form on its way.

use std::io;

use serde::Serialize;
use serde_json::ser::{Formatter, Serializer};

/// Stands for a float; it occurs in no UTF-8 text.
const FLOAT: u8 = 0xff;

/// Compares with bytes that `canonical::check_entry_json` has accepted; the
/// first byte that differs, if any.
pub(crate) fn first_difference<T: Serialize>(value: &T, bytes: &[u8]) -> Option<usize> {
    let mut compare = Compare { expected: bytes, at: 0 };
    let written = value.serialize(&mut Serializer::with_formatter(&mut compare, FloatMarks));
    (written.is_err() || compare.at != bytes.len()).then_some(compare.at)
}

struct FloatMarks;

impl Formatter for FloatMarks {
    fn write_f64<W: ?Sized + io::Write>(&mut self, writer: &mut W, _: f64) -> io::Result<()> {
        writer.write_all(&[FLOAT])
    }
}

/// A writer that keeps nothing and fails at the first difference.
struct Compare<'a> {
    expected: &'a [u8],
    at: usize,
}

impl io::Write for Compare<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let rest = self.expected.get(self.at..).unwrap_or_default();
        // Most of what is written is a quote, a colon or a comma.
        if let ([byte], [next, ..]) = (bytes, rest)
            && byte == next
        {
            self.at += 1;
            return Ok(1);
        }
        if bytes == [FLOAT] {
            let is_part = |byte: &&u8| matches!(byte, b'0'..=b'9' | b'-' | b'.' | b'e');
            let length = rest.iter().take_while(is_part).count();
            if length == 0 {
                return Err(io::ErrorKind::InvalidData.into());
            }
            self.at += length;
        } else if rest.starts_with(bytes) {
            self.at += bytes.len();
        } else {
            self.at += rest.iter().zip(bytes).take_while(|(left, right)| left == right).count();
            return Err(io::ErrorKind::InvalidData.into());
        }
        Ok(bytes.len())
    }

    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        // All or an error.
        self.write(bytes).map(|_| ())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use schemas::entry::Entry;

    use super::*;
    use crate::canonical::check_entry_json;
    use crate::fixture::{honest_run, json};

    #[test]
    fn every_entry_of_a_run_has_its_own_form() {
        for entry in &honest_run().entries {
            assert_eq!(first_difference(entry, &json(entry)), None, "entry {}", entry.index);
        }
    }

    #[test]
    fn a_second_form_of_an_entry_is_seen() {
        let run = honest_run();
        let step = run.entries.iter().find(|entry| entry.body.kind() == schemas::body::Kind::Step);
        let text = String::from_utf8(json(step.expect("a step"))).expect("UTF-8");
        for (one, other) in [
            (",\"origin\":null", ""),
            (",\"overflow\":null", ""),
            (",\"worker\":null", ""),
            ("\"ledger\":\"run\"", "\"ledger\":{\"run\":null}"),
        ] {
            let Some(at) = text.find(one) else { continue };
            let forged = text.replacen(one, other, 1);
            check_entry_json(forged.as_bytes()).expect("the scanner cannot tell");
            let Ok(read) = Entry::from_slice(forged.as_bytes()) else { continue };
            let difference = first_difference(&read, forged.as_bytes()).expect("another form");
            assert!(difference >= at, "{one}");
        }
        assert!(text.contains("\"origin\":null") && text.contains("\"ledger\":\"run\""));
        let longer = format!("{text} ");
        let read = Entry::from_slice(longer.as_bytes()).expect("serde_json allows white space");
        assert_eq!(first_difference(&read, longer.as_bytes()), Some(text.len()));
    }
}
