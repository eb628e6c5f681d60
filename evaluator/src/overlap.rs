//! How much of an opened set occurs in what the run could see.
//!
//! Containment by sampled spans: every position of a text has a span of 50
//! bytes; a span is sampled when its rolling hash is 0 modulo 16, so both
//! sides sample the same spans; sampled spans are compared by BLAKE3. Text is
//! taken as it is: a difference in white space or spelling is a difference.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use schemas::body::Overlap;
use schemas::digest::Digest;

/// Bytes of a span.
pub const SPAN_BYTES: usize = 50;
/// One span in so many is sampled; a power of two.
const SAMPLING: u64 = 16;
/// Odd multiplier of the rolling hash (that of PCG, O'Neill 2014).
const MULTIPLIER: u64 = 0x5851_f42d_4c95_7f2d;
/// Bytes that are read at a time.
const BUFFER_BYTES: usize = 1 << 20;

/// How overlap was measured, for the entry.
pub const METHOD: &str =
    "verbatim spans of 50 bytes, sampled where a rolling hash is 0 mod 16, against all train and val shards";

/// 128 bits of a span's BLAKE3: enough that a collision is not a concern.
type SpanId = [u8; 16];

/// The finaliser of splitmix64 (Steele, Lea, Flood 2014).
const fn mix(mut z: u64) -> u64 {
    z ^= z >> 30;
    z = z.wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z ^= z >> 27;
    z = z.wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Gives every sampled span of a text to `each`.
fn sampled_spans(text: &[u8], mut each: impl FnMut(SpanId)) {
    let Some(first) = text.get(..SPAN_BYTES) else { return };
    let step = |hash: u64, byte: u8| hash.wrapping_mul(MULTIPLIER).wrapping_add(u64::from(byte) + 1);
    // The multiplier to the power of the span's length takes a byte out.
    let leaving = (0..SPAN_BYTES).fold(1u64, |power, _| power.wrapping_mul(MULTIPLIER));
    let mut hash = first.iter().copied().fold(0, step);
    for start in 0..=text.len() - SPAN_BYTES {
        if start > 0 {
            let out = u64::from(text[start - 1]) + 1;
            hash = step(hash, text[start + SPAN_BYTES - 1]).wrapping_sub(out.wrapping_mul(leaving));
        }
        if mix(hash).is_multiple_of(SAMPLING) {
            let mut id = [0; 16];
            id.copy_from_slice(&blake3::hash(&text[start..start + SPAN_BYTES]).as_bytes()[..16]);
            each(id);
        }
    }
}

/// The sampled spans of an opened set, and which of them were seen elsewhere.
pub struct OverlapCount {
    seen: BTreeSet<SpanId>,
    spans: Vec<SpanId>,
    wanted: BTreeSet<SpanId>,
}

impl OverlapCount {
    /// Takes the spans of the opened set.
    #[must_use]
    pub fn new(opened: &[u8]) -> Self {
        let mut spans = Vec::new();
        sampled_spans(opened, |id| spans.push(id));
        Self { seen: BTreeSet::new(), wanted: spans.iter().copied().collect(), spans }
    }

    /// Looks for them in a text.
    pub fn look_in(&mut self, text: &[u8]) {
        let (seen, wanted) = (&mut self.seen, &self.wanted);
        sampled_spans(text, |id| {
            if wanted.contains(&id) {
                seen.insert(id);
            }
        });
    }

    /// Looks for them in a file, in pieces; returns the file's BLAKE3.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn look_in_file(&mut self, path: &Path) -> io::Result<Digest> {
        let mut file = File::open(path)?;
        let mut hasher = blake3::Hasher::new();
        let mut buffer = vec![0; SPAN_BYTES - 1 + BUFFER_BYTES];
        // Bytes at the front that were there before: the last ones of the
        // piece before, so that spans across pieces are looked at once.
        let mut held = 0;
        loop {
            let length = file.read(&mut buffer[held..])?;
            if length == 0 {
                return Ok(Digest::blake3(*hasher.finalize().as_bytes()));
            }
            hasher.update(&buffer[held..held + length]);
            let filled = held + length;
            self.look_in(&buffer[..filled]);
            held = filled.min(SPAN_BYTES - 1);
            buffer.copy_within(filled - held..filled, 0);
        }
    }

    /// The count.
    #[must_use]
    pub fn finish(&self) -> Overlap {
        let num_shared = self.spans.iter().filter(|id| self.seen.contains(*id)).count() as u64;
        Overlap { method: METHOD.to_owned(), num_shared, num_spans: self.spans.len() as u64 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(seed: u64, length: usize) -> Vec<u8> {
        (0..length as u64).map(|index| b'a' + (mix(seed << 32 | index) % 26) as u8).collect()
    }

    #[test]
    fn a_copied_passage_is_counted_and_foreign_text_is_not() {
        let (mut train, opened) = (text(1, 40_000), text(2, 20_000));
        let mut count = OverlapCount::new(&opened);
        count.look_in(&train);
        assert_eq!(count.finish().num_shared, 0);
        let num_spans = count.finish().num_spans;
        assert!((900..1_600).contains(&num_spans), "{num_spans} of 19,951 spans, about one in 16");
        train[7_000..12_000].copy_from_slice(&opened[3_000..8_000]);
        count.look_in(&train);
        let mut expected = 0;
        sampled_spans(&opened[3_000..8_000], |_| expected += 1);
        assert_eq!(count.finish().num_shared, expected);
        assert!(expected > 200);
    }

    #[test]
    fn all_of_itself_is_shared_and_short_text_has_no_span() {
        let opened = text(3, 5_000);
        let mut count = OverlapCount::new(&opened);
        count.look_in(&opened);
        assert_eq!(count.finish().num_shared, count.finish().num_spans);
        assert_eq!(OverlapCount::new(&opened[..49]).finish().num_spans, 0);
        assert_eq!(OverlapCount::new(b"").finish().num_spans, 0);
    }

    #[test]
    fn pieces_of_a_file_give_what_the_whole_gives() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("train.txt");
        // Longer than a piece, with the passage across the border of two.
        let (mut train, opened) = (text(4, BUFFER_BYTES + 30_000), text(5, 2_000));
        train[BUFFER_BYTES - 900..BUFFER_BYTES + 1_100].copy_from_slice(&opened);
        std::fs::write(&path, &train).expect("it is written");
        let mut count = OverlapCount::new(&opened);
        let digest = count.look_in_file(&path).expect("it is read");
        assert_eq!(digest, crate::files::blake3_of(&train));
        assert_eq!(count.finish().num_shared, count.finish().num_spans);
        assert!(count.finish().num_spans > 50);
    }
}
