//! The examples of each update are those that order and table determine.

use schemas::digest::Digest;
use schemas::report::Route;

use crate::derive::order::Order;
use crate::derive::{batch, examples};
use crate::frozen::Frozen;
use crate::rule::{At, Check, unavailable};
use crate::rules::common::{declare_rule, each_step, or_null};

declare_rule!(
    /// `GL303`.
    DrawIds,
    {
        code: "GL303",
        name: "draw-ids",
        what: "The digest of example ids of every update is the one that the keyed permutation, the frozen seed and the frozen \
               example table give for its step.",
        why: "It ties the order of the data to the contract: reordering, repeating or leaving out examples to steer the result \
              changes the digest.",
        remedy: "None for a finished run. Check that trainer and contract name the same seed and table.",
        reference: "docs/FORMAT.md, \"Data order\"",
        gate: Route::RejectFrozenInputs,
    }
);

fn open(frozen: &Frozen) -> Box<dyn Check + '_> {
    let table = match &frozen.train_examples {
        Ok(table) => table,
        Err(reason) => return unavailable(format!("the train example table: {reason}")),
    };
    let contract = &frozen.contract;
    let mut order = Order::of(contract, table.num_examples());
    let mut pieces = examples::Pieces::default();
    each_step(move |facts, sink| {
        let first = batch::first_position(&contract.batch, facts.step);
        let end = first.and_then(|first| first.checked_add(u64::from(contract.batch.global_examples)));
        let expected = first.zip(end).and_then(|(first, end)| {
            let drawn = |visit: &mut dyn FnMut(u64)| _ = order.for_each(first..end, visit);
            examples::ids_digest(table, drawn, &mut pieces)
        });
        let expected = expected.map(Digest::blake3);
        let actual = facts.det.draws.first().map(|draw| draw.ids);
        if expected.is_none() || expected != actual {
            let at = At::entry(facts.entry.index, "/body/det/draws/0/ids");
            sink.rejected(
                at,
                format!("step {} consumed other examples", facts.step),
                or_null(expected),
                or_null(actual),
            );
        }
    })
}
