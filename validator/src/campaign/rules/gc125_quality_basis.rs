//! GC125 `quality-basis`.

use schemas::campaign::report::ValueBasis;
use schemas::campaign::{Claim, ClaimDimension};
use schemas::report::Route;

use super::Ruled;
use crate::campaign::view::{Block, Campaign, Run};
use crate::rule::{At, Outcome, RuleInfo};

/// Text of the rule.
pub(crate) static INFO: RuleInfo = RuleInfo {
    code: "GC125",
    name: "quality-basis",
    what: "Where a claim is of quality, the evaluator computed the value of every run of its arms that has one: of confirmation runs, of the trials that their values were chosen from, and of positive controls. A claim with a value that only the trainer computed is blocked, and a warning names the runs. Claims of costs rest on what the trainer recorded, and the report says so.",
    why: "A trainer's value is its word about itself, and a comparison of such words shows what was said of two arms, and not what they are.",
    remedy: "`evaluator val --ledger RUN` for each run that is named, and audit again; nothing in the record changes. Of another stream than the one by which its runs select nobody but the trainer computes a value: preregister the selection stream as the metric of another campaign",
    reference: "docs/FORMAT.md, \"Campaigns\" and \"Qualification\"",
    gate: Route::RequestQualification,
};

/// Evaluates the rule.
pub(crate) fn check(campaign: &Campaign, ruled: &mut Ruled<'_>) -> Outcome {
    let claims = campaign.prereg.claims.iter();
    let claims: Vec<&Claim> = claims.filter(|claim| claim.dimension == ClaimDimension::Quality).collect();
    if claims.is_empty() {
        return Outcome::NotApplicable("no claim is of quality".to_owned());
    }
    let stream = &campaign.prereg.metric.stream;
    let mut num_checked = 0;
    for arm in &campaign.prereg.arms {
        let speaks_of_it = |claim: &&Claim| Campaign::arms_of(claim).any(|name| name == arm.name);
        let about: Vec<&Claim> = claims.iter().copied().filter(speaks_of_it).collect();
        if about.is_empty() {
            continue;
        }
        let is_valued = |run: &&Run| run.arm() == arm.name && run.basis(stream) != ValueBasis::None;
        let valued: Vec<&Run> = campaign.runs.iter().filter(is_valued).collect();
        num_checked += valued.len() as u64;
        let is_trainers = |run: &&&Run| run.basis(stream) == ValueBasis::Trainer;
        let trainers: Vec<&str> = valued.iter().filter(is_trainers).map(|run| run.path()).collect();
        if trainers.is_empty() {
            continue;
        }
        let reason = format!(
            "{} of {} values of arm {:?} are the trainer's own, and no evaluator's",
            trainers.len(),
            valued.len(),
            arm.name
        );
        let at = At::place(format!("arm {}", arm.name));
        ruled.sink.warning(at, &reason, "the evaluator's value of every run", trainers.join(", "));
        for claim in about {
            ruled.block(Block::claim(claim, reason.clone()));
        }
    }
    Outcome::Checked(num_checked)
}
