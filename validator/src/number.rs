//! How a binary64 is spelled in canonical JSON, in both dialects.
//!
//! The shortest digits come from the standard library's formatter (Grisu with
//! a Dragon fallback), which is not the one that the writer's JSON library
//! uses, so that the two check each other.

use std::fmt::Write;

/// Longest spelling of a binary64 in either dialect: sign, 17 digits, zeros up
/// to the 21st place, point, exponent.
const MAX_SPELLING: usize = 40;

/// A short text on the stack.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Spelling {
    bytes: [u8; MAX_SPELLING],
    len: usize,
}

impl Spelling {
    const fn new() -> Self {
        Self { bytes: [0; MAX_SPELLING], len: 0 }
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    fn push(&mut self, byte: u8) {
        if self.len < MAX_SPELLING {
            self.bytes[self.len] = byte;
            self.len += 1;
        }
    }

    fn extend(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.push(byte);
        }
    }

    fn zeros(&mut self, count: i32) {
        for _ in 0..count {
            self.push(b'0');
        }
    }
}

impl Write for Spelling {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        self.extend(text.as_bytes());
        Ok(())
    }
}

/// The value `0.DIGITS x 10^point`, without leading or trailing zeros; no
/// digits for zero.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Decimal {
    pub(crate) negative: bool,
    digits: [u8; Decimal::MAX_DIGITS],
    num_digits: usize,
    pub(crate) point: i32,
}

impl Decimal {
    /// A binary64 needs at most 17; more are not canonical.
    pub(crate) const MAX_DIGITS: usize = 17;

    pub(crate) fn digits(&self) -> &[u8] {
        &self.digits[..self.num_digits]
    }

    /// Reads a JSON number that [`crate::canonical`] found to be grammatical.
    /// `None` when it has more than 17 significant digits or an exponent that
    /// no binary64 needs.
    pub(crate) fn parse(text: &[u8]) -> Option<Self> {
        let (negative, text) = match text {
            [b'-', rest @ ..] => (true, rest),
            _ => (false, text),
        };
        let split = text.iter().position(|byte| matches!(byte, b'e' | b'E')).unwrap_or(text.len());
        let exponent = parse_exponent(text.get(split + 1..).unwrap_or_default())?;
        let mut decimal = Self { negative, digits: [0; Self::MAX_DIGITS], num_digits: 0, point: 0 };
        // Place of the point relative to the first significant digit.
        let mut integer_digits = 0i32;
        let mut leading_zeros = 0i32;
        let mut pending_zeros = 0usize;
        let mut after_point = false;
        for &byte in &text[..split] {
            if byte == b'.' {
                after_point = true;
                continue;
            }
            let significant = decimal.num_digits > 0 || byte != b'0';
            if significant && !after_point {
                integer_digits = integer_digits.checked_add(1)?;
            } else if !significant && after_point {
                leading_zeros = leading_zeros.checked_add(1)?;
            }
            if !significant {
                continue;
            }
            if byte == b'0' {
                pending_zeros += 1;
                continue;
            }
            if decimal.num_digits + pending_zeros >= Self::MAX_DIGITS {
                return None;
            }
            for _ in 0..pending_zeros {
                decimal.digits[decimal.num_digits] = b'0';
                decimal.num_digits += 1;
            }
            pending_zeros = 0;
            decimal.digits[decimal.num_digits] = byte;
            decimal.num_digits += 1;
        }
        decimal.point = (integer_digits - leading_zeros).checked_add(exponent)?;
        if decimal.num_digits == 0 {
            decimal.point = 0;
        }
        Some(decimal)
    }

    /// The shortest digits of a finite binary64; of two that are equally close,
    /// the even one, as ECMAScript chooses.
    pub(crate) fn shortest(value: f64) -> Self {
        let mut text = Spelling::new();
        // Writing to a fixed buffer of sufficient length cannot fail.
        let _ = write!(text, "{value:e}");
        let zero = Self { negative: value.is_sign_negative(), digits: [0; 17], num_digits: 0, point: 0 };
        let mut decimal = Self::parse(text.as_bytes()).unwrap_or(zero);
        decimal.prefer_even(value);
        decimal
    }

