//! An evaluation is of the frozen split, examples, view and metric.

use schemas::body::{Body, EvalDet};
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
               the contract counts them, with their number of target tokens.",
        why: "A value over easier or fewer examples, or over training text, is not comparable with the others.",
        remedy: "None for a finished run. Evaluate the frozen stream.",
        reference: "docs/FORMAT.md, \"Examples\"; schemas::contract::EvaluationStream",
        gate: Route::RejectSelectionLeakage,
    }
);

/// A stream as its evaluations must describe it.
/// What an evaluation of a stream covers.
pub(super) struct Expected<'a> {
    pub(super) num_examples: u64,
    pub(super) num_tokens: u64,
    pub(super) stream: &'a schemas::contract::EvaluationStream,
}

struct Content<'a> {
    expected: Vec<Expected<'a>>,
    num_checked: u64,
}

fn open(frozen: &Frozen) -> Box<dyn Check + '_> {
    match coverage(frozen) {
        Ok(expected) => Box::new(Content { expected, num_checked: 0 }),
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
            Ok(table) => expected.push(Expected {
                num_examples: stream.num_examples.unwrap_or(u64::MAX).min(table.num_examples()),
                num_tokens: examples::num_targets(table, stream.num_examples),
                stream,
            }),
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
            sink.rejected(at("split"), "another split was evaluated", stream.split.name(), det.split.name());
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
            sink.rejected(
                at("num_tokens"),
                "the target tokens are counted otherwise",
                expected.num_tokens,
                det.num_tokens,
            );
        }
    }
}

impl Check for Content<'_> {
    fn entry(&mut self, entry: &Entry, sink: &mut Sink) {
        if let Body::Eval(halves) = &entry.body {
            self.num_checked += 1;
            self.compare(entry.index, &halves.det, sink);
        }
    }

    fn finish(&mut self, _: &Evidence, _: &mut Sink) -> Outcome {
        Outcome::Checked(self.num_checked)
    }
}
