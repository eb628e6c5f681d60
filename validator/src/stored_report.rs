//! How far a ledger went when a report on it was made, compared with the entries
//! that are there now. A run and a campaign are compared alike.
//!
//! Whose report it is and whether its signature holds is for the rules to say:
//! `GL111` and `GC126`.

use schemas::digest::encode_hex;
use schemas::report::HeadSeen;

use crate::roots::{RootAt, Roots};
use crate::rule::{At, Outcome, Sink};

/// A report beside a ledger whose signature held.
pub(crate) struct StoredReport {
    /// The head that it saw.
    pub(crate) head: Option<HeadSeen>,
    /// The entries that it saw.
    pub(crate) num_entries: u64,
    /// Where it lies.
    pub(crate) place: String,
    /// What a ledger that does not begin with what it saw has to hear.
    pub(crate) rewritten: &'static str,
}

impl StoredReport {
    /// Size of the head that the report saw.
    pub(crate) fn size(&self) -> Option<u64> {
        self.head.as_ref().map(|head| head.size)
    }

    /// Compares it with the entries, after the last of them.
    pub(crate) fn compare(&self, roots: &Roots, sink: &mut Sink) -> Outcome {
        let at = || At::place(&self.place);
        if self.num_entries > roots.num_entries() {
            let (expected, actual) = (self.num_entries, roots.num_entries());
            let expected = format!("{expected} entries or more");
            sink.tampered(at(), self.rewritten, expected, format!("{actual} entries"));
        }
        let Some(head) = &self.head else { return Outcome::Checked(1) };
        let expected = format!("root {} at size {}", head.root, head.size);
        match roots.at(head.size) {
            RootAt::Known(root) if encode_hex(&root) == head.root => {}
            RootAt::Known(root) => sink.tampered(at(), self.rewritten, expected, encode_hex(&root)),
            RootAt::Beyond => {
                let actual = format!("{} entries", roots.num_entries());
                sink.tampered(at(), self.rewritten, expected, actual);
            }
            RootAt::Unknown => sink.rejected(at(), "the report saw no signed head", expected, "size 0"),
        }
        Outcome::Checked(1)
    }
}
