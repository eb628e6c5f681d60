//! GC122 `false-negative`.

use schemas::body::Outcome as End;
use schemas::campaign::{Arm, Claim, ClaimKind, RunPurpose};
use schemas::report::Route;

use super::Ruled;
use crate::campaign::numbers;
use crate::campaign::view::{Block, Campaign};
use crate::derive::metrics;
use crate::rule::{At, Outcome, RuleInfo};

/// Text of the rule.
pub(crate) static INFO: RuleInfo = RuleInfo {
    code: "GC122",
    name: "false-negative",
    what: "A claim that an arm is worse, or no different, rests on a positive control of that arm that reached its threshold, on all of its trials, on confirmation runs that the stopping rule ended and no budget, floor or failure, and on an arm to compare with that reached the campaign's threshold at every seed. Otherwise the claim is blocked, and a warning says why.",
    why: "A naive port, too little tuning, too little budget or a baseline that does not train make a method look bad; that is evidence about the attempt and not about the method.",
    remedy: "nothing has to be changed in the record: the claim stays blocked. A campaign that can decide it needs what the finding names",
    reference: "docs/FORMAT.md, \"Campaigns\"",
    gate: Route::RequestQualification,
};

/// Evaluates the rule.
pub(crate) fn check(campaign: &Campaign, ruled: &mut Ruled<'_>) -> Outcome {
    let mut num_checked = 0;
    for claim in &campaign.prereg.claims {
        if !matches!(claim.kind, ClaimKind::Negative | ClaimKind::NoDifferenceFound) {
            continue;
        }
        num_checked += 1;
        for pair in &claim.arms {
            let (Some(arm), Some(against)) = (campaign.arm(&pair.arm), campaign.arm(&pair.against)) else {
                continue;
            };
            let mut missing = missing_of(campaign, arm);
            missing.extend(untrained(campaign, against));
            for reason in missing {
                report(claim, reason, ruled);
            }
        }
    }
    Outcome::Checked(num_checked)
}

fn report(claim: &Claim, reason: String, ruled: &mut Ruled<'_>) {
    let at = At::place(format!("claim {}", claim.id));
    let message = format!("the negative result that claim {:?} states is not competent", claim.id);
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
            let mut values = values.filter_map(|run| run.quality(&metric.stream));
            if !values.any(|value| metrics::reaches(metric.direction, value, control.threshold)) {
                missing.push(format!(
                    "no positive control of arm {:?} reached {:?}",
                    arm.name, control.threshold
                ));
            }
        }
    }
    let (spent, allowed) =
        (campaign.runs_of(&arm.name, RunPurpose::Tuning).count(), arm.tuning.num_trials as usize);
    if allowed == 0 {
        missing.push(format!("arm {:?} was never tuned", arm.name));
    }
    if spent < allowed {
        missing.push(format!("arm {:?} spent {spent} of {allowed} trials", arm.name));
    }
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
