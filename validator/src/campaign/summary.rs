//! Counts and costs of the report, over every run that was bound, whatever
//! became of it.

use schemas::body::Outcome as End;
use schemas::campaign::report::{ArmOfCampaign, CampaignCosts, RunOfCampaign, RunVerdicts};
use schemas::campaign::{Arm, RunPurpose};
use schemas::number::Float;
use schemas::report::Verdict;

use super::numbers;
use super::view::{Campaign, Run};

/// What every campaign report says of itself.
const TRUST_STATEMENT: [&str; 5] = [
    "It shows what was written, by which key, before what; not that the writers told the truth.",
    "It cannot see runs that were made outside of this campaign's folders, nor campaigns that were frozen beside this one and left out.",
    "That a run was bound before its outcome rests on heads, and on clocks that their owners set.",
    "A claim that is supported is supported for these arms, seeds and axes; one that is not is no evidence for its opposite, and one that is blocked is neither.",
    "It grants no quality, readiness or release.",
];

/// The part of the report that counts.
pub(crate) struct Summary {
    pub(crate) arms: Vec<ArmOfCampaign>,
    pub(crate) costs: CampaignCosts,
    pub(crate) runs: Vec<RunOfCampaign>,
    pub(crate) verdicts: RunVerdicts,
}

impl Summary {
    pub(crate) fn of(campaign: Option<&Campaign>) -> Self {
        let Some(campaign) = campaign else {
            let costs = CampaignCosts::default();
            return Self { arms: Vec::new(), costs, runs: Vec::new(), verdicts: RunVerdicts::default() };
        };
        let all: Vec<&Run> = campaign.runs.iter().collect();
        Self {
            arms: campaign.prereg.arms.iter().map(|arm| of_arm(campaign, arm)).collect(),
            costs: costs(&all),
            runs: all.iter().map(|run| of_run(campaign, run)).collect(),
            verdicts: verdicts(&all),
        }
    }
}

fn costs(runs: &[&Run]) -> CampaignCosts {
    numbers::sum(runs.iter().filter_map(|run| Some(&run.known()?.costs)))
}

fn verdicts(runs: &[&Run]) -> RunVerdicts {
    let mut counts = RunVerdicts::default();
    for run in runs {
        *match run.verdict {
            Some(Verdict::Accepted) => &mut counts.accepted,
            Some(Verdict::Incomplete) => &mut counts.incomplete,
            Some(Verdict::NotEvaluated) => &mut counts.not_evaluated,
            Some(Verdict::Rejected) => &mut counts.rejected,
            Some(Verdict::Tampered) => &mut counts.tampered,
            None => &mut counts.missing,
        } += 1;
    }
    counts
}

fn of_arm(campaign: &Campaign, arm: &Arm) -> ArmOfCampaign {
    let runs: Vec<&Run> = campaign.runs.iter().filter(|run| run.arm() == arm.name).collect();
    let count = |is_counted: &dyn Fn(&Run) -> bool| runs.iter().filter(|run| is_counted(run)).count() as u64;
    let is_confirmation = |run: &Run| run.purpose() == RunPurpose::Confirmation;
    let trials: Vec<&Run> = runs.iter().copied().filter(|run| run.purpose() == RunPurpose::Tuning).collect();
    ArmOfCampaign {
        costs: costs(&runs),
        name: arm.name.clone(),
        num_confirmations: count(&is_confirmation),
        num_failed: count(&|run| {
            run.known().and_then(|facts| facts.ended).is_some_and(|outcome| outcome != End::Completed)
        }),
        num_positive_controls: count(&|run| run.purpose() == RunPurpose::PositiveControl),
        num_reached: count(&|run| {
            is_confirmation(run) && run.known().is_some_and(|facts| facts.reach.is_some())
        }),
        num_rescued: count(&|run| run.level() > 0),
        num_trials: trials.len() as u64,
        tuning_tokens: costs(&trials).tokens,
        verdicts: verdicts(&runs),
    }
}

fn of_run(campaign: &Campaign, run: &Run) -> RunOfCampaign {
    let det = &run.first.det;
    let stream = &campaign.prereg.metric.stream;
    RunOfCampaign {
        arm: det.arm.clone(),
        costs: run.known().map(|facts| facts.costs.clone()),
        entry: run.first.entry,
        is_late: run.first.obs.late.is_some(),
        outcome: run.known().and_then(|facts| facts.ended),
        path: run.path().to_owned(),
        purpose: det.purpose,
        quality: run.quality(stream).map(Float),
        quality_basis: Some(run.basis(stream)),
        rescue_level: det.rescue_level,
        run: run.id.clone(),
        seed: det.seed,
        threshold_step: run.known().and_then(|facts| Some(facts.reach?.step)),
        trial: det.trial,
        verdict: run.verdict,
    }
}

/// The preregistration's nonclaims and the audit's own.
pub(crate) fn nonclaims(campaign: Option<&Campaign>) -> Vec<String> {
    let own = TRUST_STATEMENT.iter().map(|line| (*line).to_owned());
    campaign
        .map_or_else(Vec::new, |campaign| campaign.prereg.nonclaims.clone())
        .into_iter()
        .chain(own)
        .collect()
}
