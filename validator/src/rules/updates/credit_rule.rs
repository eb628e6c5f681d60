//! Credit was assigned by the frozen rule.

use schemas::body::Credit;
use schemas::contract::CreditRule;
use schemas::report::Route;

use crate::frozen::Frozen;
use crate::rule::{At, Check};
use crate::rules::common::{declare_rule, each_step};

declare_rule!(
    /// `GL411`.
    CreditRuleCheck,
    {
        code: "GL411",
        name: "credit-rule",
        what: "Every step assigned credit by the contract's credit rule; an evolution step has the contract's population.",
        why: "How credit reaches parameters is what a learning method is; a step by another one is another method.",
        remedy: "A change of the credit rule needs a new run.",
        reference: "docs/CONTRACT.md, \"CreditRule\"",
        gate: Route::RejectNumerics,
    }
);

fn open(frozen: &Frozen) -> Box<dyn Check + '_> {
    let rule = &frozen.contract.credit;
    each_step(move |facts, sink| {
        let agrees = match (rule, &facts.det.credit) {
            (CreditRule::Backpropagation, Credit::Backpropagation { .. }) => true,
            (CreditRule::Evolution { population, .. }, Credit::Evolution { population: actual, .. }) => {
                population == actual
            }
            _ => false,
        };
        if !agrees {
            let at = At::entry(facts.entry.index, "/body/det/credit");
            sink.rejected(
                at,
                "credit was assigned otherwise",
                format!("{rule:?}"),
                format!("{:?}", facts.det.credit),
            );
        }
    })
}
