//! What is odd about saved state is on record, and nothing else is.

use schemas::body::{Body, StateAnomaly};
use schemas::entry::Entry;
use schemas::report::Route;

use super::saves::{Save, Saves, shown};
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
    /// By the place of the save that they are told within.
    recorded: Vec<(usize, Recorded)>,
    saves: Saves,
}

fn open(_: &Frozen) -> Box<dyn Check + '_> {
    Box::new(Anomalies::default())
}

fn text(name: &str, state: &StateAnomaly) -> String {
    let tensor = state.tensor.as_deref().unwrap_or("the class as a whole");
    let StateAnomaly { class, num_elements, num_tensors, .. } = state;
    format!("{name} of {class}: {num_tensors} tensors, {num_elements} elements, {tensor}")
}

/// What a save shows against what was recorded within it.
fn compare(save: &Save, shown: &[(&str, StateAnomaly)], recorded: &mut [&mut Recorded], sink: &mut Sink) {
    for (name, state) in shown {
        let is_it =
            |recorded: &Recorded| !recorded.is_claimed && recorded.name == *name && recorded.state == *state;
        if let Some(recorded) = recorded.iter_mut().find(|recorded| is_it(recorded)) {
            recorded.is_claimed = true;
        } else {
            let message = format!("what is odd about {} is not on record", save.checkpoint);
            sink.rejected(At::entry(save.index, ""), message, text(name, state), "no such entry");
        }
    }
    for recorded in recorded.iter().filter(|recorded| !recorded.is_claimed) {
        let message = format!("the bytes of {} do not show this anomaly", save.checkpoint);
        let expected: Vec<String> = shown.iter().map(|(name, state)| text(name, state)).collect();
        let expected = if expected.is_empty() { "none".to_owned() } else { expected.join("; ") };
        let at = At::entry(recorded.index, "/body/det");
        sink.rejected(at, message, expected, text(&recorded.name, &recorded.state));
    }
}

impl Check for Anomalies {
    fn entry(&mut self, entry: &Entry, sink: &mut Sink) {
        self.saves.entry(entry);
        let Body::Anomaly(halves) = &entry.body else { return };
        let Some(state) = halves.det.state.clone() else { return };
        let header = (entry.header.attempt, entry.header.step);
        let is_of = |save: &Save| header == (save.attempt, Some(save.step));
        match self.saves.unfinished.filter(|place| self.saves.all.get(*place).is_some_and(is_of)) {
            Some(place) => {
                let name = halves.det.name.clone();
                self.recorded.push((place, Recorded { index: entry.index, is_claimed: false, name, state }));
            }
            None => {
                let message = format!("{} is told outside of the save that it is of", halves.det.name);
                let expected = "between checkpoint.durably_committed and checkpoint.validated of its step";
                sink.rejected(At::entry(entry.index, ""), message, expected, "elsewhere");
            }
        }
    }

    fn finish(&mut self, evidence: &Evidence, sink: &mut Sink) -> Outcome {
        let Self { recorded, saves } = self;
        let mut num_checked = 0;
        for (place, save) in saves.all.iter().enumerate().filter(|(_, save)| saves.is_whole(save)) {
            let shown = match shown(evidence, save) {
                Ok(shown) => shown,
                Err(reason) => return Outcome::NotEvaluated(reason),
            };
            num_checked += 1;
            let within = recorded.iter_mut().filter(|(of, _)| *of == place).map(|(_, recorded)| recorded);
            compare(save, &shown, &mut within.collect::<Vec<_>>(), sink);
        }
        if num_checked == 0 {
            return Outcome::NotEvaluated("no checkpoint was validated and is whole".to_owned());
        }
        Outcome::Checked(num_checked)
    }
}
