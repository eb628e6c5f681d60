//! GL012 `entry-time`.

use schemas::report::Route;

use crate::row::{RowCheck, RowContext};
use crate::rule::{At, Outcome, RuleInfo, Sink};

/// Text of the rule.
pub(crate) static INFO: RuleInfo = RuleInfo {
    code: "GL012",
    name: "entry-time",
    what: "Times do not go back from entry to entry. A time that does is a warning.",
    why: "Order is evidenced by the tree, not by a clock, which may be set back; but a jump deserves a look.",
    remedy: "look at the host's clock; nothing has to be changed in the ledger",
    reference: "schemas::entry::Entry, time_us",
    gate: Route::RejectIdentity,
};

#[derive(Default)]
pub(crate) struct EntryTime {
    num_entries: u64,
    latest_us: u64,
}

impl RowCheck for EntryTime {
    fn info(&self) -> &'static RuleInfo {
        &INFO
    }

    fn row(&mut self, context: &RowContext<'_>, sink: &mut Sink) {
        let Ok(entry) = &context.entry else { return };
        self.num_entries += 1;
        if entry.time_us < self.latest_us {
            sink.warning(
                At::entry(context.position, "/time_us"),
                "the entry's time is before that of an earlier entry",
                format!("at least {}", self.latest_us),
                entry.time_us,
            );
        }
        self.latest_us = self.latest_us.max(entry.time_us);
    }

    fn finish(&mut self, _: &mut Sink) -> Outcome {
        Outcome::Checked(self.num_entries)
    }
}
