//! Averaged parameters (EMA), kept beside the parameters that are trained, as
//! `docs/FORMAT.md` ("Averages") says.
//!
//! They are never put in the place of the trained parameters: an evaluation of
//! the averages reads them where they are, so that nothing that is saved at
//! that moment can hold the wrong ones.

use schemas::contract::{AverageOrder, Averages};

/// The averages of every trainable parameter.
#[derive(Debug, Clone, PartialEq)]
pub struct AveragedParameters {
    added: f32,
    first_step: u64,
    kept: f32,
    order: AverageOrder,
    /// By slot, in the order of the trainable parameters.
    pub(crate) tensors: Vec<Vec<f32>>,
}

impl AveragedParameters {
    /// Averages that are copies of the initial parameters.
    #[must_use]
    #[allow(clippy::cast_possible_truncation, reason = "averages are binary32")]
    pub fn new(averages: &Averages, initial: Vec<Vec<f32>>) -> Self {
        Self {
            added: (1.0 - averages.decay) as f32,
            first_step: averages.first_step,
            kept: averages.decay as f32,
            order: averages.order,
            tensors: initial,
        }
    }

    /// Whether an update adds the parameters that it finds, or those that it
    /// leaves.
    #[must_use]
    pub const fn order(&self) -> AverageOrder {
        self.order
    }

    /// Update `step` adds a parameter: `kept * average + added * parameter`,
    /// each product and the sum rounded to binary32; a copy before `first_step`.
    pub fn add(&mut self, step: u64, slot: usize, parameter: &[f32]) {
        let Some(averages) = self.tensors.get_mut(slot) else { return };
        if step < self.first_step {
            averages.copy_from_slice(parameter);
            return;
        }
        for (average, parameter) in averages.iter_mut().zip(parameter) {
            *average = self.kept * *average + self.added * parameter;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn averaged(order: AverageOrder) -> AveragedParameters {
        AveragedParameters::new(&Averages { decay: 0.75, first_step: 2, order }, vec![vec![1.0]])
    }

    /// By hand: a copy, then 0.75 * 2 + 0.25 * 6.
    #[test]
    fn copies_until_the_first_step_and_averages_from_it_on() {
        let mut averages = averaged(AverageOrder::AfterUpdate);
        averages.add(1, 0, &[2.0]);
        assert_eq!(averages.tensors, [[2.0]]);
        averages.add(2, 0, &[6.0]);
        assert_eq!(averages.tensors, [[3.0]]);
        assert_eq!(averaged(AverageOrder::BeforeUpdate).order(), AverageOrder::BeforeUpdate);
    }

    /// Rounded after each operation: a fused one gives another last bit.
    #[test]
    fn nothing_is_fused() {
        let averages = Averages { decay: 0.9, first_step: 1, order: AverageOrder::AfterUpdate };
        let (mut num_different, mut num_equal) = (0, 0);
        for at in 1..200u16 {
            let (old, new) = (f32::from(at).sqrt(), f32::from(at).ln_1p());
            let mut averaged = AveragedParameters::new(&averages, vec![vec![old]]);
            let (kept, added) = (averaged.kept, averaged.added);
            averaged.add(1, 0, &[new]);
            let fused = kept.mul_add(old, added * new);
            num_different += u32::from(averaged.tensors[0][0].to_bits() != fused.to_bits());
            num_equal += u32::from(averaged.tensors[0][0].to_bits() == (kept * old + added * new).to_bits());
        }
        assert!(num_different > 10, "{num_different}");
        assert!(num_equal >= 190, "{num_equal}");
    }
}
