//! GL005 `leaf-hash`.

use schemas::digest::encode_hex;
use schemas::report::Route;

use crate::row::{RowCheck, RowContext};
use crate::rule::{At, Outcome, RuleInfo, Sink};

/// Text of the rule.
pub(crate) static INFO: RuleInfo = RuleInfo {
    code: "GL005",
    name: "leaf-hash",
    what: "The leaf hash stored beside every entry is the hash of the entry's bytes.",
    why: "It names the entry that was changed, where a head only says that one of them was.",
    remedy: "restore the ledger from a copy; an entry is never changed, only amended by a later one",
    reference: "RFC 6962, section 2.1; docs/FORMAT.md, \"Digests and trees\"",
    gate: Route::RejectIdentity,
};

#[derive(Default)]
pub(crate) struct LeafHash {
    num_rows: u64,
}

impl RowCheck for LeafHash {
    fn info(&self) -> &'static RuleInfo {
        &INFO
    }

    fn row(&mut self, context: &RowContext<'_>, sink: &mut Sink) {
        self.num_rows += 1;
        if context.row.leaf != context.leaf {
            sink.tampered(
                At::entry(context.position, "column leaf"),
                "the entry's bytes do not have the stored leaf hash",
                encode_hex(&context.leaf),
                encode_hex(context.row.leaf),
            );
        }
    }

    fn finish(&mut self, _: &mut Sink) -> Outcome {
        Outcome::Checked(self.num_rows)
    }
}
