//! The candidates are exactly the frozen family.

use std::collections::BTreeSet;

use schemas::body::{Body, Kind};
use schemas::entry::Entry;
use schemas::ids::CheckpointId;
use schemas::report::Route;

use super::candidates::{Admitted, Candidates};
use crate::derive::steps;
use crate::evidence::Evidence;
use crate::frozen::Frozen;
use crate::rule::{At, Check, Outcome, Sink};
use crate::rules::common::{declare_rule, is_progress, or_null, same_float};

declare_rule!(
    /// `GL505`.
    CandidateFamilyRule,
    {
        code: "GL505",
        name: "candidate-family",
        what: "Every checkpoint of the frozen family is admitted as a candidate once, directly after it was validated or \
               where an attempt resumes from it, none else is, and each admission names its checkpoint's model and the value of \
               the selection stream at its step; no checkpoint that was given up is in the family at the end.",
        why: "The winner of a family means something only if the family was fixed before; a candidate that was left out or \
              slipped in changes the choice.",
        remedy: "Let `trainer run` finish the run; a false family cannot be repaired afterwards.",
        reference: "docs/FORMAT.md, \"Evaluation, checkpoint and candidate steps\"; schemas::contract::CandidateFamily",
        gate: Route::RejectSelectionLeakage,
    }
);

struct Family<'a> {
    candidates: Candidates<'a>,
    /// Checkpoint that the running attempt resumed from, until it made progress.
    resumed: Option<CheckpointId>,
    seen: BTreeSet<CheckpointId>,
    /// Checkpoint that the entry before validated.
    validated: Option<CheckpointId>,
}

fn open(frozen: &Frozen) -> Box<dyn Check + '_> {
    let candidates = Candidates::new(&frozen.contract);
    Box::new(Family { candidates, resumed: None, seen: BTreeSet::new(), validated: None })
}

impl Family<'_> {
    /// Whether the admission comes where a trainer that follows the contract
    /// makes it, so that it cannot wait for later values.
    fn moment(&mut self, index: u64, checkpoint: &CheckpointId, sink: &mut Sink) {
        let at = || At::entry(index, "/body/obs/checkpoint");
        if !self.seen.insert(checkpoint.clone()) {
            sink.rejected(at(), "the checkpoint is admitted a second time", "one admission", checkpoint);
        }
        if self.validated.as_ref() != Some(checkpoint) && self.resumed.as_ref() != Some(checkpoint) {
            let expected = "checkpoint.validated directly before, or an attempt that resumes from it";
            sink.rejected(at(), "the candidate is admitted at another moment", expected, checkpoint);
        }
    }

    fn follow(&mut self, entry: &Entry) {
        match &entry.body {
            Body::AttemptStart(halves) => {
                self.resumed = halves.det.resumed_from.as_ref().map(|point| point.checkpoint.clone());
            }
            body if is_progress(body.kind()) => self.resumed = None,
            _ => {}
        }
        match &entry.body {
            Body::CheckpointValidated(halves) => self.validated = Some(halves.obs.checkpoint.clone()),
            // Another thread writes heartbeats, and a planned fault may strike the
            // checkpoint as soon as it is validated.
            body if matches!(body.kind(), Kind::FaultInjected | Kind::Heartbeat) => {}
            _ => self.validated = None,
        }
    }

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

    /// Members whose checkpoint nobody may use any more, and that no later
    /// attempt admitted again.
    fn given_up(&self, sink: &mut Sink) {
        for (step, admitted) in self.candidates.family() {
            let checkpoint = &admitted.obs.checkpoint;
            if self.candidates.is_given_up(checkpoint) {
                let message = format!("the candidate of step {step} is of a checkpoint that was given up");
                let at = At::entry(admitted.index, "/body/obs/checkpoint");
                let expected = "neither failed nor quarantined";
                sink.rejected(at, message, expected, checkpoint);
            }
        }
    }

    fn members(&self, sink: &mut Sink) -> u64 {
        let Candidates { admitted, checkpoints, contract, last, .. } = &self.candidates;
        if last.is_over {
            self.given_up(sink);
        }
        let validated = checkpoints.all.values().filter(|checkpoint| checkpoint.validated.is_some());
        let steps: BTreeSet<u64> =
            validated.map(|checkpoint| checkpoint.step).filter(|step| *step <= last.step()).collect();
        for step in &steps {
            let is_missing =
                steps::is_candidate(contract, *step, last.step()) && !admitted.contains_key(step);
            // One that was lost may have been lost before the admission.
            if is_missing && last.is_reached() {
                let message =
                    format!("the checkpoint of step {step} belongs to the family and was not admitted");
                sink.rejected(At::place("ledger"), message, "candidate.admitted", "no such entry");
            }
        }
        for (step, admission) in self.candidates.family() {
            if last.is_over && !steps::is_candidate(contract, step, last.step()) {
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
        if let Body::CandidateAdmitted(halves) = &entry.body {
            self.moment(entry.index, &halves.obs.checkpoint, sink);
        }
        self.follow(entry);
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
