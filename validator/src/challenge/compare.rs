//! Compares each replayed segment with what is on record of it, and the record
//! with the files of the checkpoints at both of its ends.
//!
//! In the class `bitwise` every determined half and every digest has to be equal.
//! In `operation_order_bounded` floats have to be within the contract's bounds,
//! everything else equal, and digests of numbers say nothing; how far apart two
//! states are is then the replay's word, since its states are not kept.

use std::fmt::Display;
use std::path::PathBuf;

use schemas::challenge::{
    Challenge, ChallengeOutcome, Replay, ReplayDifference, ReplayedSegment, ReplayedState, ReplayedStep,
    Segment, SegmentResult,
};
use schemas::contract::{EquivalenceClass, MidAccumulation, Tolerance};
use schemas::state::{CheckpointManifest, StateClass};
use serde_json::Value;

use crate::evidence::{Evidence, ValNumbers, describe};
use crate::rules::gl108_data_files::measure;

use super::json;
use super::record::{Boundary, Record, RecordedStep, Standing};

/// Differences of one segment that are listed one by one; others are counted.
const MAX_LISTED: usize = 8;

/// Members that hold digests of numbers, which two executions within bounds do
/// not share.
const DIGESTS_OF_NUMBERS: [&str; 3] = ["model", "state", "state_root"];

/// Compares every drawn segment, in the order of the draw.
pub(super) fn segments(
    record: &Record,
    challenge: &Challenge,
    replay: &Replay,
    class: EquivalenceClass,
    folder: PathBuf,
) -> Vec<SegmentResult> {
    let evidence = Evidence::new(folder, record.head.size, Vec::new(), ValNumbers::Absent);
    let none = Tolerance { max_absolute: 0.0, max_relative: 0.0 };
    let tolerance = record.contract.resume.tolerance.as_ref().unwrap_or(&none);
    let tolerance = (class != EquivalenceClass::Bitwise).then_some(tolerance);
    let pairs = challenge.drawn.iter().zip(&replay.segments);
    pairs
        .map(|(segment, replayed)| {
            let mut comparison =
                Comparison { evidence: &evidence, found: Vec::new(), num_found: 0, record, tolerance };
            let reason = comparison.segment(segment, replayed);
            let outcome = match (comparison.num_found, &reason) {
                (0, None) => ChallengeOutcome::Consistent,
                (0, Some(_)) => ChallengeOutcome::Incomplete,
                _ => ChallengeOutcome::Contradicted,
            };
            SegmentResult {
                differences: comparison.found,
                from_step: segment.start.step,
                num_differences: comparison.num_found,
                number: segment.number,
                outcome,
                reason,
                to_step: segment.end.step,
            }
        })
        .collect()
}

struct Comparison<'a> {
    evidence: &'a Evidence,
    found: Vec<ReplayDifference>,
    num_found: u64,
    record: &'a Record,
    /// In the class `operation_order_bounded`.
    tolerance: Option<&'a Tolerance>,
}

