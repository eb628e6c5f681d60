//! Records: numbers of variable length, payloads that go on in further pages,
//! and the one form that each table's and index's records have.

use super::file::{Pages, be32};
use super::{DIGEST_BYTES, IDEM_BYTES, Refused, Row};

/// Bytes of an entry, from the constraint of layout 1.
const MIN_ENTRY_BYTES: usize = 2;

/// A number of one to nine bytes, and where it ends. One that is written with
/// more bytes than it needs is refused: SQLite writes none, and does not read all
/// of them alike.
#[inline]
pub(super) fn varint(bytes: &[u8], at: usize) -> Result<(u64, usize), Refused> {
    let mut value = 0u64;
    for (length, byte) in bytes.get(at..).ok_or(Refused)?.iter().take(8).enumerate() {
        value = value << 7 | u64::from(byte & 0x7f);
        if byte & 0x80 == 0 {
            let is_shortest = length == 0 || value >> (7 * length) != 0;
            return if is_shortest { Ok((value, at + length + 1)) } else { Err(Refused) };
        }
    }
    // The ninth byte has all its bits.
    let last = bytes.get(at + 8).ok_or(Refused)?;
    // 56 bits fit into eight bytes.
    if value >> 48 == 0 {
        return Err(Refused);
    }
    Ok((value << 8 | u64::from(*last), at + 9))
}

/// What a cell of a table holds.
pub(super) struct Payload<'a> {
    pub(super) length: usize,
    pub(super) local: &'a [u8],
    /// The first further page; 0 where there is none.
    pub(super) overflow: u32,
}

impl<'a> Payload<'a> {
    /// Whether it goes on over exactly the further pages that it needs.
    pub(super) fn check(&self, pages: &mut Pages) -> Result<(), Refused> {
        if self.overflow == 0 {
            return Ok(());
        }
        let in_page = pages.page_size() - 4;
        let mut next = self.overflow;
        for _ in 0..(self.length - self.local.len()).div_ceil(in_page) {
            next = be32(pages.take(next)?, 0)?;
        }
        if next == 0 { Ok(()) } else { Err(Refused) }
    }

    /// All of it, put together where it lies in several pages.
    pub(super) fn read<'b>(&'b self, pages: &mut Pages, whole: &'b mut Vec<u8>) -> Result<&'b [u8], Refused>
    where
        'a: 'b,
    {
        if self.overflow == 0 {
            return Ok(self.local);
        }
        if self.length > 2 * schemas::MAX_ENTRY_BYTES {
            return Err(Refused);
        }
        whole.clear();
        whole.extend_from_slice(self.local);
        let mut next = self.overflow;
        while whole.len() < self.length {
            let page = pages.page(next)?;
            let content = page.get(4..).ok_or(Refused)?;
            let left = self.length - whole.len();
            whole.extend_from_slice(&content[..content.len().min(left)]);
            next = be32(page, 0)?;
        }
        Ok(whole)
    }
}

/// The bytes that a serial type stands for, of a BLOB (even) or a TEXT (odd).
fn num_bytes(serial: u64, parity: u64) -> Result<usize, Refused> {
    if serial < 12 || serial % 2 != parity {
        return Err(Refused);
    }
    usize::try_from((serial - 12) / 2).map_err(|_| Refused)
}

/// The header's fields, each a serial type; the header has these and no more.
fn serials<const N: usize>(record: &[u8]) -> Result<([u64; N], usize), Refused> {
    let (header_bytes, mut at) = varint(record, 0)?;
    let mut found = [0; N];
    for serial in &mut found {
        (*serial, at) = varint(record, at)?;
    }
    if at as u64 == header_bytes { Ok((found, at)) } else { Err(Refused) }
}

/// A row of `entries`.
pub(super) fn entry_row(seq: i64, record: &[u8]) -> Result<Row<'_>, Refused> {
    let ([number, idem, entry, leaf], start) = serials::<4>(record)?;
    let (idem, entry, leaf) = (num_bytes(idem, 0)?, num_bytes(entry, 0)?, num_bytes(leaf, 0)?);
    let is_of_layout = number == 0
        && seq >= 0
        && idem == IDEM_BYTES
        && leaf == DIGEST_BYTES
        && (MIN_ENTRY_BYTES..=schemas::MAX_ENTRY_BYTES).contains(&entry)
        && record.len() == start + idem + entry + leaf;
    if !is_of_layout {
        return Err(Refused);
    }
    let (idem, rest) = record[start..].split_at(idem);
    let (entry, leaf) = rest.split_at(entry);
    Ok(Row { seq, idem, entry, leaf })
}

/// A row of `heads`: a number and a text.
pub(super) fn check_head(size: i64, payload: &Payload<'_>) -> Result<(), Refused> {
    let ([number, note], start) = serials::<2>(payload.local)?;
    let is_of_layout = number == 0 && size >= 0 && payload.length == start + num_bytes(note, 1)?;
    if is_of_layout { Ok(()) } else { Err(Refused) }
}

/// The digest in a row of `artifacts`.
pub(super) fn artifact_digest<'a>(payload: &Payload<'a>) -> Result<&'a [u8], Refused> {
    let ([digest, bytes], start) = serials::<2>(payload.local)?;
    if num_bytes(digest, 0)? != DIGEST_BYTES || payload.length != start + DIGEST_BYTES + num_bytes(bytes, 0)?
    {
        return Err(Refused);
    }
    payload.local.get(start..start + DIGEST_BYTES).ok_or(Refused)
}

/// Key and row number of an index of one column.
pub(super) fn index_pair<const KEY: usize>(record: &[u8]) -> Result<([u8; KEY], i64), Refused> {
    let ([key, row], start) = serials::<2>(record)?;
    if num_bytes(key, 0)? != KEY {
        return Err(Refused);
    }
    let key = record.get(start..).and_then(|rest| rest.first_chunk()).ok_or(Refused)?;
    let rest = &record[start + KEY..];
    let num_bytes = match row {
        8 | 9 => 0,
        1..=4 => row,
        5 => 6,
        6 => 8,
        _ => return Err(Refused),
    };
    if rest.len() as u64 != num_bytes {
        return Err(Refused);
    }
    let number = match (row, rest) {
        (8, _) => 0,
        (9, _) => 1,
        (_, rest) => {
            let sign = if rest.first().is_some_and(|byte| byte & 0x80 != 0) { -1 } else { 0 };
            rest.iter().fold(sign, |number: i64, byte| number << 8 | i64::from(*byte))
        }
    };
    Ok((*key, number))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_has_one_spelling() {
        for (bytes, value) in [
            (&[0x00][..], 0),
            (&[0x7f], 0x7f),
            (&[0x81, 0x00], 0x80),
            (&[0x83, 0x3b], 443),
            (&[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f], (1 << 56) - 1),
            (&[0x80, 0x81, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x00][..], 0),
            (&[0x81, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x00], 1 << 57),
            (&[0xff; 9], u64::MAX),
        ] {
            let is_longer = bytes.len() > 1 && bytes[0] == 0x80;
            let expected = (!is_longer).then_some((value, bytes.len()));
            assert_eq!(varint(bytes, 0).ok(), expected, "{bytes:x?}");
        }
        // 443 in nine bytes, of which SQLite would take seven bits of the last.
        let mut longer = [0x80; 9];
        (longer[7], longer[8]) = (0x81, 0xbb);
        assert!(varint(&longer, 0).is_err());
        assert!(varint(&[0x80, 0x01], 0).is_err());
        assert!(varint(&[0x81], 0).is_err());
    }
}
