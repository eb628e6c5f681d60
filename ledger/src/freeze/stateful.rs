//! Parts of a run that hold state of their own: what they are made of, and
//! what may look at them.

use schemas::contract::{Architecture, Averages, Contract, OrderPolicy, ParameterView};
use schemas::state::StateClass;

use super::problem::Problems;
use super::schedule;

/// Largest shuffle buffer: as JSON it stays below a megabyte.
const MAX_BUFFER_EXAMPLES: u32 = 65_536;

pub(super) fn check(contract: &Contract, problems: &mut Problems) {
    if let Some(averages) = &contract.averages {
        check_averages(contract, averages, problems);
    }
    check_views(contract, problems);
    if let OrderPolicy::ShuffleBuffer { size } = contract.order {
        problems.require(
            (2..=MAX_BUFFER_EXAMPLES).contains(&size),
            "/order/size",
            format!("is {size}; expected 2 to {MAX_BUFFER_EXAMPLES}"),
            "a buffer of one example shuffles nothing, and every checkpoint holds the buffer",
        );
    }
    let Architecture::LlamaDecoder(decoder) = &contract.architecture;
    problems.require(
        contract.dropout_draws.is_keyed() || decoder.dropout > 0.0,
        "/dropout_draws/scheme",
        "is \"philox_stream/1\", and /architecture/dropout is 0, so that nothing is ever drawn",
        "leave /dropout_draws out, or drop something",
    );
}

#[allow(clippy::cast_possible_truncation, reason = "the trainer averages in binary32")]
fn check_averages(contract: &Contract, averages: &Averages, problems: &mut Problems) {
    let decay = averages.decay;
    let (kept, added) = (decay as f32, (1.0 - decay) as f32);
    problems.require(
        decay > 0.0 && decay < 1.0 && kept > 0.0 && kept < 1.0 && added > 0.0,
        "/averages/decay",
        format!("is {decay:?}; expected above 0 and below 1, also when it is rounded to binary32"),
        "an average that takes nothing in, or keeps nothing, is none; 0.99 to 0.9999 are usual",
    );
    let num_steps = schedule::num_steps(contract);
    problems.require(
        (1..=num_steps).contains(&averages.first_step),
        "/averages/first_step",
        format!("is {}; expected 1 to {num_steps}, the last step", averages.first_step),
        "begin to average before the run ends",
    );
    problems.require(
        contract.state_classes.iter().any(|declaration| {
            declaration.class == StateClass::Averages && declaration.not_applicable.is_none()
        }),
        "/state_classes",
        "averages is not captured, and /averages keeps averaged parameters",
        "add {\"class\": \"averages\", \"not_applicable\": null} before accumulated_gradients",
    );
}

/// Averages are looked at only where they are kept, and a candidate is the
/// model of its checkpoint: a value of other parameters may not choose it.
fn check_views(contract: &Contract, problems: &mut Problems) {
    let streams = &contract.evaluation.streams;
    for (index, stream) in streams.iter().enumerate() {
        problems.require(
            stream.view == ParameterView::Current || contract.averages.is_some(),
            format!("/evaluation/streams/{index}/view"),
            "is \"averages\", and the contract keeps none",
            "add /averages, or look at the \"current\" parameters",
        );
    }
    let target = contract.quality_target.as_ref().map(|target| ("/quality_target/stream", &target.stream));
    for (pointer, name) in [("/selection/stream", &contract.selection.stream)].into_iter().chain(target) {
        let view = streams.iter().find(|stream| stream.name == *name).map(|stream| stream.view);
        problems.require(
            view != Some(ParameterView::Averages),
            pointer,
            format!("{name:?} is measured on averaged parameters, and a candidate is the model shard"),
            "what is exported has to be what was measured; name a stream with \"view\": \"current\"",
        );
    }
}
