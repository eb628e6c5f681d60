//! Documents in entry JSON that lie beside a ledger, read as the writer would read
//! them: canonical bytes, which written again are the same bytes.

use ledger::canonical;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Bytes for each byte of a document, as for entries: lists of small objects.
pub(crate) const FACTOR: usize = 256;

/// A document in its one form.
pub(crate) fn by_writer<T: DeserializeOwned + Serialize>(bytes: &[u8]) -> Option<T> {
    canonical::check_entry_json(bytes).ok()?;
    let document: T = serde_json::from_slice(bytes).ok()?;
    let written = canonical::entry_json(&document).ok()?;
    (written == bytes).then_some(document)
}
