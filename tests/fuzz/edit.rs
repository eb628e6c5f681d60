//! Edits of a real input. Bytes at random would be refused at the first one; an
//! input that was changed in one place reaches what reads the rest.

use super::corpus::Seed;

/// Which seed, and what is done to it: place, operation, argument.
pub(crate) type Edits = (u16, Vec<(u32, u8, u32)>);

/// Edits of one input; more would only be refused earlier.
const MAX_EDITS: usize = 3;

/// Longest piece that is copied, moved or removed.
const MAX_PIECE: usize = 64;

/// Deepest nesting that is put in: beyond every limit here.
const MAX_NESTING: usize = 200;

/// Characters that mean something to one of the parsers.
const MEANT: &[u8] = b"{}[],:\"\\-+.eE0123456789 \n\r\t\0/~=_\xc3\xa9\xff\x1f\x7f";

/// Values that stand at the edge of what some format has.
const VALUES: [&str; 30] = [
    "null",
    "true",
    "false",
    "0",
    "-0",
    "0.0",
    "-0.0",
    "1.0",
    "00",
    "01",
    "1E5",
    "1e5",
    "1e400",
    "-1",
    "1.50",
    "9007199254740992",
    "9007199254740993",
    "18446744073709551615",
    "-9223372036854775808",
    "5e-324",
    "\"NaN:7ff8000000000000\"",
    "\"Infinity\"",
    "NaN",
    "[]",
    "{}",
    "\"\"",
    "\"\\u0041\"",
    "\"\\ud800\"",
    "\"\\u00e9\"",
    "{\"a\":1,\"a\":2}",
];

/// A seed after its edits.
pub(crate) fn edited(seeds: &[Seed], (which, edits): &Edits) -> Vec<u8> {
    let Some(seed) = seeds.get(usize::from(*which) % seeds.len().max(1)) else { return Vec::new() };
    let mut bytes = seed.bytes.clone();
    let num_edits = 1 + usize::from(*which >> 8) % MAX_EDITS;
    for (place, operation, argument) in edits.iter().take(num_edits) {
        let other = seeds.get(*argument as usize % seeds.len()).map_or(&[][..], |seed| &seed.bytes);
        apply(&mut bytes, *place as usize, *operation, *argument as usize, other);
    }
    bytes
}

fn apply(bytes: &mut Vec<u8>, place: usize, operation: u8, argument: usize, other: &[u8]) {
    let at = place % (bytes.len() + 1);
    let length = 1 + argument % MAX_PIECE;
    let piece = |of: &[u8], from: usize| of[from..(from + length).min(of.len())].to_vec();
    match operation % 10 {
        0 => {
            if let Some(byte) = bytes.get_mut(at) {
                *byte ^= 1 << (argument % 8);
            }
        }
        1 => {
            if let Some(byte) = bytes.get_mut(at) {
                *byte = MEANT[argument % MEANT.len()];
            }
        }
        2 => insert(bytes, at, &[MEANT[argument % MEANT.len()]]),
        3 => drop(bytes.drain(at..(at + length).min(bytes.len()))),
        4 => {
            let copy = piece(bytes, at);
            insert(bytes, at, &copy);
        }
        5 => {
            let from = argument / MAX_PIECE % (other.len() + 1);
            let foreign = piece(other, from);
            insert(bytes, at, &foreign);
        }
        6 => bytes.truncate(at),
        7 => replace_value(bytes, at, VALUES[argument % VALUES.len()].as_bytes()),
        8 => {
            let (open, close) = if argument.is_multiple_of(2) { ("[", "]") } else { ("{\"a\":", "}") };
            let depth = argument / 2 % MAX_NESTING;
            let nested = format!("{}null{}", open.repeat(depth), close.repeat(depth));
            replace_value(bytes, at, nested.as_bytes());
        }
        _ => remove_member(bytes, at),
    }
}

fn insert(bytes: &mut Vec<u8>, at: usize, new: &[u8]) {
    drop(bytes.splice(at..at, new.iter().copied()));
}

/// Replaces the JSON value that begins behind the next colon or comma.
fn replace_value(bytes: &mut Vec<u8>, at: usize, new: &[u8]) {
    let is_start = |byte: &u8| matches!(byte, b':' | b',' | b'[');
    let Some(start) = bytes[at..].iter().position(is_start).map(|found| at + found + 1) else { return };
    let rest = &bytes[start..];
    let length = match rest.first() {
        Some(b'"') => {
            rest.iter().skip(1).position(|byte| *byte == b'"').map_or(rest.len(), |found| found + 2)
        }
        _ => rest.iter().position(|byte| matches!(byte, b',' | b'}' | b']')).unwrap_or(rest.len()),
    };
    drop(bytes.splice(start..start + length, new.iter().copied()));
}

/// Removes from one comma up to the next.
fn remove_member(bytes: &mut Vec<u8>, at: usize) {
    let comma = |bytes: &[u8], from: usize| bytes[from..].iter().position(|byte| *byte == b',');
    let Some(start) = comma(bytes, at).map(|found| at + found) else { return };
    let Some(end) = comma(bytes, start + 1).map(|found| start + 1 + found) else { return };
    drop(bytes.drain(start..end));
}
