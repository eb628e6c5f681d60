//! GC107 `preregistration-frozen`.

use schemas::report::Route;

use crate::rule::RuleInfo;

/// Text of the rule.
pub(crate) static INFO: RuleInfo = RuleInfo {
    code: "GC107",
    name: "preregistration-frozen",
    what: "Entry 0 holds the preregistration: canonical bytes of the known format, with their own digest, signed by the owner whom they name; the campaign's identifier derives from digest and nonce.",
    why: "What is compared, varied and claimed has to be fixed before there are outcomes, by somebody who answers for it.",
    remedy: "freeze the preregistration with `ledger campaign freeze`; a corrected one is another campaign",
    reference: "docs/FORMAT.md, \"Campaigns\" and \"Signatures\"",
    gate: Route::RejectFrozenInputs,
};
