//! Reads a ledger's file page by page, and checks it as a whole on the way.
//!
//! SQLite's own check (`PRAGMA integrity_check`) seeks every row in every index
//! and evaluates every constraint; it takes longer than reading the rows. This
//! reading looks at each page once. It accepts a file only where every page is
//! used exactly once, every tree is in order and balanced, every record has the
//! one form that layout 1 gives it, and every index names exactly the rows of its
//! table; such a file passes SQLite's check, and SQLite reads the same rows from
//! it. It only ever accepts: whatever it refuses, unusual or damaged, is read and
//! judged by SQLite, which says what is wrong. It knows layout 1 only, and no
//! write-ahead log.
//!
//! The format is that of <https://www.sqlite.org/fileformat2.html>. Memory: one
//! bit a page, one page a level of a tree, and one row.

mod cells;
mod file;
mod record;

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::path::Path;

use cells::{Cells, Kind};
use file::Pages;
use record::Payload;

use super::Row;

/// The file is not one that this reading accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Refused;

/// Root pages of layout 1's trees.
#[derive(Debug, Clone, Copy)]
pub(super) struct Roots {
    pub(super) artifacts: u32,
    pub(super) artifacts_index: u32,
    pub(super) entries: u32,
    pub(super) entries_index: u32,
    pub(super) heads: u32,
}

/// Levels of a tree: SQLite's own limit.
const MAX_DEPTH: usize = 20;

/// Page 1 is the root of the schema.
const SCHEMA_ROOT: u32 = 1;

/// Bytes of an idempotency key, and of an artifact's digest.
const IDEM_BYTES: usize = 16;
const DIGEST_BYTES: usize = 32;

/// The pairs of key and row number that a tree holds, in any order: how many,
/// and the sum of their hashes under keys that nobody can foresee.
#[derive(Debug, Default, PartialEq, Eq)]
struct Pairs {
    count: u64,
    sums: [u64; 2],
}

/// A ledger's file, of which all but the entries has been checked.
pub(super) struct QuickPages {
    pages: Pages,
    roots: Roots,
    salts: [RandomState; 2],
    /// What the index of the entries holds.
    indexed: Pairs,
}

impl QuickPages {
    /// Opens a file without a log, and checks everything but its entries.
    ///
    /// # Errors
    /// When something is not as this reading accepts it.
    pub(super) fn open(path: &Path, roots: Roots) -> Result<Self, Refused> {
        let pages = Pages::open(path)?;
        let mut quick =
            Self { pages, roots, salts: [RandomState::new(), RandomState::new()], indexed: Pairs::default() };
        quick.pages.check_free_list()?;
        quick.table(SCHEMA_ROOT, &mut |_, _, _| Ok(()))?;
        quick.table(roots.heads, &mut |_, size, payload| record::check_head(size, payload))?;
        let mut artifacts = Pairs::default();
        let salts = quick.salts.clone();
        quick.table(roots.artifacts, &mut |_, row, payload| {
            let digest = record::artifact_digest(payload)?;
            artifacts.add(&salts, digest, row);
            Ok(())
        })?;
        if quick.index::<DIGEST_BYTES>(roots.artifacts_index)? != artifacts {
            return Err(Refused);
        }
        quick.indexed = quick.index::<IDEM_BYTES>(roots.entries_index)?;
        Ok(quick)
    }

    /// Calls `visit` with every entry in ascending `seq`. What was visited counts
    /// for nothing where this ends with an error.
    ///
    /// # Errors
    /// When something is not as this reading accepts it.
    pub(super) fn for_each_entry(&mut self, visit: &mut dyn FnMut(Row<'_>)) -> Result<(), Refused> {
        let mut found = Pairs::default();
        // They may be read again.
        let marks = self.pages.marks();
        let salts = self.salts.clone();
        let mut whole = Vec::new();
        self.table(self.roots.entries, &mut |pages, seq, payload| {
            let bytes = payload.read(pages, &mut whole)?;
            let row = record::entry_row(seq, bytes)?;
            found.add(&salts, row.idem, seq);
            visit(row);
            Ok(())
        })?;
        if found != self.indexed {
            return Err(Refused);
        }
        self.pages.check_all_used()?;
        self.pages.restore(marks);
        Ok(())
    }

    /// Walks a tree of rows in the order of their numbers.
    fn table(&mut self, root: u32, visit: &mut Visit<'_>) -> Result<(), Refused> {
        let mut walk = Walk::new(&mut self.pages);
        walk.table_page(root, 0, visit)
    }

    /// Walks an index whose first column has so many bytes.
    fn index<const KEY: usize>(&mut self, root: u32) -> Result<Pairs, Refused> {
        let (mut pairs, mut last) = (Pairs::default(), None::<[u8; KEY]>);
        let salts = &self.salts;
        let mut walk = Walk::new(&mut self.pages);
        walk.index_page(root, 0, &mut |payload| {
            let (key, row) = record::index_pair::<KEY>(payload)?;
            // A key that is there twice would stand beside itself.
            if last.is_some_and(|last| last >= key) {
                return Err(Refused);
            }
            last = Some(key);
            pairs.add(salts, &key, row);
            Ok(())
        })?;
        Ok(pairs)
    }
}

impl Pairs {
    fn add(&mut self, salts: &[RandomState; 2], key: &[u8], row: i64) {
        self.count += 1;
        for (sum, salt) in self.sums.iter_mut().zip(salts) {
            *sum = sum.wrapping_add(salt.hash_one((key, row)));
        }
    }
}

/// Sees a row of a table.
type Visit<'a> = dyn FnMut(&mut Pages, i64, &Payload<'_>) -> Result<(), Refused> + 'a;

