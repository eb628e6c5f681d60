//! Challenges and training witness manifests, for people.

use std::fmt::Write as _;

use schemas::challenge::{Challenge, ChallengeOutcome, Detection, SegmentUnit, TrainingWitness};
use schemas::contract::EquivalenceClass;

use super::manifest::chances;

/// What was drawn, and what the draw can show.
#[must_use]
pub fn challenge_text(challenge: &Challenge) -> String {
    let mut text = String::new();
    let Challenge { drawn, head, nonce, num_segments, run, unit, unverifiable, .. } = challenge;
    let _ = writeln!(text, "run       {run}");
    let _ = writeln!(text, "head      size {}, root {}", head.size, head.root);
    let _ = writeln!(text, "nonce     {nonce}");
    let unit = match unit {
        SegmentUnit::AdjacentCheckpoints => "neighbouring checkpoints",
        SegmentUnit::ResumableCheckpoints => "checkpoints that can be resumed from",
    };
    let _ = writeln!(text, "drawn     {} of {num_segments} segments between {unit}", drawn.len());
    for segment in drawn {
        let (start, end) = (&segment.start, &segment.end);
        let _ = writeln!(
            text,
            "  segment {:<5} steps {} to {}: from {} to {}",
            segment.number,
            start.step + 1,
            end.step,
            start.checkpoint,
            end.checkpoint
        );
    }
    for span in unverifiable {
        let reason = span.reason.text();
        let _ = writeln!(text, "unverifiable: steps {} to {}: {reason}", span.from_step + 1, span.to_step);
    }
    write_chances(&mut text, &chances(*num_segments, drawn.len() as u64), *num_segments);
    text
}

fn write_chances(text: &mut String, chances: &[Detection], num_segments: u64) {
    for chance in chances {
        let _ = writeln!(
            text,
            "a draw of this size meets one of {} forged of {num_segments} with probability {:.4}",
            chance.num_forged, chance.probability.0
        );
    }
}

/// What a challenge showed, and what it did not.
#[must_use]
pub fn witness_text(witness: &TrainingWitness) -> String {
    let mut text = String::new();
    let challenge = &witness.challenge;
    let class = match (&witness.comparison.class, &witness.comparison.tolerance) {
        (EquivalenceClass::Bitwise, _) => "bitwise".to_owned(),
        (_, Some(bounds)) => {
            format!("within {} absolute or {} relative", bounds.max_absolute, bounds.max_relative)
        }
        (_, None) => "without a tolerance".to_owned(),
    };
    let _ = writeln!(text, "outcome   {}", witness.outcome.name());
    let _ = writeln!(text, "run       {}", challenge.run);
    let _ = writeln!(text, "head      size {}, root {}", challenge.head.size, challenge.head.root);
    let _ = writeln!(text, "nonce     {}", challenge.nonce);
    let _ = writeln!(text, "compared  {class}");
    for result in &witness.results {
        let word = match result.outcome {
            ChallengeOutcome::Consistent => "the same",
            ChallengeOutcome::Contradicted => "CONTRADICTED",
            ChallengeOutcome::Incomplete => "not compared",
        };
        let (from, to) = (result.from_step + 1, result.to_step);
        let _ = writeln!(text, "segment {:<5} steps {from} to {to}: {word}", result.number);
        if let Some(reason) = &result.reason {
            let _ = writeln!(text, "    {reason}");
        }
        for difference in &result.differences {
            let entry = difference.entry.map(|entry| format!("entry {entry} ")).unwrap_or_default();
            let _ = writeln!(
                text,
                "    step {}, {entry}{}\n      recorded {}\n      replayed {}",
                difference.step, difference.place, difference.recorded, difference.replayed
            );
        }
        let num_listed = result.differences.len() as u64;
        if result.num_differences > num_listed {
            let _ = writeln!(text, "    and {} more", result.num_differences - num_listed);
        }
    }
    for span in &witness.verified {
        let _ = writeln!(text, "verified: steps {} to {}", span.from_step + 1, span.to_step);
    }
    for span in &witness.unverified {
        let reason = span.reason.text();
        let _ = writeln!(text, "not verified: steps {} to {}: {reason}", span.from_step + 1, span.to_step);
    }
    if witness.detection.is_empty() {
        let _ = writeln!(
            text,
            "no chance of meeting a forged segment is stated: not every drawn one was compared in full"
        );
    }
    write_chances(&mut text, &witness.detection, challenge.num_segments);
    for nonclaim in &witness.nonclaims {
        let _ = writeln!(text, "note: {nonclaim}");
    }
    text
}
