//! Which segments a nonce draws (`docs/FORMAT.md`, "Segment challenges").
//!
//! The draw is a function of the head, the nonce and the number of segments, so
//! that it can be made again by anybody and chosen by nobody: the trainer fixed
//! the head before the reviewer named the nonce.

use std::collections::BTreeMap;

use schemas::challenge::{MAX_NONCE_BYTES, MIN_NONCE_BYTES};
use schemas::digest::decode_hex;
use sha2::{Digest as _, Sha256};

/// Keeps these draws apart from everything else that is drawn.
const DOMAIN: &[u8] = b"governed-ledger challenge/1\0";

/// Bytes of a word of the stream.
const WORD_BYTES: usize = 8;

/// The bytes of a nonce.
///
/// # Errors
/// In words, when it is not lower-case hex of 16 to 64 bytes.
pub fn parse_nonce(text: &str) -> Result<Vec<u8>, String> {
    let bytes = decode_hex(text).ok_or_else(|| format!("{text:?} is not lower-case hex"))?;
    if (MIN_NONCE_BYTES..=MAX_NONCE_BYTES).contains(&bytes.len()) {
        return Ok(bytes);
    }
    Err(format!("a nonce has {MIN_NONCE_BYTES} to {MAX_NONCE_BYTES} bytes, this one has {}", bytes.len()))
}

/// Words that follow from a head and a nonce.
struct Stream {
    block: [u8; 32],
    next_block: u64,
    /// Of `block`, how many words were taken.
    num_taken: usize,
    seed: [u8; 32],
}

impl Stream {
    fn new(root: &[u8; 32], size: u64, nonce: &[u8]) -> Self {
        let mut hasher = Sha256::new();
        hasher.update(DOMAIN);
        hasher.update(root);
        hasher.update(size.to_le_bytes());
        hasher.update((nonce.len() as u64).to_le_bytes());
        hasher.update(nonce);
        let seed = hasher.finalize().into();
        Self { block: [0; 32], next_block: 0, num_taken: 32 / WORD_BYTES, seed }
    }

    fn word(&mut self) -> u64 {
        if self.num_taken >= 32 / WORD_BYTES {
            let mut hasher = Sha256::new();
            hasher.update(self.seed);
            hasher.update(self.next_block.to_le_bytes());
            self.block = hasher.finalize().into();
            self.next_block += 1;
            self.num_taken = 0;
        }
        let mut word = [0; WORD_BYTES];
        let start = self.num_taken * WORD_BYTES;
        word.copy_from_slice(&self.block[start..start + WORD_BYTES]);
        self.num_taken += 1;
        u64::from_le_bytes(word)
    }

    /// A number below `bound`, each with the same chance: words above the last
    /// multiple of it are passed over.
    fn below(&mut self, bound: u64) -> u64 {
        let excess = (u64::MAX % bound + 1) % bound;
        loop {
            let word = self.word();
            if word <= u64::MAX - excess {
                return word % bound;
            }
        }
    }
}

/// Draws `num_drawn` of `num_segments` segments, none twice, in the order of
/// the draw. Fewer of one nonce are the first of more.
#[must_use]
pub fn draw(root: &[u8; 32], size: u64, nonce: &[u8], num_segments: u64, num_drawn: u64) -> Vec<u64> {
    let mut stream = Stream::new(root, size, nonce);
    // What shuffling the list from its front on has moved, where it is not the
    // number of the place itself.
    let mut moved: BTreeMap<u64, u64> = BTreeMap::new();
    let mut drawn = Vec::new();
    for place in 0..num_drawn.min(num_segments) {
        let other = place + stream.below(num_segments - place);
        let chosen = moved.get(&other).copied().unwrap_or(other);
        let here = moved.get(&place).copied().unwrap_or(place);
        moved.insert(other, here);
        drawn.push(chosen);
    }
    drawn
}

