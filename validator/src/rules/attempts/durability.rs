//! How much a crash may lose is bounded, and the heads that were signed keep
//! the bound.

use schemas::body::Body;
use schemas::contract::Durability;
use schemas::entry::Entry;
use schemas::report::Route;

use crate::evidence::Evidence;
use crate::frozen::Frozen;
use crate::rule::{At, Check, Outcome, Sink};
use crate::rules::common::declare_rule;
use crate::rules::terms::Terms;

declare_rule!(
    /// `GL218`.
    DurabilityRule,
    {
        code: "GL218",
        name: "durability",
        what: "The contract bounds what a crash may lose, to 1 to 10000 steps and 1 to 60000 ms, and the ledger has a signed head \
               for at least every so many of its steps.",
        why: "Steps under no signed head can be left out of the record by whoever stops the process, and nobody would know that \
              they were made.",
        remedy: "None for a finished run: a head cannot be signed afterwards. Record with `ledger`'s recorder, which signs at every \
                 durable point.",
        reference: "docs/CONTRACT.md, \"Durability\"",
        gate: Route::RejectIdentity,
    }
);

/// Bounds of a bound: `ledger freeze` refuses more, since it would be none.
const MAX_UNSYNCED_STEPS: u64 = 10_000;
const MAX_UNSYNCED_MS: u64 = 60_000;

struct Heads<'a> {
    durability: &'a Durability,
    num_steps: u64,
}

fn open(frozen: &Frozen) -> Box<dyn Check + '_> {
    Box::new(Heads { durability: &frozen.contract.durability, num_steps: 0 })
}

impl Check for Heads<'_> {
    fn entry(&mut self, entry: &Entry, _: &mut Sink) {
        self.num_steps += u64::from(matches!(entry.body, Body::Step(_)));
    }

    fn finish(&mut self, evidence: &Evidence, sink: &mut Sink) -> Outcome {
        let (steps, milliseconds) =
            (u64::from(self.durability.max_unsynced_steps), u64::from(self.durability.max_unsynced_ms));
        let mut sizes: Vec<u64> = evidence.heads.iter().map(|head| head.size).collect();
        sizes.dedup();
        let num_heads = sizes.len() as u64;
        // Where no head verified at all, other rules say so; and a head may
        // cover many steps only as far as the contract lets it.
        if num_heads > 0 && steps > 0 && self.num_steps.div_ceil(steps) > num_heads {
            let message = "the ledger has fewer signed heads than its steps ask for";
            let expected = format!("a head for every {steps} of {} steps", self.num_steps);
            sink.rejected(At::place("heads"), message, expected, format!("{num_heads} heads"));
        }
        let mut terms = Terms::new(sink);
        terms.within(steps, 1..=MAX_UNSYNCED_STEPS, "/durability/max_unsynced_steps");
        terms.within(milliseconds, 1..=MAX_UNSYNCED_MS, "/durability/max_unsynced_ms");
        terms.outcome()
    }
}
