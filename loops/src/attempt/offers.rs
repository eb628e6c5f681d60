//! What an attempt offers a loop: examples, rates, coefficients and groups, as the
//! contract gives them. They are offers: what is recorded is what the loop says
//! that it used.

use schemas::policy_card::Clipping;

use super::Attempt;
use crate::error::LoopError;

impl Attempt {
    /// Bytes of the examples at positions of the update stream, in order: of each
    /// its inputs and the last target.
    ///
    /// # Errors
    /// When an example cannot be read or is not the frozen text.
    pub fn batch(&mut self, position: u64, num_examples: u64) -> Result<Vec<Vec<u8>>, LoopError> {
        let mut examples = Vec::new();
        let mut buffer = Vec::new();
        for at in 0..num_examples {
            let position =
                position.checked_add(at).ok_or_else(|| LoopError::value("position", "is too large"))?;
            let example = self.run.inputs.order.example(position);
            self.run.inputs.train.read(example, &mut buffer)?;
            examples.push(buffer.clone());
        }
        Ok(examples)
    }

    /// Bytes of the examples that a stream evaluates, in table order.
    ///
    /// # Errors
    /// When there is no such stream, or an example is not the frozen text.
    pub fn stream_examples(&self, stream: &str) -> Result<Vec<Vec<u8>>, LoopError> {
        let stream = self.stream(stream)?;
        let source = match stream.split {
            schemas::data::Split::Train => &self.run.inputs.train,
            _ => &self.run.inputs.val,
        };
        let num_examples = stream.num_examples.unwrap_or(u64::MAX).min(source.num_examples());
        let mut buffer = Vec::new();
        (0..num_examples)
            .map(|example| {
                source.read(example, &mut buffer)?;
                Ok(buffer.clone())
            })
            .collect()
    }

    /// Rate of a group at a step, from 1, by schedule and policy card.
    ///
    /// # Errors
    /// When the contract has no such group.
    pub fn learning_rate(&self, group: &str, step: u64) -> Result<f64, LoopError> {
        let unknown = || LoopError::value("group", format!("{group:?} is none of the contract's"));
        let schedule = self.contract().schedule.iter().find(|schedule| schedule.group == group);
        let of_card = self.run.inputs.card.groups.iter().find(|known| known.name == group);
        let (schedule, of_card) = schedule.zip(of_card).ok_or_else(unknown)?;
        Ok(corpus::schedule::rate(&schedule.shape, step) * of_card.learning_rate_multiplier)
    }

    /// What gradients of this norm are multiplied by (`docs/FORMAT.md`, "Clipping").
    #[must_use]
    pub fn clip_coefficient(&self, gradient_norm: f64) -> f64 {
        match self.run.inputs.card.clipping {
            Clipping::None => 1.0,
            Clipping::GlobalNorm { epsilon, max_norm } => {
                let coefficient = max_norm / (gradient_norm + epsilon);
                if coefficient.is_nan() || coefficient < 1.0 { coefficient } else { 1.0 }
            }
        }
    }

    /// The policy card's groups in order: name, decay, and the parameters that
    /// each updates, in path order.
    #[must_use]
    pub fn groups(&self) -> Vec<(String, f64, Vec<String>)> {
        let parameters = &self.run.inputs.parameters.parameters;
        let groups = self.run.inputs.card.groups.iter();
        groups
            .map(|group| {
                let of_group = parameters
                    .iter()
                    .filter(|parameter| parameter.group.as_ref() == Some(&group.name))
                    .filter(|parameter| parameter.tied_to.is_none())
                    .map(|parameter| parameter.path.clone());
                (group.name.clone(), group.weight_decay, of_group.collect())
            })
            .collect()
    }
}
