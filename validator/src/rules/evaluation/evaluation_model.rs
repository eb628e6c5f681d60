//! What was evaluated is what was saved.

use schemas::body::Body;
use schemas::digest::Digest;
use schemas::entry::Entry;
use schemas::report::Route;

use crate::derive::steps;
use crate::evidence::Evidence;
use crate::frozen::Frozen;
use crate::rule::{At, Check, Outcome, Sink};
use crate::rules::common::{Position, declare_rule, or_null};

declare_rule!(
    /// `GL504`.
    EvaluationModel,
    {
        code: "GL504",
        name: "evaluation-model",
        what: "An evaluation names the digest of the model shard that the checkpoint of its step committed, and names none where \
               its step is not saved.",
        why: "It ties a value to bytes: without it a good value could be recorded for weights that nobody can evaluate again.",
        remedy: "None for a finished run. Evaluate the state that is saved.",
        reference: "schemas::body::EvalDet",
        gate: Route::RejectSelectionLeakage,
    }
);

struct Models {
    /// Evaluations of the current step by the running attempt.
    evaluated: Vec<(u64, Option<Digest>)>,
    every_steps: u64,
    num_checked: u64,
    position: Position,
}

fn open(frozen: &Frozen) -> Box<dyn Check + '_> {
    Box::new(Models {
        evaluated: Vec::new(),
        every_steps: frozen.contract.checkpoints.every_steps,
        num_checked: 0,
        position: Position::default(),
    })
}

impl Models {
    fn committed(&self, model: Digest, sink: &mut Sink) {
        for (index, evaluated) in self.evaluated.iter().filter(|(_, evaluated)| *evaluated != Some(model)) {
            let at = At::entry(*index, "/body/det/model");
            sink.rejected(at, "another model was evaluated than was saved", model, or_null(*evaluated));
        }
    }

    /// The run moved on from a step.
    fn moved_on(&self, sink: &mut Sink) {
        if steps::is_due(self.position.step, self.every_steps, u64::MAX) {
            return;
        }
        for (index, model) in &self.evaluated {
            if let Some(model) = model {
                let at = At::entry(*index, "/body/det/model");
                sink.rejected(at, "an evaluation names a model that was not saved", "null", model);
            }
        }
    }
}

impl Check for Models {
    fn entry(&mut self, entry: &Entry, sink: &mut Sink) {
        match &entry.body {
            Body::Eval(halves) => {
                self.num_checked += 1;
                self.evaluated.push((entry.index, halves.det.model));
            }
            Body::CheckpointDurablyCommitted(halves) if halves.det.step == self.position.step => {
                self.committed(halves.det.model, sink);
                self.evaluated.clear();
            }
            Body::Step(_) => {
                self.moved_on(sink);
                self.evaluated.clear();
            }
            Body::AttemptStart(_) => self.evaluated.clear(),
            _ => {}
        }
        self.position.entry(entry);
    }

    fn finish(&mut self, _: &Evidence, _: &mut Sink) -> Outcome {
        Outcome::Checked(self.num_checked)
    }
}
