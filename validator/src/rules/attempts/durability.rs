//! How much a crash may lose is bounded.
//!
//! Which steps were lost is not to be seen afterwards: what is flushed leaves no
//! mark of its own, and heads are signed at intents, checkpoints and ends.

use schemas::report::Route;

use crate::frozen::Frozen;
use crate::rule::Check;
use crate::rules::common::{at_end, declare_rule};
use crate::rules::terms::Terms;

declare_rule!(
    /// `GL218`.
    DurabilityRule,
    {
        code: "GL218",
        name: "durability",
        what: "The contract bounds what a crash may lose, to 1 to 10000 steps and 1 to 60000 ms.",
        why: "Steps that are recorded late may be lost, or left out by whoever stops the process, and nobody would know that they were \
              made.",
        remedy: "None for a finished run. Freeze a contract with `ledger freeze`, which refuses a bound that is none.",
        reference: "docs/CONTRACT.md, \"Durability\"",
        gate: Route::RejectIdentity,
    }
);

/// Bounds of a bound: `ledger freeze` refuses more, since it would be none.
const MAX_UNSYNCED_STEPS: u64 = 10_000;
const MAX_UNSYNCED_MS: u64 = 60_000;

fn open(frozen: &Frozen) -> Box<dyn Check + '_> {
    let durability = &frozen.contract.durability;
    at_end(move |_, sink| {
        let (steps, milliseconds) =
            (u64::from(durability.max_unsynced_steps), u64::from(durability.max_unsynced_ms));
        let mut terms = Terms::new(sink);
        terms.within(steps, 1..=MAX_UNSYNCED_STEPS, "/durability/max_unsynced_steps");
        terms.within(milliseconds, 1..=MAX_UNSYNCED_MS, "/durability/max_unsynced_ms");
        terms.outcome()
    })
}
