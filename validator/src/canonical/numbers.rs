//! Which spellings of a number are canonical.
//!
//! The spelling of a double is derived in `crate::number`; here it is compared
//! with what is stored, by the cheapest test that decides.

use crate::number::Decimal;

/// Which of the two canonical forms.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Dialect {
    Entry,
    Contract,
}

/// The value of `0` or `-?[1-9][0-9]*` up to 2^53.
pub(crate) fn read_integer(text: &[u8]) -> Result<i64, &'static str> {
    let digits = text.strip_prefix(b"-").unwrap_or(text);
    match digits {
        [] => return Err("not a number"),
        [b'0'] if digits.len() == text.len() => return Ok(0),
        [b'0', ..] => return Err("an integer with a leading zero, or minus zero"),
        // 2^53 has 16 digits, so the sum below cannot overflow.
        _ if digits.len() > 16 => return Err("an integer beyond 2^53"),
        _ => {}
    }
    let mut value = 0u64;
    for byte in digits {
        if !byte.is_ascii_digit() {
            return Err("not a number");
        }
        value = value * 10 + u64::from(byte - b'0');
    }
    if value > schemas::MAX_JSON_INTEGER {
        return Err("an integer beyond 2^53");
    }
    let value = value.cast_signed();
    Ok(if digits.len() == text.len() { value } else { -value })
}

/// The number grammar of RFC 8259, section 6.
fn is_grammatical(text: &[u8]) -> bool {
    let digits = |text: &[u8]| text.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let mut rest = text.strip_prefix(b"-").unwrap_or(text);
    let integer = digits(rest);
    if integer == 0 || (integer > 1 && rest[0] == b'0') {
        return false;
    }
    rest = &rest[integer..];
    if let Some(fraction) = rest.strip_prefix(b".") {
        let count = digits(fraction);
        if count == 0 {
            return false;
        }
        rest = &fraction[count..];
    }
    if let [b'e' | b'E', exponent @ ..] = rest {
        let exponent =
            exponent.strip_prefix(b"+").or_else(|| exponent.strip_prefix(b"-")).unwrap_or(exponent);
        let count = digits(exponent);
        if count == 0 {
            return false;
        }
        rest = &exponent[count..];
    }
    rest.is_empty()
}

/// A float in fixed notation, of the form that entries have for its size:
/// `digits * 10^-num_decimals`. Two texts of that form differ in one of these.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Fixed {
    negative: bool,
    digits: u64,
    num_decimals: usize,
}

impl Fixed {
    /// `None` for any other notation or form, and for more than 17 digits.
    fn parse(text: &[u8]) -> Option<Self> {
        let token = Token::read(text);
        if token.length == text.len() { token.fixed(text) } else { None }
    }

    /// The double that it means, where it has at most 15 digits. Such decimals are
    /// read to distinct doubles in the normal range (15 = DBL_DIG), so no shorter
    /// one means the same. The digits and the power of ten are doubles, so their
    /// quotient is rounded once.
    #[inline]
    fn short(&self) -> Option<f64> {
        if self.digits >= POWERS_OF_TEN[15] {
            return None;
        }
        let value = self.digits as f64 / *POWERS_OF_TEN.get(self.num_decimals)? as f64;
        Some(if self.negative { -value } else { value })
    }

    /// The double that it means, where it is seen that no shorter decimal means
    /// the same and no other of its length is closer. `None` says nothing.
    fn shortest(&self, text: &[u8]) -> Option<f64> {
        let value = parse(text)?;
        let (mantissa, num_halvings) = significand(value)?;
        // In units of 2^-halvings * 10^-decimals: the double, what is written, and
        // half the distance from the double to its neighbours.
        let power = u128::from(*POWERS_OF_TEN.get(self.num_decimals)?);
        let exact = u128::from(mantissa) * power;
        let distance = |digits: u64| {
            let digits = u128::from(digits);
            let is_in_range = digits.leading_zeros() > num_halvings + 1;
            is_in_range.then(|| 2 * (digits << num_halvings).abs_diff(exact))
        };
        let shorter = self.digits / 10 * 10;
        let is_closest = distance(self.digits)? < 1u128.checked_shl(num_halvings)?;
        let is_shortest = distance(shorter)? > power && distance(shorter + 10)? > power;
        (is_closest && is_shortest).then_some(value)
    }
}

/// The double that a float of an entry means, where exact arithmetic shows that
/// it is spelled canonically.
pub(super) fn read_fixed(text: &[u8]) -> Option<f64> {
    Fixed::parse(text)?.shortest(text)
}

/// The digits with at most one point that bytes begin with.
struct Token {
    negative: bool,
    /// Of all digits, where these are at most 19.
    digits: u64,
    /// Index of the point.
    point: Option<usize>,
    length: usize,
}

