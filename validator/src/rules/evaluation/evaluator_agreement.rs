//! The selection, recomputed from the evaluator's own numbers.

use schemas::body::QualificationValDet;
use schemas::contract::Direction;
use schemas::entry::Entry;
use schemas::report::Route;

use super::candidates::Candidates;
use crate::derive::metrics;
use crate::derive::selection::winner;
use crate::evidence::{Evidence, ValNumbers};
use crate::frozen::Frozen;
use crate::rule::{At, Check, Outcome, Sink};
use crate::rules::common::{declare_rule, same_float};

declare_rule!(
    /// `GL508`.
    EvaluatorAgreement,
    {
        code: "GL508",
        name: "evaluator-agreement",
        what: "Where the evaluator recomputed `val` with its own forward pass, it did so for every candidate, its values agree with \
               the trainer's within 1e-4 relative, and by its values the selected candidate is the best within that tolerance.",
        why: "Otherwise the selection rests on numbers that the trainer computed about itself.",
        remedy: "Run `evaluator val run.db` to let the rule run. A disagreement means that trainer and evaluator compute different \
                 functions from the same bytes.",
        reference: "DESIGN.md, \"Handoff and qualification\"",
        gate: Route::RejectSelectionLeakage,
    }
);

/// Agreement that binary32 forward passes in different orders reach.
const RELATIVE_TOLERANCE: f64 = 1e-4;

struct Agreement<'a> {
    candidates: Candidates<'a>,
}

fn open(frozen: &Frozen) -> Box<dyn Check + '_> {
    Box::new(Agreement { candidates: Candidates::new(&frozen.contract) })
}

fn is_close(left: f64, right: f64) -> bool {
    (left - right).abs() <= RELATIVE_TOLERANCE * left.abs().max(right.abs())
}

impl Agreement<'_> {
    /// The evaluator's value of each candidate; those that lack one are found.
    fn values(&self, numbers: &[QualificationValDet], sink: &mut Sink) -> Vec<(u64, f64)> {
        let stream = &self.candidates.contract.selection.stream;
        let mut values = Vec::new();
        for (step, admitted) in &self.candidates.admitted {
            let place = || At::place(format!("val numbers of {}", admitted.obs.candidate));
            let own =
                numbers.iter().find(|number| number.model == admitted.det.model && number.stream == *stream);
            let Some(own) = own else {
                sink.rejected(
                    place(),
                    "the evaluator did not evaluate this candidate",
                    "its val number",
                    "none",
                );
                continue;
            };
            let value = metrics::value(own.metric, own.total_nats.0, own.num_tokens);
            if !same_float(value, own.value.0) {
                sink.rejected(
                    place(),
                    "the evaluator's value does not follow from its sum",
                    value,
                    own.value,
                );
            }
            if !is_close(value, admitted.det.value.0) {
                let message = format!("the evaluator disagrees with the trainer at step {step}");
                sink.rejected(place(), message, format!("{} within 1e-4", admitted.det.value), value);
            }
            values.push((*step, value));
        }
        values
    }

    fn selection(&self, direction: Direction, values: &[(u64, f64)], sink: &mut Sink) {
        let (Some(selected), Some((best_step, best))) =
            (self.candidates.selected.first(), winner(direction, values.iter().copied()))
        else {
            return;
        };
        let Some((_, own)) = values.iter().find(|(step, _)| *step == selected.det.step) else { return };
        let at = || At::entry(selected.index, "/body/det/step");
        let (expected, actual) =
            (format!("step {best_step} with {best}"), format!("step {} with {own}", selected.det.step));
        if !is_close(*own, best) {
            sink.rejected(at(), "by the evaluator's numbers another candidate wins", expected, actual);
        } else if best_step != selected.det.step {
            let message =
                "by the evaluator's numbers another candidate wins within the tolerance of agreement";
            sink.note(at(), message, expected, actual);
        }
    }
}

impl Check for Agreement<'_> {
    fn entry(&mut self, entry: &Entry, _: &mut Sink) {
        self.candidates.entry(entry);
    }

    fn finish(&mut self, evidence: &Evidence, sink: &mut Sink) -> Outcome {
        match &evidence.val_numbers {
            ValNumbers::Absent => Outcome::NotApplicable(
                "there are no val numbers of the evaluator; the selection rests on the trainer's own"
                    .to_owned(),
            ),
            ValNumbers::Unusable(reason) => Outcome::NotEvaluated(reason.clone()),
            ValNumbers::Signed(numbers) => {
                let values = self.values(numbers, sink);
                if let Some(direction) = self.candidates.direction() {
                    self.selection(direction, &values, sink);
                }
                Outcome::Checked(self.candidates.admitted.len() as u64)
            }
        }
    }
}
