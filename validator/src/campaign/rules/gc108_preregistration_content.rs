//! GC108 `preregistration-content`.

use std::collections::BTreeSet;

use schemas::campaign::{
    Arm, ArmRole, Axis, Claim, ClaimDimension, ClaimKind, ContractPointer, CostDimension, Decision,
};
use schemas::report::Route;

use super::{EDITION, Ruled};
use crate::campaign::view::Campaign;
use crate::rule::{At, Outcome, RuleInfo};

/// Fewest seeds of a comparison (docs/FORMAT.md, "Campaigns").
const MIN_SEEDS: usize = 3;
/// Least coverage of an interval that a preregistration may ask for.
const MIN_CONFIDENCE: f64 = 0.8;
/// Places on which every comparison rests.
const FIXED: [&str; 9] = [
    "/data/val_examples",
    "/evaluation",
    "/format",
    "/keys",
    "/membership",
    "/qualification",
    "/ruleset",
    "/seeds",
    "/selection",
];
/// Costs without which no efficiency claim can be read.
const EFFICIENCY_COSTS: [CostDimension; 7] = [
    CostDimension::Bytes,
    CostDimension::DeviceSeconds,
    CostDimension::Evaluations,
    CostDimension::Examples,
    CostDimension::Steps,
    CostDimension::Tokens,
    CostDimension::WallTime,
];
/// Where a contract binds its policy card.
const CARD: &str = "/update/card";

/// Text of the rule.
pub(crate) static INFO: RuleInfo = RuleInfo {
    code: "GC108",
    name: "preregistration-content",
    what: "The preregistration can decide something: two arms or more with a baseline, at least three different seeds, names and claims each once, claims between known arms along tested axes (at places that are of the axis) with enough seeds, costs claimed as efficiency alone, equal tuning or a reason, an interval that can fail, no place on which a comparison rests among what may differ, the costs that an efficiency claim needs, nonclaims, and this edition's rules.",
    why: "A preregistration that permits everything binds nothing, and the program that froze it is not believed to have looked.",
    remedy: "freeze a corrected preregistration as another campaign; this one stays as it is",
    reference: "docs/FORMAT.md, \"Campaigns\"",
    gate: Route::RejectFrozenInputs,
};

/// Evaluates the rule.
pub(crate) fn check(campaign: &Campaign, ruled: &mut Ruled<'_>) -> Outcome {
    let prereg = &campaign.prereg;
    let mut wrong = |pointer: &str, message: String, expected: &str| {
        let at = At::entry(0, format!("/body/det/preregistration#{pointer}"));
        ruled.sink.rejected(at, &message, expected, "what is frozen");
    };
    if prereg.ruleset.edition != EDITION {
        let at = At::entry(0, "/body/det/preregistration#/ruleset/edition");
        let message =
            "the preregistration asks for an edition of the campaign rules that this validator does not have";
        ruled.sink.not_evaluated(at, message, EDITION, &prereg.ruleset.edition);
        return Outcome::Checked(1);
    }
    if prereg.arms.len() < 2 || !prereg.arms.iter().any(|arm| arm.role == ArmRole::Baseline) {
        wrong(
            "/arms",
            "nothing is compared with a baseline".to_owned(),
            "two arms or more, one of them a baseline",
        );
    }
    unique(prereg.arms.iter().map(|arm| arm.name.clone()), "/arms", &mut wrong);
    unique(prereg.claims.iter().map(|claim| claim.id.clone()), "/claims", &mut wrong);
    unique(prereg.seeds.iter().map(|seed| seed.0.to_string()), "/seeds", &mut wrong);
    unique(prereg.axes.iter().map(|axis| format!("{:?}", axis.axis)), "/axes", &mut wrong);
    if prereg.seeds.len() < MIN_SEEDS {
        wrong("/seeds", format!("{} seeds decide nothing", prereg.seeds.len()), "at least three");
    }
    if campaign.reference().is_none() {
        wrong("/reference_arm", format!("there is no arm {:?}", prereg.reference_arm), "the name of an arm");
    }
    if prereg.nonclaims.iter().all(|nonclaim| nonclaim.trim().is_empty()) {
        wrong("/nonclaims", "nothing is said of what the campaign will not show".to_owned(), "at least one");
    }
    if prereg.claims.is_empty() {
        wrong("/claims", "nothing is claimed, so nothing can be decided".to_owned(), "at least one");
    }
    let Decision::PairedInterval { confidence } = prereg.decision;
    if !(MIN_CONFIDENCE..1.0).contains(&confidence) {
        wrong(
            "/decision/confidence",
            format!("an interval at {confidence:?} decides nothing"),
            "at least 0.8, below 1",
        );
    }
    if !prereg.metric.threshold.is_finite() {
        wrong("/metric/threshold", "the threshold is no number".to_owned(), "a finite number");
    }
    for (index, axis) in prereg.axes.iter().enumerate() {
        if let Some(pointer) = axis.pointers.iter().find(|pointer| !is_of(axis.axis, pointer)) {
            let message = format!("{pointer} is no place of axis {:?}", axis.axis);
            wrong(&format!("/axes/{index}/pointers"), message, "places that the axis is about");
        }
        let points: BTreeSet<String> = axis.points.iter().map(|point| format!("{point:?}")).collect();
        let fits = axis.points.iter().all(|point| point.len() == axis.pointers.len());
        if points.len() < 2 || axis.pointers.is_empty() || !fits {
            let message = format!("axis {:?} has no two points to be told apart", axis.axis);
            wrong(&format!("/axes/{index}"), message, "two different points, a value for each pointer");
        }
    }
    for (index, arm) in prereg.arms.iter().enumerate() {
        check_arm(campaign, arm, &mut |below, message, expected| {
            wrong(&format!("/arms/{index}{below}"), message, expected);
        });
    }
    for (index, claim) in prereg.claims.iter().enumerate() {
        check_claim(campaign, claim, &mut |below, message, expected| {
            wrong(&format!("/claims/{index}{below}"), message, expected);
        });
    }
    Outcome::Checked((1 + prereg.arms.len() + prereg.claims.len()) as u64)
}

