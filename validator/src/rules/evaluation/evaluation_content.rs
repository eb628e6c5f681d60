//! An evaluation is of the frozen split, examples, view and metric.

use schemas::body::{Body, EvalDet};
use schemas::contract::{FaultKind, ParameterView};
use schemas::data::Split;
use schemas::entry::Entry;
use schemas::report::Route;

use crate::derive::examples;
use crate::evidence::Evidence;
use crate::frozen::Frozen;
use crate::rule::{At, Check, Outcome, Sink, unavailable};
use crate::rules::common::declare_rule;

declare_rule!(
    /// `GL502`.
    EvaluationContent,
    {
        code: "GL502",
        name: "evaluation-content",
        what: "Every evaluation has the split, metric and parameter view of its stream, over the first examples of the table as \
               the contract counts them, with their number of target tokens; two splits of one step never have one sum.",
        why: "A value over easier or fewer examples, or over training text, is not comparable with the others.",
        remedy: "None for a finished run. Evaluate the frozen stream.",
        reference: "docs/FORMAT.md, \"Examples\"; schemas::contract::EvaluationStream",
        gate: Route::RejectSelectionLeakage,
    }
);

/// What an evaluation of a stream covers.
pub(super) struct Expected<'a> {
    /// Target tokens of as many examples of the train split, where the stream
    /// is of another.
    pub(super) num_train_tokens: Option<u64>,
    pub(super) num_examples: u64,
    pub(super) num_tokens: u64,
    pub(super) stream: &'a schemas::contract::EvaluationStream,
}

struct Content<'a> {
    expected: Vec<Expected<'a>>,
    num_checked: u64,
    /// Sums of the step's evaluations so far.
    of_step: Vec<Sum>,
}

/// What an evaluation came to, and of what it said it is.
struct Sum {
    num_tokens: u64,
    split: Split,
    step: Option<u64>,
    stream: String,
    total_nats: f64,
    view: ParameterView,
}

fn open(frozen: &Frozen) -> Box<dyn Check + '_> {
    match coverage(frozen) {
        Ok(expected) => Box::new(Content { expected, num_checked: 0, of_step: Vec::new() }),
        Err(reason) => unavailable(reason),
    }
}

/// Of each train and val stream of the contract; in words what is missing.
pub(super) fn coverage(frozen: &Frozen) -> Result<Vec<Expected<'_>>, String> {
    let mut expected = Vec::new();
    for stream in &frozen.contract.evaluation.streams {
        let table = match stream.split {
            Split::Train => &frozen.train_examples,
            Split::Val => &frozen.val_examples,
            // No table exists, so none of its evaluations can be right.
            Split::Qualification => continue,
        };
        match table {
            Ok(table) => {
                let num_examples = stream.num_examples.unwrap_or(u64::MAX).min(table.num_examples());
                let train = frozen.train_examples.as_ref().ok().filter(|_| stream.split != Split::Train);
                expected.push(Expected {
                    num_examples,
                    num_tokens: examples::num_targets(table, stream.num_examples),
                    num_train_tokens: train.map(|train| examples::num_targets(train, Some(num_examples))),
                    stream,
                });
            }
            Err(reason) => {
                return Err(format!("the {} example table: {reason}", stream.split.name()));
            }
        }
    }
    Ok(expected)
}

impl Content<'_> {
    fn compare(&self, index: u64, det: &EvalDet, sink: &mut Sink) {
        let at = |field: &str| At::entry(index, format!("/body/det/{field}"));
        let Some(expected) = self.expected.iter().find(|expected| expected.stream.name == det.stream) else {
            let message = "no train or val stream has this name";
            sink.rejected(at("stream"), message, "a stream of the contract", &det.stream);
            return;
        };
        let stream = expected.stream;
        if det.split != stream.split {
            let at = at("split").cause(FaultKind::ValidationLeakageInSelection);
            sink.rejected(at, "another split was evaluated", stream.split.name(), det.split.name());
        }
        if det.metric != stream.metric {
            sink.rejected(
                at("metric"),
                "another metric was computed",
                format!("{:?}", stream.metric),
                format!("{:?}", det.metric),
            );
        }
        if det.view != stream.view {
            sink.rejected(
                at("view"),
                "other parameters were evaluated",
                format!("{:?}", stream.view),
                format!("{:?}", det.view),
            );
        }
        if det.num_examples != expected.num_examples {
            sink.rejected(
                at("num_examples"),
                "other examples were evaluated",
                expected.num_examples,
                det.num_examples,
            );
        }
        if det.num_tokens != expected.num_tokens {
            let is_of_train = Some(det.num_tokens) == expected.num_train_tokens;
            let message = if is_of_train {
                "the target tokens are those of as many examples of the train split"
            } else {
                "the target tokens are counted otherwise"
            };
            let cause = is_of_train.then_some(FaultKind::ValidationLeakageInSelection);
            let at = at("num_tokens").cause(cause);
            sink.rejected(at, message, expected.num_tokens, det.num_tokens);
        }
    }
}

impl Content<'_> {
    /// Two splits of one step do not have one sum: then one text was evaluated
    /// under both names.
    fn same_sum(&mut self, entry: &Entry, det: &EvalDet, sink: &mut Sink) {
        let step = entry.header.step;
        self.of_step.retain(|sum| sum.step == step);
        let total_nats = det.total_nats.0;
        let is_same = |sum: &&Sum| {
            let (tokens, view) = (sum.num_tokens == det.num_tokens, sum.view == det.view);
            let is_sum = total_nats.is_finite() && sum.total_nats.to_bits() == total_nats.to_bits();
            sum.split != det.split && tokens && view && is_sum
        };
        if let Some(sum) = self.of_step.iter().find(is_same) {
            let message = format!("streams {} and {} of two splits have one sum", sum.stream, det.stream);
            let at = At::entry(entry.index, "/body/det/total_nats");
            let at = at.cause(FaultKind::ValidationLeakageInSelection);
            sink.rejected(at, message, "sums of different texts", det.total_nats);
        }
        self.of_step.push(Sum {
            num_tokens: det.num_tokens,
            split: det.split,
            step,
            stream: det.stream.clone(),
            total_nats,
            view: det.view,
        });
    }
}

impl Check for Content<'_> {
    fn entry(&mut self, entry: &Entry, sink: &mut Sink) {
        if let Body::Eval(halves) = &entry.body {
            self.num_checked += 1;
            self.compare(entry.index, &halves.det, sink);
            self.same_sum(entry, &halves.det, sink);
        }
    }

    fn finish(&mut self, _: &Evidence, _: &mut Sink) -> Outcome {
        Outcome::Checked(self.num_checked)
    }
}
