//! The loss scale of every step, recomputed from the overflows.

use schemas::body::{Body, Credit};
use schemas::contract::LossScaler;
use schemas::entry::Entry;
use schemas::report::Route;

use crate::derive::loss_scale::ScaleState;
use crate::evidence::Evidence;
use crate::frozen::Frozen;
use crate::rule::{At, Check, Outcome, Sink};
use crate::rules::common::{Rewindable, declare_rule, same_float};

declare_rule!(
    /// `GL630`.
    LossScaleTrace,
    {
        code: "GL630",
        name: "loss-scale-trace",
        what: "The scale of every step is what the contract's scaler makes of the overflows before it: its first scale, lower after \
               each overflow, higher after so many steps without one. An overflow is found exactly where the recorded gradient norm is \
               not finite.",
        why: "A scale that was restored wrongly overflows or underflows in silence, and the run that goes on with it is another run.",
        remedy: "None for a finished run. Save and restore the scaler with everything else.",
        reference: "docs/FORMAT.md, \"Loss scaling\"; schemas::contract::LossScaler",
        gate: Route::RejectNumerics,
    }
);

struct Trace<'a> {
    num_steps: u64,
    scaler: &'a LossScaler,
    state: Rewindable<ScaleState>,
}

/// A check of a contract that scales no loss.
pub(super) struct NotScaled;

impl Check for NotScaled {
    fn entry(&mut self, _: &Entry, _: &mut Sink) {}

    fn finish(&mut self, _: &Evidence, _: &mut Sink) -> Outcome {
        Outcome::NotApplicable("the contract has no loss scaler".to_owned())
    }
}

fn open(frozen: &Frozen) -> Box<dyn Check + '_> {
    let Some(scaler) = &frozen.contract.numerics.loss_scaler else { return Box::new(NotScaled) };
    Box::new(Trace { num_steps: 0, scaler, state: Rewindable::new(ScaleState::new(scaler)) })
}

impl Check for Trace<'_> {
    fn entry(&mut self, entry: &Entry, sink: &mut Sink) {
        if let Body::Step(halves) = &entry.body {
            self.num_steps += 1;
            let step = entry.header.step.unwrap_or(0);
            let has_overflow = match &halves.det.credit {
                Credit::Backpropagation { gradient_norm, .. } => !gradient_norm.is_finite(),
                Credit::Evolution { .. } => false,
            };
            // That a step reports nothing, GL405 says.
            if let Some(overflow) = &halves.det.overflow {
                let at = |field: &str| At::entry(entry.index, format!("/body/det/overflow/{field}"));
                if overflow.found != has_overflow {
                    let message = "an overflow is a gradient norm that is not finite";
                    sink.rejected(at("found"), message, has_overflow, overflow.found);
                }
                let expected = self.state.now.scale;
                if !same_float(expected, overflow.scale.0) {
                    let message = format!("the scale of step {step} does not follow from the steps before");
                    sink.rejected(at("scale"), message, expected, overflow.scale);
                }
            }
            self.state.now = self.state.now.after(self.scaler, has_overflow);
        }
        self.state.entry(entry);
    }

    fn finish(&mut self, _: &Evidence, _: &mut Sink) -> Outcome {
        Outcome::Checked(self.num_steps)
    }
}
