//! GC115 `baseline-tuning`.

use schemas::campaign::{Arm, ArmRole, RunPurpose};
use schemas::contract::Architecture;
use schemas::report::Route;
use serde_json::Value;

use super::Ruled;
use crate::campaign::facts::RunFacts;
use crate::campaign::view::{Block, Campaign, Run};
use crate::derive::{metrics, steps};
use crate::rule::{At, Outcome, RuleInfo};

/// Text of the rule.
pub(crate) static INFO: RuleInfo = RuleInfo {
    code: "GC115",
    name: "baseline-tuning",
    what: "Every arm spent the trials that it was given, each within its price, over before the arm's first confirmation run was bound, and not all of them on the same values; a trial that gave no value counts as spent only where it was completed or its numbers went out of range, and values are confirmed only where a trial gave one; arms got equal trials and prices, or a reason was frozen; an arm's confirmation runs have the values of its best trial (another trial's is an error of a baseline and a warning elsewhere); and a baseline that was never tuned decides no claim of an arm that was.",
    why: "A proposed method with values of its own against a baseline at its defaults measures the tuning, and not the method.",
    remedy: "make the trials that are missing, or preregister another campaign with equal searches",
    reference: "docs/FORMAT.md, \"Campaigns\"",
    gate: Route::RejectFrozenInputs,
};

/// Evaluates the rule.
pub(crate) fn check(campaign: &Campaign, ruled: &mut Ruled<'_>) -> Outcome {
    let mut num_checked = 0;
    for arm in &campaign.prereg.arms {
        let trials: Vec<&Run> = campaign.runs_of(&arm.name, RunPurpose::Tuning).collect();
        num_checked += 1 + trials.len() as u64;
        check_count(campaign, arm, &trials, ruled);
        check_order(campaign, arm, &trials, ruled);
        trials.iter().for_each(|trial| check_price(arm, trial, ruled));
        check_search(arm, &trials, ruled);
        check_choice(campaign, arm, &trials, ruled);
    }
    check_baselines(campaign, ruled);
    Outcome::Checked(num_checked)
}

fn check_count(campaign: &Campaign, arm: &Arm, trials: &[&Run], ruled: &mut Ruled<'_>) {
    let stream = &campaign.prereg.metric.stream;
    let informative = trials.iter().filter(|trial| trial.is_informative(stream)).count() as u64;
    let (allowed, spent) = (u64::from(arm.tuning.num_trials), trials.len() as u64);
    let at = || At::place(format!("arm {}", arm.name));
    let expected = format!("{allowed} trials");
    let actual = format!("{spent} trials");
    if spent > allowed {
        let message = format!("arm {:?} was tuned with more trials than it was given", arm.name);
        ruled.sink.rejected(at(), message, expected, actual);
        ruled.block(Block::arm(&arm.name, format!("arm {:?} spent {spent} of {allowed} trials", arm.name)));
    } else if informative < allowed {
        let message = format!("arm {:?} did not spend its trials: it is under-tuned", arm.name);
        let actual = format!("{actual}, of which {informative} said anything");
        ruled.sink.incomplete(at(), message, expected, actual);
        ruled.block(Block::arm(
            &arm.name,
            format!("arm {:?} spent {informative} of {allowed} trials", arm.name),
        ));
    }
}

/// How far clocks of two hosts may be apart before an order of times is an error.
const CLOCK_ALLOWANCE_US: u64 = 60_000_000;

/// What is confirmed is chosen from trials, so they come first: bound before the
/// arm's first confirmation run, and over when it was bound.
fn check_order(campaign: &Campaign, arm: &Arm, trials: &[&Run], ruled: &mut Ruled<'_>) {
    let confirmations = campaign.runs_of(&arm.name, RunPurpose::Confirmation);
    let first = confirmations.filter(|run| run.level() == 0).min_by_key(|run| run.first.entry);
    let Some(first) = first else { return };
    for trial in trials {
        let at = || At::entry(trial.first.entry, "/body/det/purpose");
        let message = format!("{} came after a confirmation run of its arm", trial.name());
        let before = ruled.sink.num_errors();
        let mut is_after = false;
        if trial.first.entry > first.first.entry {
            let expected = format!("an entry before {}", first.first.entry);
            ruled.sink.rejected(at(), message, expected, trial.first.entry);
        } else if let Some((_, ended_us)) = trial.known().and_then(|facts| facts.ended_at)
            && ended_us > first.first.time_us
        {
            is_after = true;
            let expected = format!("an end before {}, when {} was bound", first.first.time_us, first.name());
            if ended_us - first.first.time_us > CLOCK_ALLOWANCE_US {
                ruled.sink.rejected(at(), message, expected, ended_us);
            } else {
                ruled.sink.warning(at(), message, expected, ended_us);
            }
        }
        if is_after || ruled.sink.num_errors() > before {
            ruled.block(Block::arm(
                &arm.name,
                format!("arm {:?} was tuned when its confirmation runs were made", arm.name),
            ));
        }
    }
}

/// Train tokens that a contract can spend, as the price is counted.
fn price(facts: &RunFacts) -> u64 {
    let contract = &facts.frozen.contract;
    let Architecture::LlamaDecoder(model) = &contract.architecture;
    let steps = steps::max_step(&contract.stopping, &contract.budget);
    let of_step = u64::from(contract.batch.global_examples).saturating_mul(u64::from(model.context_length));
    of_step.saturating_mul(steps)
}

fn check_price(arm: &Arm, trial: &Run, ruled: &mut Ruled<'_>) {
    let Some(price) = trial.known().map(price) else { return };
    if price > arm.tuning.price_tokens {
        let at = At::entry(trial.first.entry, "contract /budget");
        let message = format!("{} costs more than a trial of its arm may", trial.name());
        ruled.sink.rejected(
            at,
            message,
            format!("{} tokens", arm.tuning.price_tokens),
            format!("{price} tokens"),
        );
        ruled.block(Block::arm(&arm.name, format!("arm {:?} was tuned beyond its price", arm.name)));
    }
}

