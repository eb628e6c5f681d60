//! GC124 `transfer-scope`.

use std::collections::{BTreeMap, BTreeSet};

use schemas::campaign::{RunPurpose, TestedAxis};
use schemas::report::Route;
use serde_json::Value;

use super::Ruled;
use crate::campaign::view::{Block, Campaign, Run};
use crate::rule::{At, Outcome, RuleInfo};

/// Text of the rule.
pub(crate) static INFO: RuleInfo = RuleInfo {
    code: "GC124",
    name: "transfer-scope",
    what: "Every point of a tested axis is that of a confirmation run's contract, and no such contract is at another point; a claim along an axis is decided only where its own runs are at two points of it or more. Otherwise it is blocked, with a warning.",
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
            let arms: BTreeSet<&str> = Campaign::arms_of(claim).collect();
            let axis = campaign.prereg.axes.iter().find(|axis| axis.axis == *scope);
            let points: BTreeSet<String> = axis.map_or_else(BTreeSet::new, |axis| {
                let runs = confirmations(campaign).filter(|run| arms.contains(run.arm()));
                runs.filter_map(|run| point(axis, run)).map(|point| told(&point)).collect()
            });
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
