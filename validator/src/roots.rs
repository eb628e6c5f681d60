//! Roots of the stored entries at the sizes that something outside them names:
//! signed heads, a stored report, a handoff.

use std::collections::{BTreeMap, BTreeSet};

/// What the stored entries have at a size.
pub(crate) enum RootAt {
    /// This root.
    Known([u8; 32]),
    /// They are fewer than that.
    Beyond,
    /// Nobody asked in time, so it was not computed.
    Unknown,
}

/// Collects roots during the pass over the entries.
#[derive(Default)]
pub(crate) struct Roots {
    wanted: BTreeSet<u64>,
    known: BTreeMap<u64, [u8; 32]>,
    num_entries: u64,
}

impl Roots {
    /// A collection that also computes the roots at `sizes`.
    pub(crate) fn new(sizes: impl IntoIterator<Item = u64>) -> Self {
        Self { wanted: sizes.into_iter().collect(), ..Self::default() }
    }

    /// Whether a root at this size is worth computing.
    pub(crate) fn is_wanted(&self, size: u64) -> bool {
        self.wanted.contains(&size)
    }

    /// Keeps a root that was computed.
    pub(crate) fn keep(&mut self, size: u64, root: [u8; 32]) {
        self.known.insert(size, root);
    }

    /// After the last entry.
    pub(crate) fn end(&mut self, num_entries: u64) {
        self.num_entries = num_entries;
    }

    /// Entries that were read.
    pub(crate) const fn num_entries(&self) -> u64 {
        self.num_entries
    }

    /// The root at a size.
    pub(crate) fn at(&self, size: u64) -> RootAt {
        match self.known.get(&size) {
            Some(root) => RootAt::Known(*root),
            None if size > self.num_entries => RootAt::Beyond,
            None => RootAt::Unknown,
        }
    }
}