impl Comparison<'_> {
    /// Compares one segment; why it could not be compared in full.
    fn segment(&mut self, segment: &Segment, replayed: &ReplayedSegment) -> Option<String> {
        let (Some(start), Some(end)) =
            (self.record.boundary(segment.start.step), self.record.boundary(segment.end.step))
        else {
            return Some("the ledger has no state at one of its ends".to_owned());
        };
        if let Err(reason) = self.files(start) {
            return Some(reason);
        }
        if let Some(failure) = &replayed.failure {
            return Some(format!("the replay did not execute it: {failure}"));
        }
        let steps: Vec<u64> = replayed.steps.iter().map(|step| step.step).collect();
        if !steps.iter().copied().eq(segment.start.step + 1..=segment.end.step) {
            return Some(format!(
                "the replay has {} updates, and the segment has {}",
                steps.len(),
                segment.end.step - segment.start.step
            ));
        }
        for step in &replayed.steps {
            match self.record.steps.get(&step.step) {
                Some(recorded) => self.step(recorded, step),
                None => self.differ(step.step, (None, String::new()), &"no entry", &"an update"),
            }
        }
        match &replayed.end {
            Some(state) => self.end(end, state),
            None => Some("the replay does not say to which state it came".to_owned()),
        }
    }

    fn differ(
        &mut self,
        step: u64,
        (entry, place): (Option<u64>, String),
        recorded: &dyn Display,
        replayed: &dyn Display,
    ) {
        self.num_found += 1;
        if self.found.len() < MAX_LISTED {
            let (recorded, replayed) = (recorded.to_string(), replayed.to_string());
            self.found.push(ReplayDifference { entry, place, recorded, replayed, step });
        }
    }

    fn step(&mut self, recorded: &RecordedStep, replayed: &ReplayedStep) {
        let step = replayed.step;
        match &recorded.det {
            Some((entry, det)) => self.values(step, *entry, det, &json(&replayed.det)),
            None => self.differ(step, (None, String::new()), &"no step entry", &"an update"),
        }
        for (stream, (entry, det)) in &recorded.evaluations {
            match replayed.evaluations.iter().find(|evaluation| evaluation.stream == *stream) {
                Some(evaluation) => self.values(step, *entry, det, &json(evaluation)),
                None => self.differ(step, (Some(*entry), "/body/det".to_owned()), stream, &"no evaluation"),
            }
        }
        for evaluation in &replayed.evaluations {
            if !recorded.evaluations.contains_key(&evaluation.stream) {
                self.differ(step, (None, "eval".to_owned()), &"no evaluation", &evaluation.stream);
            }
        }
    }

    fn values(&mut self, step: u64, entry: u64, recorded: &Value, replayed: &Value) {
        let mut places = Vec::new();
        walk("/body/det", recorded, replayed, self.tolerance, &mut places);
        for (place, recorded, replayed) in places {
            self.differ(step, (Some(entry), place), &recorded, &replayed);
        }
    }

    /// The state behind the last update: digests on record, and the checkpoint's
    /// own files as far as they are there.
    fn end(&mut self, end: &Boundary, replayed: &ReplayedState) -> Option<String> {
        let step = end.state.step;
        let manifest = match self.evidence.checkpoint_manifest(&end.path, end.state.manifest) {
            Ok(manifest) => manifest,
            Err(reason) => return Some(reason),
        };
        if end.standing == Standing::Usable
            && let Err(reason) = self.files(end)
        {
            return Some(reason);
        }
        if let Some(tolerance) = self.tolerance {
            return self.distances(end, replayed, tolerance);
        }
        // How much of the next update a state holds is told by a file that a
        // retirement removes.
        let is_inside_unknown = end.standing != Standing::Usable
            && self.record.contract.checkpoints.mid_accumulation == MidAccumulation::SaveGradients;
        let is_compared = |class: StateClass| !(is_inside_unknown && is_moved_inside(class));
        let entry = end.state.entry;
        for (place, recorded) in end.classes.iter().enumerate().filter(|(_, known)| is_compared(known.class))
        {
            let found = replayed.classes.get(place);
            if found != Some(recorded) {
                let at = (Some(entry), format!("/body/det/classes/{place}"));
                let words = |digest: Option<&schemas::state::StateDigest>| match digest {
                    Some(digest) => format!(
                        "{} {}",
                        digest.class,
                        digest.digest.map_or("null".to_owned(), |d| d.to_string())
                    ),
                    None => "nothing".to_owned(),
                };
                self.differ(step, at, &words(Some(recorded)), &words(found));
            }
        }
        if replayed.classes.len() != end.classes.len() {
            let at = (Some(entry), "/body/det/classes".to_owned());
            self.differ(step, at, &end.classes.len(), &replayed.classes.len());
        }
        if !is_inside_unknown && replayed.state_root != end.state.state_root {
            let words = |root: Option<schemas::digest::Digest>| {
                root.map_or("none".to_owned(), |root| root.to_string())
            };
            let at = (Some(entry), "/body/det/state_root".to_owned());
            self.differ(step, at, &words(end.state.state_root), &words(replayed.state_root));
        }
        self.shards(end, &manifest, replayed, &is_compared);
        None
    }

    /// Every file that the manifest lists is one that the replay would have
    /// written, and the other way round.
    fn shards(
        &mut self,
        end: &Boundary,
        manifest: &CheckpointManifest,
        replayed: &ReplayedState,
        is_compared: &dyn Fn(StateClass) -> bool,
    ) {
        let step = end.state.step;
        let listed =
            manifest.classes.iter().flat_map(|of| of.shards.iter().map(move |shard| (of.class, shard)));
        let listed: Vec<_> = listed.filter(|(class, _)| is_compared(*class)).collect();
        for (class, shard) in &listed {
            let found = replayed.shards.iter().find(|one| one.class == *class && one.path == shard.path);
            let place = format!("{}/{}", end.path, shard.path);
            match found {
                Some(found) if found.digest == shard.digest => {}
                Some(found) => self.differ(step, (None, place), &shard.digest, &found.digest),
                None => self.differ(step, (None, place), &shard.digest, &"no such file"),
            }
        }
        for extra in replayed.shards.iter().filter(|shard| is_compared(shard.class)) {
            if !listed.iter().any(|(class, shard)| *class == extra.class && shard.path == extra.path) {
                let place = format!("{}/{}", end.path, extra.path);
                self.differ(step, (None, place), &"no such file", &extra.digest);
            }
        }
    }

    /// In the bounded class: classes are equal, or as near as the contract says.
    fn distances(
        &mut self,
        end: &Boundary,
        replayed: &ReplayedState,
        tolerance: &Tolerance,
    ) -> Option<String> {
        let step = end.state.step;
        for (place, recorded) in end.classes.iter().enumerate() {
            let found = replayed.classes.iter().find(|found| found.class == recorded.class);
            if found == Some(recorded) {
                continue;
            }
            let at = (Some(end.state.entry), format!("/body/det/classes/{place}"));
            let (Some(expected), Some(actual)) = (recorded.digest, found.and_then(|found| found.digest))
            else {
                self.differ(step, at, &recorded.class, &"not captured alike");
                continue;
            };
            let measured = replayed.distances.iter().find(|distance| distance.class == recorded.class);
            match measured {
                Some(measured) if measured.reference == expected && measured.resumed == actual => {
                    let distance = measured.distance.max_absolute_beyond_relative.0;
                    // A distance that is no number is not within a bound.
                    if distance.is_nan() || distance > tolerance.max_absolute {
                        let bound = format!("{} within {}", recorded.class, tolerance.max_absolute);
                        self.differ(step, at, &bound, &distance);
                    }
                }
                _ => {
                    return Some(format!(
                        "{} differs in bytes at step {step}, and the replay does not say how far: the checkpoint's files were not at hand",
                        recorded.class
                    ));
                }
            }
        }
        None
    }

    /// Every file of a checkpoint is the one that its entry commits to.
    fn files(&self, boundary: &Boundary) -> Result<(), String> {
        let manifest = self.evidence.checkpoint_manifest(&boundary.path, boundary.state.manifest)?;
        for shard in manifest.classes.iter().flat_map(|class| &class.shards) {
            let path = format!("{}/{}", boundary.path, shard.path);
            let measured =
                measure(&path, Some(shard.num_bytes), self.evidence).map_err(|error| describe(&error))?;
            if !measured.is(shard.digest, Some(shard.num_bytes)) {
                return Err(format!("{path} is {measured}, its manifest says {}", shard.digest));
            }
        }
        Ok(())
    }
}

