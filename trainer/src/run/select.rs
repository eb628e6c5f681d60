//! Which candidate is handed off: by the val stream's value alone.
//!
//! A value that is not finite never wins; the smallest step wins among equals.

use std::collections::BTreeMap;

use schemas::contract::{Contract, Direction, EvaluationStream, TieBreak};

use super::history::PastCandidate;

/// The stream that decides.
#[must_use]
pub fn stream(contract: &Contract) -> Option<&EvaluationStream> {
    contract.evaluation.streams.iter().find(|stream| stream.name == contract.selection.stream)
}

/// The winner, or `None` where no value is finite.
#[must_use]
pub fn winner(
    candidates: &BTreeMap<u64, PastCandidate>,
    direction: Direction,
    tie: TieBreak,
) -> Option<&PastCandidate> {
    let TieBreak::Earliest = tie;
    let finite = candidates.values().filter(|candidate| candidate.det.value.is_finite());
    // In step order, so that only a strictly better value replaces an earlier.
    finite.reduce(
        |best, next| if is_better(direction, next.det.value.0, best.det.value.0) { next } else { best },
    )
}

/// Whether `value` is strictly better than `best`.
fn is_better(direction: Direction, value: f64, best: f64) -> bool {
    match direction {
        Direction::Minimize => value < best,
        Direction::Maximize => value > best,
    }
}

/// Whether a value is at least as good as a threshold; never where it is NaN.
#[must_use]
pub fn reaches(direction: Direction, value: f64, threshold: f64) -> bool {
    match direction {
        Direction::Minimize => value <= threshold,
        Direction::Maximize => value >= threshold,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use schemas::body::CandidateAdmittedDet;
    use schemas::digest::Digest;
    use schemas::ids::{CandidateId, CheckpointId};
    use schemas::number::Float;

    fn check(direction: Direction, values: &[f64], expected: Option<u64>) {
        let candidates: BTreeMap<u64, PastCandidate> = (1..)
            .zip(values)
            .map(|(step, value)| {
                let digest = Digest::blake3([0; 32]);
                let det = CandidateAdmittedDet { config: digest, model: digest, step, value: Float(*value) };
                let candidate = CandidateId::from("candidate");
                (step, PastCandidate { candidate, checkpoint: CheckpointId::from("checkpoint"), det })
            })
            .collect();
        let winner = winner(&candidates, direction, TieBreak::Earliest);
        assert_eq!(winner.map(|candidate| candidate.det.step), expected, "{values:?}");
    }

    #[test]
    fn the_best_finite_value_wins_and_the_earliest_among_equals() {
        check(Direction::Minimize, &[3.0, 2.0, 2.0, 2.5], Some(2));
        check(Direction::Maximize, &[3.0, 2.0, 3.0], Some(1));
        check(Direction::Minimize, &[f64::NAN, 5.0, f64::NEG_INFINITY], Some(2));
        check(Direction::Minimize, &[f64::NAN, f64::INFINITY], None);
        check(Direction::Minimize, &[], None);
    }

    #[test]
    fn a_target_is_reached_at_equality_and_never_by_nan() {
        assert!(reaches(Direction::Minimize, 2.0, 2.0));
        assert!(!reaches(Direction::Minimize, 2.1, 2.0));
        assert!(reaches(Direction::Maximize, 2.1, 2.0));
        assert!(!reaches(Direction::Minimize, f64::NAN, 2.0));
    }
}
