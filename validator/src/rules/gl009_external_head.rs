//! GL009 `external-head`. The check itself is `crate::heads`.

use schemas::report::Route;

use crate::rule::RuleInfo;

/// Text of the rule.
pub(crate) static INFO: RuleInfo = RuleInfo {
    code: "GL009",
    name: "external-head",
    what: "The head file outside the database is well formed, its heads verify, never shrink or fork, agree with the entries, are in the database too, and none is ahead of it.",
    why: "Removing the newest rows, or losing the write-ahead log, leaves a database that is consistent in itself; only a head outside it shows what is missing.",
    remedy: "restore the ledger with its -wal file, or the head file, from a copy that was taken together",
    reference: "docs/FORMAT.md, \"Digests and trees\"",
    gate: Route::RejectIdentity,
};
