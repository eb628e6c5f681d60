//! GL102 `contract-signature`. The check itself is `crate::contract`.

use schemas::report::Route;

use crate::rule::RuleInfo;

/// Text of the rule.
pub(crate) static INFO: RuleInfo = RuleInfo {
    code: "GL102",
    name: "contract-signature",
    what: "The owner's key that the contract names signed exactly the contract's bytes, and every role's key is a usable Ed25519 key.",
    why: "It shows that whoever holds the owner's key agreed to this contract and no other.",
    remedy: "freeze again with the owner's key (`--keys DIR`); a contract is never changed after its signature",
    reference: "DSSE v1; RFC 8032; docs/FORMAT.md, \"Signatures\"",
    gate: Route::RejectIdentity,
};
