//! Values of evaluations, and which candidate the contract's rule selects.

use std::collections::BTreeMap;

use schemas::contract::{Contract, Direction, Metric};

use crate::history::Candidate;

/// A metric from its sum, in the order that `docs/FORMAT.md` ("Examples") says.
pub(super) fn value_of(metric: Metric, total_nats: f64, num_tokens: u64) -> f64 {
    match metric {
        Metric::BitsPerByte => total_nats / (num_tokens as f64 * std::f64::consts::LN_2),
    }
}

/// The candidate that the contract's rule selects: the best finite value of the
/// selection stream, the earliest among equals.
pub(super) fn winner<'a>(
    contract: &Contract,
    candidates: &'a BTreeMap<u64, Candidate>,
) -> Option<&'a Candidate> {
    let streams = contract.evaluation.streams.iter();
    let stream = streams.into_iter().find(|stream| stream.name == contract.selection.stream)?;
    let is_better = |value: f64, best: f64| match stream.direction {
        Direction::Minimize => value < best,
        Direction::Maximize => value > best,
    };
    let finite = candidates.values().filter(|candidate| candidate.det.value.is_finite());
    finite.reduce(|best, next| if is_better(next.det.value.0, best.det.value.0) { next } else { best })
}

/// Whether a selected candidate reaches the contract's target.
pub(crate) fn meets_target(contract: &Contract, value_of: impl Fn(&str) -> Option<f64>) -> Option<bool> {
    let target = contract.quality_target.as_ref()?;
    let stream = contract.evaluation.streams.iter().find(|stream| stream.name == target.stream)?;
    let value = value_of(&target.stream)?;
    Some(match stream.direction {
        Direction::Minimize => value <= target.threshold,
        Direction::Maximize => value >= target.threshold,
    })
}
