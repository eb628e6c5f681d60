//! The projection of a run: one digest over what the contract determines,
//! equal for an exact replay (`docs/FORMAT.md`, "Projection").
//!
//! Memory does not grow with the steps: lines are hashed as steps complete, many
//! at a time, since BLAKE3 takes long inputs several times as fast as short ones.
//! The hash state is kept at saved steps only, because a later attempt can begin
//! nowhere else.

use std::collections::BTreeMap;

use schemas::body::{Body, Kind};
use schemas::contract::{Contract, MidAccumulation};
use schemas::digest::Digest;
use schemas::entry::Entry;

use super::lines;

/// Place of a line within its step: kind (in the order of the format page),
/// then stream.
type Place = (u8, String);

/// Lines of one step; a step has few, so they are sorted when it completes.
type Lines = Vec<(Place, Vec<u8>)>;

/// Bytes of lines that are hashed together.
const HASHED_TOGETHER_BYTES: usize = 64 << 10;

/// Computes the projection in one pass.
#[derive(Debug, Clone, Default)]
pub struct Projection {
    /// Over the lines of the steps before `step`, but for those that wait.
    hasher: blake3::Hasher,
    /// Lines that wait to be hashed together.
    waiting: Vec<u8>,
    step: u64,
    lines: Lines,
    /// Space of a line that was hashed, for the next one.
    spare: Vec<u8>,
    /// State at the beginning of each saved step, and that step's lines.
    saved: BTreeMap<u64, (blake3::Hasher, Lines)>,
    /// Whether an attempt may save where it ends, so that which steps are saved,
    /// and where, is not determined.
    saves_at_end: bool,
}

impl Projection {
    /// A projection of nothing.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes one entry into account; others than the three kinds are ignored.
    pub fn entry(&mut self, entry: &Entry) {
        if let Some(det) = Self::is_projected(entry).then(|| entry.body.det_json().ok()).flatten() {
            self.stored(entry, det.as_bytes());
        } else {
            self.stored(entry, &[]);
        }
    }

    fn is_projected(entry: &Entry) -> bool {
        matches!(entry.body.kind(), Kind::Step | Kind::Eval | Kind::CheckpointDurablyCommitted)
    }

    /// As [`Projection::entry`], with the canonical bytes of the entry's
    /// determined half, so that they need not be written again.
    pub fn stored(&mut self, entry: &Entry, det: &[u8]) {
        let (order, step, stream) = match &entry.body {
            Body::ContractFrozen(halves) => {
                let contract = serde_json::from_str::<Contract>(&halves.det.contract).ok();
                let rule = contract.map(|contract| contract.checkpoints.mid_accumulation);
                self.saves_at_end = rule == Some(MidAccumulation::SaveGradients);
                return;
            }
            Body::AttemptStart(halves) => return self.rewind(halves.det.from_step),
            Body::Step(_) => (0, entry.header.step.unwrap_or(0), String::new()),
            Body::Eval(halves) => (1, entry.header.step.unwrap_or(0), halves.det.stream.clone()),
            Body::CheckpointDurablyCommitted(halves) => (2, halves.det.step, String::new()),
            _ => return,
        };
        if step != self.step {
            self.advance(step);
        }
        let kind = entry.body.kind();
        if kind == Kind::CheckpointDurablyCommitted && self.saves_at_end {
            self.save(step);
            return;
        }
        let mut line = std::mem::take(&mut self.spare);
        lines::write(&mut line, kind, step, det);
        let place = (order, stream);
        match self.lines.iter_mut().find(|(other, _)| *other == place) {
            Some((_, earlier)) => *earlier = line,
            None => self.lines.push((place, line)),
        }
        if kind == Kind::CheckpointDurablyCommitted {
            self.save(step);
        }
    }

    fn save(&mut self, step: u64) {
        self.hash_waiting();
        self.saved.insert(step, (self.hasher.clone(), self.lines.clone()));
    }

    fn hash_waiting(&mut self) {
        self.hasher.update(&self.waiting);
        self.waiting.clear();
    }

    /// The digest of the logical run.
    #[must_use]
    pub fn finish(mut self) -> Digest {
        self.advance(u64::MAX);
        self.hash_waiting();
        Digest::blake3(self.hasher.finalize().into())
    }

    fn advance(&mut self, step: u64) {
        self.lines.sort();
        for (_, line) in self.lines.drain(..) {
            self.waiting.extend_from_slice(&line);
            self.spare = line;
        }
        if self.waiting.len() >= HASHED_TOGETHER_BYTES {
            self.hash_waiting();
        }
        self.step = step;
    }

    /// What a lost attempt recorded beyond the new one's beginning is replaced
    /// by the new one.
    fn rewind(&mut self, from_step: u64) {
        let (hasher, lines) = self.saved.get(&from_step).cloned().unwrap_or_default();
        self.hasher = hasher;
        self.waiting.clear();
        self.lines = lines;
        self.step = from_step;
        // At the last number of all there is nothing beyond.
        if let Some(next) = from_step.checked_add(1) {
            self.saved.split_off(&next);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{RunBuilder, honest_run};

    fn digest(entries: &[Entry]) -> Digest {
        let mut projection = Projection::new();
        entries.iter().for_each(|entry| projection.entry(entry));
        projection.finish()
    }

    #[test]
    fn hashes_the_lines_in_the_documented_order() {
        let run = honest_run();
        let mut lines: Vec<(u64, u8, String)> = Vec::new();
        for entry in &run.entries {
            let order = match entry.body.kind() {
                Kind::Step => 0,
                Kind::Eval => 1,
                Kind::CheckpointDurablyCommitted => 2,
                _ => continue,
            };
            let step = entry.header.step.expect("these kinds have a step");
            let det = entry.body.det_json().expect("serialises");
            lines.push((step, order, format!("{} {step} {det}\n", entry.body.kind().name())));
        }
        lines.sort();
        let text: String = lines.into_iter().map(|(_, _, line)| line).collect();
        assert_eq!(digest(&run.entries).bytes, *blake3::hash(text.as_bytes()).as_bytes());
    }

    #[test]
    fn the_largest_numbers_are_answered() {
        let mut run = RunBuilder::new().crash_after_step(5).build();
        run.change(Kind::AttemptStart, 1, |entry| {
            let Body::AttemptStart(halves) = &mut entry.body else { panic!("an attempt begins") };
            halves.det.from_step = u64::MAX;
        });
        run.change(Kind::Step, 1, |entry| entry.header.step = Some(u64::MAX));
        assert_ne!(digest(&run.entries), digest(&honest_run().entries));
    }

    #[test]
    fn a_replay_with_a_crash_has_the_same_projection() {
        let interrupted = RunBuilder::new().crash_after_step(5).build();
        assert!(interrupted.entries.len() > honest_run().entries.len());
        assert_eq!(digest(&interrupted.entries), digest(&honest_run().entries));
        let mut changed = honest_run();
        let body = changed.entries.iter_mut().find_map(|entry| match &mut entry.body {
            Body::Eval(halves) => Some(halves),
            _ => None,
        });
        body.expect("there is an evaluation").det.num_tokens += 1;
        assert_ne!(digest(&changed.entries), digest(&honest_run().entries));
    }
}
