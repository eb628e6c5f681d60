//! Initial values of parameters, from seed and path alone
//! (`docs/FORMAT.md`, "Initial values").
//!
//! `ln`, `sin`, `cos` and `sqrt` come from the `libm` crate: those of the
//! platform differ in the last bit, and with fused multiply-add.

use std::f64::consts::PI;

use schemas::parameters::Initializer;

use super::philox::{draw_key, philox4x32_10};

/// Elements of one Philox block.
const BLOCK_ELEMENTS: usize = 4;

/// The initial values of one parameter, with random access by block.
#[derive(Debug, Clone, Copy)]
pub enum InitialValues {
    /// Every element is one.
    Ones,
    /// Drawn from a normal distribution.
    Normal {
        /// Key of `init:<path>`.
        key: [u32; 2],
        /// Standard deviation.
        std: f64,
    },
}

/// An element whose bits are not the ones that seed and path give.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mismatch {
    /// Bits in the file.
    pub actual: u32,
    /// Row-major index of the element.
    pub element: u64,
    /// Bits that the contract determines.
    pub expected: u32,
}

impl InitialValues {
    /// The values of the parameter `path` under `seeds.initialization`.
    #[must_use]
    pub fn new(initializer: &Initializer, path: &str, seed: u64) -> Self {
        match initializer {
            Initializer::Ones => Self::Ones,
            Initializer::Normal { std } => {
                Self::Normal { key: draw_key(&format!("init:{path}"), seed), std: *std }
            }
        }
    }

    /// Elements `4 * block .. 4 * block + 4`.
    #[must_use]
    pub fn block(&self, block: u64) -> [f32; BLOCK_ELEMENTS] {
        match *self {
            Self::Ones => [1.0; BLOCK_ELEMENTS],
            Self::Normal { key, std } => normal_block(key, block, std),
        }
    }

    /// Compares little-endian binary32 elements that begin at `first_element`,
    /// a multiple of 4, with the determined ones; the first difference, if any.
    #[must_use]
    pub fn first_mismatch(&self, first_element: u64, bytes: &[u8]) -> Option<Mismatch> {
        let first_block = first_element / BLOCK_ELEMENTS as u64;
        for (block, chunk) in (first_block..).zip(bytes.chunks(4 * BLOCK_ELEMENTS)) {
            let values = self.block(block);
            for (lane, (element, value)) in (0u64..).zip(chunk.chunks_exact(4).zip(values)) {
                let actual = u32::from_le_bytes([element[0], element[1], element[2], element[3]]);
                if actual != value.to_bits() {
                    let element = block * BLOCK_ELEMENTS as u64 + lane;
                    return Some(Mismatch { actual, element, expected: value.to_bits() });
                }
            }
        }
        None
    }
}

/// Box and Muller's transform of the block's four words.
#[allow(
    clippy::cast_possible_truncation,
    reason = "the halves of the block index; rounding to binary32 is the rule"
)]
fn normal_block(key: [u32; 2], block: u64, std: f64) -> [f32; 4] {
    let words = philox4x32_10([block as u32, (block >> 32) as u32, 0, 0], key);
    let (a, b) = normal_pair(words[0], words[1]);
    let (c, d) = normal_pair(words[2], words[3]);
    [(a * std) as f32, (b * std) as f32, (c * std) as f32, (d * std) as f32]
}

fn normal_pair(first: u32, second: u32) -> (f64, f64) {
    let radius = libm::sqrt(-2.0 * libm::log(uniform(first)));
    let angle = 2.0 * PI * uniform(second);
    (radius * libm::cos(angle), radius * libm::sin(angle))
}

/// The middle of the word's cell in (0, 1): never 0, so that `ln` is finite.
fn uniform(word: u32) -> f64 {
    (f64::from(word) + 0.5) * 2f64.powi(-32)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Computed with Python's `hashlib` and 50-digit `mpmath` from the text of
    /// the format page, then rounded to binary32.
    #[test]
    fn values_of_the_format_page() {
        let initializer = Initializer::Normal { std: 0.02 };
        let values = InitialValues::new(&initializer, "model.embed_tokens.weight", 42);
        let bits = |block: u64| values.block(block).map(f32::to_bits);
        assert_eq!(bits(0), VECTOR_BLOCK_0);
        assert_eq!(bits(1), VECTOR_BLOCK_1);
        assert_eq!(bits((1 << 32) + 7), VECTOR_BLOCK_HIGH);
    }
    const VECTOR_BLOCK_0: [u32; 4] = [0x3c2c_7a24, 0x3d16_252b, 0x3b73_c6ca, 0xbab4_1bc9];
    const VECTOR_BLOCK_1: [u32; 4] = [0xbcd9_eddd, 0x3b99_b598, 0xbc78_a311, 0x3c39_1a24];
    const VECTOR_BLOCK_HIGH: [u32; 4] = [0x3c37_2be7, 0x3b7a_65ea, 0xbb1d_2470, 0x3c2e_bcd5];

    #[test]
    fn a_changed_element_is_found_at_its_place() {
        let values = InitialValues::new(&Initializer::Normal { std: 1.0 }, "x", 7);
        let mut bytes: Vec<u8> = (2..5).flat_map(|b| values.block(b)).flat_map(f32::to_le_bytes).collect();
        assert_eq!(values.first_mismatch(8, &bytes), None);
        bytes[4 * 5] ^= 1;
        let mismatch = values.first_mismatch(8, &bytes).expect("the flipped bit is seen");
        assert_eq!(mismatch.element, 13);
        assert_eq!(mismatch.actual ^ mismatch.expected, 1);
        let ones: Vec<u8> = [1f32; 3].into_iter().flat_map(f32::to_le_bytes).collect();
        assert_eq!(InitialValues::Ones.first_mismatch(0, &ones), None);
    }
}
