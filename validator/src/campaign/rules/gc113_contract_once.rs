//! GC113 `contract-once`.

use std::collections::BTreeMap;

use schemas::digest::Digest;
use schemas::report::Route;

use super::Ruled;
use crate::campaign::view::{Block, Campaign};
use crate::rule::{At, Outcome, RuleInfo};

/// Text of the rule.
pub(crate) static INFO: RuleInfo = RuleInfo {
    code: "GC113",
    name: "contract-once",
    what: "No two runs of the campaign have one contract.",
    why: "A contract that is frozen again and run again lets somebody take the better of two outcomes and call it the run.",
    remedy: "give every run a contract of its own, with its own trial number; both stay in the denominator",
    reference: "docs/FORMAT.md, \"Campaigns\"",
    gate: Route::RejectIdentity,
};

/// Evaluates the rule.
pub(crate) fn check(campaign: &Campaign, ruled: &mut Ruled<'_>) -> Outcome {
    let mut seen: BTreeMap<Digest, String> = BTreeMap::new();
    for run in &campaign.runs {
        let digest = run.known().map_or(run.first.det.contract, |facts| facts.frozen.digest);
        if let Some(other) = seen.insert(digest, run.name()) {
            ruled.sink.rejected(
                At::entry(run.first.entry, "/body/det/contract"),
                format!("{} was frozen from a contract that another run has", run.name()),
                "a contract of its own",
                format!("that of {other}"),
            );
            ruled.block(Block::arm(run.arm(), format!("{} repeats the contract of {other}", run.name())));
        }
    }
    Outcome::Checked(campaign.runs.len() as u64)
}