impl Token {
    #[inline]
    fn read(bytes: &[u8]) -> Self {
        let negative = bytes.first() == Some(&b'-');
        let first = usize::from(negative);
        let (mut digits, mut point, mut rest) = (0u64, None, bytes.get(first..).unwrap_or_default());
        while let Some((byte, behind)) = rest.split_first() {
            let digit = byte.wrapping_sub(b'0');
            if digit <= 9 {
                digits = digits.wrapping_mul(10).wrapping_add(u64::from(digit));
            } else if *byte == b'.' && point.is_none() {
                point = Some(bytes.len() - rest.len());
                // The decimals of most floats are eight digits and more.
                rest = behind;
                while let Some((eight, behind)) = rest.split_first_chunk()
                    && let Some(value) = eight_digits(*eight)
                {
                    digits = digits.wrapping_mul(POWERS_OF_TEN[8]).wrapping_add(value);
                    rest = behind;
                }
                continue;
            } else {
                break;
            }
            rest = behind;
        }
        let length = bytes.len() - rest.len();
        Self { negative, digits, point, length }
    }

    /// As a float of the form that entries have for its size; `text` is what was
    /// read.
    #[inline]
    fn fixed(&self, text: &[u8]) -> Option<Fixed> {
        let point = self.point?;
        let first = usize::from(self.negative);
        let (num_integer_digits, num_decimals) = (point - first, self.length - point - 1);
        let is_whole = num_decimals == 1 && text.get(point + 1) == Some(&b'0');
        // Decimals do not end in zero, unless it is alone.
        let ends_well = num_decimals > 0 && (is_whole || text.get(self.length - 1) != Some(&b'0'));
        // Zero has no other form. Below one: `0.` and at most four zeros, which do
        // not count as digits; from one on no zero leads.
        let is_formed = if text.get(first) == Some(&b'0') {
            let least = POWERS_OF_TEN.get(num_decimals.saturating_sub(5));
            let is_large_enough = least.is_some_and(|least| self.digits >= *least);
            num_integer_digits == 1
                && num_decimals <= 19
                && (is_large_enough || (self.digits == 0 && is_whole))
        } else {
            (1..=16).contains(&num_integer_digits) && num_integer_digits + num_decimals <= 17
        };
        let is_short = self.digits < POWERS_OF_TEN[17];
        let Self { negative, digits, .. } = *self;
        (is_formed && ends_well && is_short).then_some(Fixed { negative, digits, num_decimals })
    }

    fn integer(&self, text: &[u8]) -> Option<i64> {
        let first = usize::from(self.negative);
        let num_digits = self.length - first;
        let is_formed = text.get(first) != Some(&b'0') || self.length == 1;
        let is_small = (1..=16).contains(&num_digits) && self.digits <= schemas::MAX_JSON_INTEGER;
        // Not before: the digits may have wrapped to a number without a negative.
        (is_formed && is_small).then(|| {
            let value = self.digits.cast_signed();
            if self.negative { -value } else { value }
        })
    }
}

/// A number with its one meaning.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Number {
    Integer(i64),
    Float(f64),
}

/// The value of eight digits, most significant first; `None` where one is none.
/// The digits are added up in pairs, then pairs of pairs, within one word.
#[inline]
pub(super) fn eight_digits(text: [u8; 8]) -> Option<u64> {
    const ONES: u64 = 0x0101_0101_0101_0101;
    let word = u64::from_le_bytes(text);
    let values = word.wrapping_sub(ONES * 0x30);
    // A byte below `0` borrows, one above `9` carries into the top bit.
    if (values | values.wrapping_add(ONES * 0x76)) & (ONES * 0x80) != 0 {
        return None;
    }
    let pairs = (values.wrapping_mul(1 + (10 << 8)) >> 8) & 0x00ff_00ff_00ff_00ff;
    let fours = (pairs.wrapping_mul(1 + (100 << 16)) >> 16) & 0x0000_ffff_0000_ffff;
    Some(fours.wrapping_mul(1 + (10_000 << 32)) >> 32)
}

/// What bytes of an entry begin with, as far as a look at its characters tells.
enum Begun {
    /// A number that a short computation shows to be canonical, as most are.
    Short(Number),
    /// A float of the right form, of which more has to be computed.
    Long(Fixed),
}

/// What the bytes begin with and its length; `None` says nothing.
#[inline]
fn begin(bytes: &[u8]) -> Option<(Begun, usize)> {
    let token = Token::read(bytes);
    // An exponent follows, or something that is not a number.
    if matches!(bytes.get(token.length), Some(b'e' | b'E' | b'+' | b'-' | b'.')) {
        return None;
    }
    let begun = match token.point {
        Some(_) => {
            let fixed = token.fixed(bytes)?;
            fixed.short().map_or(Begun::Long(fixed), |value| Begun::Short(Number::Float(value)))
        }
        None => Begun::Short(Number::Integer(token.integer(bytes)?)),
    };
    Some((begun, token.length))
}

/// The number that bytes of an entry begin with and its length, where a short
/// computation shows that it is canonical.
#[cfg(test)]
pub(crate) fn read_quickly(bytes: &[u8]) -> Option<(Number, usize)> {
    match begin(bytes)? {
        (Begun::Short(number), length) => Some((number, length)),
        (Begun::Long(_), _) => None,
    }
}