    /// The standard library does not say which of two equally close candidates
    /// it gives. Doubles that were widened from f32 often have two.
    fn prefer_even(&mut self, value: f64) {
        let Some(&last) = self.digits().last() else { return };
        if last % 2 == 0 {
            return;
        }
        let integer = self.digits().iter().fold(0u64, |sum, digit| sum * 10 + u64::from(digit - b'0'));
        let exponent = self.point - self.count();
        let neighbour = if is_midpoint(value, 2 * integer - 1, exponent) {
            last - 1
        } else if is_midpoint(value, 2 * integer + 1, exponent) {
            last + 1
        } else {
            return;
        };
        // A neighbour that ends in 0 would be shorter, which the library had found.
        if neighbour > b'9' || neighbour == b'0' {
            return;
        }
        let mut even = *self;
        even.digits[self.num_digits - 1] = neighbour;
        // Below a power of two the interval is not symmetric.
        let text = even.spell_entry();
        let reads_back = std::str::from_utf8(text.as_bytes()).ok().and_then(|text| text.parse::<f64>().ok());
        if reads_back.map(f64::to_bits) == Some(value.to_bits()) {
            *self = even;
        }
    }

    /// Spelling of a float in entry JSON: always with `.` or `e`.
    pub(crate) fn spell_entry(&self) -> Spelling {
        let mut out = self.sign();
        let num_digits = self.count();
        if num_digits == 0 {
            out.extend(b"0.0");
        } else if num_digits <= self.point && self.point <= 16 {
            out.extend(self.digits());
            out.zeros(self.point - num_digits);
            out.extend(b".0");
        } else if 0 < self.point && self.point <= 16 {
            self.with_inner_point(&mut out);
        } else if -5 < self.point && self.point <= 0 {
            self.below_one(&mut out);
        } else {
            self.scientific(&mut out, false);
        }
        out
    }

    /// Spelling of a number in contract JSON: that of ECMAScript's
    /// `Number::toString` (ECMA-262, 6.1.6.1.20), which RFC 8785 prescribes.
    pub(crate) fn spell_contract(&self) -> Spelling {
        let num_digits = self.count();
        if num_digits == 0 {
            let mut out = Spelling::new();
            out.push(b'0');
            return out;
        }
        let mut out = self.sign();
        if num_digits <= self.point && self.point <= 21 {
            out.extend(self.digits());
            out.zeros(self.point - num_digits);
        } else if 0 < self.point && self.point <= 21 {
            self.with_inner_point(&mut out);
        } else if -6 < self.point && self.point <= 0 {
            self.below_one(&mut out);
        } else {
            self.scientific(&mut out, true);
        }
        out
    }

    fn count(&self) -> i32 {
        i32::try_from(self.num_digits).unwrap_or(i32::MAX)
    }

    fn sign(&self) -> Spelling {
        let mut out = Spelling::new();
        if self.negative {
            out.push(b'-');
        }
        out
    }

    fn with_inner_point(&self, out: &mut Spelling) {
        let (before, after) = self.digits().split_at(usize::try_from(self.point).unwrap_or(0));
        out.extend(before);
        out.push(b'.');
        out.extend(after);
    }

    fn below_one(&self, out: &mut Spelling) {
        out.extend(b"0.");
        out.zeros(-self.point);
        out.extend(self.digits());
    }

    fn scientific(&self, out: &mut Spelling, plus: bool) {
        let digits = self.digits();
        out.push(digits[0]);
        if digits.len() > 1 {
            out.push(b'.');
            out.extend(&digits[1..]);
        }
        out.push(b'e');
        let exponent = self.point - 1;
        if plus && exponent > 0 {
            out.push(b'+');
        }
        let _ = write!(out, "{exponent}");
    }
}

