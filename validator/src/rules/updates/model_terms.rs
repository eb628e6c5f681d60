//! The shape of the model and what is kept beside it are possible.

use schemas::contract::{Architecture, Averages, Contract, LlamaDecoder, OrderPolicy};
use schemas::report::Route;

use crate::derive::steps;
use crate::frozen::Frozen;
use crate::rule::Check;
use crate::rules::common::{at_end, declare_rule};
use crate::rules::terms::Terms;

declare_rule!(
    /// `GL414`.
    ModelTerms,
    {
        code: "GL414",
        name: "model-terms",
        what: "Every dimension of the model is at least 1, heads are an even number wide and shared evenly, the vocabulary is that \
               of bytes, constants are in their ranges and nothing certain is dropped; averages take something in before the run \
               ends; a shuffle buffer holds 2 to 65536 examples; masks come from a stream only where something is dropped.",
        why: "A component that can do nothing is declared to look as if it did.",
        remedy: "Correct `architecture`, `averages`, `order` or `dropout_draws`, and freeze again.",
        reference: "docs/CONTRACT.md, \"Architecture\" and \"Averages\"; docs/FORMAT.md, \"Shuffle buffer\" and \"Dropout\"",
        gate: Route::RejectFrozenInputs,
    }
);

/// The only tokenizer of this edition has an id for each byte.
const VOCABULARY: u32 = 256;
const MAX_LAYERS: u64 = 4096;
/// Every checkpoint holds the buffer.
const MAX_BUFFER_EXAMPLES: u64 = 65_536;

fn open(frozen: &Frozen) -> Box<dyn Check + '_> {
    let contract = &frozen.contract;
    at_end(move |_, sink| {
        let mut terms = Terms::new(sink);
        let Architecture::LlamaDecoder(shape) = &contract.architecture;
        dimensions(shape, &mut terms);
        constants(shape, &mut terms);
        if let Some(kept) = &contract.averages {
            averages(contract, kept, &mut terms);
        }
        if let OrderPolicy::ShuffleBuffer { size } = contract.order {
            terms.within(u64::from(size), 2..=MAX_BUFFER_EXAMPLES, "/order/size");
        }
        let is_drawn = contract.dropout_draws.is_keyed() || shape.dropout > 0.0;
        let message = "masks come from a stream, and nothing is ever drawn from it";
        terms.require(is_drawn, "/dropout_draws/scheme", message, "a dropout above 0", shape.dropout);
        terms.outcome()
    })
}

fn dimensions(shape: &LlamaDecoder, terms: &mut Terms<'_>) {
    for (field, extent) in [
        ("context_length", shape.context_length),
        ("head_dim", shape.head_dim),
        ("hidden_size", shape.hidden_size),
        ("intermediate_size", shape.intermediate_size),
        ("num_heads", shape.num_heads),
        ("num_kv_heads", shape.num_kv_heads),
    ] {
        terms.count(u64::from(extent), &format!("/architecture/{field}"));
    }
    terms.within(u64::from(shape.num_layers), 1..=MAX_LAYERS, "/architecture/num_layers");
    let is_shared = shape.num_kv_heads > 0 && shape.num_heads.is_multiple_of(shape.num_kv_heads);
    let message = "key and value heads do not serve as many query heads each";
    let expected = format!("a divisor of {}", shape.num_heads);
    terms.require(is_shared, "/architecture/num_kv_heads", message, expected, shape.num_kv_heads);
    let is_even = shape.head_dim.is_multiple_of(2);
    let message = "rotary positions rotate pairs";
    terms.require(is_even, "/architecture/head_dim", message, "an even number", shape.head_dim);
    let is_bytes = shape.vocab_size == VOCABULARY;
    let message = "the vocabulary is not that of the tokenizer";
    terms.require(is_bytes, "/architecture/vocab_size", message, VOCABULARY, shape.vocab_size);
}

fn constants(shape: &LlamaDecoder, terms: &mut Terms<'_>) {
    terms.positive(shape.initializer_std, "/architecture/initializer_std");
    terms.positive(shape.rms_norm_eps, "/architecture/rms_norm_eps");
    terms.positive(shape.rope_theta, "/architecture/rope_theta");
    let is_probability = (0.0..1.0).contains(&shape.dropout);
    let message = "elements are dropped with no probability below 1";
    terms.require(is_probability, "/architecture/dropout", message, "0 to below 1", shape.dropout);
}

#[allow(clippy::cast_possible_truncation, reason = "averages are computed in binary32")]
fn averages(contract: &Contract, averages: &Averages, terms: &mut Terms<'_>) {
    let decay = averages.decay;
    let (kept, added) = (decay as f32, (1.0 - decay) as f32);
    let is_average = decay > 0.0 && decay < 1.0 && kept > 0.0 && kept < 1.0 && added > 0.0;
    let message = "averages keep nothing, or take nothing in";
    terms.require(is_average, "/averages/decay", message, "above 0 and below 1, also in binary32", decay);
    let last = steps::max_step(&contract.stopping, &contract.budget);
    let first = averages.first_step;
    let message = "averaging begins behind the last step, or before the first";
    terms.require(
        (1..=last).contains(&first),
        "/averages/first_step",
        message,
        format!("1 to {last}"),
        first,
    );
}
