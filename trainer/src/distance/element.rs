//! Elements of tensors as numbers, by dtype.

/// Value of an element, and the place of its bits in the order of the numbers
/// that they stand for; no place where elements are equal or not.
pub(super) type Element = (f64, Option<u64>);

/// Reads one element from its little-endian bytes.
type Read = fn(&[u8]) -> Element;

/// Size of an element in bytes and how it is read; `None` for a dtype that is
/// not known.
pub(super) fn reader(dtype: &str) -> Option<(usize, Read)> {
    Some(match dtype {
        "F64" => (8, |bytes| {
            let bits = u64::from_le_bytes(fixed(bytes));
            (f64::from_bits(bits), Some(ordered_64(bits)))
        }),
        "F32" => (4, |bytes| {
            let bits = u32::from_le_bytes(fixed(bytes));
            (f64::from(f32::from_bits(bits)), Some(ordered_32(bits)))
        }),
        "BF16" => (2, |bytes| {
            let bits = u16::from_le_bytes(fixed(bytes));
            (f64::from(f32::from_bits(u32::from(bits) << 16)), Some(ordered_16(bits)))
        }),
        "F16" => (2, |bytes| {
            let bits = u16::from_le_bytes(fixed(bytes));
            (half(bits), Some(ordered_16(bits)))
        }),
        "I64" => (8, |bytes| integer(i64::from_le_bytes(fixed(bytes)).into())),
        "U64" => (8, |bytes| integer(u64::from_le_bytes(fixed(bytes)).into())),
        "I32" => (4, |bytes| integer(i32::from_le_bytes(fixed(bytes)).into())),
        "U32" => (4, |bytes| integer(u32::from_le_bytes(fixed(bytes)).into())),
        "U8" | "BOOL" => (1, |bytes| integer(u8::from_le_bytes(fixed(bytes)).into())),
        _ => return None,
    })
}

/// The bytes as an array; zeros where there are too few.
fn fixed<const N: usize>(bytes: &[u8]) -> [u8; N] {
    bytes.try_into().unwrap_or([0; N])
}

#[allow(clippy::cast_precision_loss, reason = "an integer is shown, not computed with")]
const fn integer(value: i128) -> Element {
    (value as f64, None)
}

/// Bits in the order of the numbers that they stand for.
const fn ordered_16(bits: u16) -> u64 {
    (if bits >> 15 == 1 { !bits } else { bits | 1 << 15 }) as u64
}

const fn ordered_32(bits: u32) -> u64 {
    (if bits >> 31 == 1 { !bits } else { bits | 1 << 31 }) as u64
}

pub(super) const fn ordered_64(bits: u64) -> u64 {
    if bits >> 63 == 1 { !bits } else { bits | 1 << 63 }
}

/// The value of an IEEE 754 binary16.
pub(super) fn half(bits: u16) -> f64 {
    let fraction = f64::from(bits & 0x3ff);
    let magnitude = match bits >> 10 & 0x1f {
        0 => fraction * f64::powi(2.0, -24),
        31 if bits & 0x3ff == 0 => f64::INFINITY,
        31 => f64::NAN,
        exponent => (1024.0 + fraction) * f64::powi(2.0, i32::from(exponent) - 25),
    };
    if bits >> 15 == 1 { -magnitude } else { magnitude }
}