/// Whether `|value|` is exactly `odd * 5^exponent * 2^(exponent - 1)`, which is
/// the middle between two integers times `10^exponent` when `odd` is twice the
/// lower one plus one.
fn is_midpoint(value: f64, odd: u64, exponent: i32) -> bool {
    let bits = value.to_bits();
    let biased = i32::try_from((bits >> 52) & 0x7ff).unwrap_or(0);
    let fraction = bits & ((1 << 52) - 1);
    let (mantissa, binary) =
        if biased == 0 { (fraction, -1074) } else { (fraction | 1 << 52, biased - 1075) };
    if mantissa == 0 {
        return false;
    }
    let shift = mantissa.trailing_zeros();
    let mantissa = mantissa >> shift;
    if binary + i32::try_from(shift).unwrap_or(0) != exponent - 1 {
        return false;
    }
    // Both sides are odd now; a power that overflows is larger than the other side.
    let power = 5u128.checked_pow(exponent.unsigned_abs());
    let (left, right) = if exponent < 0 {
        (power.and_then(|power| power.checked_mul(u128::from(mantissa))), Some(u128::from(odd)))
    } else {
        (Some(u128::from(mantissa)), power.and_then(|power| power.checked_mul(u128::from(odd))))
    };
    left.is_some() && left == right
}

/// Reads `[+-]?[0-9]*`, bounded so that sums of it cannot overflow.
fn parse_exponent(text: &[u8]) -> Option<i32> {
    let (negative, digits) = match text {
        [b'-', rest @ ..] => (true, rest),
        [b'+', rest @ ..] => (false, rest),
        _ => (false, text),
    };
    let mut value = 0i32;
    for &byte in digits {
        value = value * 10 + i32::from(byte - b'0');
        if value > 9_999 {
            return None;
        }
    }
    Some(if negative { -value } else { value })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(value: f64, entry: &str, contract: &str) {
        let decimal = Decimal::shortest(value);
        assert_eq!(decimal.spell_entry().as_bytes(), entry.as_bytes(), "{value:e} in an entry");
        assert_eq!(decimal.spell_contract().as_bytes(), contract.as_bytes(), "{value:e} in a contract");
    }

    #[test]
    fn spellings_of_both_dialects() {
        check(0.0, "0.0", "0");
        check(-0.0, "-0.0", "0");
        check(1.0, "1.0", "1");
        check(-1.5, "-1.5", "-1.5");
        check(0.001, "0.001", "0.001");
        check(1e-5, "0.00001", "0.00001");
        check(1e-6, "1e-6", "0.000001");
        check(1.25e-7, "1.25e-7", "1.25e-7");
        check(1e15, "1000000000000000.0", "1000000000000000");
        check(1e16, "1e16", "10000000000000000");
        check(123_456_789_012_345_680.0, "1.2345678901234568e17", "123456789012345680");
        check(1e21, "1e21", "1e+21");
        check(5e-324, "5e-324", "5e-324");
        check(f64::MAX, "1.7976931348623157e308", "1.7976931348623157e+308");
        check(f64::from(0.1f32), "0.10000000149011612", "0.10000000149011612");
        // Exactly between ...812 and ...813: the even one.
        check(f64::from(879.126_3f32), "879.1262817382812", "879.1262817382812");
    }

    #[test]
    fn shortest_digits_agree_with_another_library_on_many_doubles() {
        let mut state = 0x9e37_79b9_7f4a_7c15u64;
        for round in 0..200_000u32 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let bits = state ^ (state >> 29);
            let value = if round % 2 == 0 {
                f64::from_bits(bits)
            } else {
                f64::from(f32::from_bits((bits >> 32) as u32))
            };
            if value.is_finite() {
                // serde_json uses another algorithm and writes a `+` in exponents.
                let text = serde_json::to_string(&value).expect("a finite double").replace("e+", "e");
                assert_eq!(Decimal::shortest(value).spell_entry().as_bytes(), text.as_bytes());
            }
        }
    }
}
