//! One stored row on its way through the checks that need no contract.

use schemas::entry::Entry;
use schemas::ids::{KeyId, RunId};

use crate::canonical::{Problem, Scan, check_entry_json};
use crate::rule::{Outcome, RuleInfo, Sink};
use crate::store::Row;
use crate::tree::leaf_hash;

/// Who may have written entries, from the contract; absent where that could
/// not be read.
#[derive(Debug, Clone)]
pub(crate) struct Identity {
    pub(crate) run: RunId,
    pub(crate) owner: KeyId,
    pub(crate) trainer: KeyId,
    pub(crate) validator: KeyId,
}

/// A row together with everything that was computed from it once.
pub(crate) struct RowContext<'a> {
    /// How many rows came before it, which its index should be.
    pub(crate) position: u64,
    pub(crate) row: Row<'a>,
    pub(crate) leaf: [u8; 32],
    pub(crate) scan: Result<Scan, Problem>,
    pub(crate) entry: Result<Entry, String>,
    pub(crate) identity: Option<&'a Identity>,
}

impl<'a> RowContext<'a> {
    /// Hashes, scans and parses a row. Bytes that are too long for an entry are
    /// hashed but not looked into.
    pub(crate) fn new(position: u64, row: Row<'a>, identity: Option<&'a Identity>) -> Self {
        let leaf = leaf_hash(row.entry);
        let (scan, entry) = if row.entry.len() > schemas::MAX_ENTRY_BYTES {
            let what = "longer than the 65,535 bytes of an entry";
            (Err(Problem { offset: schemas::MAX_ENTRY_BYTES, what }), Err(what.to_owned()))
        } else {
            (check_entry_json(row.entry), Entry::from_slice(row.entry).map_err(|error| error.to_string()))
        };
        Self { position, row, leaf, scan, entry, identity }
    }
}

/// A check over rows, whether or not they can be parsed.
pub(crate) trait RowCheck {
    fn info(&self) -> &'static RuleInfo;
    fn row(&mut self, context: &RowContext<'_>, sink: &mut Sink);
    fn finish(&mut self, sink: &mut Sink) -> Outcome;
}
