//! For fuzz tests alone: how an audit reads what anybody may have written, without
//! an audit around it. It decides nothing, and no program calls it.

use schemas::entry::Entry;

use crate::reading::EntryReader;
use crate::row::look_closely;

/// An entry as the two ways of an audit read it.
#[derive(Debug, Clone, PartialEq)]
pub struct EntryReads {
    /// By the one pass that only accepts.
    pub in_one_pass: Option<Entry>,
    /// By the passes that say what is wrong.
    pub closely: Option<Entry>,
}

/// Reads bytes as an audit does, by a reader that remembers nothing.
#[must_use]
pub fn entry(bytes: &[u8]) -> EntryReads {
    if bytes.len() > schemas::MAX_ENTRY_BYTES {
        return EntryReads { in_one_pass: None, closely: None };
    }
    let in_one_pass = EntryReader::new().read(bytes).ok().map(|(entry, _)| entry);
    let (scan, entry) = look_closely(bytes);
    EntryReads { in_one_pass, closely: scan.ok().and(entry.ok()) }
}
