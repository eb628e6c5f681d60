//! GC123 `efficiency`.

use schemas::campaign::{Claim, ClaimDimension, ClaimKind};
use schemas::report::Route;

use super::Ruled;
use crate::campaign::numbers::{self, DIMENSIONS, dimension_name};
use crate::campaign::view::{Block, Campaign};
use crate::rule::{At, Outcome, RuleInfo};

/// Text of the rule.
pub(crate) static INFO: RuleInfo = RuleInfo {
    code: "GC123",
    name: "efficiency",
    what: "An efficiency claim about steps alone is blocked. One about another cost does not hold where the arm needs more tokens, examples, wall time, device seconds or total cost to the threshold than the arm it is compared with, summed over the seeds, or where its selected candidates do not keep the threshold. A warning says which; the report gives all of these numbers beside the claim.",
    why: "Fewer updates can hide more tokens in each, more time for each, a worse end, or the runs that were thrown away.",
    remedy: "nothing has to be changed in the record: read the claim with the costs beside it",
    reference: "docs/FORMAT.md, \"Campaigns\"",
    gate: Route::RequestQualification,
};

/// Evaluates the rule.
pub(crate) fn check(campaign: &Campaign, ruled: &mut Ruled<'_>) -> Outcome {
    let mut num_checked = 0;
    for claim in campaign.prereg.claims.iter().filter(|claim| claim.kind == ClaimKind::Efficiency) {
        num_checked += 1;
        if claim.dimension == ClaimDimension::StepsToQuality {
            let reason = "steps alone are no measure of what a run costs".to_owned();
            report(claim, &reason, "a claim about tokens, examples, time or total cost", ruled);
            ruled.block(Block::claim(claim, reason));
        }
        for pair in &claim.arms {
            for dimension in DIMENSIONS {
                if matches!(dimension, ClaimDimension::Quality | ClaimDimension::StepsToQuality) {
                    continue;
                }
                let of = |arm: &str| numbers::over_seeds(campaign, arm, dimension);
                let (Some(own), Some(other)) = (of(&pair.arm), of(&pair.against)) else { continue };
                if own > other {
                    let name = dimension_name(dimension);
                    let reason = format!(
                        "arm {:?} costs more than {:?} in {name}: {own:?} against {other:?}",
                        pair.arm, pair.against
                    );
                    report(claim, &reason, &format!("at most {other:?} in {name}"), ruled);
                    ruled.block(Block::refutation(claim, reason));
                }
            }
            check_end(campaign, claim, &pair.arm, ruled);
        }
    }
    Outcome::Checked(num_checked)
}

/// What was handed on has to be as good as what the clock was stopped for.
fn check_end(campaign: &Campaign, claim: &Claim, arm: &str, ruled: &mut Ruled<'_>) {
    let metric = &campaign.prereg.metric;
    for seed in campaign.seeds() {
        let Some(value) = numbers::value(campaign, arm, seed, ClaimDimension::Quality) else { continue };
        if !crate::derive::metrics::reaches(metric.direction, value, metric.threshold) {
            let reason = format!(
                "the selected candidate of arm {arm:?} at seed {seed} is at {value:?}, short of the threshold"
            );
            report(claim, &reason, &format!("{:?} or better", metric.threshold), ruled);
            ruled.block(Block::refutation(claim, reason));
        }
    }
}

fn report(claim: &Claim, reason: &str, expected: &str, ruled: &mut Ruled<'_>) {
    let at = At::place(format!("claim {}", claim.id));
    ruled.sink.warning(at, format!("claim {:?} is no gain in efficiency", claim.id), expected, reason);
}
