//! Learning rates that the contract schedules are rates, and can change where
//! it says that they do.

use schemas::contract::{Contract, ScheduleShape};
use schemas::report::Route;

use crate::derive::steps;
use crate::frozen::Frozen;
use crate::rule::Check;
use crate::rules::common::{at_end, declare_rule};
use crate::rules::terms::Terms;

declare_rule!(
    /// `GL413`.
    RateTerms,
    {
        code: "GL413",
        name: "rate-terms",
        what: "Rates and peaks are above 0; a cosine falls from its peak to a floor that is not above it, behind a warmup that leaves \
               it steps; a plateau watches a stream that there is, falls by a factor between 0 and 1 to a floor below its rate, \
               and can fall before the last step.",
        why: "A schedule that cannot do what it is named for is another schedule under its name.",
        remedy: "Correct `schedule`, and freeze again.",
        reference: "docs/FORMAT.md, \"Learning rates\" and \"Plateau\"",
        gate: Route::RejectFrozenInputs,
    }
);

/// Bits per byte of a uniform guess: no improvement is larger.
const MAX_IMPROVEMENT: f64 = 8.0;

fn open(frozen: &Frozen) -> Box<dyn Check + '_> {
    let contract = &frozen.contract;
    at_end(move |_, sink| {
        let mut terms = Terms::new(sink);
        for (index, schedule) in contract.schedule.iter().enumerate() {
            shape(contract, &schedule.shape, &format!("/schedule/{index}/shape"), &mut terms);
        }
        terms.outcome()
    })
}

fn shape(contract: &Contract, shape: &ScheduleShape, pointer: &str, terms: &mut Terms<'_>) {
    let at = |field: &str| format!("{pointer}/{field}");
    match shape {
        ScheduleShape::Constant { rate } => terms.positive(*rate, &at("rate")),
        ScheduleShape::WarmupCosine { floor, peak, total_steps, warmup_steps } => {
            terms.positive(*peak, &at("peak"));
            let (message, expected) = ("a cosine falls from its peak to its floor", format!("0 to {peak}"));
            terms.require((0.0..=*peak).contains(floor), &at("floor"), message, expected, floor);
            let message = "the warmup leaves the cosine no step";
            let expected = format!("below {total_steps}");
            terms.require(warmup_steps < total_steps, &at("warmup_steps"), message, expected, warmup_steps);
        }
        ScheduleShape::Plateau { .. } => plateau(contract, shape, pointer, terms),
    }
}

fn plateau(contract: &Contract, shape: &ScheduleShape, pointer: &str, terms: &mut Terms<'_>) {
    let ScheduleShape::Plateau { factor, floor, min_delta, patience, rate, stream, .. } = shape else {
        return;
    };
    let at = |field: &str| format!("{pointer}/{field}");
    terms.positive(*rate, &at("rate"));
    let falls = *factor > 0.0 && *factor < 1.0;
    terms.require(falls, &at("factor"), "the factor lowers no rate", "above 0 and below 1", factor);
    let is_possible = (0.0..MAX_IMPROVEMENT).contains(min_delta);
    let message = "the least improvement is none that a stream could make";
    terms.require(is_possible, &at("min_delta"), message, "0 to below 8", min_delta);
    let can_fall = *floor >= 0.0 && floor < rate;
    let expected = format!("0 to below {rate}");
    terms.require(can_fall, &at("floor"), "the rate cannot fall to its floor", expected, floor);
    let known = contract.evaluation.streams.iter().find(|known| known.name == *stream);
    let message = "the plateau watches a stream that there is not";
    terms.require(known.is_some(), &at("stream"), message, "a stream of the contract", stream);
    let Some(known) = known else { return };
    let earliest = patience.saturating_add(1).saturating_mul(known.every_steps);
    let last = steps::max_step(&contract.stopping, &contract.budget);
    let message = "the rate cannot fall before the last step";
    terms.require(earliest < last, &at("patience"), message, format!("before step {last}"), earliest);
}
