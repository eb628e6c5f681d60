//! The candidates are exactly the frozen family.

use std::collections::BTreeSet;

use schemas::body::Body;
use schemas::entry::Entry;
use schemas::report::Route;

use super::candidates::{Admitted, Candidates};
use crate::derive::steps;
use crate::evidence::Evidence;
use crate::frozen::Frozen;
use crate::rule::{At, Check, Outcome, Sink};
use crate::rules::common::{declare_rule, or_null, same_float};

declare_rule!(
    /// `GL505`.
    CandidateFamilyRule,
    {
        code: "GL505",
        name: "candidate-family",
        what: "Every checkpoint of the frozen family is admitted as a candidate after it was validated, none else is, and each \
               admission names its checkpoint's model and the value of the selection stream at its step.",
        why: "The winner of a family means something only if the family was fixed before; a candidate that was left out or \
              slipped in changes the choice.",
        remedy: "Let `trainer run` finish the run; a false family cannot be repaired afterwards.",
        reference: "docs/FORMAT.md, \"Evaluation, checkpoint and candidate steps\"; schemas::contract::CandidateFamily",
        gate: Route::RejectSelectionLeakage,
    }
);

struct Family<'a> {
    candidates: Candidates<'a>,
}

fn open(frozen: &Frozen) -> Box<dyn Check + '_> {
    Box::new(Family { candidates: Candidates::new(&frozen.contract) })
}

impl Family<'_> {
    /// What must hold at the moment of the admission.
    fn admit(&self, admitted: &Admitted, sink: &mut Sink) {
        let at = |pointer: &str| At::entry(admitted.index, pointer);
        let Admitted { det, obs, .. } = admitted;
        let Some(checkpoint) = self.candidates.checkpoints.all.get(&obs.checkpoint) else {
            let at = at("/body/obs/checkpoint");
            sink.rejected(
                at,
                "the candidate's checkpoint is unknown",
                "a committed checkpoint",
                &obs.checkpoint,
            );
            return;
        };
        if checkpoint.validated.is_none() || checkpoint.is_unusable {
            let message = "the candidate is admitted from a checkpoint that is not validated";
            sink.rejected(
                at("/body/obs/checkpoint"),
                message,
                "checkpoint.validated before",
                &obs.checkpoint,
            );
        }
        if checkpoint.step != det.step {
            sink.rejected(at("/body/det/step"), "the candidate has another step", checkpoint.step, det.step);
        }
        let model = checkpoint.committed.as_ref().map(|committed| committed.model);
        if model != Some(det.model) {
            sink.rejected(
                at("/body/det/model"),
                "the candidate has another model",
                or_null(model),
                det.model,
            );
        }
        let name = format!("candidate-{}", obs.checkpoint);
        if obs.candidate.as_str() != name {
            sink.rejected(
                at("/body/obs/candidate"),
                "the candidate is named otherwise",
                name,
                &obs.candidate,
            );
        }
        let value = self.candidates.values.get(&det.step).copied();
        if !value.is_some_and(|value| same_float(value, det.value.0)) {
            sink.rejected(
                at("/body/det/value"),
                "the candidate has another value",
                or_null(value),
                det.value,
            );
        }
    }

    fn members(&self, sink: &mut Sink) -> u64 {
        let Candidates { admitted, checkpoints, contract, last, .. } = &self.candidates;
        let validated = checkpoints.all.values().filter(|checkpoint| checkpoint.validated.is_some());
        let steps: BTreeSet<u64> =
            validated.map(|checkpoint| checkpoint.step).filter(|step| *step <= last.step()).collect();
        for step in &steps {
            let is_missing =
                steps::is_candidate(contract, *step, last.step()) && !admitted.contains_key(step);
            if is_missing && last.is_over {
                let message =
                    format!("the checkpoint of step {step} belongs to the family and was not admitted");
                sink.rejected(At::place("ledger"), message, "candidate.admitted", "no such entry");
            }
        }
        for (step, admission) in admitted {
            if last.is_over && !steps::is_candidate(contract, *step, last.step()) {
                let at = At::entry(admission.index, "/body/det/step");
                let expected = format!("{:?}", contract.selection.family);
                sink.rejected(
                    at,
                    "the candidate is not of the frozen family",
                    expected,
                    format!("step {step}"),
                );
            }
        }
        steps.len() as u64
    }
}

impl Check for Family<'_> {
    fn entry(&mut self, entry: &Entry, sink: &mut Sink) {
        self.candidates.entry(entry);
        if let Body::CandidateAdmitted(halves) = &entry.body
            && let Some(admitted) = self.candidates.admitted.get(&halves.det.step)
        {
            self.admit(admitted, sink);
        }
    }

    fn finish(&mut self, _: &Evidence, sink: &mut Sink) -> Outcome {
        Outcome::Checked(self.members(sink) + self.candidates.admitted.len() as u64)
    }
}
