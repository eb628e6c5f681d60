//! GC112 `campaign-denominator`.

use std::collections::BTreeMap;

use schemas::campaign::{Arm, RunPurpose};
use schemas::report::Route;

use super::Ruled;
use crate::campaign::view::{Block, Campaign, Concern};
use crate::rule::{At, Outcome, RuleInfo};

/// Text of the rule.
pub(crate) static INFO: RuleInfo = RuleInfo {
    code: "GC112",
    name: "campaign-denominator",
    what: "Every arm has one confirmation run of level 0 for each preregistered seed and for no other; the trials of an arm are numbered from 1 without a gap in the order of binding, whatever became of them; every run is of a preregistered arm; and no ledger that names this campaign lies in its folders without being bound.",
    why: "The runs that failed are what a result of the others has to be read against: who leaves them out reports luck.",
    remedy: "make the run that is missing, or bind the one that is not; a run is never unbound, and a failed one counts",
    reference: "docs/FORMAT.md, \"Campaigns\"",
    gate: Route::RejectFrozenInputs,
};

/// Evaluates the rule.
pub(crate) fn check(campaign: &Campaign, ruled: &mut Ruled<'_>) -> Outcome {
    for arm in &campaign.prereg.arms {
        check_confirmations(campaign, arm, ruled);
        check_trials(campaign, arm, ruled);
    }
    for run in campaign.runs.iter().filter(|run| campaign.arm(run.arm()).is_none()) {
        let at = At::entry(run.first.entry, "/body/det/arm");
        let message = format!("{} is of no arm of the preregistration", run.name());
        ruled.sink.rejected(at, message, "a preregistered arm", run.arm());
    }
    for unbound in &campaign.unbound {
        let at = At::place(&unbound.path);
        let message = "a run names this campaign and is not bound by it";
        let expected = format!("a campaign.run entry for {}", unbound.run);
        if unbound.has_begun {
            ruled.sink.rejected(at, message, expected, "none, and the run has begun");
            let reason = format!("{} belongs to the campaign and is left out of it", unbound.path);
            ruled.block(Block { concern: Concern::All, is_refutation: false, reason });
        } else {
            ruled.sink.incomplete(at, message, expected, "none; the run has not begun");
        }
    }
    for (path, reason) in &campaign.unread {
        let message = "whether a run of this campaign lies here unbound cannot be told";
        ruled.sink.not_evaluated(At::place(path), message, "a file that can be read", reason);
    }
    Outcome::Checked((campaign.runs.len() + campaign.prereg.arms.len() * campaign.prereg.seeds.len()) as u64)
}

fn check_confirmations(campaign: &Campaign, arm: &Arm, ruled: &mut Ruled<'_>) {
    let mut by_seed: BTreeMap<(u64, u32), u64> = BTreeMap::new();
    for run in campaign.runs_of(&arm.name, RunPurpose::Confirmation) {
        if !campaign.seeds().any(|seed| seed == run.seed()) {
            let at = At::entry(run.first.entry, "/body/det/seed");
            let message = format!("{} confirms at a seed that was not preregistered", run.name());
            ruled.sink.rejected(at, message, "a preregistered seed", run.seed());
            ruled.block(Block::arm(&arm.name, format!("{} is beyond the preregistered seeds", run.name())));
        }
        let num_runs = by_seed.entry((run.seed(), run.level())).or_default();
        *num_runs += 1;
        if *num_runs > 1 {
            let at = At::entry(run.first.entry, "/body/det/seed");
            let message = format!("{} repeats a confirmation run of its seed and level", run.name());
            ruled.sink.rejected(at, message, "one run", format!("run {num_runs}"));
            ruled.block(Block::arm(&arm.name, format!("seed {} was run more than once", run.seed())));
        }
    }
    for seed in campaign.seeds().filter(|seed| !by_seed.contains_key(&(*seed, 0))) {
        ruled.sink.incomplete(
            At::place(format!("arm {}, seed {seed}", arm.name)),
            format!("arm {:?} has no confirmation run of seed {seed}", arm.name),
            "a run of level 0",
            "none",
        );
        ruled.block(Block::arm(
            &arm.name,
            format!("arm {:?} has no confirmation run of seed {seed}", arm.name),
        ));
    }
}

fn check_trials(campaign: &Campaign, arm: &Arm, ruled: &mut Ruled<'_>) {
    let runs = campaign.runs.iter().filter(|run| run.arm() == arm.name);
    for (expected, run) in (1u32..).zip(runs) {
        let trial = run.first.det.trial;
        if trial == expected {
            continue;
        }
        ruled.sink.rejected(
            At::entry(run.first.entry, "/body/det/trial"),
            format!("the trials of arm {:?} are not numbered in the order of binding", arm.name),
            expected,
            trial,
        );
        ruled.block(Block::arm(
            &arm.name,
            format!("trial {expected} of arm {:?} is not where it should be", arm.name),
        ));
        // One gap is one finding.
        return;
    }
}
