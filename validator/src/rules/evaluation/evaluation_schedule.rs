//! Every stream is evaluated when it is due, once, and never else.

use std::collections::BTreeMap;

use schemas::body::Body;
use schemas::contract::EvaluationStream;
use schemas::entry::Entry;
use schemas::report::Route;

use super::clock::Clock;
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
        what: "Each stream is evaluated at step 0, at every multiple of its interval, and at the last step (of a run that \
               was not lost), once by an attempt that passes the step, before its checkpoint, and at no other step.",
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
    /// Evaluations at an inherited step, by entry: only where the clock ends
    /// the run at the resume point is anything evaluated there again.
    inherited: Vec<(u64, u64)>,
    clock: Clock,
    streams: &'a [EvaluationStream],
    /// Evaluations at an unscheduled step that an attempt ended at: entry, step.
    unscheduled: Vec<(u64, u64)>,
}

fn open(frozen: &Frozen) -> Box<dyn Check + '_> {
    Box::new(Schedule {
        done: BTreeMap::new(),
        last_complete: None,
        last: LastStep::default(),
        num_checked: 0,
        inherited: Vec::new(),
        is_inherited: false,
        clock: Clock::new(&frozen.contract),
        streams: &frozen.contract.evaluation.streams,
        unscheduled: Vec::new(),
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
        if self.is_inherited {
            let step = self.last.step();
            if self.clock.may_have_ended() {
                self.inherited.push((entry.index, step));
            } else {
                self.again(entry.index, step, sink);
            }
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

    fn again(&self, index: u64, step: u64, sink: &mut Sink) {
        let message = format!("step {step}, which the attempt resumed from, is evaluated again");
        sink.rejected(At::entry(index, ""), message, "the evaluations of the earlier attempt", "another");
    }

    /// Evaluations at a step that was not due, where an attempt ended.
    fn left(&mut self, sink: &mut Sink) {
        let step = self.last.step();
        for (name, index) in &self.done {
            let every_steps = self.streams.iter().find(|stream| stream.name == *name).map(|s| s.every_steps);
            if !self.is_inherited && !every_steps.is_some_and(|every| steps::is_due(step, every, u64::MAX)) {
                if self.clock.may_have_ended() {
                    let message = format!(
                        "stream {name} is evaluated at step {step}, where the clock may have ended the run"
                    );
                    sink.warning(At::entry(*index, "/step"), message, "a step that is due", step);
                } else {
                    self.unscheduled.push((*index, step));
                }
            }
        }
        self.done.clear();
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
            Body::AttemptEnd(_) => self.left(sink),
            Body::AttemptStart(halves) => {
                self.left(sink);
                self.is_inherited = halves.det.resumed_from.is_some();
            }
            Body::Step(_) => {
                self.missing(entry, sink);
                self.surplus(sink);
                if self.is_inherited {
                    for (index, step) in std::mem::take(&mut self.inherited) {
                        self.again(index, step, sink);
                    }
                }
                self.done.clear();
                self.is_inherited = false;
            }
            Body::Eval(halves) => self.eval(entry, &halves.det.stream, sink),
            Body::CheckpointRequested(_) => self.missing(entry, sink),
            _ => {}
        }
        self.clock.entry(entry);
        self.last.entry(entry);
    }

    fn finish(&mut self, _: &Evidence, sink: &mut Sink) -> Outcome {
        let step = self.last.step();
        if self.last.is_over {
            for (index, at_step) in self.inherited.iter().filter(|(_, at_step)| *at_step != step) {
                self.again(*index, *at_step, sink);
            }
        }
        // Of a run without an end the step may still be the last.
        if self.last.is_over {
            for (index, at_step) in self.unscheduled.iter().filter(|(_, at_step)| *at_step != step) {
                let message = format!("a stream is evaluated at step {at_step}, which is not due");
                let expected = format!("a step that is due, or the last step {step}");
                sink.rejected(At::entry(*index, "/step"), message, expected, at_step);
            }
        }
        if self.last.is_reached() && self.last_complete != Some(step) {
            let message = format!("not every stream was evaluated at the last step {step}");
            let actual = self.last_complete.map_or("never".to_owned(), |step| format!("last at step {step}"));
            sink.rejected(At::place("ledger"), message, format!("every stream at step {step}"), actual);
        }
        Outcome::Checked(self.num_checked)
    }
}
