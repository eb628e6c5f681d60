//! The training witness manifest: what a challenge showed, and what it did not.
//!
//! It says no more than the comparison: a segment that was not drawn is not
//! verified, and the chance of having met a forged one is stated, not judged.

use schemas::challenge::{
    Challenge, ChallengeOutcome, ComparisonClass, Detection, Replay, SegmentResult, TRAINING_WITNESS_FORMAT,
    TrainingWitness, TransitionIdentity, UnverifiedReason, UnverifiedSpan, VerifiedSpan,
};
use schemas::contract::EquivalenceClass;
use schemas::digest::Digest;
use schemas::number::Float;

use crate::since::TOOL;

use super::draw::detection;
use super::record::Record;

/// What every such manifest leaves open.
const NONCLAIMS: [&str; 6] = [
    "It is no audit: `ledger audit` says whether the record is whole and follows its contract.",
    "It says nothing of segments that were not drawn, beyond the chance that a draw of this size meets a forged one, which is stated only where every drawn segment was compared in full.",
    "It shows that these updates lead from one committed state to the next, and not that nothing else was tried before, or trained elsewhere.",
    "It is as good as whoever executed the replay: one that the trainer, or anybody who depends on it, made shows nothing.",
    "The chance holds for a head that was out of the trainer's hands before the nonce was named; the head's keeping is the reviewer's to show.",
    "A forged segment is one whose updates, executed again by the contract's code, do not come to what is on record; a record that is true of a poor or poisoned run is not forged.",
];

/// Puts everything together.
pub(super) fn manifest(
    record: &Record,
    challenge: Challenge,
    replay: &Replay,
    replay_digest: Digest,
    class: EquivalenceClass,
    results: Vec<SegmentResult>,
) -> TrainingWitness {
    let contract = &record.contract;
    let is_bounded = class != EquivalenceClass::Bitwise;
    let (verified, unverified) = spans(record, &challenge, &results);
    TrainingWitness {
        batches: record.batches.clone(),
        comparison: ComparisonClass {
            class,
            tolerance: contract.resume.tolerance.clone().filter(|_| is_bounded),
        },
        detection: detection_of(&challenge, &results),
        format: TRAINING_WITNESS_FORMAT.to_owned(),
        last_step: record.last_step,
        nonclaims: NONCLAIMS.iter().map(|text| (*text).to_owned()).collect(),
        outcome: outcome(&results),
        replay: replay_digest,
        results,
        states: record.boundaries.iter().map(|boundary| boundary.state.clone()).collect(),
        tool: TOOL.to_owned(),
        transition: TransitionIdentity {
            // A contract that was frozen names it.
            card: contract.update.card.digest.unwrap_or(record.digest),
            code: contract.code.clone(),
            plan: contract.plan.clone(),
            replayed_with: replay.plan.clone(),
        },
        unverified,
        verified,
        challenge,
    }
}

fn outcome(results: &[SegmentResult]) -> ChallengeOutcome {
    let has = |outcome| results.iter().any(|result| result.outcome == outcome);
    if has(ChallengeOutcome::Contradicted) {
        ChallengeOutcome::Contradicted
    } else if has(ChallengeOutcome::Incomplete) || results.is_empty() {
        ChallengeOutcome::Incomplete
    } else {
        ChallengeOutcome::Consistent
    }
}

/// The chances of this draw; none where part of it was not compared, since whoever
/// forged a segment could keep just that one from being executed again.
fn detection_of(challenge: &Challenge, results: &[SegmentResult]) -> Vec<Detection> {
    let is_whole = results.len() == challenge.drawn.len();
    let is_compared = |result: &SegmentResult| result.reason.is_none();
    if is_whole && results.iter().all(is_compared) {
        chances(challenge.num_segments, challenge.drawn.len() as u64)
    } else {
        Vec::new()
    }
}

/// The chances for few and for many forged segments.
pub(super) fn chances(num_segments: u64, num_drawn: u64) -> Vec<Detection> {
    let mut numbers = vec![1, 2, 3, 5, 10, num_segments / 10, num_segments / 4, num_segments / 2];
    numbers.retain(|number| (1..=num_segments).contains(number));
    numbers.sort_unstable();
    numbers.dedup();
    let chance = |num_forged| Float(detection(num_segments, num_forged, num_drawn));
    numbers.into_iter().map(|num_forged| Detection { num_forged, probability: chance(num_forged) }).collect()
}