/// Where an axis is in a contract (`docs/FORMAT.md`, "Campaigns").
const fn members(axis: Axis) -> &'static [&'static str] {
    match axis {
        Axis::Architecture => &["/architecture"],
        Axis::Batch => &["/batch"],
        Axis::Data | Axis::Modality => &["/data"],
        Axis::Depth => &["/architecture/num_layers"],
        Axis::Duration => &["/budget", "/schedule", "/stopping"],
        Axis::HardwareTopology => &["/environment", "/topology"],
        Axis::Optimizer => &["/credit", "/schedule", "/update"],
        Axis::Width => &[
            "/architecture/head_dim",
            "/architecture/hidden_size",
            "/architecture/intermediate_size",
            "/architecture/num_heads",
            "/architecture/num_kv_heads",
        ],
    }
}

fn is_of(axis: Axis, pointer: &ContractPointer) -> bool {
    let (place, inner) = pointer.parts();
    members(axis).iter().any(|member| ContractPointer((*member).to_owned()).covers(place, inner))
}

/// Takes a pointer, what is wrong there, and what is expected.
type Wrong<'a> = dyn FnMut(&str, String, &str) + 'a;

fn unique(names: impl Iterator<Item = String>, pointer: &str, wrong: &mut Wrong<'_>) {
    let mut seen = BTreeSet::new();
    for name in names {
        if !seen.insert(name.clone()) || name.is_empty() {
            wrong(pointer, format!("{name:?} is there twice, or empty"), "each once, and not empty");
        }
    }
}

fn check_arm(campaign: &Campaign, arm: &Arm, wrong: &mut Wrong<'_>) {
    let is_reference = arm.name == campaign.prereg.reference_arm;
    if is_reference != arm.declared.is_empty() {
        let message = format!("arm {:?} declares {} places", arm.name, arm.declared.len());
        wrong("/declared", message, "none of the reference arm, at least one of every other");
    }
    let declared = arm.declared.iter().map(|declared| ("/declared", &declared.pointer));
    let tuned = arm.tuning.pointers.iter().map(|pointer| ("/tuning/pointers", pointer));
    let rescued = arm.rescue.iter().flat_map(|level| &level.pointers).map(|pointer| ("/rescue", pointer));
    for (member, pointer) in declared.chain(tuned).chain(rescued) {
        let place = pointer.parts().0;
        // A place above a fixed one would cover it, and so would one below it.
        let touches = |fixed: &&&str| {
            let is_below = |inner: &str, outer: &str| {
                inner.strip_prefix(outer).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
            };
            is_below(place, fixed) || is_below(fixed, place)
        };
        if !pointer.is_well_formed() || FIXED.iter().any(|fixed| touches(&fixed)) {
            let message = format!("{pointer} is a place on which the comparison rests, or no place");
            wrong(member, message, "a place in the contract that may differ");
        }
    }
    if let Some(reference) = campaign.reference() {
        let is_unequal = arm.tuning.num_trials != reference.tuning.num_trials
            || arm.tuning.price_tokens != reference.tuning.price_tokens;
        let reason = arm.tuning.unequal_because.as_deref().map(str::trim);
        if is_unequal != reason.is_some_and(|reason| !reason.is_empty()) {
            let message =
                format!("the tuning of arm {:?} is unequal without a reason, or equal with one", arm.name);
            wrong("/tuning/unequal_because", message, "a reason exactly where trials or price differ");
        }
    }
    let tuning = &arm.tuning;
    let search =
        [!tuning.pointers.is_empty(), tuning.price_tokens > 0, !tuning.search_space.trim().is_empty()];
    if search.iter().any(|is_there| *is_there != (tuning.num_trials > 0)) {
        let message = format!("arm {:?} has trials without a search, or a search without trials", arm.name);
        wrong("/tuning", message, "pointers, a price and a search space exactly where there are trials");
    }
    let card = ContractPointer(CARD.to_owned());
    let reaches_card =
        |pointer: &ContractPointer| pointer.covers(CARD, None) || card.covers(pointer.parts().0, None);
    if arm.card.is_none() != tuning.pointers.iter().any(reaches_card) {
        let message =
            format!("arm {:?} names a card that tuning may change, or none that anything names", arm.name);
        wrong("/card", message, "a digest exactly where tuning does not reach into the card");
    }
    let levels: Vec<u32> = arm.rescue.iter().map(|level| level.level).collect();
    if !levels.iter().copied().eq(1..=u32::try_from(levels.len()).unwrap_or(u32::MAX))
        || arm.rescue.iter().any(|level| level.max_runs == 0)
    {
        wrong(
            "/rescue",
            format!("the rescue levels are {levels:?}"),
            "levels from 1 without a gap, each with runs",
        );
    }
}

