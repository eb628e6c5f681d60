//! The loss scale of every step, recomputed from the overflows.

use schemas::body::{Body, Credit};
use schemas::contract::{Dtype, FaultKind, LossScaler};
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
               not finite. The scaler is there for f16 and for nothing else, its factors are powers of two that lower and raise the scale, \
               and its interval is a step at least.",
        why: "A scale that was restored wrongly overflows or underflows in silence, and the run that goes on with it is another run.",
        remedy: "None for a finished run. Save and restore the scaler with everything else.",
        reference: "docs/FORMAT.md, \"Loss scaling\"; schemas::contract::LossScaler",
        gate: Route::RejectNumerics,
    }
);

struct Trace<'a> {
    compute: Dtype,
    num_steps: u64,
    /// What the scaler would have come to if it had been forgotten at the first
    /// scale that was the initial one and should not have been.
    restarted: Option<ScaleState>,
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
    let numerics = &frozen.contract.numerics;
    match &numerics.loss_scaler {
        Some(scaler) => Box::new(Trace {
            compute: numerics.compute_dtype,
            num_steps: 0,
            restarted: None,
            scaler,
            state: Rewindable::new(ScaleState::new(scaler)),
        }),
        None if numerics.compute_dtype == Dtype::F16 => crate::rules::common::at_end(|_, sink| {
            let at = At::place("contract /numerics/loss_scaler");
            sink.rejected(at, "gradients are computed in f16 without a scale", "a scaler", "null");
            Outcome::Checked(1)
        }),
        None => Box::new(NotScaled),
    }
}

/// Whether a number is a power of two that a normal binary32 holds.
fn is_power_of_two(value: f64) -> bool {
    let is_normal = (f64::from(f32::MIN_POSITIVE)..=f64::from(f32::MAX)).contains(&value);
    is_normal && value.to_bits().trailing_zeros() >= 52
}

impl Trace<'_> {
    /// What of the scaler lets it do anything, so that its trace shows nothing.
    fn check_scaler(&self, sink: &mut Sink) {
        let LossScaler { backoff, growth, growth_interval, initial } = *self.scaler;
        let mut require = |is_met: bool, field: &str, expected: &str, actual: String| {
            if !is_met {
                let at = At::place(format!("contract /numerics/loss_scaler{field}"));
                sink.rejected(at, "the loss scaler cannot be judged", expected, actual);
            }
        };
        let compute = self.compute;
        require(compute == Dtype::F16, "", "null, as nothing is computed in f16", format!("{compute:?}"));
        let is_lower = is_power_of_two(backoff) && backoff < 1.0;
        require(is_lower, "/backoff", "a power of two below 1", format!("{backoff:?}"));
        let is_higher = is_power_of_two(growth) && growth > 1.0;
        require(is_higher, "/growth", "a power of two above 1", format!("{growth:?}"));
        require(is_power_of_two(initial), "/initial", "a power of two", format!("{initial:?}"));
        require(growth_interval > 0, "/growth_interval", "at least 1", growth_interval.to_string());
    }
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
                    let restarted = self.restarted.unwrap_or_else(|| ScaleState::new(self.scaler));
                    let is_lost = same_float(restarted.scale, overflow.scale.0);
                    self.restarted = if is_lost { Some(restarted) } else { self.restarted };
                    let cause = is_lost.then_some(FaultKind::LossScalerLoss);
                    sink.rejected(at("scale").cause(cause), message, expected, overflow.scale);
                }
            }
            self.state.now = self.state.now.after(self.scaler, has_overflow);
            self.restarted = self.restarted.map(|state| state.after(self.scaler, has_overflow));
        }
        // A resume takes the state of a checkpoint, whatever was lost before.
        if let Body::AttemptStart(_) = &entry.body {
            self.restarted = None;
        }
        self.state.entry(entry);
    }

    fn finish(&mut self, _: &Evidence, sink: &mut Sink) -> Outcome {
        self.check_scaler(sink);
        Outcome::Checked(self.num_steps)
    }
}
