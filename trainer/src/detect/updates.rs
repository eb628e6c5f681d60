//! Where the run stands before and behind an update.

use burn::tensor::FloatDType;
use schemas::body::{Credit, ObservedFault};
use schemas::contract::{
    Architecture, Contract, Dtype, FaultKind, LlamaDecoder, MidAccumulation, ScheduleShape,
};
use schemas::digest::Digest;
use schemas::number::Float;

use super::Mismatch;
use crate::engine::{Engine, EngineError, StepOutcome};
use crate::plateau::Plateau;
use crate::run::error::RunError;
use crate::run::history::History;
use crate::scaling::LossScale;

/// Words of a block of the stream of masks.
const WORDS_PER_BLOCK: u64 = 4;

/// Branches of a layer that are dropped from: attention and MLP.
const BRANCHES: u64 = 2;

/// Bits that binary32 has and bfloat16 has not.
const LOW_HALF: u32 = 0xffff;

/// Bits of a binary32's significand; all zero in zeros and powers of two.
const SIGNIFICAND: u32 = 0x007f_ffff;

/// Elements that have to vary before a tensor that fits bfloat16 is called
/// rounded: by chance so many are once in 2^256.
const NUM_VARIED_MIN: usize = 16;

/// What the record of the run gives, as far as it goes.
#[derive(Debug)]
pub struct Detectors {
    accumulation: u64,
    /// Of the stream of masks, for one microbatch.
    blocks_per_microbatch: u64,
    compute: FloatDType,
    global_examples: u64,
    /// Whether an update may stand open at a boundary.
    keeps_windows: bool,
    /// Norm and ids of the update before.
    last: Option<(Float, Digest)>,
    microbatch_examples: u64,
    /// From the recorded evaluations.
    plateaus: Vec<Plateau>,
    /// Path of the parameter that is looked at; none before the first look.
    sample: Option<String>,
    /// From the recorded overflows.
    scaler: Option<LossScale>,
    /// Whether the sampled parameter fitted bfloat16 when it was looked at last;
    /// `None` before the first look.
    was_rounded: Option<bool>,
}

fn blocks_per_microbatch(contract: &Contract) -> u64 {
    let Architecture::LlamaDecoder(LlamaDecoder { context_length, hidden_size, num_layers, .. }) =
        &contract.architecture;
    let elements =
        u64::from(contract.batch.microbatch_examples) * u64::from(*context_length) * u64::from(*hidden_size);
    BRANCHES * u64::from(*num_layers) * elements.div_ceil(WORDS_PER_BLOCK)
}

/// Whether every element is a number that fits bfloat16, and enough of them
/// vary.
fn is_rounded(values: &[f32]) -> bool {
    values.iter().all(|value| value.is_finite() && value.to_bits() & LOW_HALF == 0)
        && values.iter().filter(|value| value.to_bits() & SIGNIFICAND != 0).count() >= NUM_VARIED_MIN
}

impl Detectors {
    /// Where an attempt starts: at a checkpoint of step `resumed`, or at the
    /// initial state.
    #[must_use]
    pub fn new(contract: &Contract, history: &History, resumed: Option<u64>) -> Self {
        let mut plateaus: Vec<Plateau> = contract
            .schedule
            .iter()
            .filter(|group| matches!(group.shape, ScheduleShape::Plateau { .. }))
            .filter_map(|group| Plateau::new(&group.group, &group.shape, contract))
            .collect();
        let mut scaler = contract.numerics.loss_scaler.as_ref().map(LossScale::new);
        // Where an attempt starts from nothing, what an earlier one evaluated is
        // not behind it.
        if let Some(step) = resumed {
            for (stream, values) in &history.evaluations {
                for value in values.range(..=step).map(|(_, value)| *value) {
                    plateaus.iter_mut().for_each(|plateau| plateau.observe(stream, value));
                }
            }
            if let Some(scaler) = &mut scaler {
                (1..=step).for_each(|step| _ = scaler.observe(history.overflows.contains(&step)));
            }
        }
        Self {
            accumulation: u64::from(contract.batch.accumulation),
            blocks_per_microbatch: blocks_per_microbatch(contract),
            compute: match contract.numerics.compute_dtype {
                Dtype::F32 => FloatDType::F32,
                Dtype::Bf16 => FloatDType::BF16,
                Dtype::F16 => FloatDType::F16,
            },
            global_examples: u64::from(contract.batch.global_examples),
            keeps_windows: contract.checkpoints.mid_accumulation == MidAccumulation::SaveGradients,
            last: None,
            microbatch_examples: u64::from(contract.batch.microbatch_examples),
            plateaus,
            sample: None,
            scaler,
            was_rounded: None,
        }
    }

