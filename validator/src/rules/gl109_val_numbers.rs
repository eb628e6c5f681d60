//! GL109 `val-numbers`. The check itself is `crate::val_numbers`.

use schemas::report::Route;

use crate::rule::RuleInfo;

/// Text of the rule.
pub(crate) static INFO: RuleInfo = RuleInfo {
    code: "GL109",
    name: "val-numbers",
    what: "The evaluator's own val numbers, where they lie beside the ledger, are signed by the contract's qualifier, for this contract and run, one result for each candidate and stream.",
    why: "With them selection rests on numbers that the trainer did not compute; numbers by somebody else would only look so.",
    remedy: "run `evaluator val` again with the qualifier's key, or remove the file",
    reference: "DSSE v1; in-toto Statement v1; docs/FORMAT.md, \"Handoff\"",
    gate: Route::RejectSelectionLeakage,
};
