//! GC122 `false-negative`.

use std::collections::BTreeSet;

use schemas::body::Outcome as End;
use schemas::campaign::{Arm, Claim, ClaimKind, RunPurpose};
use schemas::report::Route;

use super::Ruled;
use crate::campaign::differ::differences;
use crate::campaign::numbers;
use crate::campaign::view::{Block, Campaign, Run};
use crate::derive::metrics;
use crate::rule::{At, Outcome, RuleInfo};

/// Text of the rule.
pub(crate) static INFO: RuleInfo = RuleInfo {
    code: "GC122",
    name: "false-negative",
    what: "A claim that an arm is worse, or no different, or that another is better or no worse than an arm that is no baseline, rests on a positive control of that arm, with its policy, val table and start, that reached its threshold, on all of its trials, on confirmation runs that the stopping rule ended and no budget, floor or failure, and on an arm to compare with that reached the campaign's threshold at every seed; and in claims of every kind the stopping rule ended the runs of the arm that is compared with. Otherwise the claim is blocked, and a warning says why.",
    why: "A naive port, too little tuning, too little budget or a baseline that does not train make a method look bad; that is evidence about the attempt and not about the method.",
    remedy: "nothing has to be changed in the record: the claim stays blocked. A campaign that can decide it needs what the finding names",
    reference: "docs/FORMAT.md, \"Campaigns\"",
    gate: Route::RequestQualification,
};

/// Evaluates the rule.
pub(crate) fn check(campaign: &Campaign, ruled: &mut Ruled<'_>) -> Outcome {
    let mut num_checked = 0;
    for claim in &campaign.prereg.claims {
        num_checked += 1;
        for pair in &claim.arms {
            let Some(against) = campaign.arm(&pair.against) else { continue };
            let mut missing: BTreeSet<String> = unfinished(campaign, against).into_iter().collect();
            if let Some(accused) = campaign.accused(claim, pair) {
                missing.extend(missing_of(campaign, accused));
            }
            if matches!(claim.kind, ClaimKind::Negative | ClaimKind::NoDifferenceFound) {
                missing.extend(untrained(campaign, against));
            }
            for reason in missing {
                report(claim, reason, ruled);
            }
        }
    }
    Outcome::Checked(num_checked)
}

fn report(claim: &Claim, reason: String, ruled: &mut Ruled<'_>) {
    let at = At::place(format!("claim {}", claim.id));
    let message = format!("what claim {:?} says against an arm is not competent", claim.id);
    ruled.sink.warning(at, message, "an arm that was made, tuned and run as it should be", &reason);
    ruled.block(Block::claim(claim, reason));
}

/// What an arm lacks before a result against it counts.
fn missing_of(campaign: &Campaign, arm: &Arm) -> Vec<String> {
    let mut missing = Vec::new();
    let metric = &campaign.prereg.metric;
    match &arm.positive_control {
        None => missing.push(format!("arm {:?} has no positive control", arm.name)),
        Some(control) => {
            let values = campaign.runs_of(&arm.name, RunPurpose::PositiveControl);
            let values = values.filter(|run| is_of_arm(campaign, arm, run));
            let mut values = values.filter_map(|run| run.quality(&metric.stream));
            if !values.any(|value| metrics::reaches(metric.direction, value, control.threshold)) {
                missing.push(format!(
                    "no positive control of arm {:?} with its policy, val table and start reached {:?}",
                    arm.name, control.threshold
                ));
            }
        }
    }
    let trials = campaign.runs_of(&arm.name, RunPurpose::Tuning);
    let spent = trials.filter(|trial| trial.is_informative(&metric.stream)).count();
    let allowed = arm.tuning.num_trials as usize;
    if allowed == 0 {
        missing.push(format!("arm {:?} was never tuned", arm.name));
    }
    if spent < allowed {
        missing.push(format!("arm {:?} spent {spent} of {allowed} trials", arm.name));
    }
    missing.extend(unfinished(campaign, arm));
    missing
}

/// Places at which a positive control is of its arm: it shows that the method
/// works as the arm has it, and not that another one does.
const OF_ARM: [&str; 3] = ["/data/val_examples", "/initialization", "/update"];

/// Whether a positive control has what the arm's confirmation runs have, but for
/// what tuning may choose.
fn is_of_arm(campaign: &Campaign, arm: &Arm, control: &Run) -> bool {
    let first = campaign.runs_of(&arm.name, RunPurpose::Confirmation).find(|run| run.level() == 0);
    let Some((own, other)) = control.known().zip(first.and_then(Run::known)) else { return false };
    let found = differences(&own.frozen, &other.frozen);
    found.iter().all(|one| !one.is_at(&OF_ARM) || one.is_covered(&arm.tuning.pointers))
}

/// Runs of an arm that their stopping rule did not end.
fn unfinished(campaign: &Campaign, arm: &Arm) -> Vec<String> {
    let mut missing = Vec::new();
    for seed in campaign.seeds() {
        let Some(run) = numbers::standing(campaign, &arm.name, seed) else {
            missing.push(format!("arm {:?} has no run of seed {seed}", arm.name));
            continue;
        };
        match run.known().map(|facts| facts.ended) {
            Some(Some(End::Completed)) => {}
            Some(Some(outcome)) => {
                missing.push(format!("{} ended {outcome:?} and not by its stopping rule", run.name()));
            }
            Some(None) | None => missing.push(format!("{} has not ended", run.name())),
        }
    }
    missing
}

/// Seeds at which the arm to compare with did not get to the threshold.
fn untrained(campaign: &Campaign, against: &Arm) -> Vec<String> {
    let dimension = schemas::campaign::ClaimDimension::StepsToQuality;
    let missed =
        campaign.seeds().filter(|seed| numbers::value(campaign, &against.name, *seed, dimension).is_none());
    missed.map(|seed| format!("arm {:?} did not reach the threshold at seed {seed}", against.name)).collect()
}
