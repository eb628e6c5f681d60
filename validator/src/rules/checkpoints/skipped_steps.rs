//! A step that was skipped changed nothing.

use schemas::body::{Body, Credit, StepDet};
use schemas::entry::Entry;
use schemas::number::Float;
use schemas::report::Route;
use schemas::state::{StateClass, StateDigest};

use super::loss_scale_trace::NotScaled;
use crate::evidence::Evidence;
use crate::frozen::Frozen;
use crate::rule::{At, Check, Outcome, Sink};
use crate::rules::common::{Rewindable, declare_rule, or_null, same_float};

declare_rule!(
    /// `GL631`.
    SkippedSteps,
    {
        code: "GL631",
        name: "skipped-steps",
        what: "Where the contract scales losses every step records its norms; a step that was skipped for an overflow has a finite loss, changed no parameter (the norm of every group is that of the \
               step before, the norm of the change 0), and where everything between two checkpoints was skipped they have the same \
               model, moments and averages.",
        why: "What a skipped step may move is its number, its rate and the data; one that updated after all put a gradient that is not \
              a number into the run, and its record says that it did not.",
        remedy: "None for a finished run. Leave parameters, moments and averages alone where an overflow was found.",
        reference: "docs/FORMAT.md, \"Loss scaling\"",
        gate: Route::RejectNumerics,
    }
);

/// Classes that only an update changes.
const UPDATED: [StateClass; 3] = [StateClass::Model, StateClass::Optimizer, StateClass::Averages];

/// What the run stands at.
#[derive(Debug, Clone, Default)]
struct Standing {
    /// Whether an update changed something since the last checkpoint.
    has_moved: bool,
    /// Norms of the groups after the last step.
    norms: Vec<Option<Float>>,
    /// Digests of the last checkpoint.
    saved: Vec<StateDigest>,
}

struct Skipped {
    num_skipped: u64,
    num_steps: u64,
    standing: Rewindable<Standing>,
}

fn open(frozen: &Frozen) -> Box<dyn Check + '_> {
    if frozen.contract.numerics.loss_scaler.is_none() {
        return Box::new(NotScaled);
    }
    Box::new(Skipped { num_skipped: 0, num_steps: 0, standing: Rewindable::new(Standing::default()) })
}

/// Without norms a change that a skipped step made could not be seen.
fn require_norms(entry: &Entry, det: &StepDet, sink: &mut Sink) {
    for (index, update) in det.updates.iter().enumerate() {
        for (field, norm) in [("parameter_norm", update.parameter_norm), ("update_norm", update.update_norm)]
        {
            if norm.is_none() {
                let at = At::entry(entry.index, format!("/body/det/updates/{index}/{field}"));
                let message = format!("the norms of the group {} are not recorded", update.group);
                sink.rejected(at, message, "a number, where steps may be skipped", "null");
            }
        }
    }
}

fn compare_step(entry: &Entry, det: &StepDet, before: &Standing, sink: &mut Sink) {
    let at = |pointer: String| At::entry(entry.index, format!("/body/det/{pointer}"));
    if let Credit::Backpropagation { loss, .. } = &det.credit
        && !loss.is_finite()
    {
        let message = "no scale makes a loss finite that is not";
        sink.rejected(at("credit/backpropagation/loss".to_owned()), message, "a finite loss", loss);
    }
    for (index, update) in det.updates.iter().enumerate() {
        if let Some(norm) = update.update_norm.filter(|norm| !same_float(norm.0, 0.0)) {
            let message = format!("a skipped step changed the group {}", update.group);
            sink.rejected(at(format!("updates/{index}/update_norm")), message, 0.0, norm);
        }
        if let (Some(Some(before)), Some(after)) = (before.norms.get(index), update.parameter_norm)
            && !same_float(before.0, after.0)
        {
            let message = format!("a skipped step left other parameters in the group {}", update.group);
            sink.rejected(at(format!("updates/{index}/parameter_norm")), message, before, after);
        }
    }
}

impl Check for Skipped {
    fn entry(&mut self, entry: &Entry, sink: &mut Sink) {
        match &entry.body {
            Body::Step(halves) => {
                self.num_steps += 1;
                let det = &halves.det;
                require_norms(entry, det, sink);
                let skipped = det.overflow.as_ref().filter(|overflow| overflow.skipped);
                let is_skipped = skipped.is_some();
                if let Some(overflow) = skipped {
                    self.num_skipped += 1;
                    if overflow.scale.0 <= 1.0 {
                        let at = At::entry(entry.index, "/body/det/overflow/scale");
                        let message = "a gradient overflowed that was not scaled up";
                        sink.warning(at, message, "a scale above 1", overflow.scale);
                    }
                    compare_step(entry, det, &self.standing.now, sink);
                }
                self.standing.now.has_moved |= !is_skipped;
                self.standing.now.norms = det.updates.iter().map(|update| update.parameter_norm).collect();
            }
            Body::CheckpointDurablyCommitted(halves) => {
                let standing = &mut self.standing.now;
                let saved = std::mem::replace(&mut standing.saved, halves.det.classes.clone());
                let digest = |classes: &[StateDigest], class: StateClass| {
                    classes.iter().find(|digest| digest.class == class).and_then(|digest| digest.digest)
                };
                if !standing.has_moved && !saved.is_empty() {
                    for class in UPDATED {
                        let (before, after) = (digest(&saved, class), digest(&standing.saved, class));
                        if before != after {
                            let at = At::entry(entry.index, "/body/det/classes");
                            let message = format!("{class} changed although every step was skipped");
                            sink.rejected(at, message, or_null(before), or_null(after));
                        }
                    }
                }
                standing.has_moved = false;
            }
            _ => {}
        }
        self.standing.entry(entry);
    }

    fn finish(&mut self, _: &Evidence, sink: &mut Sink) -> Outcome {
        if self.num_skipped > 0 {
            // That a gradient overflowed is the trainer's word, short of
            // executing the step again: so how often it was given is shown.
            let actual = format!("{} of {} recorded steps", self.num_skipped, self.num_steps);
            sink.note(At::place("steps"), "steps were skipped for an overflow", "few", actual);
        }
        Outcome::Checked(self.num_steps)
    }
}
