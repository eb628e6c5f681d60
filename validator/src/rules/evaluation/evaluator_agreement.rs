//! The selection, recomputed from the evaluator's own numbers.

use std::collections::BTreeMap;

use schemas::body::{Body, QualificationValDet};
use schemas::contract::{Direction, FaultKind};
use schemas::data::Split;
use schemas::entry::Entry;
use schemas::report::Route;

use super::candidates::Candidates;
use super::evaluation_content::{Expected, coverage};
use crate::derive::metrics;
use crate::derive::selection::winner;
use crate::evidence::{Evidence, ValNumbers};
use crate::frozen::Frozen;
use crate::rule::{At, Check, Outcome, Sink};
use crate::rules::common::{declare_rule, or_null, same_float};

declare_rule!(
    /// `GL508`.
    EvaluatorAgreement,
    {
        code: "GL508",
        name: "evaluator-agreement",
        what: "Where the evaluator recomputed `val` with its own forward pass, it did so for every candidate and every val stream \
               that selects or decides the quality target, over the frozen examples; its values agree with the trainer's within \
               1e-4 relative, and by its values the selected candidate is the best within that tolerance.",
        why: "Otherwise the selection rests on numbers that the trainer computed about itself.",
        remedy: "Run `evaluator val run.db` to let the rule run. A disagreement means that trainer and evaluator compute different \
                 functions from the same bytes.",
        reference: "docs/FORMAT.md, \"Qualification\"",
        gate: Route::RejectSelectionLeakage,
    }
);

/// Agreement that binary32 forward passes in different orders reach.
const RELATIVE_TOLERANCE: f64 = 1e-4;

struct Agreement<'a> {
    candidates: Candidates<'a>,
    coverage: Result<Vec<Expected<'a>>, String>,
    /// Latest evaluation of each stream: step and value.
    current: BTreeMap<String, (u64, f64)>,
    /// The trainer's values at saved steps, by stream and step.
    values: BTreeMap<(String, u64), f64>,
}

fn open(frozen: &Frozen) -> Box<dyn Check + '_> {
    Box::new(Agreement {
        candidates: Candidates::new(&frozen.contract),
        coverage: coverage(frozen),
        current: BTreeMap::new(),
        values: BTreeMap::new(),
    })
}

/// Within the tolerance; values that are not finite agree where they are the same.
fn is_close(left: f64, right: f64) -> bool {
    same_float(left, right) || (left - right).abs() <= RELATIVE_TOLERANCE * left.abs().max(right.abs())
}

