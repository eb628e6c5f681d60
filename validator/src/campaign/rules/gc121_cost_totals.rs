//! GC121 `campaign-costs`.

use schemas::campaign::{CostDimension, RunPurpose};
use schemas::report::Route;

use super::Ruled;
use crate::campaign::numbers;
use crate::campaign::view::{Block, Campaign};
use crate::rule::{At, Outcome, RuleInfo};

/// Text of the rule.
pub(crate) static INFO: RuleInfo = RuleInfo {
    code: "GC121",
    name: "campaign-costs",
    what: "Every cost that the preregistration names can be added up over all runs of every arm, trials, controls, failed runs and failed attempts included: each run's ledger is there and tells it, and no confirmation run that executed updates is without tokens, examples, device and wall time.",
    why: "Efficiency that leaves out what failed, or what choosing the values cost, is not what somebody else would have to pay.",
    remedy: "restore the ledgers that are missing; a cost that this machine cannot measure is not to be preregistered",
    reference: "docs/FORMAT.md, \"Campaigns\" and \"Costs\"",
    gate: Route::RejectFrozenInputs,
};

/// Evaluates the rule.
pub(crate) fn check(campaign: &Campaign, ruled: &mut Ruled<'_>) -> Outcome {
    for arm in &campaign.prereg.arms {
        let runs: Vec<_> = campaign.runs.iter().filter(|run| run.arm() == arm.name).collect();
        let num_missing = runs.iter().filter(|run| run.known().is_none()).count();
        if num_missing > 0 {
            let at = At::place(format!("arm {}", arm.name));
            let message = format!("what arm {:?} cost is more than can be added up", arm.name);
            ruled.sink.incomplete(
                at,
                message,
                "the ledger of every run",
                format!("{num_missing} are missing"),
            );
        }
        let total = numbers::sum(runs.iter().filter_map(|run| Some(&run.known()?.costs)));
        if campaign.prereg.costs.contains(&CostDimension::Energy) && total.energy_j.is_none() {
            let at = At::place(format!("arm {}", arm.name));
            let message =
                format!("the energy of arm {:?} was preregistered, and a run did not measure it", arm.name);
            ruled.sink.incomplete(at, message, "joules of every attempt", "null");
            ruled.block(Block::arm(&arm.name, format!("the energy of arm {:?} is not known", arm.name)));
        }
    }
    for run in campaign.runs.iter().filter(|run| run.purpose() == RunPurpose::Confirmation) {
        let Some(costs) = run.known().map(|facts| &facts.costs) else { continue };
        let counted = [
            (CostDimension::Tokens, costs.tokens),
            (CostDimension::Examples, costs.examples),
            (CostDimension::DeviceSeconds, costs.device_us),
            (CostDimension::WallTime, costs.wall_us),
        ];
        for (dimension, amount) in counted {
            if costs.steps_executed > 0 && amount == 0 && campaign.prereg.costs.contains(&dimension) {
                let at = At::entry(run.first.entry, "");
                let message = format!("{} executed updates that cost no {dimension:?}", run.name());
                ruled.sink.rejected(at, message, "more than 0", 0);
                ruled.block(Block::arm(run.arm(), format!("the costs of {} are not told", run.name())));
            }
        }
    }
    Outcome::Checked(campaign.runs.len() as u64)
}