/// Verified updates, and all others with the reason; neighbours of one kind
/// together.
fn spans(
    record: &Record,
    challenge: &Challenge,
    results: &[SegmentResult],
) -> (Vec<VerifiedSpan>, Vec<UnverifiedSpan>) {
    let (segments, mut unverified) = record.segments(challenge.unit);
    let mut verified: Vec<VerifiedSpan> = Vec::new();
    for segment in segments {
        let (from_step, to_step) = (segment.start.step, segment.end.step);
        let result = results.iter().find(|result| result.number == segment.number);
        let reason = match result.map(|result| result.outcome) {
            Some(ChallengeOutcome::Consistent) => {
                verified.push(VerifiedSpan { from_step, to_step });
                continue;
            }
            Some(ChallengeOutcome::Contradicted) => UnverifiedReason::Contradicted,
            Some(ChallengeOutcome::Incomplete) => UnverifiedReason::NotReplayed,
            None => UnverifiedReason::NotDrawn,
        };
        unverified.push(UnverifiedSpan { from_step, reason, to_step });
    }
    unverified.sort_by_key(|span| span.from_step);
    verified.dedup_by(|next, before| {
        let is_next = before.to_step == next.from_step;
        if is_next {
            before.to_step = next.to_step;
        }
        is_next
    });
    unverified.dedup_by(|next, before| {
        let is_next = before.to_step == next.from_step && before.reason == next.reason;
        if is_next {
            before.to_step = next.to_step;
        }
        is_next
    });
    (verified, unverified)
}

#[cfg(test)]
mod tests {
    use schemas::challenge::{CHALLENGE_FORMAT, ChallengeHead, CommittedState, Segment, SegmentUnit};
    use schemas::ids::{CheckpointId, RunId};

    use super::*;

    fn state(step: u64) -> CommittedState {
        CommittedState {
            checkpoint: CheckpointId::from("s"),
            entry: step,
            manifest: Digest::blake3([0; 32]),
            state_root: None,
            step,
        }
    }

    /// The first two of four segments of five updates.
    fn challenge() -> Challenge {
        let segment = |number| Segment { end: state(5 * number + 5), number, start: state(5 * number) };
        Challenge {
            contract: Digest::sha256([0; 32]),
            drawn: vec![segment(0), segment(1)],
            format: CHALLENGE_FORMAT.to_owned(),
            head: ChallengeHead { origin: String::new(), root: Digest::sha256([0; 32]), size: 40 },
            nonce: String::new(),
            num_segments: 4,
            run: RunId::from("run"),
            unit: SegmentUnit::AdjacentCheckpoints,
            unverifiable: Vec::new(),
        }
    }

    fn result(number: u64, outcome: ChallengeOutcome, reason: Option<&str>) -> SegmentResult {
        SegmentResult {
            differences: Vec::new(),
            from_step: 5 * number,
            num_differences: u64::from(outcome == ChallengeOutcome::Contradicted),
            number,
            outcome,
            reason: reason.map(str::to_owned),
            to_step: 5 * number + 5,
        }
    }

    #[test]
    fn a_draw_that_was_not_compared_in_full_has_no_chance() {
        use ChallengeOutcome::{Consistent, Contradicted, Incomplete};
        let of = |results: &[SegmentResult]| detection_of(&challenge(), results);
        let consistent = result(0, Consistent, None);
        let whole = chances(4, 2);
        assert_eq!(of(&[consistent.clone(), result(1, Consistent, None)]), whole);
        assert_eq!(of(&[consistent.clone(), result(1, Contradicted, None)]), whole);
        assert!(of(&[consistent.clone(), result(1, Incomplete, Some("a file is gone"))]).is_empty());
        assert!(of(&[consistent.clone(), result(1, Contradicted, Some("it ended early"))]).is_empty());
        assert!(of(&[consistent]).is_empty());
        assert!(of(&[]).is_empty());
    }

    #[test]
    fn chances_are_for_numbers_that_there_can_be() {
        let numbers = |num_segments| -> Vec<u64> {
            chances(num_segments, 1).into_iter().map(|chance| chance.num_forged).collect()
        };
        assert_eq!(numbers(1), [1]);
        assert_eq!(numbers(4), [1, 2, 3]);
        assert_eq!(numbers(100), [1, 2, 3, 5, 10, 25, 50]);
        assert_eq!(numbers(0), [0u64; 0]);
        let all = chances(4, 4);
        assert!(all.iter().all(|chance| chance.probability.0.to_bits() == 1.0f64.to_bits()), "{all:?}");
    }
}