    /// Takes an evaluation that is recorded, in step order.
    pub fn observe_evaluation(&mut self, stream: &str, value: f64) {
        self.plateaus.iter_mut().for_each(|plateau| plateau.observe(stream, value));
    }

    /// Compares the state that an update is about to go out from.
    ///
    /// # Errors
    /// [`RunError::Damaged`] with the first part that differs, and when the
    /// device fails.
    pub fn before_update(&mut self, engine: &Engine) -> Result<(), RunError> {
        self.check_cursor(engine)?;
        self.check_stream(engine)?;
        self.check_plateaus(engine)?;
        self.check_scaler(engine)?;
        let found = engine.compute_dtype();
        if found != self.compute {
            let what = format!(
                "update {} would compute in {found:?}, and /numerics/compute_dtype is {:?}",
                engine.step_number() + 1,
                self.compute
            );
            let cause = FaultKind::PrecisionPolicyChange;
            return Err(Mismatch::own(ObservedFault::PlanMismatch, cause, what).into());
        }
        if self.was_rounded.is_none() {
            self.sample = engine.sample();
            self.was_rounded = Some(self.look(engine)?);
        }
        Ok(())
    }

    /// Compares what an update did, and takes what its entry will hold.
    ///
    /// # Errors
    /// As [`Self::before_update`].
    pub fn after_update(&mut self, engine: &Engine, outcome: &StepOutcome) -> Result<(), RunError> {
        let step = engine.step_number();
        if let (Credit::Backpropagation { gradient_norm, .. }, Some(draw)) =
            (&outcome.credit, outcome.draws.first())
        {
            let is_telling = gradient_norm.0.is_finite() && gradient_norm.0 > 0.0;
            if let Some((norm, ids)) = self.last.filter(|_| is_telling)
                && norm.0.to_bits() == gradient_norm.0.to_bits()
                && ids != draw.ids
            {
                let what = format!(
                    "the gradient of update {step} has bit for bit the norm of the one before, {norm}, and other \
                     examples were consumed"
                );
                let cause = FaultKind::StaleOrDelayedGradient;
                return Err(Mismatch::own(ObservedFault::WorkerDisagrees, cause, what).into());
            }
            self.last = Some((*gradient_norm, draw.ids));
        }
        let is_rounded = self.look(engine)?;
        if is_rounded && self.was_rounded == Some(false) {
            let what = format!("behind update {step} no trained parameter has a bit that bf16 does not hold");
            let cause = FaultKind::PrecisionPolicyChange;
            return Err(Mismatch::own(ObservedFault::PlanMismatch, cause, what).into());
        }
        self.was_rounded = Some(is_rounded);
        if let (Some(scaler), Some(overflow)) = (&mut self.scaler, &outcome.overflow) {
            scaler.observe(overflow.found);
        }
        Ok(())
    }

    /// Whether the sampled parameter fits bfloat16.
    fn look(&self, engine: &Engine) -> Result<bool, EngineError> {
        let Some(path) = &self.sample else { return Ok(false) };
        Ok(engine.values(path)?.is_some_and(|values| is_rounded(&values)))
    }

