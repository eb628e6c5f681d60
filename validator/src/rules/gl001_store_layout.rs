//! GL001 `store-layout`. The check itself is `crate::store`.

use schemas::report::Route;

use crate::rule::RuleInfo;

/// Text of the rule.
pub(crate) static INFO: RuleInfo = RuleInfo {
    code: "GL001",
    name: "store-layout",
    what: "The ledger is a SQLite file of layout 1 with exactly its tables, indices and triggers, and SQLite's own integrity check passes.",
    why: "A changed schema could make the same query mean something else; a dropped trigger shows that somebody prepared to change rows.",
    remedy: "restore the ledger and its -wal file from a copy that was taken together",
    reference: "docs/FORMAT.md, \"SQLite layout 1\"",
    gate: Route::RejectIdentity,
};
