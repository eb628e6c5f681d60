//! GL002 `entry-sequence`.

use schemas::report::Route;

use crate::row::{RowCheck, RowContext};
use crate::rule::{At, Outcome, RuleInfo, Sink};

/// Text of the rule.
pub(crate) static INFO: RuleInfo = RuleInfo {
    code: "GL002",
    name: "entry-sequence",
    what: "Rows are numbered from 0 without a gap, and every entry's own index equals its row's number.",
    why: "A gap shows that an entry was removed; an index that differs shows that entries were reordered or copied.",
    remedy: "restore the ledger from a copy; an entry is never removed or moved",
    reference: "docs/FORMAT.md, \"SQLite layout 1\" and \"Entry\"",
    gate: Route::RejectIdentity,
};

#[derive(Default)]
pub(crate) struct EntrySequence {
    num_rows: u64,
    /// What the next row's number should be, so that one gap is one finding.
    next: i64,
}

impl RowCheck for EntrySequence {
    fn info(&self) -> &'static RuleInfo {
        &INFO
    }

    fn row(&mut self, context: &RowContext<'_>, sink: &mut Sink) {
        let seq = context.row.seq;
        self.num_rows += 1;
        if seq != self.next {
            sink.tampered(
                At::place(format!("entries, row {seq}")),
                "row numbers have a gap",
                format!("row {}", self.next),
                format!("row {seq}"),
            );
        }
        self.next = seq.saturating_add(1);
        let Ok(entry) = &context.entry else { return };
        if i64::try_from(entry.index) != Ok(seq) {
            sink.tampered(
                At::entry(entry.index, "/index"),
                format!("the entry in row {seq} says that it is another one"),
                seq,
                entry.index,
            );
        }
    }

    fn finish(&mut self, sink: &mut Sink) -> Outcome {
        if self.num_rows == 0 {
            sink.rejected(
                At::place("entries").remedy("freeze a contract with `ledger freeze contract.json`"),
                "the ledger has no entries",
                "contract.frozen as entry 0",
                "no row",
            );
        }
        Outcome::Checked(self.num_rows)
    }
}
