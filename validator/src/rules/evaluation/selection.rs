//! The selection, recomputed from the recorded values.

use schemas::contract::FaultKind;
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
        what: "One candidate is selected in a run that was not lost, after the last step and the last admission (another selection counts instead where a \
               checkpoint of the family was quarantined after an earlier one): the one whose value of the frozen stream is best in the frozen \
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
    /// The selected checkpoint may still be used, and the family was complete
    /// when it was selected.
    fn standing(&self, selected: &Selected, sink: &mut Sink) {
        let checkpoint = &selected.obs.checkpoint;
        if self.candidates.is_given_up(checkpoint) {
            let at = At::entry(selected.index, "/body/obs/checkpoint");
            let expected = "neither failed, quarantined nor retired";
            sink.rejected(at, "the selected checkpoint was given up", expected, checkpoint);
        }
        let last = self.candidates.family().map(|(_, admitted)| admitted.index).max();
        if let Some(last) = last.filter(|last| *last > selected.index) {
            let message = "a candidate is admitted after the selection";
            let actual = format!("selected at entry {}", selected.index);
            sink.rejected(At::entry(last, ""), message, "every admission before the selection", actual);
        }
    }

    fn judge(&self, selected: &Selected, sink: &mut Sink) {
        let at = |field: &str| At::entry(selected.index, format!("/body/{field}"));
        let Candidates { admitted, contract, last, values, .. } = &self.candidates;
        self.standing(selected, sink);
        let family_size = self.candidates.family().count() as u64;
        let det = &selected.det;
        if det.stream != contract.selection.stream {
            sink.rejected(
                at("det/stream").cause(FaultKind::ValidationLeakageInSelection),
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
        if det.num_candidates != family_size {
            sink.rejected(
                at("det/num_candidates"),
                "the family has another size",
                family_size,
                det.num_candidates,
            );
        }
        let Some(direction) = self.candidates.direction() else { return };
        let family = self.candidates.family();
        let of_family = family.filter_map(|(step, _)| values.get(&step).map(|value| (step, *value)));
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
            let at = at("det/step").cause(FaultKind::ValidationLeakageInSelection);
            sink.rejected(at, "another candidate wins by the frozen rule", expected, actual);
        } else if !same_float(det.value.0, value) {
            let at = at("det/value").cause(FaultKind::ValidationLeakageInSelection);
            sink.rejected(at, "the selected candidate has another value", value, det.value);
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
        for pair in selected.windows(2) {
            if !self.candidates.is_invalidated(pair[0].index, pair[1].index) {
                let message = "a second candidate is selected";
                let expected = "one candidate.selected, or a quarantined candidate before another";
                sink.rejected(At::entry(pair[1].index, ""), message, expected, "another");
            }
        }
        match selected.last() {
            Some(selected) => self.judge(selected, sink),
            None if last.is_reached() => {
                let mut values = self.candidates.family().filter_map(|(step, _)| values.get(&step));
                let has_finite = values.any(|value| value.is_finite());
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
