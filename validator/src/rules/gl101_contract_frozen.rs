//! GL101 `contract-frozen`. The check itself is `crate::contract`.

use schemas::report::Route;

use crate::rule::RuleInfo;

/// Text of the rule.
pub(crate) static INFO: RuleInfo = RuleInfo {
    code: "GL101",
    name: "contract-frozen",
    what: "Entry 0 is the frozen contract: RFC 8785 bytes of a contract in its one form, every field written, with their SHA-256.",
    why: "Everything else is judged by the contract; it must be one text with one meaning, and the first thing in the ledger.",
    remedy: "freeze a contract with `ledger freeze contract.json` and train from the ledger that it writes",
    reference: "RFC 8785; docs/FORMAT.md, \"Canonical JSON\"; schemas/json/contract.schema.json",
    gate: Route::RejectIdentity,
};
