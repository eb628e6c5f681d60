//! GC118 `rescue-ladder`.

use std::collections::BTreeMap;

use schemas::campaign::{Arm, ContractPointer, RunPurpose};
use schemas::report::Route;

use super::Ruled;
use crate::campaign::differ::differences;
use crate::campaign::view::{Block, Campaign, IDENTITY, Run};
use crate::rule::{At, Outcome, RuleInfo};

/// Text of the rule.
pub(crate) static INFO: RuleInfo = RuleInfo {
    code: "GC118",
    name: "rescue-ladder",
    what: "A run of rescue level n is a confirmation run, its arm has that level, the run of level n - 1 at the same seed was bound before it and did not reach the threshold, its contract differs from that of level 0 only where levels 1 to n permit, and the level has no more runs than it was given.",
    why: "Rescue that was not fixed before is another method under the old name; rescue of a run that went well is a second draw.",
    remedy: "follow the preregistered ladder in order; what it does not permit is another campaign",
    reference: "docs/FORMAT.md, \"Campaigns\"",
    gate: Route::RejectFrozenInputs,
};

/// Evaluates the rule.
pub(crate) fn check(campaign: &Campaign, ruled: &mut Ruled<'_>) -> Outcome {
    let mut num_checked = 0;
    let mut by_level: BTreeMap<(&str, u32), u32> = BTreeMap::new();
    for run in campaign.runs.iter().filter(|run| run.level() > 0) {
        num_checked += 1;
        // A run of no arm is told by the denominator.
        let Some(arm) = campaign.arm(run.arm()) else { continue };
        let num_runs = by_level.entry((run.arm(), run.level())).or_default();
        *num_runs += 1;
        let before = ruled.sink.num_errors();
        check_level(campaign, arm, run, *num_runs, ruled);
        check_below(campaign, run, ruled);
        check_changes(campaign, arm, run, ruled);
        if ruled.sink.num_errors() > before {
            ruled.block(Block::arm(run.arm(), format!("{} is beyond the rescue ladder", run.name())));
        }
    }
    Outcome::Checked(num_checked)
}

fn check_level(campaign: &Campaign, arm: &Arm, run: &Run, num_runs: u32, ruled: &mut Ruled<'_>) {
    let at = || At::entry(run.first.entry, "/body/det/rescue_level");
    if run.purpose() != RunPurpose::Confirmation {
        let message = format!("{} is rescued, and is no confirmation run", run.name());
        ruled.sink.rejected(at(), message, "a confirmation run, or level 0", run.level());
    }
    let level = arm.rescue.iter().find(|level| level.level == run.level());
    match level {
        None => {
            let message = format!("{} is at a rescue level that its arm does not have", run.name());
            ruled.sink.rejected(at(), message, format!("at most level {}", arm.rescue.len()), run.level());
        }
        Some(level) if num_runs > level.max_runs => {
            let message = format!(
                "arm {:?} of campaign {} has more runs at a rescue level than it was given",
                arm.name, campaign.id
            );
            ruled.sink.rejected(at(), message, level.max_runs, num_runs);
        }
        Some(_) => {}
    }
}

/// The run one level below: there, earlier, and gone wrong.
fn check_below(campaign: &Campaign, run: &Run, ruled: &mut Ruled<'_>) {
    if run.purpose() != RunPurpose::Confirmation {
        return;
    }
    let at = || At::entry(run.first.entry, "/body/det/rescue_level");
    let below = campaign.ladder(run.arm(), run.seed()).get(&(run.level() - 1)).copied();
    let Some(below) = below.filter(|below| below.first.entry < run.first.entry) else {
        let message =
            format!("{} leaves out a rung: no run of the level below was bound before it", run.name());
        ruled.sink.rejected(at(), message, format!("a run of level {}", run.level() - 1), "none");
        return;
    };
    let Some(facts) = below.known() else { return };
    if let Some(reach) = facts.reach.filter(|_| facts.selected_step.is_some()) {
        let message = format!("{} rescues a run that reached the threshold", run.name());
        let expected = "a run that did not reach it";
        ruled.sink.rejected(
            at(),
            message,
            expected,
            format!("{} reached it at step {}", below.name(), reach.step),
        );
    }
}

fn check_changes(campaign: &Campaign, arm: &Arm, run: &Run, ruled: &mut Ruled<'_>) {
    let Some(first) = campaign.confirmation(run.arm(), run.seed()) else { return };
    let (Some(facts), Some(firsts)) = (run.known(), first.known()) else { return };
    let levels = arm.rescue.iter().filter(|level| level.level <= run.level());
    let permitted: Vec<&ContractPointer> = levels.flat_map(|level| &level.pointers).collect();
    for difference in differences(&facts.frozen, &firsts.frozen) {
        if difference.is_at(&IDENTITY)
            || difference.is_at(&["/membership/rescue_level"])
            || difference.is_covered(permitted.iter().copied())
        {
            continue;
        }
        ruled.sink.rejected(
            At::entry(run.first.entry, format!("contract {difference}")),
            format!("{} changes what its rescue levels do not permit", run.name()),
            &difference.right,
            &difference.left,
        );
    }
}
