//! What the runs give for a claim: one value an arm and seed, and what the
//! decision rule makes of them (`docs/FORMAT.md`, "Campaigns").

use schemas::campaign::report::CampaignCosts;
use schemas::campaign::{ClaimDimension, ClaimKind, Decision};
use schemas::contract::Direction;

use super::view::{Campaign, Run};
use crate::derive::student;

/// Every dimension, in the order of reports.
pub(crate) const DIMENSIONS: [ClaimDimension; 7] = [
    ClaimDimension::Quality,
    ClaimDimension::TokensToQuality,
    ClaimDimension::ExamplesToQuality,
    ClaimDimension::StepsToQuality,
    ClaimDimension::WallTimeToQuality,
    ClaimDimension::DeviceSecondsToQuality,
    ClaimDimension::TotalCostToQuality,
];

/// Name of a dimension as the preregistration spells it.
pub(crate) fn dimension_name(dimension: ClaimDimension) -> &'static str {
    match dimension {
        ClaimDimension::Quality => "quality",
        ClaimDimension::TokensToQuality => "tokens_to_quality",
        ClaimDimension::ExamplesToQuality => "examples_to_quality",
        ClaimDimension::StepsToQuality => "steps_to_quality",
        ClaimDimension::WallTimeToQuality => "wall_time_to_quality",
        ClaimDimension::DeviceSecondsToQuality => "device_seconds_to_quality",
        ClaimDimension::TotalCostToQuality => "total_cost_to_quality",
    }
}

/// Name of a kind of claim as the preregistration spells it.
pub(crate) fn kind_name(kind: ClaimKind) -> &'static str {
    match kind {
        ClaimKind::Better => "better",
        ClaimKind::NotWorse => "not_worse",
        ClaimKind::NoDifferenceFound => "no_difference_found",
        ClaimKind::Negative => "negative",
        ClaimKind::Efficiency => "efficiency",
    }
}

/// Microseconds as seconds.
#[allow(clippy::cast_precision_loss, reason = "exact below 2^53, which bounds every count in an entry")]
fn seconds(microseconds: u64) -> f64 {
    microseconds as f64 / 1e6
}

#[allow(clippy::cast_precision_loss, reason = "exact below 2^53, which bounds every count in an entry")]
fn count(number: u64) -> f64 {
    number as f64
}

/// The run whose result stands for an arm and seed: that of the highest rescue
/// level, because the ladder goes on only where the one before went wrong.
pub(crate) fn standing<'a>(campaign: &'a Campaign, arm: &str, seed: u64) -> Option<&'a Run> {
    campaign.ladder(arm, seed).into_values().next_back()
}

/// An arm's value at a seed; of a dimension of costs what the runs of lower
/// rescue levels cost is part of it. None where no value was reached.
pub(crate) fn value(campaign: &Campaign, arm: &str, seed: u64, dimension: ClaimDimension) -> Option<f64> {
    let run = standing(campaign, arm, seed)?;
    if dimension == ClaimDimension::Quality {
        return run.quality(&campaign.prereg.metric.stream);
    }
    // What a run reached and lost again was not kept for anybody.
    let reach = run.known().filter(|facts| !facts.is_diverged)?.reach?;
    let ladder = campaign.ladder(arm, seed);
    let mut before = CampaignCosts::default();
    for other in ladder.values().filter(|other| other.level() < run.level()) {
        add(&mut before, &other.known()?.costs);
    }
    Some(match dimension {
        ClaimDimension::TokensToQuality => count(reach.counters.tokens.saturating_add(before.tokens)),
        ClaimDimension::ExamplesToQuality => count(reach.counters.examples.saturating_add(before.examples)),
        ClaimDimension::StepsToQuality => count(reach.step.saturating_add(before.steps_executed)),
        ClaimDimension::WallTimeToQuality => seconds(reach.wall_us.saturating_add(before.wall_us)),
        ClaimDimension::DeviceSecondsToQuality => seconds(reach.device_us.saturating_add(before.device_us)),
        ClaimDimension::Quality | ClaimDimension::TotalCostToQuality => return None,
    })
}

/// Device seconds of all runs of an arm, where it reached the threshold at every
/// seed; none where a run's ledger is missing, because the sum would be too low.
pub(crate) fn total_cost(campaign: &Campaign, arm: &str) -> Option<f64> {
    let reached = |seed| value(campaign, arm, seed, ClaimDimension::TokensToQuality).is_some();
    if !campaign.seeds().all(reached) {
        return None;
    }
    let mut total = 0u64;
    for run in campaign.runs.iter().filter(|run| run.arm() == arm) {
        total = total.saturating_add(run.known()?.costs.device_us);
    }
    Some(seconds(total))
}

/// The sum over the seeds, or the arm's own number; none where one is missing.
pub(crate) fn over_seeds(campaign: &Campaign, arm: &str, dimension: ClaimDimension) -> Option<f64> {
    if dimension == ClaimDimension::TotalCostToQuality {
        return total_cost(campaign, arm);
    }
    campaign.seeds().map(|seed| value(campaign, arm, seed, dimension)).sum()
}

/// How much better `arm` is: of quality in the metric's unit, of a cost as a
/// share of the other one.
pub(crate) fn advantage(direction: Direction, dimension: ClaimDimension, arm: f64, against: f64) -> f64 {
    match (dimension, direction) {
        (ClaimDimension::Quality, Direction::Minimize) => against - arm,
        (ClaimDimension::Quality, Direction::Maximize) => arm - against,
        _ => (against - arm) / against,
    }
}

