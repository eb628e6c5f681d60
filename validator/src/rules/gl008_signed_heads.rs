//! GL008 `signed-heads`. The check itself is `crate::heads`.

use schemas::report::Route;

use crate::rule::RuleInfo;

/// Text of the rule.
pub(crate) static INFO: RuleInfo = RuleInfo {
    code: "GL008",
    name: "signed-heads",
    what: "Every tree head in the database is well formed, names this run, is signed by the owner (size 1) or the trainer, and has the root that the stored entries give at its size.",
    why: "A head commits to every byte of the entries before it; one that does not match shows that an entry was changed, removed or reordered.",
    remedy: "restore the ledger from a copy; compare it with a head that was kept elsewhere (`--head FILE`)",
    reference: "RFC 6962, section 2.1; C2SP tlog-checkpoint and signed-note; docs/FORMAT.md, \"Digests and trees\"",
    gate: Route::RejectIdentity,
};
