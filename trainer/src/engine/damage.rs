//! Damage that an injected fault does to the state (`docs/FORMAT.md`, "Injected
//! faults"). Only `faults` calls it, and only where a plan says so.

use burn::tensor::{FloatDType, Tensor};
use schemas::contract::Contract;

use super::gradients::{GradientTree, Gradients};
use super::{Engine, EngineError};
use crate::plateau::Plateau;
use crate::scaling::LossScale;
use crate::shuffle::ShuffleState;

/// Bits that binary32 has and bfloat16 has not.
const LOW_HALF: u32 = 0xffff;

/// The nearest bfloat16, ties to even, as binary32. What is not finite stays.
fn to_bf16(value: f32) -> f32 {
    if !value.is_finite() {
        return value;
    }
    let bits = value.to_bits();
    let is_odd = (bits >> 16) & 1;
    f32::from_bits(bits.wrapping_add(LOW_HALF / 2 + is_odd) & !LOW_HALF)
}

impl Engine {
    /// Moves the data cursor to a number of consumed examples, and a shuffle
    /// buffer to where it stands after as many draws.
    ///
    /// # Errors
    /// When the buffer cannot be put back to its beginning.
    pub fn move_cursor(&mut self, examples: u64) -> Result<(), EngineError> {
        let ahead = self.consumed.examples.saturating_sub(self.counters.examples);
        self.counters.examples = examples;
        self.consumed.examples = examples.saturating_add(ahead);
        if let Some(buffer) = &mut self.buffer {
            let refuse = |reason| EngineError::State { class: "sampler", reason };
            buffer.restore(ShuffleState::default()).map_err(refuse)?;
            for _ in 0..examples {
                buffer.draw();
            }
        }
        Ok(())
    }

    /// Puts every plateau back to before its first evaluation.
    pub fn reset_plateaus(&mut self, contract: &Contract) {
        for group in &mut self.groups {
            if group.plateau.is_some() {
                group.plateau = Plateau::new(&group.name, &group.shape, contract);
            }
        }
    }

    /// Puts the loss scaler back to before step 1.
    pub fn reset_loss_scale(&mut self, contract: &Contract) {
        self.scaler = contract.numerics.loss_scaler.as_ref().map(LossScale::new);
    }

    /// Computes updates in another dtype from here on.
    pub fn compute_in(&mut self, compute: FloatDType) {
        self.training_decoder = self.training_decoder.clone().computing_in(compute);
    }

    /// Rounds every trained parameter to bfloat16.
    ///
    /// # Errors
    /// When the device fails.
    pub fn round_parameters(&mut self) -> Result<(), EngineError> {
        for slot in &self.slots {
            let Some(tensor) = self.parameters.get(&slot.path) else { continue };
            let failed = |error: &dyn std::fmt::Display| EngineError::device("rounding parameters", error);
            let mut data = tensor.try_to_data().map_err(|error| failed(&error))?;
            let values = data.as_mut_slice::<f32>().map_err(|error| failed(&error))?;
            values.iter_mut().for_each(|value| *value = to_bf16(*value));
            self.parameters.insert(slot.path.clone(), Tensor::from_data(data, self.device.handle()));
        }
        Ok(())
    }

    /// The sum of the gradients of the microbatches that are behind.
    #[must_use]
    pub fn summed_gradients(&self) -> Gradients {
        self.window.tree.clone().finish()
    }

    /// Takes other gradients in the place of that sum.
    pub fn replace_gradients(&mut self, gradients: Gradients) {
        let num_leaves = self.window.tree.num_leaves();
        self.window.tree = GradientTree::from_subtrees(vec![(num_leaves, gradients)]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounding_is_to_the_nearest_bfloat16_with_ties_to_even() {
        for (bits, expected) in [
            (0x3f80_0000, 0x3f80_0000), // exact
            (0x3f80_7fff, 0x3f80_0000), // below the middle
            (0x3f80_8000, 0x3f80_0000), // the middle, and the lower is even
            (0x3f81_8000, 0x3f82_0000), // the middle, and the upper is even
            (0x3f80_8001, 0x3f81_0000), // above the middle
            (0xbf80_8001, 0xbf81_0000),
            (0x7f80_0000, 0x7f80_0000), // infinite
        ] {
            assert_eq!(to_bf16(f32::from_bits(bits)).to_bits(), expected, "{bits:#010x}");
        }
        assert!(to_bf16(f32::NAN).is_nan());
    }
}
