//! GL104 `frozen-artifacts`. The check itself is `crate::documents`.

use schemas::report::Route;

use crate::rule::RuleInfo;

/// Text of the rule.
pub(crate) static INFO: RuleInfo = RuleInfo {
    code: "GL104",
    name: "frozen-artifacts",
    what: "The ledger stores the data manifest, both example tables, the parameter manifest and the policy card, and the preregistration of a run of a campaign, each with the digest and size that the contract binds, and nothing else.",
    why: "An audit judges by the bytes that were frozen, not by files that may have changed since.",
    remedy: "restore the ledger from a copy; stored documents are never changed after the freeze",
    reference: "docs/FORMAT.md, \"SQLite layout 1\"; schemas::body::StoredArtifact",
    gate: Route::RejectFrozenInputs,
};
