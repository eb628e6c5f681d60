//! Budget and stopping rule can be reached, and in this order.

use schemas::contract::{Contract, StoppingRule};
use schemas::report::Route;

use crate::derive::{examples, steps};
use crate::frozen::Frozen;
use crate::rule::Check;
use crate::rules::common::{at_end, declare_rule};
use crate::rules::terms::Terms;

declare_rule!(
    /// `GL223`.
    RunLimits,
    {
        code: "GL223",
        name: "run-limits",
        what: "Every limit of the budget is at least 1; the stopping rule fires after the first update and within the budget of steps \
               and of tokens; and patience, where it stops the run, can run out before the last step.",
        why: "A rule that can never fire looks like a promise and leaves the end of the run to whoever watches the curve.",
        remedy: "Choose limits that can act, and freeze again.",
        reference: "docs/FORMAT.md, \"Stopping\"; docs/CONTRACT.md, \"Budget\" and \"StoppingRule\"",
        gate: Route::RejectFrozenInputs,
    }
);

/// Bits per byte of a uniform guess: no improvement is larger.
const MAX_IMPROVEMENT: f64 = 8.0;

fn open(frozen: &Frozen) -> Box<dyn Check + '_> {
    at_end(move |_, sink| {
        let mut terms = Terms::new(sink);
        let budget = &frozen.contract.budget;
        terms.count(u64::from(budget.max_attempts), "/budget/max_attempts");
        terms.count(budget.max_steps, "/budget/max_steps");
        terms.count(budget.max_wall_s.unwrap_or(1), "/budget/max_wall_s");
        tokens(frozen, &mut terms);
        stopping(&frozen.contract, &mut terms);
        terms.outcome()
    })
}

/// Whether the fixed last step can be made with the tokens. What is left of an
/// epoch counts one token an example, so that only what is certain is said.
fn tokens(frozen: &Frozen, terms: &mut Terms<'_>) {
    let contract = &frozen.contract;
    let Some(max_tokens) = contract.budget.max_tokens else { return };
    terms.count(max_tokens, "/budget/max_tokens");
    let (StoppingRule::AtStep { step }, Ok(table)) = (&contract.stopping, &frozen.train_examples) else {
        return;
    };
    let global = u64::from(contract.batch.global_examples);
    let num_examples = step.saturating_sub(1).saturating_mul(global);
    let of_epoch = table.num_examples().max(1);
    let (num_epochs, rest) = (num_examples / of_epoch, num_examples % of_epoch);
    let least = num_epochs.saturating_mul(examples::num_targets(table, None)).saturating_add(rest);
    let message = "the budget of tokens is used up before the stopping rule can be reached";
    terms.require(max_tokens > least, "/budget/max_tokens", message, format!("above {least}"), max_tokens);
}

fn stopping(contract: &Contract, terms: &mut Terms<'_>) {
    let (latest, max_steps) = (steps::latest_step(&contract.stopping), contract.budget.max_steps);
    let pointer = match &contract.stopping {
        StoppingRule::AtStep { .. } => "/stopping/step",
        StoppingRule::Patience { .. } => "/stopping/max_step",
    };
    terms.count(latest, pointer);
    let message = "the stopping rule lies beyond the budget of steps and never fires";
    terms.require(latest <= max_steps, pointer, message, format!("at most {max_steps}"), latest);
    let StoppingRule::Patience { max_step, min_delta, patience, stream } = &contract.stopping else { return };
    terms.count(u64::from(*patience), "/stopping/patience");
    let is_possible = (0.0..MAX_IMPROVEMENT).contains(min_delta);
    let message = "the least improvement is none that a stream could make";
    terms.require(is_possible, "/stopping/min_delta", message, "0 to below 8", min_delta);
    let known = contract.evaluation.streams.iter().find(|known| known.name == *stream);
    // That it exists is for the rule of streams that select.
    let Some(known) = known else { return };
    let earliest = known.every_steps.saturating_mul(u64::from(*patience));
    let message = "patience cannot run out before the last step";
    terms.require(
        earliest <= *max_step,
        "/stopping/patience",
        message,
        format!("evaluations within {max_step} steps"),
        format!("{earliest} steps"),
    );
}