    fn check_cursor(&self, engine: &Engine) -> Result<(), Mismatch> {
        let step = engine.step_number();
        let cause = |found: u64, expected: u64| {
            if found < expected { FaultKind::DataCursorRewind } else { FaultKind::DataCursorSkip }
        };
        let differs = |what: &str, found: u64, expected: u64| {
            let what = format!("after {step} updates {what} stands at example {found}, expected {expected}");
            Mismatch::own(ObservedFault::StateMismatch, cause(found, expected), what)
        };
        let expected = step.saturating_mul(self.global_examples);
        let (found, consumed) = (engine.counters().examples, engine.consumed().examples);
        if found != expected {
            return Err(differs("the data cursor", found, expected));
        }
        let inside = if self.keeps_windows { u64::from(engine.num_summed_microbatches()) } else { 0 };
        let ahead = inside * self.microbatch_examples;
        if consumed != expected + ahead {
            return Err(differs("the data cursor of the open update", consumed, expected + ahead));
        }
        match engine.shuffle_buffer().map(|buffer| buffer.state().drawn) {
            Some(drawn) if drawn != expected => Err(differs("the shuffle buffer", drawn, expected)),
            _ => Ok(()),
        }
    }

    fn check_stream(&self, engine: &Engine) -> Result<(), Mismatch> {
        let step = engine.step_number();
        let microbatches =
            step.saturating_mul(self.accumulation) + u64::from(engine.num_summed_microbatches());
        let expected = microbatches.saturating_mul(self.blocks_per_microbatch);
        let streams = engine.dropout_streams();
        // Every worker has executed as many microbatches as the others.
        let mut differing = (0..).zip(streams).filter(|(_, (_, found))| *found != expected);
        let Some((worker, (_, found))) = differing.next() else { return Ok(()) };
        let what = format!(
            "after {step} updates worker {worker}'s stream of dropout masks stands at block {found}, expected \
             {expected}"
        );
        let own = Mismatch::own(ObservedFault::StateMismatch, FaultKind::RngStateLoss, what);
        Err(Mismatch { worker, ..own })
    }

    fn check_plateaus(&self, engine: &Engine) -> Result<(), Mismatch> {
        if self.plateaus.is_empty() {
            return Ok(());
        }
        let states = engine.plateaus();
        for plateau in &self.plateaus {
            let expected = &plateau.state;
            let found = states.iter().find(|state| state.group == expected.group);
            if found != Some(expected) {
                let what = format!(
                    "after {} updates the plateau of group {:?} is {found:?}, and the recorded evaluations give \
                     {expected:?}",
                    engine.step_number(),
                    expected.group
                );
                return Err(Mismatch::own(ObservedFault::StateMismatch, FaultKind::SchedulerStateLoss, what));
            }
        }
        Ok(())
    }

    fn check_scaler(&self, engine: &Engine) -> Result<(), Mismatch> {
        let expected = self.scaler.as_ref().map(LossScale::state);
        let found = engine.loss_scale();
        if found == expected {
            return Ok(());
        }
        let what = format!(
            "after {} updates the loss scaler is {found:?}, and the recorded overflows give {expected:?}",
            engine.step_number()
        );
        Err(Mismatch::own(ObservedFault::StateMismatch, FaultKind::LossScalerLoss, what))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tensor_is_rounded_where_it_varies_and_no_element_has_a_low_bit() {
        let rounded: Vec<f32> = (1..40u32).map(|n| f32::from_bits(0x3f80_0000 + (n << 16))).collect();
        assert!(is_rounded(&rounded));
        let mut one = rounded.clone();
        one[20] = f32::from_bits(one[20].to_bits() + 1);
        assert!(!is_rounded(&one));
        assert!(!is_rounded(&[1.0; 100]), "powers of two say nothing");
        assert!(!is_rounded(&rounded[..10]));
        one[20] = f32::NAN;
        assert!(!is_rounded(&one), "what is not finite has a name of its own");
    }
}
