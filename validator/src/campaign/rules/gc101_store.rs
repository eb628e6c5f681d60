//! GC101 `campaign-store`.

use schemas::report::Route;

use crate::rule::RuleInfo;

/// Text of the rule.
pub(crate) static INFO: RuleInfo = RuleInfo {
    code: "GC101",
    name: "campaign-store",
    what: "The campaign's ledger is a SQLite file of layout 1, undamaged, with the triggers and tables of the layout and no other.",
    why: "What SQLite reads differently from what was written, or what a view stands in for, is no record.",
    remedy: "name the campaign's ledger, such as campaign.db, or restore it from a copy",
    reference: "docs/FORMAT.md, \"SQLite layout 1\"",
    gate: Route::RejectIdentity,
};