fn check_claim(campaign: &Campaign, claim: &Claim, wrong: &mut Wrong<'_>) {
    let prereg = &campaign.prereg;
    if claim.arms.is_empty() {
        wrong("/arms", format!("claim {:?} compares nothing", claim.id), "at least one pair");
    }
    for pair in &claim.arms {
        let is_known = campaign.arm(&pair.arm).is_some() && campaign.arm(&pair.against).is_some();
        if !is_known || pair.arm == pair.against {
            let message = format!("claim {:?} compares {:?} with {:?}", claim.id, pair.arm, pair.against);
            wrong("/arms", message, "two different preregistered arms");
        }
    }
    let min_seeds = usize::try_from(claim.min_seeds).unwrap_or(usize::MAX);
    if !(MIN_SEEDS..=prereg.seeds.len().max(MIN_SEEDS)).contains(&min_seeds) {
        wrong(
            "/min_seeds",
            format!("claim {:?} asks for {min_seeds} seeds", claim.id),
            "three to all of them",
        );
    }
    let must_be_positive = matches!(claim.kind, ClaimKind::NotWorse | ClaimKind::NoDifferenceFound);
    let is_share = claim.dimension != ClaimDimension::Quality;
    let fits = claim.margin.is_finite()
        && (if must_be_positive { claim.margin > 0.0 } else { claim.margin >= 0.0 })
        && !(is_share && claim.margin >= 1.0);
    if !fits {
        let message = format!("claim {:?} has the margin {:?}", claim.id, claim.margin);
        wrong("/margin", message, "a margin that something can exceed, and something can stay within");
    }
    let is_named = match claim.kind {
        ClaimKind::Better | ClaimKind::NotWorse => claim.dimension == ClaimDimension::Quality,
        ClaimKind::Negative | ClaimKind::NoDifferenceFound => {
            claim.dimension != ClaimDimension::StepsToQuality
        }
        ClaimKind::Efficiency => true,
    };
    if !is_named {
        let message = format!("claim {:?} speaks of a cost under another name than efficiency", claim.id);
        wrong("/dimension", message, "quality; a cost is claimed as efficiency, beside all others");
    }
    let axes: Vec<Axis> = prereg.axes.iter().map(|axis| axis.axis).collect();
    if let Some(axis) = claim.scope.iter().find(|axis| !axes.contains(axis)) {
        let message = format!("claim {:?} speaks of {axis:?}, along which nothing is tested", claim.id);
        wrong("/scope", message, "axes among those tested");
    }
    if claim.kind == ClaimKind::Efficiency {
        let missing = EFFICIENCY_COSTS.iter().find(|cost| !prereg.costs.contains(cost));
        if claim.dimension == ClaimDimension::Quality || missing.is_some() {
            let message =
                format!("efficiency claim {:?} is about no cost, or leaves costs out: {missing:?}", claim.id);
            wrong("", message, "a cost to quality, with every cost reported beside it but energy");
        }
    }
    for arm in claim.arms.iter().filter_map(|pair| campaign.accused(claim, pair)) {
        if arm.positive_control.is_none() {
            let message =
                format!("claim {:?} is against arm {:?}, which nothing shows to work", claim.id, arm.name);
            wrong("/arms", message, "an arm with a positive control");
        }
    }
}
