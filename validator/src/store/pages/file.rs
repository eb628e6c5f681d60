//! The file below its trees: header, pages, which of them are used, and the
//! list of free ones.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;

use super::Refused;

/// Bytes of the header, which page 1 begins with.
pub(super) const HEADER_BYTES: usize = 100;

/// Offset of the bytes that SQLite locks; the page that holds it is not used.
const LOCK_OFFSET: u64 = 0x4000_0000;

/// Pages that are read at a time, because rows lie mostly one behind the other.
const WINDOW_PAGES: usize = 8;

/// The pages of a file.
pub(super) struct Pages {
    file: File,
    num_pages: u32,
    page_size: usize,
    first_free: u32,
    num_free: u32,
    /// One bit a page: whether something refers to it.
    used: Vec<u64>,
    num_used: u32,
    /// Around leaves with rows, which are lent.
    lent: Window,
    /// Around all other pages, so that neither takes the other's place.
    window: Window,
}

/// Some pages one behind the other.
#[derive(Default)]
pub(super) struct Window {
    bytes: Vec<u8>,
    /// Number of the first page; 0 where it holds none.
    first: u32,
}

impl Window {
    /// The place of a page; `None` where it is not here.
    fn place(&self, number: u32, page_size: usize) -> Option<Range<usize>> {
        let at = usize::try_from(number.checked_sub(self.first)?).ok()?;
        let is_here = self.first != 0 && at < self.bytes.len() / page_size;
        is_here.then(|| at * page_size..(at + 1) * page_size)
    }

    /// A page that was found here.
    pub(super) fn page(&self, place: &Range<usize>) -> Result<&[u8], Refused> {
        self.bytes.get(place.clone()).ok_or(Refused)
    }
}

/// Which pages were used at some time.
pub(super) struct Marks {
    used: Vec<u64>,
    num_used: u32,
}

impl Pages {
    /// Opens a file and reads its header.
    ///
    /// # Errors
    /// When it cannot be read, or has a form other than the usual one.
    pub(super) fn open(path: &Path) -> Result<Self, Refused> {
        let file = File::open(path).map_err(|_| Refused)?;
        let num_bytes = file.metadata().map_err(|_| Refused)?.len();
        let mut header = [0; HEADER_BYTES];
        file.read_exact_at(&mut header, 0).map_err(|_| Refused)?;
        let page_size = usize::from(be16(&header, 16)?);
        let is_usual = header.starts_with(b"SQLite format 3\0")
            && page_size.is_power_of_two()
            && page_size >= 512
            // Version for reading and for writing: with a rollback journal, or with a log.
            && matches!(header[18..20], [1, 1] | [2, 2])
            // No space is reserved in a page; the fractions are fixed.
            && header[20..24] == [0, 64, 32, 32]
            // The number of pages counts only where the change counter says so.
            && header[24..28] == header[92..96]
            // Schema format 4, UTF-8, and no pointer map.
            && be32(&header, 44)? == 4
            && be32(&header, 52)? == 0
            && be32(&header, 56)? == 1
            && be32(&header, 64)? == 0;
        let num_pages = be32(&header, 28)?;
        if !is_usual || num_pages == 0 || u64::from(num_pages) * page_size as u64 != num_bytes {
            return Err(Refused);
        }
        let num_words = usize::try_from(num_pages / 64).map_err(|_| Refused)? + 1;
        Ok(Self {
            file,
            num_pages,
            page_size,
            first_free: be32(&header, 32)?,
            num_free: be32(&header, 36)?,
            used: vec![0; num_words],
            num_used: 0,
            lent: Window::default(),
            window: Window::default(),
        })
    }

    /// Bytes of a page.
    pub(super) const fn page_size(&self) -> usize {
        self.page_size
    }

    /// Which pages are used so far.
    pub(super) fn marks(&self) -> Marks {
        Marks { used: self.used.clone(), num_used: self.num_used }
    }

    /// Forgets what was used since.
    pub(super) fn restore(&mut self, marks: Marks) {
        self.used = marks.used;
        self.num_used = marks.num_used;
    }

    /// A page that nothing referred to before.
    pub(super) fn take(&mut self, number: u32) -> Result<&[u8], Refused> {
        self.mark(number)?;
        self.page(number)
    }