/// Sees an entry of an index.
type VisitKey<'a> = dyn FnMut(&[u8]) -> Result<(), Refused> + 'a;

/// What a page of a table was.
enum Level {
    /// Its rows were visited.
    Leaf,
    /// Its children, each with the greatest row number that its key allows.
    Interior(Vec<(u32, Option<i64>)>),
}

/// A walk over one tree.
struct Walk<'a> {
    pages: &'a mut Pages,
    /// The greatest row number so far, or the bound of the subtree that ended.
    last_row: Option<i64>,
    /// Where the leaves are: everywhere at the same depth.
    leaf_depth: Option<usize>,
    /// Pages of higher levels are kept while a lower one is walked; their space
    /// is used again.
    spare: Vec<Vec<u8>>,
    cells: Cells,
}

impl<'a> Walk<'a> {
    fn new(pages: &'a mut Pages) -> Self {
        Self { pages, last_row: None, leaf_depth: None, spare: Vec::new(), cells: Cells::default() }
    }

    /// A page in space of its own.
    fn take(&mut self, number: u32) -> Result<Vec<u8>, Refused> {
        let mut page = self.spare.pop().unwrap_or_default();
        page.clear();
        page.extend_from_slice(self.pages.take(number)?);
        Ok(page)
    }

    fn check_leaf(&mut self, depth: usize) -> Result<(), Refused> {
        if *self.leaf_depth.get_or_insert(depth) == depth { Ok(()) } else { Err(Refused) }
    }

    /// A row number that follows the one before it.
    fn follow(&mut self, row: i64) -> Result<(), Refused> {
        if self.last_row.is_some_and(|last| last >= row) {
            return Err(Refused);
        }
        self.last_row = Some(row);
        Ok(())
    }

    fn table_page(&mut self, number: u32, depth: usize, visit: &mut Visit<'_>) -> Result<(), Refused> {
        if depth >= MAX_DEPTH {
            return Err(Refused);
        }
        self.pages.mark(number)?;
        let (window, place) = self.pages.lend(number)?;
        let walked = self.table_page_in(window.page(&place)?, number, depth, visit);
        self.pages.give_back(window);
        match walked? {
            // Lower levels use the window.
            Level::Interior(children) => children.into_iter().try_for_each(|(child, key)| {
                self.table_page(child, depth + 1, visit)?;
                // The subtree reaches up to the key, and may end at it.
                let Some(key) = key else { return Ok(()) };
                if self.last_row.is_some_and(|last| last > key) {
                    return Err(Refused);
                }
                self.last_row = Some(key);
                Ok(())
            }),
            Level::Leaf => Ok(()),
        }
    }

    /// One page: visits the rows of a leaf, and lists the children of any other with
    /// the greatest row number of each but the last.
    fn table_page_in(
        &mut self,
        page: &[u8],
        number: u32,
        depth: usize,
        visit: &mut Visit<'_>,
    ) -> Result<Level, Refused> {
        let start = if number == SCHEMA_ROOT { file::HEADER_BYTES } else { 0 };
        let mut cells = std::mem::take(&mut self.cells);
        let level = match cells::kind(page, start)? {
            Kind::TableLeaf => {
                self.check_leaf(depth)?;
                // An empty leaf is the root of an empty table.
                let is_root = depth == 0;
                cells.of(page, start, Kind::TableLeaf, is_root)?;
                for cell in &cells.all {
                    self.follow(cell.row)?;
                    let local = page.get(cell.local.clone()).ok_or(Refused)?;
                    let payload = Payload { length: cell.length, local, overflow: cell.overflow };
                    payload.check(self.pages)?;
                    visit(self.pages, cell.row, &payload)?;
                }
                Level::Leaf
            }
            Kind::TableInterior => {
                cells.of(page, start, Kind::TableInterior, false)?;
                let last = cells.last_child(page, start)?;
                let children = cells.all.iter().map(|cell| (cell.child, Some(cell.row)));
                Level::Interior(children.chain([(last, None)]).collect())
            }
            Kind::IndexLeaf | Kind::IndexInterior => return Err(Refused),
        };
        self.cells = cells;
        Ok(level)
    }

    fn index_page(&mut self, number: u32, depth: usize, visit: &mut VisitKey<'_>) -> Result<(), Refused> {
        if depth >= MAX_DEPTH {
            return Err(Refused);
        }
        let page = self.take(number)?;
        let mut cells = Cells::default();
        let local = |cell: &cells::Cell| page.get(cell.local.clone()).ok_or(Refused);
        match cells::kind(&page, 0)? {
            Kind::IndexLeaf => {
                self.check_leaf(depth)?;
                cells.of(&page, 0, Kind::IndexLeaf, depth == 0)?;
                cells.all.iter().try_for_each(|cell| visit(local(cell)?))?;
            }
            Kind::IndexInterior => {
                cells.of(&page, 0, Kind::IndexInterior, false)?;
                for cell in &cells.all {
                    self.index_page(cell.child, depth + 1, visit)?;
                    visit(local(cell)?)?;
                }
                self.index_page(cells.last_child(&page, 0)?, depth + 1, visit)?;
            }
            Kind::TableLeaf | Kind::TableInterior => return Err(Refused),
        }
        self.spare.push(page);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
