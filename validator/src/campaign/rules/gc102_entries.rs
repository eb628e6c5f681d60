//! GC102 `campaign-entries`.

use schemas::report::Route;

use crate::rule::RuleInfo;

/// Text of the rule.
pub(crate) static INFO: RuleInfo = RuleInfo {
    code: "GC102",
    name: "campaign-entries",
    what: "Every entry of the campaign is numbered without a gap, canonical, of a known kind with exactly its fields, with its own leaf hash and idempotency key; no critical extension is unknown. Times that go back are a warning.",
    why: "An entry that was removed, moved or changed, or that two readers understand differently, is how a run leaves the denominator.",
    remedy: "restore the campaign's ledger from a copy; an entry is never changed",
    reference: "docs/FORMAT.md, \"Entry\" and \"Canonical JSON\"",
    gate: Route::RejectIdentity,
};
