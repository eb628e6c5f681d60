//! A rate that falls when an evaluation stream stops improving: the stream must
//! be there, and the rate must be able to fall.

use schemas::contract::{Contract, ScheduleShape};

use super::problem::Problems;
use super::schedule::num_steps;

/// Bits per byte of a model that knows nothing of its 256 symbols.
const UNIFORM_BITS_PER_BYTE: f64 = 8.0;

pub(super) fn check(contract: &Contract, shape: &ScheduleShape, pointer: &str, problems: &mut Problems) {
    let ScheduleShape::Plateau { factor, floor, min_delta, patience, rate, stream, .. } = shape else {
        return;
    };
    problems.require_positive(*rate, format!("{pointer}/rate"));
    problems.require_between(*factor, f64::MIN_POSITIVE..1.0, format!("{pointer}/factor"));
    problems.require_between(*min_delta, 0.0..UNIFORM_BITS_PER_BYTE, format!("{pointer}/min_delta"));
    problems.require(
        *floor >= 0.0 && floor < rate,
        format!("{pointer}/floor"),
        format!("is {floor:?}; expected 0 to below the rate, {rate:?}"),
        "a rate that cannot fall is \"constant\"",
    );
    let Some(stream) = contract.evaluation.streams.iter().find(|known| known.name == *stream) else {
        problems.add(
            format!("{pointer}/stream"),
            format!("{stream:?} is no stream"),
            "name a stream of /evaluation/streams",
        );
        return;
    };
    // The first evaluation becomes the best; so many bad ones follow it.
    let earliest = patience.saturating_add(1).saturating_mul(stream.every_steps);
    let last = num_steps(contract);
    problems.require(
        earliest < last,
        format!("{pointer}/patience"),
        format!("is {patience}, so that the rate falls after step {earliest} at the earliest, and step {last} is the last"),
        "evaluate more often, or lower the patience",
    );
}
