//! Claims: each decidable by what the campaign runs and measures.

use schemas::campaign::{Arm, ArmRole, Claim, ClaimDimension, ClaimKind, CostDimension, Preregistration};

use super::super::problem::Problems;
use super::{MIN_SEEDS, require_finite, require_name};

/// What every campaign reports.
const ALWAYS: [CostDimension; 2] = [CostDimension::Steps, CostDimension::Tokens];

/// What has to be reported beside a claim of efficiency, so that a saving in
/// one is seen against all others. Energy is reported where it is measured.
const EFFICIENCY: [CostDimension; 7] = [
    CostDimension::Bytes,
    CostDimension::DeviceSeconds,
    CostDimension::Evaluations,
    CostDimension::Examples,
    CostDimension::Steps,
    CostDimension::Tokens,
    CostDimension::WallTime,
];

pub(super) fn check(document: &Preregistration, problems: &mut Problems) {
    check_costs(document, problems);
    problems.require(
        !document.claims.is_empty(),
        "/claims",
        "is empty; expected at least one",
        "say in advance what the runs are to decide",
    );
    for (index, claim) in document.claims.iter().enumerate() {
        let at = format!("/claims/{index}");
        require_name(&claim.id, format!("{at}/id"), problems);
        problems.require(
            document.claims[..index].iter().all(|other| other.id != claim.id),
            format!("{at}/id"),
            format!("{:?} is the name of an earlier claim", claim.id),
            "name each claim once",
        );
        check_pairs(document, claim, &at, problems);
        check_margin(claim, &at, problems);
        check_seeds(document, claim, &at, problems);
        check_scope(document, claim, &at, problems);
        match claim.kind {
            ClaimKind::Efficiency => check_efficiency(document, claim, &at, problems),
            ClaimKind::Negative | ClaimKind::NoDifferenceFound => {
                check_cost(claim, claim.dimension != ClaimDimension::StepsToQuality, &at, problems);
            }
            ClaimKind::Better | ClaimKind::NotWorse => {
                check_cost(claim, claim.dimension == ClaimDimension::Quality, &at, problems);
            }
        }
        check_accused(document, claim, &at, problems);
    }
}

fn check_costs(document: &Preregistration, problems: &mut Problems) {
    for (index, cost) in document.costs.iter().enumerate() {
        problems.require(
            !document.costs[..index].contains(cost),
            format!("/costs/{index}"),
            format!("{} is named before", name(*cost)),
            "name each cost once",
        );
    }
    require_costs(document, &ALWAYS, "a comparison is read with them", problems);
}

fn require_costs(document: &Preregistration, needed: &[CostDimension], why: &str, problems: &mut Problems) {
    let missing: Vec<String> =
        needed.iter().filter(|cost| !document.costs.contains(cost)).map(|cost| name(*cost)).collect();
    problems.require(
        missing.is_empty(),
        "/costs",
        format!("lacks {}", missing.join(", ")),
        format!("add them: {why}"),
    );
}

fn name(cost: CostDimension) -> String {
    let text = serde_json::to_value(cost).ok();
    text.as_ref().and_then(serde_json::Value::as_str).unwrap_or_default().to_owned()
}

fn check_pairs(document: &Preregistration, claim: &Claim, at: &str, problems: &mut Problems) {
    problems.require(
        !claim.arms.is_empty(),
        format!("{at}/arms"),
        "is empty; expected at least one pair",
        "say which arm is compared with which",
    );
    for (index, pair) in claim.arms.iter().enumerate() {
        let at = format!("{at}/arms/{index}");
        for (member, arm) in [("arm", &pair.arm), ("against", &pair.against)] {
            problems.require(
                find(document, arm).is_some(),
                format!("{at}/{member}"),
                format!("{arm:?} is no arm"),
                "name an arm of this preregistration",
            );
        }
        problems.require(
            pair.arm != pair.against,
            format!("{at}/against"),
            "is the arm itself",
            "name another arm",
        );
        problems.require(
            !claim.arms[..index].contains(pair),
            &at,
            "is an earlier pair",
            "name each pair once",
        );
    }
}

fn find<'a>(document: &'a Preregistration, name: &str) -> Option<&'a Arm> {
    document.arms.iter().find(|arm| arm.name == name)
}

