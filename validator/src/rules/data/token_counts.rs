//! Token counts of updates, from the example table.

use schemas::body::Credit;
use schemas::report::Route;

use crate::derive::batch;
use crate::derive::order::Order;
use crate::frozen::Frozen;
use crate::rule::{At, Check, unavailable};
use crate::rules::common::{declare_rule, each_step};

declare_rule!(
    /// `GL305`.
    TokenCounts,
    {
        code: "GL305",
        name: "token-counts",
        what: "The number of target tokens of every update is the sum over its examples in the frozen table.",
        why: "The loss is a mean over these tokens and the budget counts them; a false denominator scales both.",
        remedy: "None for a finished run. Check how the trainer counts the targets of the last example of a shard.",
        reference: "docs/FORMAT.md, \"Examples\"; schemas::policy_card::BatchSemantics",
        gate: Route::RejectNumerics,
    }
);

fn open(frozen: &Frozen) -> Box<dyn Check + '_> {
    let table = match &frozen.train_examples {
        Ok(table) => table,
        Err(reason) => return unavailable(format!("the train example table: {reason}")),
    };
    let contract = &frozen.contract;
    let mut order = Order::of(contract, table.num_examples());
    each_step(move |facts, sink| {
        let Credit::Backpropagation { num_tokens, .. } = facts.det.credit else { return };
        let Some(first) = batch::first_position(&contract.batch, facts.step) else { return };
        let end = first.saturating_add(u64::from(contract.batch.global_examples));
        let mut expected = 0u64;
        let _ = order.for_each(first..end, |example| {
            expected += table.get(example).map_or(0, |record| u64::from(record.num_targets));
        });
        if expected != num_tokens {
            let at = At::entry(facts.entry.index, "/body/det/credit/backpropagation/num_tokens");
            sink.rejected(
                at,
                format!("step {} counts other target tokens", facts.step),
                expected,
                num_tokens,
            );
        }
    })
}
