//! GC104 `campaign-external-head`.

use schemas::report::Route;

use crate::rule::RuleInfo;

/// Text of the rule.
pub(crate) static INFO: RuleInfo = RuleInfo {
    code: "GC104",
    name: "campaign-external-head",
    what: "The head file beside the campaign's ledger, or the one that is named, holds signed heads of this campaign that the database has too, and none is ahead of it.",
    why: "Whoever owns the database can cut runs off its end; a head outside of it shows that they were there.",
    remedy: "restore the head file, or name one that was kept elsewhere with --head FILE",
    reference: "docs/FORMAT.md, \"Digests and trees\" and \"Campaigns\"",
    gate: Route::RejectIdentity,
};
