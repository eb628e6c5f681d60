//! GL103 `run-identity`. The check itself is `crate::contract`.

use schemas::report::Route;

use crate::rule::RuleInfo;

/// Text of the rule.
pub(crate) static INFO: RuleInfo = RuleInfo {
    code: "GL103",
    name: "run-identity",
    what: "The run's identifier is derived from the contract's digest and the nonce of the freeze.",
    why: "It binds every entry and every head to this contract, and tells two runs of one contract apart.",
    remedy: "freeze again; identifiers are derived, never chosen",
    reference: "docs/FORMAT.md, \"Digests and trees\"",
    gate: Route::RejectIdentity,
};