/// Classes that stand behind the microbatches of an unfinished update.
const fn is_moved_inside(class: StateClass) -> bool {
    matches!(class, StateClass::AccumulatedGradients | StateClass::DataCursor | StateClass::RngCpu)
}

/// Places at which two documents differ, with both values.
fn walk(
    pointer: &str,
    recorded: &Value,
    replayed: &Value,
    tolerance: Option<&Tolerance>,
    found: &mut Vec<(String, String, String)>,
) {
    match (recorded, replayed) {
        (Value::Object(left), Value::Object(right)) if left.keys().eq(right.keys()) => {
            for (key, value) in left {
                if tolerance.is_some() && DIGESTS_OF_NUMBERS.contains(&key.as_str()) {
                    continue;
                }
                let other = right.get(key).unwrap_or(&Value::Null);
                walk(&format!("{pointer}/{key}"), value, other, tolerance, found);
            }
        }
        (Value::Array(left), Value::Array(right)) if left.len() == right.len() => {
            for (place, (value, other)) in left.iter().zip(right).enumerate() {
                walk(&format!("{pointer}/{place}"), value, other, tolerance, found);
            }
        }
        (left, right) if is_same(left, right, tolerance) => {}
        (left, right) => found.push((pointer.to_owned(), left.to_string(), right.to_string())),
    }
}

