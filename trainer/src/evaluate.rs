//! Evaluation of a stream: the summed loss over the first examples of a split.
//!
//! No gradient, no dropout, no order: examples are taken in table order, in
//! microbatches of the contract's size. The sum of token losses is in binary64,
//! in order.

use std::f64::consts::LN_2;
use std::sync::atomic::{AtomicBool, Ordering};

use schemas::contract::{EvaluationStream, Metric};
use schemas::digest::Digest;

use crate::batch::{Microbatch, Placement};
use crate::engine::check::Unsupported;
use crate::engine::{Engine, EngineError};

/// What an evaluation gave: the parts of an `eval` entry that it determines.
#[derive(Debug, Clone, PartialEq)]
pub struct EvaluationOutcome {
    /// BLAKE3 over the ids of the examples that were fed, in order; no entry
    /// holds it.
    pub ids: Digest,
    /// Examples, from the first of the table.
    pub num_examples: u64,
    /// Target tokens.
    pub num_tokens: u64,
    /// Sum over target tokens of the negative log likelihood in nats.
    pub total_nats: f64,
    /// The metric: `total_nats / (num_tokens * ln 2)`.
    pub value: f64,
}

impl Engine {
    /// Evaluates the parameters of a stream's view. `None` when `interrupt`
    /// was set before the last microbatch had begun.
    ///
    /// # Errors
    /// When the stream asks for what is not done, data cannot be read or has
    /// changed, or the device fails.
    pub fn evaluate(
        &self,
        stream: &EvaluationStream,
        interrupt: &AtomicBool,
    ) -> Result<Option<EvaluationOutcome>, EngineError> {
        let refuse = |pointer: &str, found: String, requirement: &str| {
            EngineError::from(Unsupported::Field {
                document: "contract",
                pointer: format!("/evaluation/streams {:?} /{pointer}", stream.name),
                found,
                requirement: requirement.to_owned(),
            })
        };
        let source = self.source(stream.split).ok_or_else(|| {
            let requirement = "the trainer never reads the sealed set";
            refuse("split", "qualification".to_owned(), requirement)
        })?;
        let parameters = self.view(stream.view)?;
        let Metric::BitsPerByte = stream.metric;
        let num_examples = stream.num_examples.unwrap_or_else(|| source.num_examples());
        if num_examples == 0 || num_examples > source.num_examples() {
            let requirement = format!("the table has {} examples", source.num_examples());
            return Err(refuse("num_examples", num_examples.to_string(), &requirement));
        }

        let context_length = self.decoder.shape().context_length as usize;
        let mut total_nats = 0.0;
        let mut num_tokens = 0;
        let mut first = 0;
        let mut ids = blake3::Hasher::new();
        while first < num_examples {
            if interrupt.load(Ordering::Relaxed) {
                return Ok(None);
            }
            let end = num_examples.min(first + self.microbatch_examples as u64);
            let placements: Vec<Placement> =
                (first..end).map(|example| Placement { position: example, example }).collect();
            let microbatch = Microbatch::assemble(source, &placements, context_length, self.device.handle())?;
            let losses = self
                .decoder
                .token_losses(&parameters, microbatch.inputs.clone(), microbatch.targets.clone(), None)
                .try_into_vec_as::<f32>()
                .map_err(|error| EngineError::device("reading token losses", &error))?;
            total_nats = microbatch.add_targets(total_nats, &losses);
            num_tokens += microbatch.num_tokens();
            ids.update(microbatch.ids().as_flattened());
            first = end;
        }
        let value = bits_per_byte(total_nats, num_tokens);
        let ids = Digest::blake3(*ids.finalize().as_bytes());
        Ok(Some(EvaluationOutcome { ids, num_examples, num_tokens, total_nats, value }))
    }
}

/// `total_nats / (num_tokens * ln 2)`, in this order.
#[allow(clippy::cast_precision_loss, reason = "a stream has far fewer than 2^53 tokens")]
fn bits_per_byte(total_nats: f64, num_tokens: u64) -> f64 {
    total_nats / (num_tokens as f64 * LN_2)
}