/// What tuning chose of a run.
fn recipe<'a>(arm: &Arm, run: &'a Run) -> Option<Vec<Option<&'a Value>>> {
    let frozen = &run.known()?.frozen;
    Some(arm.tuning.pointers.iter().map(|pointer| frozen.at(pointer)).collect())
}

fn check_search(arm: &Arm, trials: &[&Run], ruled: &mut Ruled<'_>) {
    let recipes: Vec<_> = trials.iter().filter_map(|trial| recipe(arm, trial)).collect();
    let Some(first) = recipes.first().filter(|_| recipes.len() > 1) else { return };
    if recipes.iter().all(|recipe| recipe == first) {
        ruled.sink.rejected(
            At::place(format!("arm {}", arm.name)),
            format!("all trials of arm {:?} have the same values: nothing was searched", arm.name),
            "trials that differ at the arm's tuning pointers",
            format!("{} trials with one recipe", recipes.len()),
        );
        ruled.block(Block::arm(
            &arm.name,
            format!("nothing was searched in the tuning of arm {:?}", arm.name),
        ));
    }
}

fn check_choice(campaign: &Campaign, arm: &Arm, trials: &[&Run], ruled: &mut Ruled<'_>) {
    let metric = &campaign.prereg.metric;
    let mut best: Option<(&Run, f64)> = None;
    for trial in trials {
        let Some(value) = trial.quality(&metric.stream) else { continue };
        if best.is_none_or(|(_, other)| metrics::better(metric.direction, value, other)) {
            best = Some((trial, value));
        }
    }
    let Some((best, best_value)) = best else {
        let first = campaign.runs_of(&arm.name, RunPurpose::Confirmation).find(|run| run.level() == 0);
        if let Some(run) = first.filter(|_| arm.tuning.num_trials > 0) {
            let at = At::entry(run.first.entry, "contract, at the arm's tuning pointers");
            let message = format!("{} has values that no trial of its arm chose: none gave any", run.name());
            ruled.sink.rejected(at, message, "a trial with a value", "none");
            ruled.block(Block::arm(&arm.name, format!("arm {:?} confirms what no trial chose", arm.name)));
        }
        return;
    };
    for run in campaign.runs_of(&arm.name, RunPurpose::Confirmation).filter(|run| run.level() == 0) {
        let Some(chosen) = recipe(arm, run) else { continue };
        let has_chosen = |trial: &&&Run| recipe(arm, trial).is_some_and(|recipe| recipe == chosen);
        let values = trials.iter().filter(has_chosen).filter_map(|trial| trial.quality(&metric.stream));
        // Of trials with the same values the better one counts.
        let own = values
            .reduce(|one, other| if metrics::better(metric.direction, other, one) { other } else { one });
        let at = At::entry(run.first.entry, "contract, at the arm's tuning pointers");
        let expected = format!("the values of {}, which gave {best_value:?}", best.name());
        match own {
            None if trials.iter().any(|trial| has_chosen(&trial)) => {
                let message = format!("{} has the values of a trial that gave no result", run.name());
                report_choice(arm, ruled, at, message, expected, "a trial without a result".to_owned());
            }
            None => {
                let message = format!("{} has values that no trial of its arm had", run.name());
                ruled.sink.rejected(at, message, expected, "values of no trial");
                ruled
                    .block(Block::arm(&arm.name, format!("arm {:?} confirms what no trial chose", arm.name)));
            }
            Some(own) if metrics::better(metric.direction, best_value, own) => {
                let message = format!("{} has the values of a trial that was not the best one", run.name());
                report_choice(arm, ruled, at, message, expected, format!("a trial that gave {own:?}"));
            }
            Some(_) => {}
        }
    }
}

fn report_choice(
    arm: &Arm,
    ruled: &mut Ruled<'_>,
    at: At,
    message: String,
    expected: String,
    actual: String,
) {
    if arm.role == ArmRole::Baseline {
        ruled.sink.rejected(at, message, expected, actual);
        ruled.block(Block::arm(
            &arm.name,
            format!("baseline {:?} does not have the best of its trials", arm.name),
        ));
    } else {
        ruled.sink.warning(at, message, expected, actual);
    }
}

/// Baselines at their defaults beside arms that were tuned.
fn check_baselines(campaign: &Campaign, ruled: &mut Ruled<'_>) {
    let stream = &campaign.prereg.metric.stream;
    let spent = |arm: &Arm| {
        campaign.runs_of(&arm.name, RunPurpose::Tuning).filter(|run| run.is_informative(stream)).count()
    };
    for claim in &campaign.prereg.claims {
        for pair in &claim.arms {
            let (Some(arm), Some(against)) = (campaign.arm(&pair.arm), campaign.arm(&pair.against)) else {
                continue;
            };
            if against.role != ArmRole::Baseline || spent(against) > 0 || spent(arm) == 0 {
                continue;
            }
            let at = At::place(format!("claim {}", claim.id));
            let message = format!(
                "arm {:?} was tuned, and the baseline {:?} runs at values that nothing chose",
                arm.name, against.name
            );
            let expected = "a baseline with trials of its own";
            let actual = format!("{} trials against none", spent(arm));
            let is_priced = arm.tuning.unequal_because.is_some() || against.tuning.unequal_because.is_some();
            if is_priced {
                ruled.sink.warning(at, &message, expected, actual);
            } else {
                ruled.sink.rejected(at, &message, expected, actual);
            }
            ruled.block(Block::claim(claim, message));
        }
    }
}
