//! Steps count completed updates, one by one, from where the attempt began.

use std::collections::BTreeMap;

use schemas::body::{AttemptStartDet, Body, FaultRecoveredDet, FaultRecoveredObs};
use schemas::entry::Entry;
use schemas::ids::{AttemptId, CheckpointId};
use schemas::report::Route;

use crate::evidence::Evidence;
use crate::frozen::Frozen;
use crate::rule::{At, Check, Outcome, Sink};
use crate::rules::common::{declare_rule, or_null};

declare_rule!(
    /// `GL204`.
    StepSequence,
    {
        code: "GL204",
        name: "step-sequence",
        what: "Within an attempt steps are contiguous from the step after its beginning; an attempt begins at a step that was \
               reached; steps that are executed again are counted by fault.recovered; evaluations, checkpoints and candidates \
               carry the step at which they were made.",
        why: "A gap hides updates, a repetition hides a second try, and an evaluation at a false step credits a model with \
              another one's value.",
        remedy: "None for a finished run: steps cannot be inserted. Report the recorder's fault and run again.",
        reference: "docs/FORMAT.md, \"Order of entries\"",
        gate: Route::RejectResumeDrift,
    }
);

#[derive(Default)]
struct Steps {
    /// Last step of each attempt; attempts are few.
    last_steps: BTreeMap<AttemptId, u64>,
    running: Option<AttemptId>,
    from_step: u64,
    position: u64,
    /// `fault.recovered` entries that the next attempt must agree with.
    announced: Option<(u64, u64, Option<CheckpointId>)>,
    /// Checkpoint that the running attempt resumed from.
    resumed_from: Option<CheckpointId>,
    num_checked: u64,
}

fn open(_: &Frozen) -> Box<dyn Check + '_> {
    Box::new(Steps::default())
}

impl Steps {
    fn start(&mut self, entry: &Entry, det: &AttemptStartDet, sink: &mut Sink) {
        let (attempt, from_step) = (det.attempt, det.from_step);
        self.resumed_from = det.resumed_from.as_ref().map(|point| point.checkpoint.clone());
        let reached = self.last_steps.values().copied().max().unwrap_or(0);
        let at = || At::entry(entry.index, "/body/det/from_step");
        if from_step > reached {
            sink.rejected(
                at(),
                "the attempt begins beyond every step that was reached",
                format!("at most {reached}"),
                from_step,
            );
        }
        if let Some((index, announced, checkpoint)) = self.announced.take() {
            let message = format!("fault.recovered at entry {index} announced another beginning");
            if announced != from_step {
                sink.rejected(at(), message, announced, from_step);
            } else if checkpoint != self.resumed_from {
                let at = At::entry(entry.index, "/body/det/resumed_from");
                sink.rejected(at, message, or_null(checkpoint), or_null(self.resumed_from.as_ref()));
            }
        }
        (self.running, self.from_step, self.position) = (Some(attempt), from_step, from_step);
        self.last_steps.insert(attempt, from_step);
    }

    fn recovered(
        &mut self,
        entry: &Entry,
        det: &FaultRecoveredDet,
        obs: &FaultRecoveredObs,
        sink: &mut Sink,
    ) {
        let Some(last_step) = self.last_steps.get(&det.attempt) else {
            let at = At::entry(entry.index, "/body/det/attempt");
            sink.rejected(
                at,
                "the run recovers from an attempt that did not start",
                "a known attempt",
                det.attempt,
            );
            return;
        };
        let lost = last_step.saturating_sub(det.from_step);
        if lost != det.num_steps_lost {
            let at = At::entry(entry.index, "/body/det/num_steps_lost");
            sink.rejected(at, "another number of steps is executed again", lost, det.num_steps_lost);
        }
        if self.running == Some(det.attempt) {
            self.announced = Some((entry.index, det.from_step, obs.checkpoint.clone()));
            return;
        }
        if obs.checkpoint != self.resumed_from {
            let at = At::entry(entry.index, "/body/obs/checkpoint");
            let (expected, actual) = (or_null(self.resumed_from.as_ref()), or_null(obs.checkpoint.as_ref()));
            sink.rejected(at, "the run goes on from another checkpoint", expected, actual);
        }
        if det.from_step != self.from_step {
            let at = At::entry(entry.index, "/body/det/from_step");
            sink.rejected(at, "the run goes on from another step", self.from_step, det.from_step);
        }
    }

    fn step(&mut self, entry: &Entry, sink: &mut Sink) {
        let expected = self.position.saturating_add(1);
        if entry.header.step != Some(expected) {
            let at = At::entry(entry.index, "/step");
            sink.rejected(
                at,
                "steps are not contiguous within the attempt",
                expected,
                or_null(entry.header.step),
            );
        }
        self.position = entry.header.step.unwrap_or(expected);
        if let Some(attempt) = self.running {
            self.last_steps.insert(attempt, self.position);
        }
    }

    fn stands_at(&self, entry: &Entry, own_step: Option<u64>, sink: &mut Sink) {
        let name = entry.body.kind().name();
        if entry.header.step != Some(self.position) {
            let at = At::entry(entry.index, "/step");
            sink.rejected(
                at,
                format!("{name} is not at the step that was reached"),
                self.position,
                or_null(entry.header.step),
            );
        }
        if let Some(own) = own_step.filter(|own| *own != self.position) {
            let at = At::entry(entry.index, "/body/det/step");
            sink.rejected(at, format!("{name} speaks of another step"), self.position, own);
        }
    }
}

impl Check for Steps {
    fn entry(&mut self, entry: &Entry, sink: &mut Sink) {
        self.num_checked += 1;
        match &entry.body {
            Body::AttemptStart(halves) => self.start(entry, &halves.det, sink),
            Body::FaultRecovered(halves) => self.recovered(entry, &halves.det, &halves.obs, sink),
            Body::Step(_) => self.step(entry, sink),
            Body::Eval(_) => self.stands_at(entry, None, sink),
            Body::CandidateAdmitted(_) | Body::CandidateSelected(_) => self.stands_at(entry, None, sink),
            Body::CheckpointRequested(halves) => self.stands_at(entry, Some(halves.det.step), sink),
            _ => self.num_checked -= 1,
        }
    }

    fn finish(&mut self, _: &Evidence, _: &mut Sink) -> Outcome {
        Outcome::Checked(self.num_checked)
    }
}
