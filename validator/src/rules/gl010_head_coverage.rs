//! GL010 `head-coverage`. The check itself is `crate::heads`.

use schemas::report::Route;

use crate::rule::RuleInfo;

/// Text of the rule.
pub(crate) static INFO: RuleInfo = RuleInfo {
    code: "GL010",
    name: "head-coverage",
    what: "The newest verified head covers every entry.",
    why: "Entries after it are vouched for by nobody's signature; a crash leaves some for the next attempt to sign, a run that has ended leaves none.",
    remedy: "resume the run with `trainer run --ledger run.db`, which signs what the crash left",
    reference: "docs/FORMAT.md, \"Digests and trees\"",
    gate: Route::RejectIdentity,
};
