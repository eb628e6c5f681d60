//! GC105 `campaign-head-coverage`.

use schemas::report::Route;

use crate::rule::RuleInfo;

/// Text of the rule.
pub(crate) static INFO: RuleInfo = RuleInfo {
    code: "GC105",
    name: "campaign-head-coverage",
    what: "A verified head covers every entry of the campaign.",
    why: "What no head covers could still be changed without a trace.",
    remedy: "let `ledger campaign add` end, which signs a head behind every entry, and audit again",
    reference: "docs/FORMAT.md, \"Digests and trees\" and \"Campaigns\"",
    gate: Route::RejectIdentity,
};