impl Agreement<'_> {
    /// The streams of the val split that decide something.
    fn deciding<'e>(&self, coverage: &'e [Expected<'e>]) -> Vec<&'e Expected<'e>> {
        let contract = self.candidates.contract;
        let target = contract.quality_target.as_ref().map(|target| target.stream.as_str());
        let decides = |name: &str| name == contract.selection.stream || Some(name) == target;
        let of_val = |expected: &&Expected<'_>| expected.stream.split == Split::Val;
        coverage.iter().filter(of_val).filter(|expected| decides(&expected.stream.name)).collect()
    }

    /// The evaluator's value of each candidate on one stream; those that lack
    /// one are found.
    fn values(
        &self,
        expected: &Expected<'_>,
        numbers: &[QualificationValDet],
        sink: &mut Sink,
    ) -> Vec<(u64, f64)> {
        let stream = &expected.stream.name;
        let mut values = Vec::new();
        for (step, admitted) in self.candidates.family() {
            let place = || At::place(format!("val numbers of {} on {stream}", admitted.obs.candidate));
            let own =
                numbers.iter().find(|number| number.model == admitted.det.model && number.stream == *stream);
            let Some(own) = own else {
                let message = "the evaluator did not evaluate this candidate";
                sink.rejected(place(), message, "its val number", "none");
                continue;
            };
            self.content(expected, own, place, sink);
            let value = metrics::value(expected.stream.metric, own.total_nats.0, expected.num_tokens);
            if !same_float(value, own.value.0) {
                let message = "the evaluator's value does not follow from its sum";
                sink.rejected(place(), message, value, own.value);
            }
            let trained = self.values.get(&(stream.clone(), step)).copied();
            if !trained.is_some_and(|trained| is_close(value, trained)) {
                let message = format!("the evaluator disagrees with the trainer at step {step}");
                let at = place().cause(FaultKind::ValidationLeakageInSelection);
                sink.rejected(at, message, format!("{} within 1e-4", or_null(trained)), value);
            }
            values.push((step, value));
        }
        values
    }

    /// What the number says that it is of.
    fn content(
        &self,
        expected: &Expected<'_>,
        own: &QualificationValDet,
        place: impl Fn() -> At,
        sink: &mut Sink,
    ) {
        if own.metric != expected.stream.metric {
            let (expected, actual) = (format!("{:?}", expected.stream.metric), format!("{:?}", own.metric));
            sink.rejected(place(), "the evaluator computed another metric", expected, actual);
        }
        let counts = [
            ("examples", expected.num_examples, own.num_examples),
            ("target tokens", expected.num_tokens, own.num_tokens),
        ];
        for (name, expected, actual) in counts.into_iter().filter(|(_, expected, actual)| expected != actual)
        {
            sink.rejected(place(), format!("the evaluator went over other {name}"), expected, actual);
        }
        // Weights that two candidates share have one number.
        let mut family = self.candidates.family();
        if !family.any(|(step, admitted)| step == own.step && admitted.det.model == own.model) {
            let message = "the evaluator's number is of another step than the candidate";
            sink.rejected(place(), message, "the step of the model's candidate", own.step);
        }
    }

    fn follow(&mut self, entry: &Entry) {
        match &entry.body {
            Body::Eval(halves) => {
                let at = (entry.header.step.unwrap_or(0), halves.det.value.0);
                self.current.insert(halves.det.stream.clone(), at);
            }
            Body::CheckpointRequested(halves) => {
                let step = halves.det.step;
                for (stream, (_, value)) in self.current.iter().filter(|(_, (at, _))| *at == step) {
                    self.values.insert((stream.clone(), step), *value);
                }
            }
            _ => {}
        }
    }

    fn selection(&self, direction: Direction, values: &[(u64, f64)], sink: &mut Sink) {
        let (Some(selected), Some((best_step, best))) =
            (self.candidates.selected.last(), winner(direction, values.iter().copied()))
        else {
            return;
        };
        let Some((_, own)) = values.iter().find(|(step, _)| *step == selected.det.step) else { return };
        let at = || At::entry(selected.index, "/body/det/step");
        let (expected, actual) =
            (format!("step {best_step} with {best}"), format!("step {} with {own}", selected.det.step));
        if !is_close(*own, best) {
            let at = at().cause(FaultKind::ValidationLeakageInSelection);
            sink.rejected(at, "by the evaluator's numbers another candidate wins", expected, actual);
        } else if best_step != selected.det.step {
            let message =
                "by the evaluator's numbers another candidate wins within the tolerance of agreement";
            sink.note(at(), message, expected, actual);
        }
    }
}

impl Check for Agreement<'_> {
    fn entry(&mut self, entry: &Entry, _: &mut Sink) {
        self.follow(entry);
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
                let coverage = match &self.coverage {
                    Ok(coverage) => coverage,
                    Err(reason) => return Outcome::NotEvaluated(reason.clone()),
                };
                for expected in self.deciding(coverage) {
                    let values = self.values(expected, numbers, sink);
                    if expected.stream.name == self.candidates.contract.selection.stream {
                        self.selection(expected.stream.direction, &values, sink);
                    }
                }
                Outcome::Checked(self.candidates.admitted.len() as u64)
            }
        }
    }
}
