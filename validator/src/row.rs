//! One stored row on its way through the checks that need no contract.

use schemas::entry::Entry;
use schemas::ids::{KeyId, RunId};

use crate::canonical::{Problem, Scan, check_entry_json};
use crate::form;
use crate::reading::EntryReader;
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

/// What is computed from an entry's bytes alone.
pub(crate) struct Looked {
    leaf: [u8; 32],
    scan: Result<Scan, Problem>,
    entry: Result<Entry, String>,
}

impl Looked {
    /// Hashes and reads an entry. Bytes that are too long for one are hashed but
    /// not looked into.
    pub(crate) fn at(bytes: &[u8], reader: &mut EntryReader) -> Self {
        let leaf = leaf_hash(bytes);
        let (scan, entry) = if bytes.len() > schemas::MAX_ENTRY_BYTES {
            let what = "longer than the 65,535 bytes of an entry";
            (Err(Problem { offset: schemas::MAX_ENTRY_BYTES, what }), Err(what.to_owned()))
        } else {
            match reader.read(bytes) {
                Ok((entry, scan)) => (Ok(scan), Ok(entry)),
                Err(_) => look_closely(bytes),
            }
        };
        Self { leaf, scan, entry }
    }
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
    /// A row and what was computed from it.
    pub(crate) fn new(position: u64, row: Row<'a>, looked: Looked, identity: Option<&'a Identity>) -> Self {
        let Looked { leaf, scan, entry } = looked;
        Self { position, row, leaf, scan, entry, identity }
    }

    /// Bytes of the entry's determined half, where it could be read.
    pub(crate) fn det(&self) -> Option<&'a [u8]> {
        let range = self.scan.as_ref().ok()?.det.clone()?;
        self.row.entry.get(range)
    }

    /// The entry, where its bytes have one meaning only: what rules may see.
    pub(crate) fn canonical_entry(&self) -> Option<&Entry> {
        self.scan.as_ref().ok().and(self.entry.as_ref().ok())
    }
}

/// One pass for each question, which says what is wrong and where.
pub(crate) fn look_closely(bytes: &[u8]) -> (Result<Scan, Problem>, Result<Entry, String>) {
    let scan = check_entry_json(bytes);
    let entry = Entry::from_slice(bytes).map_err(|error| error.to_string());
    // Bytes that are not canonical differ in any case, which is GL003's to say.
    let entry = entry.and_then(|entry| match form::first_difference(&entry, bytes) {
        Some(offset) if scan.is_ok() => Err(format!(
            "at byte {offset} the entry is not as it would be written: {}",
            excerpt(bytes, offset)
        )),
        _ => Ok(entry),
    });
    (scan, entry)
}

fn excerpt(bytes: &[u8], offset: usize) -> String {
    let start = offset.saturating_sub(24).min(bytes.len());
    let end = offset.saturating_add(24).min(bytes.len());
    format!("...{}...", bytes[start..end].escape_ascii())
}

/// A check over rows, whether or not they can be parsed.
pub(crate) trait RowCheck {
    fn info(&self) -> &'static RuleInfo;
    fn row(&mut self, context: &RowContext<'_>, sink: &mut Sink);
    fn finish(&mut self, sink: &mut Sink) -> Outcome;
}
