//! GC117 `fallback-disclosed`.

use schemas::campaign::RunPurpose;
use schemas::report::Route;

use super::{Ruled, family};
use crate::campaign::view::{Block, Campaign};
use crate::rule::{At, Outcome, RuleInfo};

/// Text of the rule.
pub(crate) static INFO: RuleInfo = RuleInfo {
    code: "GC117",
    name: "fallback-disclosed",
    what: "The parameter groups that another family of update rule handles than the one that an arm stands for, as the policy card of each of its runs gives them, are those that the arm names.",
    why: "A method that is credited with a run in which another one moved the embeddings and vectors is credited with that one's work.",
    remedy: "name the groups in `fallback_groups`, in a preregistration of another campaign",
    reference: "docs/FORMAT.md, \"Campaigns\"; schemas::policy_card::Fallback",
    gate: Route::RejectFrozenInputs,
};

/// Evaluates the rule.
pub(crate) fn check(campaign: &Campaign, ruled: &mut Ruled<'_>) -> Outcome {
    let mut num_checked = 0;
    for arm in &campaign.prereg.arms {
        for run in campaign.runs.iter().filter(|run| run.arm() == arm.name) {
            // A control may be of what is known to work, and is credited with nothing.
            if run.purpose() == RunPurpose::PositiveControl {
                continue;
            }
            let Some(Ok(card)) = run.known().map(|facts| &facts.frozen.card) else { continue };
            num_checked += 1;
            let handled_by_other = |name: &String| match &card.fallback {
                Some(fallback) if fallback.groups.contains(name) => family(&fallback.update) != arm.family,
                _ => family(&card.update) != arm.family,
            };
            let names = card.groups.iter().map(|group| &group.name);
            let actual: Vec<&String> = names.filter(|name| handled_by_other(name)).collect();
            if actual.iter().copied().eq(&arm.fallback_groups) {
                continue;
            }
            let at = At::entry(run.first.entry, "contract /update/card#/fallback");
            let message = format!(
                "{} has groups that another family than {:?} handles, and the arm names others",
                run.name(),
                arm.family
            );
            ruled.sink.rejected(at, message, format!("{:?}", arm.fallback_groups), format!("{actual:?}"));
            let reason = format!("arm {:?} does not say which groups fall back to another family", arm.name);
            ruled.block(Block::arm(&arm.name, reason));
        }
    }
    Outcome::Checked(num_checked)
}
