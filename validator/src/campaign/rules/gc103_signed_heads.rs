//! GC103 `campaign-signed-heads`.

use schemas::report::Route;

use crate::rule::RuleInfo;

/// Text of the rule.
pub(crate) static INFO: RuleInfo = RuleInfo {
    code: "GC103",
    name: "campaign-signed-heads",
    what: "Every tree head in the campaign's database is signed by the preregistration's owner, is of this campaign, and has the root of the entries that it covers.",
    why: "A head commits to all entries before it, so also to every run that was bound until then.",
    remedy: "restore the campaign's ledger from a copy; compare it with a head that was kept elsewhere",
    reference: "C2SP tlog-checkpoint; docs/FORMAT.md, \"Digests and trees\" and \"Campaigns\"",
    gate: Route::RejectIdentity,
};
