//! The value of an evaluation follows from its sum, and is possible.

use schemas::body::{Body, EvalDet};
use schemas::contract::{Architecture, Metric};
use schemas::entry::Entry;
use schemas::report::Route;

use crate::derive::metrics;
use crate::evidence::Evidence;
use crate::frozen::Frozen;
use crate::rule::{At, Check, Outcome, Sink};
use crate::rules::common::{declare_rule, same_float};

declare_rule!(
    /// `GL503`.
    EvaluationValue,
    {
        code: "GL503",
        name: "evaluation-value",
        what: "The value of every evaluation is its summed negative log likelihood over its target tokens, bit for bit, and not \
               negative; a value that is not finite, or that beats a uniform guess clearly before the first update, is reported.",
        why: "Sum and count are what an independent evaluation can reproduce; a value of its own could say anything.",
        remedy: "None for a finished run. Compute the value in binary64 from sum and count.",
        reference: "docs/FORMAT.md, \"Examples\" (bits per byte)",
        gate: Route::RejectNumerics,
    }
);

/// How much better than uniform an untrained model may look, in bits: the
/// initial weights are small, so its predictions are nearly uniform.
const UNTRAINED_MARGIN_BITS: f64 = 1.0;

struct Value {
    num_checked: u64,
    uniform_bits: f64,
}

fn open(frozen: &Frozen) -> Box<dyn Check + '_> {
    let Architecture::LlamaDecoder(shape) = &frozen.contract.architecture;
    Box::new(Value { num_checked: 0, uniform_bits: f64::from(shape.vocab_size.max(1)).log2() })
}

impl Value {
    fn judge(&self, entry: &Entry, det: &EvalDet, sink: &mut Sink) {
        let at = |field: &str| At::entry(entry.index, format!("/body/det/{field}"));
        if det.num_tokens == 0 {
            sink.rejected(at("num_tokens"), "nothing was evaluated", "at least one target token", 0);
            return;
        }
        let expected = metrics::value(det.metric, det.total_nats.0, det.num_tokens);
        if !same_float(expected, det.value.0) {
            sink.rejected(at("value"), "the value does not follow from sum and count", expected, det.value);
        }
        if det.total_nats.0 < 0.0 {
            sink.rejected(at("total_nats"), "a likelihood above one", "not negative", det.total_nats);
        }
        if !det.value.is_finite() {
            sink.warning(
                at("value"),
                "the value is not finite and cannot be selected",
                "a finite value",
                det.value,
            );
        }
        let is_untrained = entry.header.step == Some(0) && det.metric == Metric::BitsPerByte;
        if is_untrained && det.value.0 < self.uniform_bits - UNTRAINED_MARGIN_BITS {
            let expected = format!("about {} bits", self.uniform_bits);
            sink.warning(at("value"), "the model is good before it was trained", expected, det.value);
        }
    }
}

impl Check for Value {
    fn entry(&mut self, entry: &Entry, sink: &mut Sink) {
        if let Body::Eval(halves) = &entry.body {
            self.num_checked += 1;
            self.judge(entry, &halves.det, sink);
        }
    }

    fn finish(&mut self, _: &Evidence, _: &mut Sink) -> Outcome {
        Outcome::Checked(self.num_checked)
    }
}
