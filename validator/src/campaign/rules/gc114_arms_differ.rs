//! GC114 `arms-differ-where-declared`.

use std::collections::BTreeSet;

use schemas::campaign::{Arm, ContractPointer, RunPurpose};
use schemas::report::Route;

use super::Ruled;
use crate::campaign::differ::{Difference, differences};
use crate::campaign::view::{Block, Campaign, IDENTITY, Run};
use crate::rule::{At, Outcome, RuleInfo};

/// Text of the rule.
pub(crate) static INFO: RuleInfo = RuleInfo {
    code: "GC114",
    name: "arms-differ-where-declared",
    what: "Field by field, the contract of each confirmation run differs from that of the reference arm at the same seed only where its arm declares it, or where tuning is part of it; from that of its own arm at another seed only in the seeds; and a trial differs from its arm's confirmation runs only where tuning may choose.",
    why: "An effect of data, batch, budget or evaluation that nobody declared would be credited to the method.",
    remedy: "make the runs again with contracts that agree there, or preregister another campaign that declares the difference",
    reference: "docs/FORMAT.md, \"Campaigns\"",
    gate: Route::RejectFrozenInputs,
};

/// Places told in a block's reason.
const MAX_PLACES: usize = 4;

/// Evaluates the rule.
pub(crate) fn check(campaign: &Campaign, ruled: &mut Ruled<'_>) -> Outcome {
    let mut num_compared = 0;
    for arm in &campaign.prereg.arms {
        let permitted = campaign.permitted(arm);
        let mut undeclared = BTreeSet::new();
        let mut first: Option<&Run> = None;
        for seed in campaign.seeds() {
            let Some(run) = campaign.confirmation(&arm.name, seed) else { continue };
            if arm.name != campaign.prereg.reference_arm
                && let Some(reference) = campaign.confirmation(&campaign.prereg.reference_arm, seed)
            {
                let against =
                    Against { places: &IDENTITY, permitted: &permitted, what: "the reference arm's" };
                num_compared += against.compare(run, reference, &mut undeclared, ruled);
            }
            match first {
                None => first = Some(run),
                Some(first) => {
                    let places = [IDENTITY.as_slice(), &["/seeds"]].concat();
                    let against = Against { places: &places, permitted: &[], what: "its own arm's first" };
                    num_compared += against.compare(run, first, &mut undeclared, ruled);
                }
            }
        }
        if let Some(confirmation) = first {
            num_compared += check_trials(campaign, arm, confirmation, &mut undeclared, ruled);
        }
        if !undeclared.is_empty() {
            let places: Vec<&str> = undeclared.iter().take(MAX_PLACES).map(String::as_str).collect();
            let reason =
                format!("arm {:?} differs where nothing is declared: {}", arm.name, places.join(", "));
            ruled.block(Block::arm(&arm.name, reason));
        }
    }
    Outcome::Checked(num_compared)
}

fn check_trials(
    campaign: &Campaign,
    arm: &Arm,
    confirmation: &Run,
    undeclared: &mut BTreeSet<String>,
    ruled: &mut Ruled<'_>,
) -> u64 {
    let places = [IDENTITY.as_slice(), &["/seeds"]].concat();
    let permitted: Vec<&ContractPointer> = arm.tuning.pointers.iter().collect();
    let against = Against { places: &places, permitted: &permitted, what: "its arm's confirmation run's" };
    let trials = campaign.runs_of(&arm.name, RunPurpose::Tuning);
    trials.map(|trial| against.compare(trial, confirmation, undeclared, ruled)).sum()
}

/// What two contracts may differ in.
struct Against<'a> {
    places: &'a [&'a str],
    permitted: &'a [&'a ContractPointer],
    what: &'static str,
}

impl Against<'_> {
    /// Tells every difference that is not permitted; returns how many pairs were
    /// compared.
    fn compare(
        &self,
        run: &Run,
        other: &Run,
        undeclared: &mut BTreeSet<String>,
        ruled: &mut Ruled<'_>,
    ) -> u64 {
        let (Some(facts), Some(others)) = (run.known(), other.known()) else { return 0 };
        let is_undeclared = |difference: &Difference| {
            !difference.is_at(self.places) && !difference.is_covered(self.permitted.iter().copied())
        };
        for difference in differences(&facts.frozen, &others.frozen).into_iter().filter(is_undeclared) {
            ruled.sink.rejected(
                At::entry(run.first.entry, format!("contract {difference}")),
                format!(
                    "the contract of {} differs from {} where nothing is declared",
                    run.name(),
                    self.what
                ),
                &difference.right,
                &difference.left,
            );
            undeclared.insert(difference.to_string());
        }
        1
    }
}
