//! What was evaluated is what was saved.

use std::collections::BTreeMap;

use schemas::body::{Body, CheckpointCommittedDet};
use schemas::contract::{MidAccumulation, ParameterView};
use schemas::digest::Digest;
use schemas::entry::Entry;
use schemas::ids::CheckpointId;
use schemas::report::Route;
use schemas::state::StateClass;

use super::clock::Clock;
use crate::derive::{state_json, steps};
use crate::evidence::Evidence;
use crate::frozen::Frozen;
use crate::rule::{At, Check, Outcome, Sink};
use crate::rules::common::{LastStep, declare_rule, or_null};
use crate::rules::updates::tensors::AVERAGES_FILE;

declare_rule!(
    /// `GL504`.
    EvaluationModel,
    {
        code: "GL504",
        name: "evaluation-model",
        what: "An evaluation names the digest of the shard that the checkpoint of its step committed of the parameters it looked at \
               (model, or averages), and names none where its step is not saved.",
        why: "It ties a value to bytes: without it a good value could be recorded for weights that nobody can evaluate again.",
        remedy: "None for a finished run. Evaluate the state that is saved.",
        reference: "schemas::body::EvalDet",
        gate: Route::RejectSelectionLeakage,
    }
);

struct Models {
    /// Entry that began the newest attempt.
    attempt_start: u64,
    /// Evaluations of the current step by the running attempt.
    evaluated: Vec<(u64, ParameterView, Option<Digest>)>,
    every_steps: u64,
    /// Model of the checkpoint that the running attempt resumed from, until it
    /// moved on.
    inherited: Option<Digest>,
    /// Whether a checkpoint of the current step was committed.
    is_saved: bool,
    last: LastStep,
    clock: Clock,
    models: BTreeMap<CheckpointId, Digest>,
    num_checked: u64,
    /// Evaluations of an unscheduled step that name none, which an attempt saved
    /// where it ended: not those of the last step by the last attempt.
    unnamed: Vec<(u64, u64, Digest)>,
    /// Whether an attempt may save where it ends.
    saves_at_end: bool,
    /// Evaluations of an unscheduled step that name a model although nothing
    /// was saved: only an attempt that took the step for the last writes them.
    unsaved: Vec<(u64, u64, Digest)>,
}

fn open(frozen: &Frozen) -> Box<dyn Check + '_> {
    Box::new(Models {
        attempt_start: 0,
        evaluated: Vec::new(),
        every_steps: frozen.contract.checkpoints.every_steps,
        inherited: None,
        is_saved: false,
        last: LastStep::default(),
        clock: Clock::new(&frozen.contract),
        models: BTreeMap::new(),
        num_checked: 0,
        unnamed: Vec::new(),
        saves_at_end: frozen.contract.checkpoints.mid_accumulation == MidAccumulation::SaveGradients,
        unsaved: Vec::new(),
    })
}

impl Models {
    fn committed(&mut self, index: u64, det: &CheckpointCommittedDet, sink: &mut Sink) {
        self.is_saved = true;
        let model = det.model;
        let is_due = steps::is_due(det.step, self.every_steps, u64::MAX);
        for (index, view, evaluated) in &self.evaluated {
            if self.saves_at_end && !is_due && evaluated.is_none() {
                self.unnamed.push((*index, det.step, model));
                continue;
            }
            let at = At::entry(*index, "/body/det/model");
            match view {
                ParameterView::Current if *evaluated != Some(model) => {
                    sink.rejected(
                        at,
                        "another model was evaluated than was saved",
                        model,
                        or_null(*evaluated),
                    );
                }
                // The entry names the file, the checkpoint the class that it makes.
                ParameterView::Averages => {
                    let saved = det.classes.iter().find(|class| class.class == StateClass::Averages);
                    let saved = saved.and_then(|class| class.digest);
                    let class = evaluated.map(|shard| state_json::class_digest([(AVERAGES_FILE, &shard)]));
                    if class.is_none() || class != saved {
                        let message = "other averages were evaluated than were saved";
                        sink.rejected(at, message, or_null(saved), or_null(class));
                    }
                }
                ParameterView::Current => {}
            }
        }
        if let Some(inherited) = self.inherited.filter(|inherited| *inherited != model) {
            let at = At::entry(index, "/body/det/model");
            sink.rejected(at, "another model is saved than the attempt resumed from", inherited, model);
        }
    }

    /// The attempt moved on from a step, or ended there.
    fn moved_on(&mut self, is_over: bool, sink: &mut Sink) {
        let (step, is_saved) = (self.last.step(), self.is_saved);
        let is_due = steps::is_due(step, self.every_steps, u64::MAX);
        self.is_saved = false;
        self.inherited = None;
        for (index, _, model) in std::mem::take(&mut self.evaluated) {
            let Some(model) = model.filter(|_| !is_due && !is_saved) else { continue };
            if is_over && self.clock.may_have_ended() {
                let at = At::entry(index, "/body/det/model");
                let message =
                    "an evaluation names a model that was not saved, where the clock may have ended the run";
                sink.warning(at, message, "null", model);
            } else if is_over {
                self.unsaved.push((index, step, model));
            } else {
                reject_unsaved(index, model, sink);
            }
        }
    }
}

fn reject_unsaved(index: u64, model: Digest, sink: &mut Sink) {
    let at = At::entry(index, "/body/det/model");
    sink.rejected(at, "an evaluation names a model that was not saved", "null", model);
}

impl Check for Models {
    fn entry(&mut self, entry: &Entry, sink: &mut Sink) {
        match &entry.body {
            Body::Eval(halves) => {
                self.num_checked += 1;
                self.evaluated.push((entry.index, halves.det.view, halves.det.model));
            }
            Body::CheckpointDurablyCommitted(halves) if halves.det.step == self.last.step() => {
                self.committed(entry.index, &halves.det, sink);
                self.models.insert(halves.obs.checkpoint.clone(), halves.det.model);
            }
            Body::Step(_) => self.moved_on(false, sink),
            Body::AttemptEnd(_) => self.moved_on(true, sink),
            Body::AttemptStart(halves) => {
                self.moved_on(true, sink);
                self.attempt_start = entry.index;
                let point = halves.det.resumed_from.as_ref();
                self.inherited = point.and_then(|point| self.models.get(&point.checkpoint)).copied();
            }
            _ => {}
        }
        self.last.entry(entry);
        self.clock.entry(entry);
    }

    fn finish(&mut self, _: &Evidence, sink: &mut Sink) -> Outcome {
        // Of a run without an end the step may still be the last.
        if self.last.is_over {
            let last_step = self.last.step();
            for (index, _, model) in self.unsaved.iter().filter(|(_, step, _)| *step != last_step) {
                reject_unsaved(*index, *model, sink);
            }
            let is_of_end =
                |(index, step, _): &&(u64, u64, Digest)| *step == last_step && *index > self.attempt_start;
            for (index, _, model) in self.unnamed.iter().filter(is_of_end) {
                let at = At::entry(*index, "/body/det/model");
                sink.rejected(at, "another model was evaluated than was saved", model, "null");
            }
        }
        Outcome::Checked(self.num_checked)
    }
}
