//! GL003 `canonical-bytes`.

use schemas::report::Route;

use crate::row::{RowCheck, RowContext};
use crate::rule::{At, Outcome, RuleInfo, Sink};

/// Text of the rule.
pub(crate) static INFO: RuleInfo = RuleInfo {
    code: "GL003",
    name: "canonical-bytes",
    what: "Every entry's stored bytes are canonical entry JSON: keys ascending and once, one spelling of every string and number, at most 65,535 bytes.",
    why: "Bytes that two readers could understand differently (a key twice, 1.0 or 1) would let one hash stand for two meanings.",
    remedy: "find the program that wrote the entry; entries are written through the recorder only",
    reference: "docs/FORMAT.md, \"Canonical JSON\"",
    gate: Route::RejectIdentity,
};

#[derive(Default)]
pub(crate) struct CanonicalBytes {
    num_rows: u64,
}

impl RowCheck for CanonicalBytes {
    fn info(&self) -> &'static RuleInfo {
        &INFO
    }

    fn row(&mut self, context: &RowContext<'_>, sink: &mut Sink) {
        self.num_rows += 1;
        if let Err(problem) = context.scan {
            let start = problem.offset.saturating_sub(16).min(context.row.entry.len());
            let end = (problem.offset + 16).min(context.row.entry.len());
            sink.rejected(
                At::entry(context.position, format!("byte {}", problem.offset)),
                format!("the entry's bytes are not canonical: {}", problem.what),
                "canonical entry JSON",
                format!("...{}...", context.row.entry[start..end].escape_ascii()),
            );
        }
    }

    fn finish(&mut self, _: &mut Sink) -> Outcome {
        Outcome::Checked(self.num_rows)
    }
}