/// The chance that a draw of `num_drawn` of `num_segments` meets at least one of
/// `num_forged`: one minus the product over the draws of meeting an honest one.
#[must_use]
#[allow(
    clippy::cast_precision_loss,
    reason = "a chance that is printed; runs have far fewer segments than 2^53"
)]
pub fn detection(num_segments: u64, num_forged: u64, num_drawn: u64) -> f64 {
    let num_honest = num_segments.saturating_sub(num_forged);
    let mut missed = 1.0;
    for place in 0..num_drawn.min(num_segments) {
        if place >= num_honest {
            return 1.0;
        }
        missed *= (num_honest - place) as f64 / (num_segments - place) as f64;
    }
    1.0 - missed
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use schemas::digest::encode_hex;

    use super::*;

    #[test]
    fn a_draw_is_what_the_format_page_says() {
        // Computed by another program (Python's hashlib) from the page.
        let expected = EXPECTED;
        assert_eq!(draw(&[7; 32], 1234, &[9; 32], 10, 4), expected);
        assert_eq!(draw(&[7; 32], 1234, &[9; 32], 10, 2), expected[..2]);
        assert_eq!(encode_hex(&Stream::new(&[7; 32], 1234, &[9; 32]).seed), EXPECTED_SEED);
    }

    const EXPECTED: [u64; 4] = [1, 4, 3, 8];
    const EXPECTED_SEED: &str = "b1235c5de54ac97726d485b4f4d9cdf214ab95ece13f8266dfa62aed5bb5393a";

    #[test]
    fn everything_that_it_is_bound_to_changes_it() {
        let all: BTreeSet<Vec<u64>> = [
            draw(&[7; 32], 1234, &[9; 32], 1 << 40, 4),
            draw(&[8; 32], 1234, &[9; 32], 1 << 40, 4),
            draw(&[7; 32], 1235, &[9; 32], 1 << 40, 4),
            draw(&[7; 32], 1234, &[9; 31], 1 << 40, 4),
            draw(&[7; 32], 1234, &[8; 32], 1 << 40, 4),
        ]
        .into();
        assert_eq!(all.len(), 5);
    }

    #[test]
    fn no_segment_is_drawn_twice_and_every_one_in_the_end() {
        for nonce in 0..50u8 {
            let drawn = draw(&[1; 32], 5, &[nonce; 16], 13, 99);
            let set: BTreeSet<u64> = drawn.iter().copied().collect();
            assert_eq!((drawn.len(), set), (13, (0..13).collect()));
        }
        assert_eq!(draw(&[1; 32], 5, &[0; 16], 1, 1), [0]);
        assert_eq!(draw(&[1; 32], 5, &[0; 16], 0, 1), [0u64; 0]);
    }

    #[test]
    fn every_segment_is_drawn_as_often_as_the_printed_chance_says() {
        const NUM_NONCES: u32 = 20_000;
        let (num_segments, num_drawn) = (12, 3);
        for forged in [vec![0], vec![3, 4], vec![1, 5, 11, 7]] {
            let mut num_met = 0u32;
            for nonce in 0..NUM_NONCES {
                let mut bytes = [0; 16];
                bytes[..4].copy_from_slice(&nonce.to_le_bytes());
                let drawn = draw(&[3; 32], 77, &bytes, num_segments, num_drawn);
                num_met += u32::from(drawn.iter().any(|one| forged.contains(one)));
            }
            let expected = detection(num_segments, forged.len() as u64, num_drawn);
            let deviation = (expected * (1.0 - expected) / f64::from(NUM_NONCES)).sqrt();
            let measured = f64::from(num_met) / f64::from(NUM_NONCES);
            assert!((measured - expected).abs() < 4.0 * deviation, "{forged:?}: {measured} and {expected}");
        }
    }

    #[test]
    fn the_chance_is_hypergeometric() {
        let near = |actual: f64, expected: f64| assert!((actual - expected).abs() < 1e-12, "{actual}");
        near(detection(10, 1, 3), 0.3);
        // 1 - C(8, 3) / C(10, 3) = 1 - 56 / 120.
        near(detection(10, 2, 3), 1.0 - 56.0 / 120.0);
        near(detection(10, 0, 3), 0.0);
        near(detection(10, 8, 3), 1.0);
        near(detection(10, 3, 0), 0.0);
        near(detection(10, 99, 1), 1.0);
    }

    #[test]
    fn a_nonce_has_one_spelling_and_enough_bytes() {
        assert_eq!(parse_nonce(&"ab".repeat(16)), Ok(vec![0xab; 16]));
        for text in ["", "zz", &"AB".repeat(16), &"ab".repeat(15), &"ab".repeat(65)] {
            assert!(parse_nonce(text).is_err(), "{text}");
        }
    }
}
