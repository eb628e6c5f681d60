//! The learning-rate trace, recomputed bit for bit.

use schemas::report::Route;

use crate::derive::schedule;
use crate::frozen::Frozen;
use crate::rule::{At, Check, unavailable};
use crate::rules::common::{declare_rule, each_step, same_float};

declare_rule!(
    /// `GL401`.
    LearningRate,
    {
        code: "GL401",
        name: "learning-rate",
        what: "The rate of every group at every step is the frozen schedule's value times the group's multiplier, bit for bit.",
        why: "A restarted or shifted schedule is the commonest fault of a resume, and an unrecorded change of rate the commonest \
              intervention.",
        remedy: "None for a finished run. Derive the rate from the step number alone, with libm's cosine.",
        reference: "docs/FORMAT.md, \"Learning rates\"",
        gate: Route::RejectNumerics,
    }
);

fn open(frozen: &Frozen) -> Box<dyn Check + '_> {
    let card = match &frozen.card {
        Ok(card) => card,
        Err(reason) => return unavailable(format!("the policy card: {reason}")),
    };
    let schedules = &frozen.contract.schedule;
    each_step(move |facts, sink| {
        for (at, update) in facts.det.updates.iter().enumerate() {
            let shape = schedules
                .iter()
                .find(|schedule| schedule.group == update.group)
                .map(|schedule| &schedule.shape);
            let group = card.groups.iter().find(|group| group.name == update.group);
            let pointer = || At::entry(facts.entry.index, format!("/body/det/updates/{at}/learning_rate"));
            let (Some(shape), Some(group)) = (shape, group) else {
                let message = format!("group {} has no frozen rate", update.group);
                sink.rejected(pointer(), message, "a group of card and schedule", &update.group);
                continue;
            };
            let expected = schedule::rate(shape, facts.step) * group.learning_rate_multiplier;
            if !same_float(expected, update.learning_rate.0) {
                let message =
                    format!("group {} was updated at another rate at step {}", update.group, facts.step);
                sink.rejected(pointer(), message, expected, update.learning_rate);
            }
        }
    })
}
