//! GL006 `idempotency-key`.

use schemas::digest::{decode_hex, encode_hex};
use schemas::report::Route;

use crate::row::{RowCheck, RowContext};
use crate::rule::{At, Outcome, RuleInfo, Sink};

/// Text of the rule.
pub(crate) static INFO: RuleInfo = RuleInfo {
    code: "GL006",
    name: "idempotency-key",
    what: "Every entry's idempotency key is 32 hex digits and equals the one beside it, which layout 1 keeps unique.",
    why: "The key makes a repeated append one entry; a key that differs from its column lets one event be counted twice.",
    remedy: "restore the ledger from a copy; an entry is never changed",
    reference: "docs/FORMAT.md, \"SQLite layout 1\" and \"Entry\"",
    gate: Route::RejectIdentity,
};

#[derive(Default)]
pub(crate) struct IdempotencyKey {
    num_rows: u64,
}

impl RowCheck for IdempotencyKey {
    fn info(&self) -> &'static RuleInfo {
        &INFO
    }

    fn row(&mut self, context: &RowContext<'_>, sink: &mut Sink) {
        self.num_rows += 1;
        let Ok(entry) = &context.entry else { return };
        let text = entry.header.idem.as_str();
        match decode_hex(text).filter(|bytes| bytes.len() == 16) {
            None => sink.rejected(
                At::entry(context.position, "/idem"),
                "the idempotency key is malformed",
                "32 lower-case hex digits",
                text,
            ),
            Some(bytes) if bytes != context.row.idem => sink.tampered(
                At::entry(context.position, "column idem"),
                "the idempotency key beside the entry is not the entry's own",
                text,
                encode_hex(context.row.idem),
            ),
            Some(_) => {}
        }
    }

    fn finish(&mut self, _: &mut Sink) -> Outcome {
        Outcome::Checked(self.num_rows)
    }
}
