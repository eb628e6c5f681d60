//! The cells of one page of a tree, and that they and its free blocks fill the
//! page without overlapping.

use std::ops::Range;

use super::Refused;
use super::file::{be16, be32};
use super::record::varint;

/// What a page of a tree holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    IndexInterior,
    IndexLeaf,
    TableInterior,
    TableLeaf,
}

/// A cell; members that its kind of page does not have are 0.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Cell {
    pub(super) child: u32,
    pub(super) row: i64,
    /// Bytes of the payload, in the page and beyond it.
    pub(super) length: usize,
    /// Those in the page.
    pub(super) local: Range<usize>,
    /// The first page of the others; 0 where there are none.
    pub(super) overflow: u32,
}

/// The cells of a page in order; the space is used again.
#[derive(Debug, Default)]
pub(super) struct Cells {
    pub(super) all: Vec<Cell>,
    occupied: Vec<Range<usize>>,
}

/// Least bytes that a cell or a free block takes up.
const MIN_BYTES: usize = 4;

/// The kind of a page whose header begins at `start`.
pub(super) fn kind(page: &[u8], start: usize) -> Result<Kind, Refused> {
    match page.get(start) {
        Some(2) => Ok(Kind::IndexInterior),
        Some(5) => Ok(Kind::TableInterior),
        Some(10) => Ok(Kind::IndexLeaf),
        Some(13) => Ok(Kind::TableLeaf),
        _ => Err(Refused),
    }
}

impl Kind {
    const fn is_leaf(self) -> bool {
        matches!(self, Self::IndexLeaf | Self::TableLeaf)
    }

    const fn header_bytes(self) -> usize {
        if self.is_leaf() { 8 } else { 12 }
    }
}

impl Cells {
    /// Reads the cells of a page whose header begins at `start`.
    pub(super) fn of(
        &mut self,
        page: &[u8],
        start: usize,
        kind: Kind,
        may_be_empty: bool,
    ) -> Result<(), Refused> {
        let (all, occupied) = (&mut self.all, &mut self.occupied);
        all.clear();
        occupied.clear();
        let num_cells = usize::from(be16(page, start + 3)?);
        let content = usize::from(be16(page, start + 5)?);
        let pointers = start + kind.header_bytes();
        if pointers + 2 * num_cells > content || content > page.len() || (num_cells == 0 && !may_be_empty) {
            return Err(Refused);
        }
        for at in 0..num_cells {
            let at = usize::from(be16(page, pointers + 2 * at)?);
            let (cell, end) = cell(page, at, kind)?;
            occupied.push(at..end.max(at + MIN_BYTES));
            all.push(cell);
        }
        free_blocks(page, start, occupied)?;
        check_space(page, content, usize::from(*page.get(start + 7).ok_or(Refused)?), occupied)
    }

    /// The child behind the last cell of an interior page.
    pub(super) fn last_child(&self, page: &[u8], start: usize) -> Result<u32, Refused> {
        be32(page, start + 8)
    }
}

/// The cell at an offset, and where it ends.
fn cell(page: &[u8], at: usize, kind: Kind) -> Result<(Cell, usize), Refused> {
    let mut cell = Cell { child: 0, row: 0, length: 0, local: 0..0, overflow: 0 };
    let mut next = at;
    if !kind.is_leaf() {
        cell.child = be32(page, at)?;
        next += 4;
    }
    if kind != Kind::TableInterior {
        let (length, after) = varint(page, next)?;
        cell.length = usize::try_from(length).map_err(|_| Refused)?;
        next = after;
    }
    if matches!(kind, Kind::TableInterior | Kind::TableLeaf) {
        let (row, after) = varint(page, next)?;
        // A row number is the two's complement of its 64 bits.
        cell.row = row.cast_signed();
        next = after;
    }
    if kind == Kind::TableInterior {
        return Ok((cell, next));
    }
    let num_local = num_local(cell.length, page.len(), kind)?;
    let end = next.checked_add(num_local).filter(|end| *end <= page.len()).ok_or(Refused)?;
    cell.local = next..end;
    if num_local == cell.length {
        return Ok((cell, end));
    }
    cell.overflow = be32(page, end)?;
    if cell.overflow == 0 {
        return Err(Refused);
    }
    Ok((cell, end + 4))
}

/// Bytes of a payload that lie in the page; the keys of an index all do.
fn num_local(length: usize, page_size: usize, kind: Kind) -> Result<usize, Refused> {
    if kind != Kind::TableLeaf {
        let most = (page_size - 12) * 64 / 255 - 23;
        return if length <= most { Ok(length) } else { Err(Refused) };
    }
    let most = page_size - 35;
    if length <= most {
        return Ok(length);
    }
    let least = (page_size - 12) * 32 / 255 - 23;
    let rest = least + (length - least) % (page_size - 4);
    Ok(if rest <= most { rest } else { least })
}

/// The free blocks of a page, which are chained in ascending order.
fn free_blocks(page: &[u8], start: usize, occupied: &mut Vec<Range<usize>>) -> Result<(), Refused> {
    let mut at = usize::from(be16(page, start + 1)?);
    let mut least = 1;
    while at != 0 {
        let size = usize::from(be16(page, at + 2)?);
        let end = at + size;
        if at < least || size < MIN_BYTES || end > page.len() {
            return Err(Refused);
        }
        occupied.push(at..end);
        // Blocks with less than this between them would have been joined.
        least = end + MIN_BYTES;
        at = usize::from(be16(page, at)?);
    }
    Ok(())
}

/// Whether cells and free blocks lie within the content area, one behind the
/// other, and as many bytes between them as the header says.
fn check_space(
    page: &[u8],
    content: usize,
    fragmented: usize,
    occupied: &mut [Range<usize>],
) -> Result<(), Refused> {
    occupied.sort_unstable_by_key(|range| range.start);
    let (mut at, mut between) = (content, 0);
    for range in occupied {
        between += range.start.checked_sub(at).ok_or(Refused)?;
        at = range.end;
    }
    between += page.len().checked_sub(at).ok_or(Refused)?;
    if between == fragmented { Ok(()) } else { Err(Refused) }
}