/// Floats are the same by their bits, or within the bounds; everything else by
/// value.
fn is_same(recorded: &Value, replayed: &Value, tolerance: Option<&Tolerance>) -> bool {
    match (recorded, replayed) {
        (Value::Number(left), Value::Number(right)) if left.is_f64() && right.is_f64() => {
            let (Some(left), Some(right)) = (left.as_f64(), right.as_f64()) else { return false };
            left.to_bits() == right.to_bits() || tolerance.is_some_and(|bounds| is_near(left, right, bounds))
        }
        (left, right) => left == right,
    }
}

fn is_near(left: f64, right: f64, bounds: &Tolerance) -> bool {
    let absolute = (left - right).abs();
    let magnitude = left.abs().max(right.abs());
    absolute <= bounds.max_absolute || magnitude > 0.0 && absolute / magnitude <= bounds.max_relative
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn differences(recorded: &Value, replayed: &Value, tolerance: Option<&Tolerance>) -> Vec<String> {
        let mut found = Vec::new();
        walk("", recorded, replayed, tolerance, &mut found);
        found.into_iter().map(|(place, _, _)| place).collect()
    }

    #[test]
    fn bitwise_is_by_bits_and_names_the_place() {
        let recorded = json!({"a": [1.5, 0.0], "b": {"c": 1, "d": "x"}, "e": null});
        assert_eq!(differences(&recorded, &recorded, None), [""; 0]);
        let replayed = json!({"a": [1.5, -0.0], "b": {"c": 2, "d": "x"}, "e": null});
        assert_eq!(differences(&recorded, &replayed, None), ["/a/1", "/b/c"]);
        for other in [json!({"a": 1}), json!([]), json!({"a": [1.5], "b": {"c": 1, "d": "x"}, "e": null})] {
            assert_eq!(differences(&recorded, &other, None).len(), 1, "{other}");
        }
    }

    #[test]
    fn bounds_hold_for_floats_and_for_nothing_else() {
        let bounds = Tolerance { max_absolute: 1e-6, max_relative: 1e-3 };
        let near = |recorded, replayed| differences(&recorded, &replayed, Some(&bounds)).is_empty();
        assert!(near(json!(100.0), json!(100.05)));
        assert!(near(json!(1e-9), json!(9e-9)));
        assert!(!near(json!(1.0), json!(1.01)));
        assert!(!near(json!(1), json!(2)));
        assert!(!near(json!("blake3:1"), json!("blake3:2")));
        assert!(!near(json!("Infinity"), json!(1.0)));
        assert!(near(json!({"state": 1, "model": "a"}), json!({"state": 2, "model": "b"})));
        assert!(!near(json!({"ids": "a"}), json!({"ids": "b"})));
    }
}
