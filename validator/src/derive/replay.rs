//! What a run recorded of its steps up to each saved one, as one digest: the
//! lines that an uninterrupted trajectory of the same contract gives too
//! (`docs/FORMAT.md`, "Resume probes").
//!
//! Memory does not grow with the steps: lines are hashed as steps complete, and
//! the hash state is kept at saved steps only.

use std::collections::BTreeMap;

use schemas::body::{Body, Kind};
use schemas::digest::Digest;
use schemas::entry::Entry;
use sha2::{Digest as _, Sha256};

use super::lines;

/// Lines of one step by kind and stream: the update comes first, then
/// evaluations. There are few, so they are sorted when the step completes.
type Lines = Vec<((Kind, String), Vec<u8>)>;

/// Follows `step` and `eval` entries of the logical run.
#[derive(Debug, Clone, Default)]
pub struct Replay {
    /// Over all lines of the steps before `step`.
    hasher: Sha256,
    step: u64,
    lines: Lines,
    /// Space of a line that was hashed, for the next one.
    spare: Vec<u8>,
    /// At each saved step: over the steps before it, and its own lines.
    saved: BTreeMap<u64, (Sha256, Lines)>,
}

impl Replay {
    /// Takes one entry into account. `det` is its determined half as it is
    /// stored; it is written again where that is not at hand.
    pub fn entry(&mut self, entry: &Entry, det: Option<&[u8]>) {
        let stream = match &entry.body {
            Body::AttemptStart(halves) => return self.rewind(halves.det.from_step),
            Body::CheckpointDurablyCommitted(halves) => {
                self.advance(halves.det.step);
                self.saved.insert(halves.det.step, (self.hasher.clone(), self.lines.clone()));
                return;
            }
            Body::Step(_) => String::new(),
            Body::Eval(halves) => halves.det.stream.clone(),
            _ => return,
        };
        let step = entry.header.step.unwrap_or(0);
        self.advance(step);
        let kind = entry.body.kind();
        let mut line = std::mem::take(&mut self.spare);
        match det {
            Some(det) => lines::write(&mut line, kind, step, det),
            None => {
                let det = entry.body.det_json().unwrap_or_default();
                lines::write(&mut line, kind, step, det.as_bytes());
            }
        }
        let place = (kind, stream);
        match self.lines.iter_mut().find(|(other, _)| *other == place) {
            Some((_, earlier)) => *earlier = line,
            None => self.lines.push((place, line)),
        }
    }

    /// Over every line up to a saved step; `None` where no checkpoint of it was
    /// committed.
    #[must_use]
    pub fn up_to(&self, step: u64) -> Option<Digest> {
        let (mut hasher, mut lines) = self.saved.get(&step)?.clone();
        lines.sort();
        lines.iter().for_each(|(_, line)| hasher.update(line));
        Some(Digest::sha256(hasher.finalize().into()))
    }

    fn advance(&mut self, step: u64) {
        if step != self.step {
            self.lines.sort();
            for (_, line) in self.lines.drain(..) {
                self.hasher.update(&line);
                self.spare = line;
            }
            self.step = step;
        }
    }

    /// What a lost attempt recorded beyond the new one's beginning is replaced
    /// by the new one.
    fn rewind(&mut self, from_step: u64) {
        (self.hasher, self.lines) = self.saved.get(&from_step).cloned().unwrap_or_default();
        self.step = from_step;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{RunBuilder, honest_run};

    fn up_to(entries: &[Entry], step: u64) -> Option<Digest> {
        let (mut replay, mut of_bytes) = (Replay::default(), Replay::default());
        for entry in entries {
            replay.entry(entry, None);
            of_bytes.entry(entry, entry.body.det_json().ok().as_deref().map(str::as_bytes));
        }
        assert_eq!(replay.up_to(step), of_bytes.up_to(step));
        replay.up_to(step)
    }

    #[test]
    fn hashes_the_lines_of_steps_and_evaluations_in_order() {
        let run = honest_run();
        let mut lines: Vec<(u64, bool, String)> = Vec::new();
        for entry in &run.entries {
            let (step, kind) = (entry.header.step.unwrap_or(0), entry.body.kind());
            if matches!(kind, Kind::Step | Kind::Eval) && step <= 4 {
                let det = entry.body.det_json().expect("serialises");
                lines.push((step, kind == Kind::Eval, format!("{} {step} {det}\n", kind.name())));
            }
        }
        lines.sort();
        assert_eq!(lines.iter().filter(|line| !line.1).count(), 4);
        let text: String = lines.into_iter().map(|(_, _, line)| line).collect();
        let expected = Digest::sha256(Sha256::digest(text.as_bytes()).into());
        assert_eq!(up_to(&run.entries, 4), Some(expected));
        assert_eq!(up_to(&run.entries, 3), None, "nothing was saved at step 3");
        assert_ne!(up_to(&run.entries, 8), Some(expected));
    }

    #[test]
    fn a_run_with_a_crash_has_the_same_digests() {
        let interrupted = RunBuilder::new().crash_after_step(6).build();
        for step in [0, 4, 8] {
            assert!(up_to(&interrupted.entries, step).is_some());
            assert_eq!(up_to(&interrupted.entries, step), up_to(&honest_run().entries, step), "step {step}");
        }
    }
}
