//! What is odd about saved state is on record, and nothing else is.

use std::collections::BTreeMap;

use schemas::body::{Body, StateAnomaly};
use schemas::entry::Entry;
use schemas::ids::AttemptId;
use schemas::report::Route;

use super::saves::{Saves, shown};
use crate::evidence::Evidence;
use crate::frozen::Frozen;
use crate::rule::{At, Check, Outcome, Sink};
use crate::rules::common::declare_rule;

declare_rule!(
    /// `GL640`.
    RecordedAnomalies,
    {
        code: "GL640",
        name: "recorded-anomalies",
        what: "For every validated checkpoint that is still whole, the anomalies of saved state that its bytes show are exactly \
               those that the run recorded, each once, between the checkpoint's commit and its validation, with class, tensors \
               and counts.",
        why: "A trainer that sees what is odd and does not say so, or says so where nothing is, reports on something else than \
              what it saved.",
        remedy: "None for a finished run. Record anomalies through the checkpoint writer, which looks at what it writes.",
        reference: "docs/FORMAT.md, \"Anomalies of saved state\"; schemas::body::StateAnomaly",
        gate: Route::RequestStateInventory,
    }
);

/// One entry.
struct Recorded {
    index: u64,
    is_claimed: bool,
    name: String,
    state: StateAnomaly,
}

#[derive(Default)]
struct Anomalies {
    recorded: BTreeMap<(Option<AttemptId>, u64), Vec<Recorded>>,
    saves: Saves,
}

fn open(_: &Frozen) -> Box<dyn Check + '_> {
    Box::new(Anomalies::default())
}

fn text(name: &str, state: &StateAnomaly) -> String {
    let tensor = state.tensor.as_deref().unwrap_or("the class as a whole");
    format!(
        "{name} of {}: {} tensors, {} elements, {tensor}",
        state.class, state.num_tensors, state.num_elements
    )
}

impl Check for Anomalies {
    fn entry(&mut self, entry: &Entry, _: &mut Sink) {
        self.saves.entry(entry);
        if let Body::Anomaly(halves) = &entry.body
            && let Some(state) = &halves.det.state
        {
            let of = (entry.header.attempt, entry.header.step.unwrap_or(0));
            let (name, state) = (halves.det.name.clone(), state.clone());
            let recorded = Recorded { index: entry.index, is_claimed: false, name, state };
            self.recorded.entry(of).or_default().push(recorded);
        }
    }

    fn finish(&mut self, evidence: &Evidence, sink: &mut Sink) -> Outcome {
        let Self { recorded, saves } = self;
        for (attempt, step) in recorded.keys() {
            let is_of = |save: &&super::saves::Save| (save.attempt, save.step) == (*attempt, *step);
            if saves.all.iter().find(is_of).is_none() {
                let index = recorded[&(*attempt, *step)].first().map_or(0, |recorded| recorded.index);
                let message =
                    format!("an anomaly of saved state of step {step}, which its attempt did not save");
                sink.rejected(At::entry(index, "/step"), message, "a committed checkpoint", "none");
            }
        }
        let mut num_checked = 0;
        for save in saves.whole() {
            let shown = match shown(evidence, save) {
                Ok(shown) => shown,
                Err(reason) => return Outcome::NotEvaluated(reason),
            };
            num_checked += 1;
            let last = saves.validated(save).unwrap_or(u64::MAX);
            let of_save = recorded.entry((save.attempt, save.step)).or_default();
            for (name, state) in &shown {
                let is_it = |recorded: &&mut Recorded| {
                    !recorded.is_claimed && recorded.name == *name && recorded.state == *state
                };
                match of_save.iter_mut().find(is_it) {
                    Some(recorded) => {
                        recorded.is_claimed = true;
                        if !(save.index..last).contains(&recorded.index) {
                            let message = format!("an anomaly of {} is not within its save", save.checkpoint);
                            let expected = format!("between entries {} and {last}", save.index);
                            sink.rejected(At::entry(recorded.index, ""), message, expected, recorded.index);
                        }
                    }
                    None => {
                        let at = At::entry(save.index, "");
                        let message = format!("what is odd about {} is not on record", save.checkpoint);
                        sink.rejected(at, message, text(name, state), "no such entry");
                    }
                }
            }
            for recorded in of_save.iter().filter(|recorded| !recorded.is_claimed) {
                let at = At::entry(recorded.index, "/body/det");
                let message = format!("the bytes of {} do not show this anomaly", save.checkpoint);
                let expected: Vec<String> = shown.iter().map(|(name, state)| text(name, state)).collect();
                let expected = if expected.is_empty() { "none".to_owned() } else { expected.join("; ") };
                sink.rejected(at, message, expected, text(&recorded.name, &recorded.state));
            }
        }
        if num_checked == 0 {
            return Outcome::NotEvaluated("no checkpoint was validated and is whole".to_owned());
        }
        Outcome::Checked(num_checked)
    }
}
