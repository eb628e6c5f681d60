//! GC119 `campaign-seeds`.

use std::collections::BTreeMap;

use schemas::digest::Digest;
use schemas::report::Route;

use super::Ruled;
use crate::campaign::view::{Block, Campaign, Run};
use crate::rule::{At, Outcome, RuleInfo};

/// Text of the rule.
pub(crate) static INFO: RuleInfo = RuleInfo {
    code: "GC119",
    name: "campaign-seeds",
    what: "Each of the three seeds in a run's contract is the seed that the campaign has for it; no two runs of different seeds have the same losses; runs of one seed in different arms with the same losses are a warning, because then the arms do not differ in what they did.",
    why: "Seeds that are not independent make one run look like three, and an interval over them means nothing.",
    remedy: "make the run again with a seed of its own, as a run of another campaign; this one stays in the denominator",
    reference: "docs/FORMAT.md, \"Campaigns\"",
    gate: Route::RejectFrozenInputs,
};

/// Evaluates the rule.
pub(crate) fn check(campaign: &Campaign, ruled: &mut Ruled<'_>) -> Outcome {
    let mut num_checked = 0;
    let mut traces: BTreeMap<Digest, Vec<&Run>> = BTreeMap::new();
    for run in &campaign.runs {
        let Some(facts) = run.known() else { continue };
        num_checked += 1;
        let seeds = &facts.frozen.contract.seeds;
        let own = [
            ("data_order", seeds.data_order.0),
            ("dropout", seeds.dropout.0),
            ("initialization", seeds.initialization.0),
        ];
        for (member, seed) in own {
            if seed != run.seed() {
                let at = At::entry(run.first.entry, format!("contract /seeds/{member}"));
                let message =
                    format!("the contract of {} has another seed than the campaign has for it", run.name());
                ruled.sink.rejected(at, message, run.seed(), seed);
                ruled.block(Block::arm(run.arm(), format!("{} has another seed", run.name())));
            }
        }
        if let Some(trace) = facts.loss_trace {
            traces.entry(trace).or_default().push(run);
        }
    }
    for runs in traces.values() {
        for (index, run) in runs.iter().enumerate().skip(1) {
            report_equal(run, runs[..index].iter().copied(), ruled);
        }
    }
    Outcome::Checked(num_checked)
}

fn report_equal<'a>(run: &Run, mut earlier: impl Iterator<Item = &'a Run> + Clone, ruled: &mut Ruled<'_>) {
    let at = At::entry(run.first.entry, "");
    if let Some(other) = earlier.clone().find(|other| other.seed() != run.seed()) {
        ruled.sink.rejected(
            at,
            format!("{} has the losses of a run of another seed, step for step", run.name()),
            format!("other losses than those of {}", other.name()),
            "the same",
        );
        for arm in [run.arm(), other.arm()] {
            ruled.block(Block::arm(arm, format!("{} and {} have the same losses", other.name(), run.name())));
        }
    } else if let Some(other) = earlier.find(|other| other.arm() != run.arm()) {
        let message = format!("{} has the losses of the same seed in another arm", run.name());
        ruled.sink.warning(at, message, format!("other losses than those of {}", other.name()), "the same");
    }
}
