//! Whether stored binary32 numbers hold more than bfloat16 could
//! (`docs/FORMAT.md`, "Anomalies of saved state").

/// Elements that differ from the one before them and are neither zero nor a
/// power of two, before a tensor is judged at all.
const VARIED_MIN: u64 = 16;

/// Elements of one tensor, taken in pieces.
#[derive(Debug, Clone, Copy, Default)]
pub struct Mantissas {
    before: Option<[u8; 4]>,
    is_full: bool,
    num_varied: u64,
}

impl Mantissas {
    /// Takes the next elements, little-endian; whether the answer is still open.
    pub fn take(&mut self, bytes: &[u8]) -> bool {
        for element in bytes.chunks_exact(4) {
            let [a, b, c, d] = [element[0], element[1], element[2], element[3]];
            if a != 0 || b != 0 {
                self.is_full = true;
                return false;
            }
            // What is left of the 23 bits of the significand is in the third byte.
            let is_power_or_zero = c & 0x7f == 0;
            let is_other = self.before.is_some_and(|before| before != [a, b, c, d]);
            self.before = Some([a, b, c, d]);
            if is_other && !is_power_or_zero {
                self.num_varied += 1;
            }
        }
        true
    }

    /// Whether everything taken could be bfloat16, and is too much to be so by
    /// chance.
    #[must_use]
    pub const fn are_bf16_only(&self) -> bool {
        !self.is_full && self.num_varied >= VARIED_MIN
    }
}

/// Whether elements are zeros of either sign.
#[must_use]
pub fn are_zeros(bytes: &[u8]) -> bool {
    bytes.chunks(4).all(|element| match element {
        [low @ .., high] => low.iter().all(|byte| *byte == 0) && high & 0x7f == 0,
        [] => true,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(values: impl Iterator<Item = f32>) -> Mantissas {
        let bytes: Vec<u8> = values.flat_map(f32::to_le_bytes).collect();
        let mut whole = Mantissas::default();
        whole.take(&bytes);
        // In pieces it is the same.
        let mut pieces = Mantissas::default();
        bytes.chunks(12).all(|piece| pieces.take(piece));
        assert_eq!(whole.are_bf16_only(), pieces.are_bf16_only());
        whole
    }

    #[test]
    fn sixteen_varied_elements_decide() {
        let cut = |count: u16| (1..=count).map(|n| f32::from_bits(0x4000_0000 | u32::from(n) << 16));
        assert!(taken(cut(17)).are_bf16_only());
        assert!(!taken(cut(16)).are_bf16_only());
        assert!(!taken(cut(17).chain([0.1])).are_bf16_only());
        assert!(!taken(std::iter::repeat_n(1.25, 99)).are_bf16_only());
        assert!(!taken((0..99).map(|n| f32::from(n % 2 == 0))).are_bf16_only());
        assert!(!taken((0..99u8).map(|n| 0.1 * f32::from(n))).are_bf16_only());
    }

    #[test]
    fn zeros_have_two_signs() {
        let bytes = |values: &[f32]| values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<_>>();
        assert!(are_zeros(&bytes(&[0.0, -0.0])));
        assert!(!are_zeros(&bytes(&[0.0, f32::from_bits(1)])));
        assert!(!are_zeros(&bytes(&[-2.0])));
    }
}
