//! GC124 `transfer-scope`.

use std::collections::{BTreeMap, BTreeSet};

use schemas::campaign::{ArmPair, Axis, RunPurpose, TestedAxis};
use schemas::report::Route;
use serde_json::Value;

use super::Ruled;
use crate::campaign::view::{Block, Campaign, Run};
use crate::rule::{At, Outcome, RuleInfo};

/// Text of the rule.
pub(crate) static INFO: RuleInfo = RuleInfo {
    code: "GC124",
    name: "transfer-scope",
    what: "Every point of a tested axis is that of a confirmation run's contract, and no such contract is at another point; a claim along an axis is decided only where its own runs are at two points of it or more, and along another one than the optimizer's only where both arms of each pair are at one point, and the pairs at two or more. Otherwise it is blocked, with a warning.",
    why: "A result at one width, batch or machine that is told as one about width, batch or machines was never measured.",
    remedy: "make the runs at the points that are missing, or read the claim without that axis, as a claim of another campaign",
    reference: "docs/FORMAT.md, \"Campaigns\"",
    gate: Route::RejectFrozenInputs,
};

/// Evaluates the rule.
pub(crate) fn check(campaign: &Campaign, ruled: &mut Ruled<'_>) -> Outcome {
    for (index, axis) in campaign.prereg.axes.iter().enumerate() {
        check_points(campaign, axis, index, ruled);
    }
    let mut num_claims = 0;
    for claim in &campaign.prereg.claims {
        for scope in &claim.scope {
            num_claims += 1;
            let axis = campaign.prereg.axes.iter().find(|axis| axis.axis == *scope);
            let of_pair = |pair: &ArmPair| -> BTreeSet<String> {
                let Some(axis) = axis else { return BTreeSet::new() };
                let is_of_pair = |run: &&Run| [&pair.arm, &pair.against].iter().any(|arm| *arm == run.arm());
                let runs = confirmations(campaign).filter(is_of_pair);
                runs.filter_map(|run| point(axis, run)).map(|point| told(&point)).collect()
            };
            let of_pairs: Vec<BTreeSet<String>> = claim.arms.iter().map(of_pair).collect();
            let points: BTreeSet<&String> = of_pairs.iter().flatten().collect();
            // What differs between the arms of a pair is what the pair compares. Only
            // the update rule is compared as an axis; along another one the comparison
            // is made again at each of its points.
            let mixed = of_pairs.iter().find(|points| points.len() > 1 && *scope != Axis::Optimizer);
            if let Some(mixed) = mixed {
                let at = At::place(format!("claim {}", claim.id));
                let message = format!("claim {:?} compares arms at different points of {scope:?}", claim.id);
                let reason = format!("a pair of the claim mixes points of {scope:?}: {mixed:?}");
                ruled.sink.warning(at, message, "both arms of a pair at one point", &reason);
                ruled.block(Block::claim(claim, reason));
                continue;
            }
            if points.len() >= 2 {
                continue;
            }
            let at = At::place(format!("claim {}", claim.id));
            let message =
                format!("claim {:?} speaks of {scope:?}, along which its runs do not vary", claim.id);
            let reason = match points.first() {
                Some(point) => format!("all runs of the claim are at {point} of {scope:?}"),
                None => format!("no run of the claim is at a point of {scope:?}"),
            };
            ruled.sink.warning(at, message, "runs at two points or more", &reason);
            ruled.block(Block::claim(claim, reason));
        }
    }
    Outcome::Checked(num_claims + campaign.prereg.axes.len() as u64)
}

fn confirmations(campaign: &Campaign) -> impl Iterator<Item = &Run> {
    campaign.runs.iter().filter(|run| run.purpose() == RunPurpose::Confirmation)
}

/// Where a run's own contract is on an axis.
fn point(axis: &TestedAxis, run: &Run) -> Option<Vec<Value>> {
    let frozen = &run.known()?.frozen;
    Some(axis.pointers.iter().map(|pointer| frozen.at(pointer).cloned().unwrap_or(Value::Null)).collect())
}

fn told(point: &[Value]) -> String {
    Value::from(point.to_vec()).to_string()
}

fn check_points(campaign: &Campaign, axis: &TestedAxis, index: usize, ruled: &mut Ruled<'_>) {
    let declared: BTreeSet<String> = axis.points.iter().map(|point| told(point)).collect();
    let mut met: BTreeMap<String, u64> = BTreeMap::new();
    for run in confirmations(campaign) {
        let Some(point) = point(axis, run) else { continue };
        let point = told(&point);
        if !declared.contains(&point) {
            let at = At::entry(run.first.entry, format!("contract, axis {:?}", axis.axis));
            let message = format!("{} is at a point of an axis that was not preregistered", run.name());
            ruled.sink.rejected(at, message, format!("one of {declared:?}"), &point);
            ruled.block(Block::arm(run.arm(), format!("{} is at {point} of {:?}", run.name(), axis.axis)));
        }
        *met.entry(point).or_default() += 1;
    }
    for point in declared.iter().filter(|point| !met.contains_key(*point)) {
        let at = At::entry(0, format!("/body/det/preregistration#/axes/{index}"));
        let message =
            format!("no confirmation run is at a point of axis {:?} that was to be tested", axis.axis);
        ruled.sink.incomplete(at, message, point, "no run");
    }
}
