//! Whether the frozen quality was reached, recomputed.

use std::collections::BTreeMap;

use schemas::body::Body;
use schemas::contract::{Contract, QualityTarget};
use schemas::digest::Digest;
use schemas::entry::Entry;
use schemas::report::Route;

use crate::derive::metrics;
use crate::evidence::{Evidence, ValNumbers};
use crate::frozen::Frozen;
use crate::rule::{At, Check, Outcome, Sink};
use crate::rules::common::{declare_rule, or_null};

declare_rule!(
    /// `GL510`.
    QualityTargetRule,
    {
        code: "GL510",
        name: "quality-target",
        what: "run.end says of the frozen quality target what the selected candidate's value gives; a target that was missed is \
               reported.",
        why: "A run that misses its own target is not evidence of competence, and must say so itself. The threshold is its owner's \
              word: whether it is the score that `derivation` speaks of is not looked at.",
        remedy: "None for a finished run: a missed target stays missed. Plan a new run with a new contract.",
        reference: "docs/FORMAT.md, \"Evaluation, checkpoint and candidate steps\"; schemas::contract::QualityTarget",
        gate: Route::RejectSelectionLeakage,
    }
);

struct Reached<'a> {
    contract: &'a Contract,
    current: Option<(u64, f64)>,
    num_checked: u64,
    /// Step and model.
    selected: Option<(u64, Digest)>,
    target: &'a QualityTarget,
    /// Values of the target's stream at saved steps.
    values: BTreeMap<u64, f64>,
}

fn open(frozen: &Frozen) -> Box<dyn Check + '_> {
    match &frozen.contract.quality_target {
        Some(target) => Box::new(Reached {
            contract: &frozen.contract,
            current: None,
            num_checked: 0,
            selected: None,
            target,
            values: BTreeMap::new(),
        }),
        None => Box::new(NoTarget),
    }
}

/// Without a target a run meets none and misses none.
struct NoTarget;

impl Check for NoTarget {
    fn entry(&mut self, entry: &Entry, sink: &mut Sink) {
        if let Body::RunEnd(halves) = &entry.body
            && halves.det.target_met.is_some()
        {
            let at = At::entry(entry.index, "/body/det/target_met");
            let message = "the run says of a target that its contract does not have whether it was met";
            sink.rejected(at, message, "null", or_null(halves.det.target_met));
        }
    }

    fn finish(&mut self, _: &Evidence, _: &mut Sink) -> Outcome {
        Outcome::NotApplicable("the contract has no quality target".to_owned())
    }
}

impl Reached<'_> {
    fn is_met(&self) -> Option<bool> {
        self.reaches(*self.values.get(&self.selected?.0)?)
    }

    fn reaches(&self, value: f64) -> Option<bool> {
        let streams = &self.contract.evaluation.streams;
        let direction = streams.iter().find(|stream| stream.name == self.target.stream)?.direction;
        Some(metrics::reaches(direction, value, self.target.threshold))
    }

    /// The evaluator's own number may lie on the other side of the threshold,
    /// and is the one that the report goes by.
    fn by_evaluator(&self, evidence: &Evidence, sink: &mut Sink) {
        let (ValNumbers::Signed(numbers), Some((_, model))) = (&evidence.val_numbers, self.selected) else {
            return;
        };
        let own = numbers.iter().find(|own| own.model == model && own.stream == self.target.stream);
        let Some(own) = own else { return };
        let (expected, actual) = (self.reaches(own.value.0), self.is_met());
        if expected != actual {
            let message = "the target is judged otherwise by the evaluator's number";
            sink.warning(At::place("ledger"), message, or_null(expected), or_null(actual));
        }
    }
}

impl Check for Reached<'_> {
    fn entry(&mut self, entry: &Entry, sink: &mut Sink) {
        match &entry.body {
            Body::Eval(halves) if halves.det.stream == self.target.stream => {
                self.current = Some((entry.header.step.unwrap_or(0), halves.det.value.0));
            }
            Body::CheckpointRequested(halves) => {
                if let Some((_, value)) = self.current.filter(|(step, _)| *step == halves.det.step) {
                    self.values.insert(halves.det.step, value);
                }
            }
            Body::CandidateSelected(halves) => self.selected = Some((halves.det.step, halves.det.model)),
            Body::RunEnd(halves) => {
                self.num_checked += 1;
                let expected = self.is_met();
                let at = || At::entry(entry.index, "/body/det/target_met");
                if expected != halves.det.target_met {
                    sink.rejected(
                        at(),
                        "the target is judged otherwise",
                        or_null(expected),
                        or_null(halves.det.target_met),
                    );
                }
                if expected == Some(false) {
                    let value = self.selected.and_then(|(step, _)| self.values.get(&step).copied());
                    let message = "the run missed its quality target and is no evidence of competence";
                    sink.warning(at(), message, self.target.threshold, or_null(value));
                }
            }
            _ => {}
        }
    }

    fn finish(&mut self, evidence: &Evidence, sink: &mut Sink) -> Outcome {
        self.by_evaluator(evidence, sink);
        Outcome::Checked(self.num_checked.max(self.values.len() as u64))
    }
}
