//! How many runs were tried is said to be unknown, never left unsaid.

use schemas::contract::Membership;
use schemas::report::Route;

use crate::frozen::Frozen;
use crate::rule::{At, Check, Outcome};
use crate::rules::common::{at_end, declare_rule};

declare_rule!(
    /// `GL709`.
    RunDenominator,
    {
        code: "GL709",
        name: "run-denominator",
        what: "Notes that the number of runs that were tried is not evaluated for a run that stands alone. That a run belongs to a \
               campaign, which would give the number, is not evaluated: this edition has no rules for campaigns.",
        why: "The best of many runs may be luck; one run's ledger does not show how many others there were.",
        remedy: "Say beside the result how many runs were made, such as in a preregistration. A note changes no verdict.",
        reference: "docs/CONTRACT.md, \"Membership\"",
        gate: Route::RejectFrozenInputs,
    }
);

fn open(frozen: &Frozen) -> Box<dyn Check + '_> {
    let membership = &frozen.contract.membership;
    at_end(move |_, sink| {
        match membership {
            Membership::Standalone => {
                sink.note(
                    At::place("contract /membership"),
                    "the number of runs that were tried is not evaluated",
                    "a campaign with the ledger of every run",
                    "standalone",
                );
            }
            Membership::Campaign { arm, campaign, trial, .. } => {
                let at = At::place("contract /membership").remedy(
                    "Freeze a standalone run, and say in a preregistration which runs belong together.",
                );
                sink.not_evaluated(
                    at,
                    "this edition does not evaluate campaigns, nor whether a run belongs to one",
                    "standalone",
                    format!("trial {trial} of arm {arm:?} of campaign {campaign}"),
                );
            }
        }
        Outcome::Checked(1)
    })
}