/// Powers of ten that 64 bits hold; all are doubles too.
const POWERS_OF_TEN: [u64; 20] = {
    let mut powers = [1; 20];
    let mut at = 1;
    while at < 20 {
        powers[at] = powers[at - 1] * 10;
        at += 1;
    }
    powers
};

/// The magnitude of a normal double as an integer and how often to halve it;
/// `None` where its distances to its neighbours differ, and for large values.
fn significand(value: f64) -> Option<(u64, u32)> {
    const FRACTION_BITS: u32 = 52;
    let bits = value.to_bits();
    let biased = (bits >> FRACTION_BITS) & 0x7ff;
    let fraction = bits & ((1 << FRACTION_BITS) - 1);
    if biased == 0 || fraction == 0 {
        return None;
    }
    let num_halvings = u32::try_from(1075u64.checked_sub(biased)?).ok()?;
    Some((fraction | 1 << FRACTION_BITS, num_halvings))
}

/// The double that a float means, where it is spelled as its dialect spells that.
pub(super) fn read_float(text: &[u8], dialect: Dialect) -> Result<f64, &'static str> {
    if !is_grammatical(text) {
        return Err("not a number");
    }
    let spell = |decimal: &Decimal| match dialect {
        Dialect::Entry => decimal.spell_entry(),
        Dialect::Contract => decimal.spell_contract(),
    };
    if let Some(value) = parse(text).filter(|value| value.is_finite())
        && spell(&Decimal::shortest(value)).as_bytes() == text
    {
        return Ok(value);
    }
    // What is wrong: the digits, or only how they are written.
    let decimal = Decimal::parse(text).ok_or("more digits than a binary64 has")?;
    if spell(&decimal).as_bytes() == text {
        Err("a number does not have the shortest digits")
    } else {
        Err("a number is not spelled canonically")
    }
}

fn parse(text: &[u8]) -> Option<f64> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

/// Judges floats, and remembers a few spellings that it found canonical: rates
/// and decays repeat from group to group and from step to step.
pub(crate) struct Floats {
    dialect: Dialect,
    slots: [Option<CachedFloat>; Floats::NUM_SLOTS],
    /// The same for those of fixed notation.
    fixed: [Option<(Fixed, f64)>; Floats::NUM_SLOTS],
}

#[derive(Clone, Copy)]
struct CachedFloat {
    text: [u8; CachedFloat::MAX_LEN],
    len: usize,
    value: f64,
}

impl CachedFloat {
    /// Sign, 17 digits, point, and an exponent of three digits.
    const MAX_LEN: usize = 24;
}

impl Floats {
    const NUM_SLOTS: usize = 8;

    pub(crate) const fn new(dialect: Dialect) -> Self {
        Self { dialect, slots: [None; Self::NUM_SLOTS], fixed: [None; Self::NUM_SLOTS] }
    }

    /// The number that bytes of an entry begin with and its length, where it is
    /// seen without writing it again that it is canonical. `None` says nothing.
    #[inline]
    pub(crate) fn read_entry_number(&mut self, bytes: &[u8]) -> Option<(Number, usize)> {
        match begin(bytes)? {
            (Begun::Short(number), length) => Some((number, length)),
            (Begun::Long(fixed), length) => {
                let text = bytes.get(..length)?;
                Some((Number::Float(self.long(fixed, text)?), length))
            }
        }
    }

    fn long(&mut self, fixed: Fixed, text: &[u8]) -> Option<f64> {
        let [low, ..] = fixed.digits.to_le_bytes();
        let slot = self.fixed.get_mut(usize::from(low) % Self::NUM_SLOTS)?;
        if let Some((known, value)) = slot
            && *known == fixed
        {
            return Some(*value);
        }
        let value = fixed.shortest(text)?;
        *slot = Some((fixed, value));
        Some(value)
    }

    /// Checks a spelling and gives the double that it means.
    pub(crate) fn read(&mut self, text: &[u8]) -> Result<f64, &'static str> {
        let is_entry = self.dialect == Dialect::Entry;
        if let Some(value) = is_entry.then(|| Fixed::parse(text)?.short()).flatten() {
            return Ok(value);
        }
        let last = text.last().copied().unwrap_or(0);
        let slot = &mut self.slots[(usize::from(last) + text.len()) % Self::NUM_SLOTS];
        if let Some(cached) = slot
            && &cached.text[..cached.len] == text
        {
            return Ok(cached.value);
        }
        let value = match is_entry.then(|| read_fixed(text)).flatten() {
            Some(value) => value,
            None => read_float(text, self.dialect)?,
        };
        if text.len() <= CachedFloat::MAX_LEN {
            let mut cached = CachedFloat { text: [0; CachedFloat::MAX_LEN], len: text.len(), value };
            cached.text[..text.len()].copy_from_slice(text);
            *slot = Some(cached);
        }
        Ok(value)
    }
}
