//! Every stream is evaluated when it is due, once, and never else.

use std::collections::BTreeMap;

use schemas::body::Body;
use schemas::contract::EvaluationStream;
use schemas::entry::Entry;
use schemas::report::Route;

use crate::derive::steps;
use crate::evidence::Evidence;
use crate::frozen::Frozen;
use crate::rule::{At, Check, Outcome, Sink};
use crate::rules::common::{LastStep, declare_rule};

declare_rule!(
    /// `GL501`.
    EvaluationSchedule,
    {
        code: "GL501",
        name: "evaluation-schedule",
        what: "Each stream is evaluated at step 0, at every multiple of its interval, and at the last step, once by an attempt \
               that passes the step, before its checkpoint, and at no other step.",
        why: "Evaluating more often and keeping the best is another selection rule; leaving out a bad evaluation hides it.",
        remedy: "None for a finished run. Evaluate as the contract says, or freeze another schedule.",
        reference: "docs/FORMAT.md, \"Evaluation, checkpoint and candidate steps\"",
        gate: Route::RejectSelectionLeakage,
    }
);

struct Schedule<'a> {
    /// Streams evaluated at the current step, with their entries.
    done: BTreeMap<String, u64>,
    /// Step at which every stream was seen last.
    last_complete: Option<u64>,
    last: LastStep,
    num_checked: u64,
    /// The current step is the state that the attempt resumed from, which an
    /// earlier attempt evaluated.
    is_inherited: bool,
    streams: &'a [EvaluationStream],
}

fn open(frozen: &Frozen) -> Box<dyn Check + '_> {
    Box::new(Schedule {
        done: BTreeMap::new(),
        last_complete: None,
        last: LastStep::default(),
        num_checked: 0,
        is_inherited: false,
        streams: &frozen.contract.evaluation.streams,
    })
}

impl Schedule<'_> {
    fn eval(&mut self, entry: &Entry, stream: &str, sink: &mut Sink) {
        self.num_checked += 1;
        if !self.streams.iter().any(|known| known.name == stream) {
            let at = At::entry(entry.index, "/body/det/stream");
            sink.rejected(
                at,
                "a stream is evaluated that the contract does not have",
                "a stream of the contract",
                stream,
            );
            return;
        }
        if let Some(earlier) = self.done.insert(stream.to_owned(), entry.index) {
            let message = format!("stream {stream} is evaluated twice at step {}", self.last.step());
            sink.rejected(At::entry(entry.index, ""), message, "once", format!("also at entry {earlier}"));
        }
        if self.streams.iter().all(|known| self.done.contains_key(&known.name)) {
            self.last_complete = Some(self.last.step());
        }
    }

    /// What was due at the current step before `entry` moved on.
    fn missing(&self, entry: &Entry, sink: &mut Sink) {
        let step = self.last.step();
        for stream in self.streams {
            let is_due = steps::is_due(step, stream.every_steps, u64::MAX);
            if is_due && !self.is_inherited && !self.done.contains_key(&stream.name) {
                let message = format!("stream {} was not evaluated at step {step}", stream.name);
                sink.rejected(At::entry(entry.index, ""), message, "an eval entry before this one", "none");
            }
        }
    }

    /// Evaluations at a step that was not due and, since a step follows, was
    /// not the last one either.
    fn surplus(&self, sink: &mut Sink) {
        let step = self.last.step();
        for (name, index) in &self.done {
            let every_steps =
                self.streams.iter().find(|stream| stream.name == *name).map(|stream| stream.every_steps);
            if !every_steps.is_some_and(|every_steps| steps::is_due(step, every_steps, u64::MAX)) {
                let message = format!("stream {name} is evaluated at step {step}, which is not due");
                let expected = format!("step 0, multiples of {}, the last step", every_steps.unwrap_or(0));
                sink.rejected(At::entry(*index, "/step"), message, expected, step);
            }
        }
    }
}

impl Check for Schedule<'_> {
    fn entry(&mut self, entry: &Entry, sink: &mut Sink) {
        match &entry.body {
            Body::AttemptStart(halves) => {
                self.done.clear();
                self.is_inherited = halves.det.resumed_from.is_some();
            }
            Body::Step(_) => {
                self.missing(entry, sink);
                self.surplus(sink);
                self.done.clear();
                self.is_inherited = false;
            }
            Body::Eval(halves) => self.eval(entry, &halves.det.stream, sink),
            Body::CheckpointRequested(_) => self.missing(entry, sink),
            _ => {}
        }
        self.last.entry(entry);
    }

    fn finish(&mut self, _: &Evidence, sink: &mut Sink) -> Outcome {
        let step = self.last.step();
        if self.last.is_over && self.last_complete != Some(step) {
            let message = format!("not every stream was evaluated at the last step {step}");
            let actual = self.last_complete.map_or("never".to_owned(), |step| format!("last at step {step}"));
            sink.rejected(At::place("ledger"), message, format!("every stream at step {step}"), actual);
        }
        Outcome::Checked(self.num_checked)
    }
}