/// `paired_interval/1`; none for fewer than two finite advantages.
#[allow(clippy::cast_precision_loss, reason = "there are few seeds")]
pub(crate) fn interval(decision: &Decision, advantages: &[f64]) -> Option<(f64, f64, f64)> {
    let Decision::PairedInterval { confidence } = decision;
    let n = advantages.len() as f64;
    if advantages.len() < 2 || advantages.iter().any(|advantage| !advantage.is_finite()) {
        return None;
    }
    let mean = advantages.iter().sum::<f64>() / n;
    let squared = advantages.iter().map(|advantage| (advantage - mean) * (advantage - mean)).sum::<f64>();
    let error = libm::sqrt(squared / (n - 1.0)) / libm::sqrt(n);
    let quantile = student::upper_quantile((1.0 - confidence) / 2.0, n - 1.0)?;
    let half_width = if error == 0.0 { 0.0 } else { quantile * error };
    Some((mean - half_width, mean, mean + half_width))
}

/// Whether a kind of claim holds of an interval.
pub(crate) fn holds(kind: ClaimKind, margin: f64, (lower, _, upper): (f64, f64, f64)) -> bool {
    match kind {
        ClaimKind::Better | ClaimKind::Efficiency => lower > margin,
        ClaimKind::NotWorse => lower > -margin,
        ClaimKind::NoDifferenceFound => lower > -margin && upper < margin,
        ClaimKind::Negative => upper < -margin,
    }
}

/// Adds costs; energy is known only where it is known of both.
pub(crate) fn add(sum: &mut CampaignCosts, of: &CampaignCosts) {
    sum.attempts = sum.attempts.saturating_add(of.attempts);
    sum.bytes_sent = sum.bytes_sent.saturating_add(of.bytes_sent);
    sum.checkpoint_bytes = sum.checkpoint_bytes.saturating_add(of.checkpoint_bytes);
    sum.cpu_us = sum.cpu_us.saturating_add(of.cpu_us);
    sum.device_us = sum.device_us.saturating_add(of.device_us);
    sum.energy_j = sum.energy_j.zip(of.energy_j).map(|(one, other)| one.saturating_add(other));
    sum.evaluations = sum.evaluations.saturating_add(of.evaluations);
    sum.examples = sum.examples.saturating_add(of.examples);
    sum.operator_minutes = sum.operator_minutes.saturating_add(of.operator_minutes);
    sum.recording_us = sum.recording_us.saturating_add(of.recording_us);
    sum.runs = sum.runs.saturating_add(of.runs);
    sum.steps_executed = sum.steps_executed.saturating_add(of.steps_executed);
    sum.tokens = sum.tokens.saturating_add(of.tokens);
    sum.wall_us = sum.wall_us.saturating_add(of.wall_us);
}

/// The sum of costs; energy counts as known until one is not.
pub(crate) fn sum<'a>(costs: impl IntoIterator<Item = &'a CampaignCosts>) -> CampaignCosts {
    let mut total = CampaignCosts { energy_j: Some(0), ..CampaignCosts::default() };
    costs.into_iter().for_each(|of| add(&mut total, of));
    total
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By hand: mean 2, deviation 1, error 0.57735, t(0.975, 2) = 4.30265.
    #[test]
    fn an_interval_by_hand() {
        let decision = Decision::PairedInterval { confidence: 0.95 };
        let (lower, mean, upper) = interval(&decision, &[1.0, 2.0, 3.0]).expect("three values");
        assert!((mean - 2.0).abs() < 1e-12 && (upper - 4.484_138).abs() < 1e-5, "{lower} {mean} {upper}");
        assert!((lower + 0.484_138).abs() < 1e-5);
        assert!(interval(&decision, &[1.0]).is_none() && interval(&decision, &[1.0, f64::NAN]).is_none());
    }

    #[test]
    fn each_kind_of_claim_asks_for_its_own_end_of_the_interval() {
        let check = |kind, interval, expected: bool| {
            assert_eq!(holds(kind, 0.1, interval), expected, "{kind:?} {interval:?}");
        };
        check(ClaimKind::Better, (0.11, 0.2, 0.3), true);
        check(ClaimKind::Better, (0.1, 0.2, 0.3), false);
        check(ClaimKind::Efficiency, (0.05, 0.2, 0.3), false);
        check(ClaimKind::NotWorse, (-0.09, 0.0, 0.3), true);
        check(ClaimKind::NotWorse, (-0.1, 0.0, 0.3), false);
        check(ClaimKind::NoDifferenceFound, (-0.09, 0.0, 0.09), true);
        check(ClaimKind::NoDifferenceFound, (-0.09, 0.0, 0.1), false);
        check(ClaimKind::Negative, (-0.4, -0.2, -0.11), true);
        check(ClaimKind::Negative, (-0.4, -0.2, -0.1), false);
    }

    #[test]
    fn an_advantage_is_in_favour_of_the_arm() {
        let check = |direction, dimension, expected: f64| {
            let found = advantage(direction, dimension, 1.0, 2.0);
            assert!((found - expected).abs() < 1e-12, "{found}");
        };
        check(Direction::Minimize, ClaimDimension::Quality, 1.0);
        check(Direction::Maximize, ClaimDimension::Quality, -1.0);
        check(Direction::Maximize, ClaimDimension::TokensToQuality, 0.5);
    }
}