    /// Marks a page that nothing referred to before.
    pub(super) fn mark(&mut self, number: u32) -> Result<(), Refused> {
        if number == 0 || number > self.num_pages || Some(number) == self.lock_page() {
            return Err(Refused);
        }
        let (word, bit) = (number / 64, 1u64 << (number % 64));
        let word = usize::try_from(word).ok().and_then(|word| self.used.get_mut(word)).ok_or(Refused)?;
        if *word & bit != 0 {
            return Err(Refused);
        }
        *word |= bit;
        self.num_used += 1;
        Ok(())
    }

    /// A page again, or for the first time.
    pub(super) fn page(&mut self, number: u32) -> Result<&[u8], Refused> {
        let mut window = std::mem::take(&mut self.window);
        let place = self.place(&mut window, number);
        self.window = window;
        self.window.page(&place?)
    }

    /// A page that was taken, with the window that it is in: rows of a leaf are shown
    /// where they lie, while their further pages are read. Give the window back.
    pub(super) fn lend(&mut self, number: u32) -> Result<(Window, Range<usize>), Refused> {
        let mut window = std::mem::take(&mut self.lent);
        let place = self.place(&mut window, number)?;
        Ok((window, place))
    }

    /// Ends what [`Pages::lend`] began.
    pub(super) fn give_back(&mut self, window: Window) {
        self.lent = window;
    }

    /// Where a page is in a window, which is read anew where it is not.
    fn place(&self, window: &mut Window, number: u32) -> Result<Range<usize>, Refused> {
        // A file that changes while it is read may point anywhere.
        if number == 0 || number > self.num_pages {
            return Err(Refused);
        }
        if let Some(place) = window.place(number, self.page_size) {
            return Ok(place);
        }
        let left = usize::try_from(self.num_pages - number).map_err(|_| Refused)? + 1;
        window.bytes.resize(left.min(WINDOW_PAGES) * self.page_size, 0);
        let offset = u64::from(number - 1) * self.page_size as u64;
        window.first = 0;
        self.file.read_exact_at(&mut window.bytes, offset).map_err(|_| Refused)?;
        window.first = number;
        Ok(0..self.page_size)
    }

    fn lock_page(&self) -> Option<u32> {
        let number = u32::try_from(LOCK_OFFSET / self.page_size as u64).ok()? + 1;
        (number <= self.num_pages).then_some(number)
    }

    /// Follows the list of free pages.
    pub(super) fn check_free_list(&mut self) -> Result<(), Refused> {
        let (mut trunk, mut left) = (self.first_free, self.num_free);
        while trunk != 0 {
            let page = self.take(trunk)?;
            let (next, num_leaves) = (be32(page, 0)?, be32(page, 4)?);
            let limit = page.len() / 4 - 2;
            let num_listed = usize::try_from(num_leaves).map_err(|_| Refused)?;
            if num_listed > limit {
                return Err(Refused);
            }
            let leaves: Vec<u32> =
                (0..num_listed).map(|at| be32(page, 8 + 4 * at)).collect::<Result<_, _>>()?;
            leaves.into_iter().try_for_each(|leaf| self.take(leaf).map(|_| ()))?;
            left = left.checked_sub(1 + num_leaves).ok_or(Refused)?;
            trunk = next;
        }
        if left == 0 { Ok(()) } else { Err(Refused) }
    }

    /// Whether something refers to every page.
    pub(super) fn check_all_used(&self) -> Result<(), Refused> {
        let not_used = u32::from(self.lock_page().is_some());
        if self.num_used + not_used == self.num_pages { Ok(()) } else { Err(Refused) }
    }
}

/// A big-endian number.
pub(super) fn be16(bytes: &[u8], at: usize) -> Result<u16, Refused> {
    let bytes = bytes.get(at..).and_then(|bytes| bytes.first_chunk()).ok_or(Refused)?;
    Ok(u16::from_be_bytes(*bytes))
}

/// A big-endian number.
pub(super) fn be32(bytes: &[u8], at: usize) -> Result<u32, Refused> {
    let bytes = bytes.get(at..).and_then(|bytes| bytes.first_chunk()).ok_or(Refused)?;
    Ok(u32::from_be_bytes(*bytes))
}
