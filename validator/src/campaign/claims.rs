//! The outcome of every claim that was made in advance: supported, not
//! supported, or blocked, with the numbers and the reasons.
//!
//! Numbers decide only where nothing blocks the claim, and what blocks it is
//! what the rules found. A claim that is not supported is no evidence for its
//! opposite.

use schemas::campaign::report::{
    ArmComparison, ClaimOutcome, ClaimResult, CostComparison, MeanInterval, SeedComparison,
};
use schemas::campaign::{ArmPair, Claim, ClaimDimension, ClaimKind};
use schemas::number::{DecimalU64, Float};

use super::numbers::{self, DIMENSIONS, dimension_name, kind_name};
use super::view::{Block, Campaign};

/// The outcomes, in the order of the preregistration.
pub(crate) fn outcomes(campaign: &Campaign, blocks: &[Block]) -> Vec<ClaimResult> {
    campaign.prereg.claims.iter().map(|claim| outcome(campaign, claim, blocks)).collect()
}

fn outcome(campaign: &Campaign, claim: &Claim, blocks: &[Block]) -> ClaimResult {
    let mut decided = Decided { outcome: ClaimOutcome::Supported, reasons: Vec::new() };
    if claim.arms.is_empty() {
        decided.add(ClaimOutcome::Blocked, "the claim compares nothing".to_owned());
    }
    for block in blocks.iter().filter(|block| block.concerns(claim)) {
        let outcome = if block.is_refutation { ClaimOutcome::NotSupported } else { ClaimOutcome::Blocked };
        decided.add(outcome, block.reason.clone());
    }
    let comparisons = claim.arms.iter().map(|pair| compare(campaign, claim, pair, &mut decided)).collect();
    ClaimResult {
        basis: Some(campaign.basis(claim)),
        comparisons,
        dimension: claim.dimension,
        id: claim.id.clone(),
        kind: claim.kind,
        margin: Float(claim.margin),
        outcome: decided.outcome,
        reasons: decided.reasons,
        scope: claim.scope.clone(),
    }
}

/// The worst of what was found, and all of the reasons: a claim is blocked where
/// anything blocks it, since numbers that cannot be read show nothing.
struct Decided {
    outcome: ClaimOutcome,
    reasons: Vec<String>,
}

impl Decided {
    fn add(&mut self, outcome: ClaimOutcome, reason: String) {
        self.outcome = self.outcome.max(outcome);
        if !self.reasons.contains(&reason) {
            self.reasons.push(reason);
        }
    }
}

fn compare(campaign: &Campaign, claim: &Claim, pair: &ArmPair, decided: &mut Decided) -> ArmComparison {
    let beside = DIMENSIONS.into_iter().filter(|dimension| *dimension != claim.dimension);
    let beside = beside
        .map(|dimension| CostComparison {
            against: numbers::over_seeds(campaign, &pair.against, dimension).map(Float),
            arm: numbers::over_seeds(campaign, &pair.arm, dimension).map(Float),
            dimension,
        })
        .collect();
    let (seeds, interval) = if claim.dimension == ClaimDimension::TotalCostToQuality {
        (Vec::new(), compare_totals(campaign, claim, pair, decided))
    } else {
        let seeds: Vec<SeedComparison> =
            campaign.seeds().map(|seed| compare_seed(campaign, claim, pair, seed)).collect();
        let interval = decide(campaign, claim, pair, &seeds, decided);
        (seeds, interval)
    };
    ArmComparison { against: pair.against.clone(), arm: pair.arm.clone(), beside, interval, seeds }
}

fn compare_seed(campaign: &Campaign, claim: &Claim, pair: &ArmPair, seed: u64) -> SeedComparison {
    let of = |arm: &str| numbers::value(campaign, arm, seed, claim.dimension);
    let (arm, against) = (of(&pair.arm), of(&pair.against));
    let direction = campaign.prereg.metric.direction;
    let advantage = arm
        .zip(against)
        .map(|(arm, against)| numbers::advantage(direction, claim.dimension, arm, against))
        .filter(|advantage| advantage.is_finite());
    SeedComparison {
        advantage: advantage.map(Float),
        against: against.map(Float),
        arm: arm.map(Float),
        seed: DecimalU64(seed),
    }
}

