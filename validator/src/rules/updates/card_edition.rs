//! What a policy card of this edition can say that was executed.
//!
//! The trainer of this edition updates every group by one exact first-order rule
//! in every worker, and tries nothing when a run goes wrong. A card that claims a
//! fallback, an approximation, a preconditioner, sharded state or a rescue names
//! a method that did not run. `ledger freeze` refuses such a card; whoever signs
//! with a program of their own is found here. Constants are [`super::policy_card`]'s.

use schemas::contract::Contract;
use schemas::policy_card::PolicyCard;

use super::policy_card::at;
use crate::rule::Sink;

/// Rejects what no run of this edition executes, and names that say nothing.
pub(super) fn check(contract: &Contract, card: &PolicyCard, sink: &mut Sink) {
    let mut require = |is_met: bool, field: &str, message: &str, expected: &str, actual: String| {
        if !is_met {
            sink.rejected(at(contract, field), message, expected, actual);
        }
    };
    for (field, text) in [
        ("name", &card.name),
        ("version", &card.version),
        ("implementation/name", &card.implementation.name),
        ("implementation/reference", &card.implementation.reference),
    ] {
        require(
            !text.trim().is_empty(),
            field,
            "the card does not say which rule it is",
            "a text",
            String::new(),
        );
    }
    for (field, is_null, actual) in [
        ("approximation", card.approximation.is_none(), format!("{:?}", card.approximation)),
        ("fallback", card.fallback.is_none(), format!("{:?}", card.fallback)),
        (
            "preconditioner_every_steps",
            card.preconditioner_every_steps.is_none(),
            format!("{:?}", card.preconditioner_every_steps),
        ),
        ("stopping_rule", card.stopping_rule.is_none(), format!("{:?}", card.stopping_rule)),
    ] {
        require(is_null, field, "the card claims what no trainer of this edition executes", "null", actual);
    }
    let message = "the card claims what no trainer of this edition executes";
    let ladder = &card.rescue_ladder;
    require(ladder.is_empty(), "rescue_ladder", message, "an empty list", ladder.join("; "));
    let placement = &card.distribution.placement;
    require(placement == "replicated", "distribution/placement", message, "replicated", placement.clone());
    let communication = if contract.topology.workers > 1 { "all_reduce" } else { "none" };
    let message = "the card claims another exchange than the contract's workers have";
    let actual = &card.distribution.communication;
    require(actual == communication, "distribution/communication", message, communication, actual.clone());
    let has_search = !card.tuning.search_space.trim().is_empty();
    let message = "trials and search space contradict each other";
    let actual = format!("{} trials over {:?}", card.tuning.num_trials, card.tuning.search_space);
    require(has_search == (card.tuning.num_trials > 0), "tuning", message, "both, or neither", actual);
}
