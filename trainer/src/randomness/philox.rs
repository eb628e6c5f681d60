//! Philox4x32-10 (Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as
//! easy as 1, 2, 3", SC 2011) and the derivation of its key.

use sha2::{Digest, Sha256};

const NUM_ROUNDS: usize = 10;
const MULTIPLIERS: [u32; 2] = [0xD251_1F53, 0xCD9E_8D57];
const WEYL: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];

/// Key of a purpose: the first eight bytes of
/// `SHA-256("governed-ledger draw/1\0" || purpose || 0x00 || seed)`.
#[must_use]
pub fn key(purpose: &str, seed: u64) -> [u32; 2] {
    let mut hasher = Sha256::new();
    hasher.update(b"governed-ledger draw/1\0");
    hasher.update(purpose.as_bytes());
    hasher.update([0]);
    hasher.update(seed.to_le_bytes());
    let digest = hasher.finalize();
    let word = |at: usize| u32::from_le_bytes([digest[at], digest[at + 1], digest[at + 2], digest[at + 3]]);
    [word(0), word(4)]
}

/// The four words at a counter.
#[must_use]
#[inline]
pub fn philox(key: [u32; 2], counter: [u32; 4]) -> [u32; 4] {
    let [mut key0, mut key1] = key;
    let [mut c0, mut c1, mut c2, mut c3] = counter;
    for _ in 0..NUM_ROUNDS {
        let (low0, high0) = wide(MULTIPLIERS[0], c0);
        let (low1, high1) = wide(MULTIPLIERS[1], c2);
        (c0, c1, c2, c3) = (high1 ^ c1 ^ key0, low1, high0 ^ c3 ^ key1, low0);
        key0 = key0.wrapping_add(WEYL[0]);
        key1 = key1.wrapping_add(WEYL[1]);
    }
    [c0, c1, c2, c3]
}

/// Low and high half of a 32 by 32 bit product.
#[inline]
#[allow(clippy::cast_possible_truncation, reason = "the two halves are meant")]
const fn wide(a: u32, b: u32) -> (u32, u32) {
    let product = a as u64 * b as u64;
    (product as u32, (product >> 32) as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Known answers of Random123's `kat_vectors` for philox4x32-10.
    #[test]
    fn known_answers() {
        assert_eq!(philox([0; 2], [0; 4]), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        assert_eq!(
            philox([u32::MAX; 2], [u32::MAX; 4]),
            [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]
        );
        assert_eq!(
            philox([0xa409_3822, 0x299f_31d0], [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344]),
            [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]
        );
    }

    #[test]
    fn key_depends_on_purpose_and_seed() {
        assert_ne!(key("dropout", 1), key("dropout", 2));
        assert_ne!(key("dropout", 1), key("init:x", 1));
    }
}
