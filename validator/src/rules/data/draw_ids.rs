//! The examples of each update are those that order and table determine.

use std::ops::Range;

use schemas::contract::Contract;
use schemas::digest::Digest;
use schemas::report::Route;

use crate::derive::order::Order;
use crate::derive::shift::Shift;
use crate::derive::{batch, examples};
use crate::frozen::{ExampleTable, Frozen};
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

/// Steps of which it is searched how far their examples lie from where they
/// should: every further one of a shifted run lies as far.
const MAX_SEARCHES: u32 = 8;

/// Digests of the ids at positions, and how far a step's are off.
struct Ids<'a> {
    contract: &'a Contract,
    num_searches: u32,
    order: Order,
    pieces: examples::Pieces,
    /// The shift that was found last.
    shift: Option<Shift>,
    table: &'a ExampleTable,
}

impl Ids<'_> {
    fn digest(&mut self, positions: Range<u64>) -> Option<Digest> {
        let drawn = |visit: &mut dyn FnMut(u64)| _ = self.order.for_each(positions, visit);
        examples::ids_digest(self.table, drawn, &mut self.pieces).map(Digest::blake3)
    }

    fn positions(&self, step: u64) -> Option<Range<u64>> {
        let first = batch::first_position(&self.contract.batch, step)?;
        Some(first..first.checked_add(u64::from(self.contract.batch.global_examples))?)
    }

    /// How far the examples of a step lie from where they should, at most a
    /// global batch either way.
    fn search(&mut self, step: u64, actual: Digest) -> Option<Shift> {
        let positions = self.positions(step)?;
        let is_it = |ids: &mut Self, shift: Shift| {
            shift.apply(&positions).and_then(|positions| ids.digest(positions)) == Some(actual)
        };
        if let Some(shift) = self.shift
            && is_it(self, shift)
        {
            return Some(shift);
        }
        if self.num_searches == MAX_SEARCHES {
            return None;
        }
        self.num_searches += 1;
        let found = Shift::within(&self.contract.batch).find(|shift| is_it(self, *shift));
        self.shift = found.or(self.shift);
        found
    }
}

fn open(frozen: &Frozen) -> Box<dyn Check + '_> {
    let table = match &frozen.train_examples {
        Ok(table) => table,
        Err(reason) => return unavailable(format!("the train example table: {reason}")),
    };
    let contract = &frozen.contract;
    let order = Order::of(contract, table.num_examples());
    let pieces = examples::Pieces::default();
    let mut ids = Ids { contract, num_searches: 0, order, pieces, shift: None, table };
    each_step(move |facts, sink| {
        let expected = ids.positions(facts.step).and_then(|positions| ids.digest(positions));
        let actual = facts.det.draws.first().map(|draw| draw.ids);
        if expected.is_none() || expected != actual {
            let shift = actual.and_then(|actual| ids.search(facts.step, actual));
            let at = At::entry(facts.entry.index, "/body/det/draws/0/ids").cause(shift.map(Shift::cause));
            let message = match shift {
                Some(shift) => format!("step {} consumed the examples {shift}", facts.step),
                None => format!("step {} consumed other examples", facts.step),
            };
            sink.rejected(at, message, or_null(expected), or_null(actual));
        }
    })
}
