//! Philox4x32-10, the counter-based generator behind every random value
//! (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3",
//! SC 2011). A draw is a function of key and counter; there is no state.

use sha2::{Digest as _, Sha256};

/// First multiplier of the paper's Philox4x32.
const MULTIPLIER_0: u32 = 0xD251_1F53;
/// Second multiplier of the paper's Philox4x32.
const MULTIPLIER_1: u32 = 0xCD9E_8D57;
/// Key increment: the golden ratio in 32 bits.
const WEYL_0: u32 = 0x9E37_79B9;
/// Key increment: sqrt(3) - 1 in 32 bits.
const WEYL_1: u32 = 0xBB67_AE85;
/// Rounds; the paper's recommended number.
const NUM_ROUNDS: usize = 10;

/// Key of a purpose: the first 8 bytes of
/// `SHA-256("governed-ledger draw/1\0" || purpose || 0x00 || seed)`.
#[must_use]
pub fn draw_key(purpose: &str, seed: u64) -> [u32; 2] {
    let mut hasher = Sha256::new();
    hasher.update(b"governed-ledger draw/1\0");
    hasher.update(purpose.as_bytes());
    hasher.update([0]);
    hasher.update(seed.to_le_bytes());
    let digest = hasher.finalize();
    let word = |at: usize| u32::from_le_bytes([digest[at], digest[at + 1], digest[at + 2], digest[at + 3]]);
    [word(0), word(4)]
}

/// The four output words for one counter.
#[must_use]
pub fn philox4x32_10(counter: [u32; 4], key: [u32; 2]) -> [u32; 4] {
    let [mut c0, mut c1, mut c2, mut c3] = counter;
    let [mut k0, mut k1] = key;
    for _ in 0..NUM_ROUNDS {
        let (high_0, low_0) = multiply(MULTIPLIER_0, c0);
        let (high_1, low_1) = multiply(MULTIPLIER_1, c2);
        (c0, c1, c2, c3) = (high_1 ^ c1 ^ k0, low_1, high_0 ^ c3 ^ k1, low_0);
        k0 = k0.wrapping_add(WEYL_0);
        k1 = k1.wrapping_add(WEYL_1);
    }
    [c0, c1, c2, c3]
}

/// High and low half of the 64-bit product.
#[allow(clippy::cast_possible_truncation, reason = "the two halves of a 64-bit product")]
fn multiply(left: u32, right: u32) -> (u32, u32) {
    let product = u64::from(left) * u64::from(right);
    ((product >> 32) as u32, product as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(counter: [u32; 4], key: [u32; 2], expected: [u32; 4]) {
        assert_eq!(philox4x32_10(counter, key), expected);
    }

    /// The known-answer vectors of Random123 1.09 (`kat_vectors`, philox4x32 10).
    #[test]
    fn known_answers_of_random123() {
        check([0; 4], [0; 2], [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        check([u32::MAX; 4], [u32::MAX; 2], [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]);
        check(
            [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344],
            [0xa409_3822, 0x299f_31d0],
            [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1],
        );
    }

    #[test]
    fn purposes_and_seeds_have_their_own_keys() {
        let key = draw_key("dropout", 1);
        assert_ne!(key, draw_key("dropout", 2));
        assert_ne!(key, draw_key("init:dropout", 1));
    }
}
