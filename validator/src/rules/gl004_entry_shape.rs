//! GL004 `entry-shape`.

use schemas::report::Route;

use crate::row::{RowCheck, RowContext};
use crate::rule::{At, Outcome, RuleInfo, Sink};

/// Text of the rule.
pub(crate) static INFO: RuleInfo = RuleInfo {
    code: "GL004",
    name: "entry-shape",
    what: "Every entry has the format tag, a known kind, and exactly the fields of that kind, every one of them written, null or not.",
    why: "What a rule cannot parse it cannot check; an unknown kind or field could carry a claim that nobody evaluates; a field that may be left out would give one entry two hashes.",
    remedy: "audit it with a validator that knows the kind, or find the program that wrote the entry",
    reference: "schemas/json/entry.schema.json; docs/FORMAT.md, \"Entry\"",
    gate: Route::RejectIdentity,
};

#[derive(Default)]
pub(crate) struct EntryShape {
    num_rows: u64,
}

impl RowCheck for EntryShape {
    fn info(&self) -> &'static RuleInfo {
        &INFO
    }

    fn row(&mut self, context: &RowContext<'_>, sink: &mut Sink) {
        self.num_rows += 1;
        if let Err(reason) = &context.entry {
            sink.rejected(
                At::entry(context.position, ""),
                "the entry does not have the shape of its kind",
                "an entry of a known kind with exactly its fields",
                reason,
            );
        }
    }

    fn finish(&mut self, _: &mut Sink) -> Outcome {
        Outcome::Checked(self.num_rows)
    }
}
