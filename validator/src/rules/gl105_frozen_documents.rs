//! GL105 `frozen-documents`. The check itself is `crate::documents`.

use schemas::report::Route;

use crate::rule::RuleInfo;

/// Text of the rule.
pub(crate) static INFO: RuleInfo = RuleInfo {
    code: "GL105",
    name: "frozen-documents",
    what: "Every stored document is well formed: format tag, known fields only, parameter paths in order, and example records that are windows of shards of their split.",
    why: "A document that can be read in two ways, or a window outside its shard, would make the contract ambiguous.",
    remedy: "write the document again with the program that makes it, and freeze again",
    reference: "schemas/json; docs/FORMAT.md, \"Examples\" and \"Parameters\"",
    gate: Route::RejectFrozenInputs,
};