fn decide(
    campaign: &Campaign,
    claim: &Claim,
    pair: &ArmPair,
    seeds: &[SeedComparison],
    decided: &mut Decided,
) -> Option<MeanInterval> {
    report_missing(claim, pair, seeds, decided);
    let advantages: Vec<f64> = seeds.iter().filter_map(|seed| Some(seed.advantage?.0)).collect();
    if advantages.len() < seeds.len() {
        // An interval over the seeds that went well is not the one that was asked for.
        return None;
    }
    if (advantages.len() as u64) < u64::from(claim.min_seeds) {
        let reason = format!("{} seeds, and the claim asks for {}", advantages.len(), claim.min_seeds);
        decided.add(ClaimOutcome::Blocked, reason);
    }
    let Some(interval) = numbers::interval(&campaign.prereg.decision, &advantages) else {
        decided.add(ClaimOutcome::Blocked, format!("{} values have no interval", advantages.len()));
        return None;
    };
    let (lower, mean, upper) = interval;
    let holds = numbers::holds(claim.kind, claim.margin, interval);
    decided.add(
        if holds { ClaimOutcome::Supported } else { ClaimOutcome::NotSupported },
        format!(
            "{:?} against {:?} in {}: mean advantage {mean:?}, interval [{lower:?}, {upper:?}] over {} seeds, margin {:?}: {} {}",
            pair.arm,
            pair.against,
            dimension_name(claim.dimension),
            advantages.len(),
            claim.margin,
            kind_name(claim.kind),
            if holds { "holds" } else { "does not hold" }
        ),
    );
    Some(MeanInterval { lower: Float(lower), mean: Float(mean), upper: Float(upper) })
}

/// Seeds without a value: a failure counts against the arm that claims to be
/// good, and leaves open what is said against it.
fn report_missing(claim: &Claim, pair: &ArmPair, seeds: &[SeedComparison], decided: &mut Decided) {
    let is_favourable = matches!(claim.kind, ClaimKind::Better | ClaimKind::NotWorse | ClaimKind::Efficiency);
    let name = dimension_name(claim.dimension);
    for seed in seeds {
        if seed.against.is_none() {
            let reason = format!("arm {:?} gives no {name} at seed {}", pair.against, seed.seed.0);
            decided.add(ClaimOutcome::Blocked, reason);
        }
        if seed.arm.is_none() {
            let reason = format!("arm {:?} gives no {name} at seed {}", pair.arm, seed.seed.0);
            let outcome = if is_favourable { ClaimOutcome::NotSupported } else { ClaimOutcome::Blocked };
            decided.add(outcome, reason);
        }
        if seed.advantage.is_none() && seed.arm.is_some() && seed.against.is_some() {
            decided
                .add(ClaimOutcome::Blocked, format!("no advantage can be computed at seed {}", seed.seed.0));
        }
    }
}

/// One number an arm, so no interval.
fn compare_totals(
    campaign: &Campaign,
    claim: &Claim,
    pair: &ArmPair,
    decided: &mut Decided,
) -> Option<MeanInterval> {
    let of = |arm: &str| numbers::total_cost(campaign, arm);
    let (arm, against) = (of(&pair.arm), of(&pair.against));
    let (Some(arm), Some(against)) = (arm, against) else {
        if against.is_none() {
            let reason = format!("arm {:?} did not reach the threshold at every seed", pair.against);
            decided.add(ClaimOutcome::Blocked, reason);
        }
        if arm.is_none() {
            let reason = format!("arm {:?} did not reach the threshold at every seed", pair.arm);
            decided.add(ClaimOutcome::NotSupported, reason);
        }
        return None;
    };
    let advantage = numbers::advantage(campaign.prereg.metric.direction, claim.dimension, arm, against);
    let holds =
        advantage.is_finite() && numbers::holds(claim.kind, claim.margin, (advantage, advantage, advantage));
    decided.add(
        if holds { ClaimOutcome::Supported } else { ClaimOutcome::NotSupported },
        format!(
            "{:?} against {:?} in total device seconds: {arm:?} against {against:?}, advantage {advantage:?}, margin {:?}: {} {}",
            pair.arm,
            pair.against,
            claim.margin,
            kind_name(claim.kind),
            if holds { "holds" } else { "does not hold" }
        ),
    );
    None
}
