//! The selection, recomputed from the recorded values.

use schemas::entry::Entry;
use schemas::report::Route;

use super::candidates::{Candidates, Selected};
use crate::derive::selection::winner;
use crate::evidence::Evidence;
use crate::frozen::Frozen;
use crate::rule::{At, Check, Outcome, Sink};
use crate::rules::common::{declare_rule, same_float};

declare_rule!(
    /// `GL507`.
    Selection,
    {
        code: "GL507",
        name: "selection",
        what: "One candidate is selected, after the last step: the one whose value of the frozen stream is best in the frozen \
               direction, the earliest among equals, never one that is not finite, out of the whole family.",
        why: "A choice made by any other rule, after the values were known, can be made to fit the claim.",
        remedy: "Let `trainer run` finish the run; a selection that differs from the rule cannot be accepted.",
        reference: "docs/FORMAT.md, \"Evaluation, checkpoint and candidate steps\"; schemas::contract::SelectionRule",
        gate: Route::RejectSelectionLeakage,
    }
);

struct Choice<'a> {
    candidates: Candidates<'a>,
}

fn open(frozen: &Frozen) -> Box<dyn Check + '_> {
    Box::new(Choice { candidates: Candidates::new(&frozen.contract) })
}

impl Choice<'_> {
    fn judge(&self, selected: &Selected, sink: &mut Sink) {
        let at = |field: &str| At::entry(selected.index, format!("/body/{field}"));
        let Candidates { admitted, contract, last, values, .. } = &self.candidates;
        let det = &selected.det;
        if det.stream != contract.selection.stream {
            sink.rejected(
                at("det/stream"),
                "another stream decided",
                &contract.selection.stream,
                &det.stream,
            );
        }
        if selected.at_step != last.step() {
            let actual = format!("at step {}", selected.at_step);
            sink.rejected(
                at("det"),
                "it was selected before the last step",
                format!("at step {}", last.step()),
                actual,
            );
        }
        if det.num_candidates != admitted.len() as u64 {
            sink.rejected(
                at("det/num_candidates"),
                "the family has another size",
                admitted.len(),
                det.num_candidates,
            );
        }
        let Some(direction) = self.candidates.direction() else { return };
        let of_family = admitted.keys().filter_map(|step| values.get(step).map(|value| (*step, *value)));
        let Some((step, value)) = winner(direction, of_family) else {
            sink.rejected(
                at("det"),
                "a candidate was selected although no value is finite",
                "none",
                det.step,
            );
            return;
        };
        if det.step != step {
            let (expected, actual) = (format!("step {step} with {value}"), format!("step {}", det.step));
            sink.rejected(at("det/step"), "another candidate wins by the frozen rule", expected, actual);
        } else if !same_float(det.value.0, value) {
            sink.rejected(at("det/value"), "the selected candidate has another value", value, det.value);
        }
        let named = admitted.get(&det.step);
        let agrees = named.is_some_and(|admitted| {
            admitted.det.model == det.model
                && admitted.obs.candidate == selected.obs.candidate
                && admitted.obs.checkpoint == selected.obs.checkpoint
        });
        if !agrees {
            let expected = named.map_or("an admitted candidate".to_owned(), |a| {
                format!("{} {}", a.obs.candidate, a.det.model)
            });
            let actual = format!("{} {}", selected.obs.candidate, det.model);
            sink.rejected(
                at("obs/candidate"),
                "the selection names another candidate than was admitted",
                expected,
                actual,
            );
        }
    }
}

impl Check for Choice<'_> {
    fn entry(&mut self, entry: &Entry, _: &mut Sink) {
        self.candidates.entry(entry);
    }

    fn finish(&mut self, _: &Evidence, sink: &mut Sink) -> Outcome {
        let Candidates { admitted, last, selected, values, .. } = &self.candidates;
        for again in selected.iter().skip(1) {
            let message = "a second candidate is selected";
            sink.rejected(At::entry(again.index, ""), message, "one candidate.selected", "another");
        }
        match selected.first() {
            Some(selected) => self.judge(selected, sink),
            None if last.is_over => {
                let has_finite =
                    admitted.keys().filter_map(|step| values.get(step)).any(|value| value.is_finite());
                if has_finite {
                    let message = "the run ended without a selection";
                    sink.rejected(At::place("ledger"), message, "candidate.selected", "no such entry");
                }
            }
            None => {}
        }
        Outcome::Checked(admitted.len() as u64)
    }
}