/// A margin that anything would meet, or nothing could, decides nothing.
fn check_margin(claim: &Claim, at: &str, problems: &mut Problems) {
    let at = format!("{at}/margin");
    require_finite(claim.margin, &at, problems);
    let is_smallness = matches!(claim.kind, ClaimKind::NotWorse | ClaimKind::NoDifferenceFound);
    problems.require(
        claim.margin > 0.0 || !is_smallness && claim.margin == 0.0,
        &at,
        format!("is {}; expected {}", claim.margin, if is_smallness { "above 0" } else { "at least 0" }),
        "say how large a difference matters; repeated seeds never come out exactly alike",
    );
    problems.require(
        claim.dimension == ClaimDimension::Quality || claim.margin < 1.0,
        at,
        format!("is {}; a cost is compared by its share, which is below 1", claim.margin),
        "say for example 0.05 for five per cent of the other arm's cost",
    );
}

fn check_seeds(document: &Preregistration, claim: &Claim, at: &str, problems: &mut Problems) {
    let num_seeds = claim.min_seeds as usize;
    problems.require(
        (MIN_SEEDS..=document.seeds.len().max(MIN_SEEDS)).contains(&num_seeds),
        format!("{at}/min_seeds"),
        format!("is {num_seeds}; expected {MIN_SEEDS} to {}, the number of seeds", document.seeds.len()),
        "a claim needs seeds that are run; add seeds, or ask for fewer",
    );
}

fn check_scope(document: &Preregistration, claim: &Claim, at: &str, problems: &mut Problems) {
    for (index, axis) in claim.scope.iter().enumerate() {
        let at = format!("{at}/scope/{index}");
        problems.require(
            document.axes.iter().any(|tested| tested.axis == *axis),
            &at,
            "is not among the axes that are tested",
            "test the axis (/axes) or leave it out: what holds at one size need not hold at another",
        );
        problems.require(!claim.scope[..index].contains(axis), at, "is named before", "name each axis once");
    }
}

/// A saving is shown in a cost, beside all others, and never in steps alone.
fn check_efficiency(document: &Preregistration, claim: &Claim, at: &str, problems: &mut Problems) {
    let at = format!("{at}/dimension");
    problems.require(
        claim.dimension != ClaimDimension::Quality,
        &at,
        "is quality, which is no cost",
        "name a cost such as tokens_to_quality, or claim `better`",
    );
    require_costs(document, &EFFICIENCY, "a saving in one of them may be paid for in another", problems);
    let is_other = |other: &&Claim| {
        other.kind == ClaimKind::Efficiency
            && !matches!(other.dimension, ClaimDimension::StepsToQuality | ClaimDimension::Quality)
            && claim.arms.iter().all(|pair| other.arms.contains(pair))
    };
    problems.require(
        claim.dimension != ClaimDimension::StepsToQuality
            || document.claims.iter().any(|other| is_other(&other)),
        at,
        "fewer steps alone are no saving: a step may do more work",
        "claim tokens, examples, wall time or device seconds of the same arms as well",
    );
}

/// A cost under another name than efficiency would be read without the others.
fn check_cost(claim: &Claim, is_named: bool, at: &str, problems: &mut Problems) {
    problems.require(
        is_named,
        format!("{at}/dimension"),
        format!("is a cost, and the claim is not of efficiency: {:?}", claim.dimension),
        "claim `efficiency` of a cost, which is read beside all others, or claim quality",
    );
}

/// That a method fails, changes nothing, or is beaten is said only of an arm that
/// was shown to work and was searched for, from whichever side it is told. A
/// baseline may be beaten: it is what the others are measured by.
fn check_accused(document: &Preregistration, claim: &Claim, at: &str, problems: &mut Problems) {
    for (index, pair) in claim.arms.iter().enumerate() {
        let is_null = matches!(claim.kind, ClaimKind::Negative | ClaimKind::NoDifferenceFound);
        let (member, name) = if is_null { ("arm", &pair.arm) } else { ("against", &pair.against) };
        let Some(arm) = find(document, name) else { continue };
        if !is_null && arm.role == ArmRole::Baseline {
            continue;
        }
        let at = format!("{at}/arms/{index}/{member}");
        problems.require(
            arm.positive_control.is_some(),
            &at,
            format!("{:?} has no positive control", arm.name),
            "name a quality that one of its runs has to reach; a broken port loses every comparison",
        );
        problems.require(
            arm.tuning.num_trials > 0,
            at,
            format!("{:?} is not tuned", arm.name),
            "give it trials; values that nobody searched for say nothing against a method",
        );
    }
}
