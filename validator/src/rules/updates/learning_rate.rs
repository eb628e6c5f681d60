//! The learning-rate trace, recomputed bit for bit.

use schemas::body::{Body, StepDet};
use schemas::contract::{Contract, FaultKind};
use schemas::entry::Entry;
use schemas::policy_card::{ParameterGroup, PolicyCard};
use schemas::report::Route;

use crate::derive::plateau::Plateaus;
use crate::derive::schedule;
use crate::evidence::Evidence;
use crate::frozen::Frozen;
use crate::rule::{At, Check, Outcome, Sink, unavailable};
use crate::rules::common::{Rewindable, declare_rule, same_float};

declare_rule!(
    /// `GL401`.
    LearningRate,
    {
        code: "GL401",
        name: "learning-rate",
        what: "The rate of every group at every step is the frozen schedule's value times the group's multiplier, bit for bit; of a \
               plateau, the value that the recorded evaluations before the step make of it.",
        why: "A restarted or shifted schedule is the commonest fault of a resume, and an unrecorded change of rate the commonest \
              intervention.",
        remedy: "None for a finished run. Derive the rate from the step number alone, with libm's cosine.",
        reference: "docs/FORMAT.md, \"Learning rates\"",
        gate: Route::RejectNumerics,
    }
);

struct Rates<'a> {
    card: &'a PolicyCard,
    contract: &'a Contract,
    num_steps: u64,
    plateaus: Rewindable<Plateaus>,
    /// What the plateaus would have come to if they had been forgotten at the
    /// first rate that was the initial one and should not have been.
    restarted: Option<Plateaus>,
}

fn open(frozen: &Frozen) -> Box<dyn Check + '_> {
    let card = match &frozen.card {
        Ok(card) => card,
        Err(reason) => return unavailable(format!("the policy card: {reason}")),
    };
    let contract = &frozen.contract;
    let groups = card.groups.iter().map(|group| group.name.as_str());
    let plateaus = Rewindable::new(Plateaus::new(contract, groups));
    Box::new(Rates { card, contract, num_steps: 0, plateaus, restarted: None })
}

impl Rates<'_> {
    /// Whether a wrong rate is that of a plateau whose state was lost.
    fn forgotten(&mut self, name: &str, actual: f64, group: &ParameterGroup) -> Option<FaultKind> {
        let groups = || self.card.groups.iter().map(|group| group.name.as_str());
        let restarted = self.restarted.clone().unwrap_or_else(|| Plateaus::new(self.contract, groups()));
        let rate = restarted.rate(name)? * group.learning_rate_multiplier;
        same_float(rate, actual).then(|| {
            self.restarted = Some(restarted);
            FaultKind::SchedulerStateLoss
        })
    }

    fn compare(&mut self, entry: &Entry, det: &StepDet, sink: &mut Sink) {
        let step = entry.header.step.unwrap_or(0);
        for (at, update) in det.updates.iter().enumerate() {
            let schedules = &self.contract.schedule;
            let shape = schedules.iter().find(|schedule| schedule.group == update.group);
            let group = self.card.groups.iter().find(|group| group.name == update.group);
            let pointer = || At::entry(entry.index, format!("/body/det/updates/{at}/learning_rate"));
            let (Some(schedule), Some(group)) = (shape, group) else {
                let message = format!("group {} has no frozen rate", update.group);
                sink.rejected(pointer(), message, "a group of card and schedule", &update.group);
                continue;
            };
            let watched = self.plateaus.now.rate(&update.group);
            let rate = watched.unwrap_or_else(|| schedule::rate(&schedule.shape, step));
            let expected = rate * group.learning_rate_multiplier;
            if !same_float(expected, update.learning_rate.0) {
                let message = format!("group {} was updated at another rate at step {step}", update.group);
                let cause = self.forgotten(&update.group, update.learning_rate.0, group);
                sink.rejected(pointer().cause(cause), message, expected, update.learning_rate);
            }
        }
    }
}

impl Check for Rates<'_> {
    fn entry(&mut self, entry: &Entry, sink: &mut Sink) {
        match &entry.body {
            Body::Step(halves) => {
                self.compare(entry, &halves.det, sink);
                self.num_steps += 1;
            }
            Body::Eval(halves) => {
                let det = &halves.det;
                self.plateaus.now.observe(self.contract, &det.stream, det.value.0);
                if let Some(restarted) = &mut self.restarted {
                    restarted.observe(self.contract, &det.stream, det.value.0);
                }
            }
            // A resume takes the state of a checkpoint, whatever was lost before.
            Body::AttemptStart(_) => self.restarted = None,
            _ => {}
        }
        self.plateaus.entry(entry);
    }

    fn settled_entry(&mut self, entry: &Entry, _: Option<&[u8]>, sink: &mut Sink) {
        match &entry.body {
            // Its rates are as they should be; what later ones are compared with does
            // not come from them.
            Body::Step(_) => {
                self.num_steps += 1;
                self.plateaus.entry(entry);
            }
            _ => self.entry(entry, sink),
        }
    }

    fn finish(&mut self, _: &Evidence, _: &mut Sink) -> Outcome {
        Outcome::Checked(self.num_steps)
    }
}
