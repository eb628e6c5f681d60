//! Saved states that can hardly come from training.

use std::collections::BTreeSet;

use schemas::body::Body;
use schemas::digest::Digest;
use schemas::entry::Entry;
use schemas::ids::CheckpointId;
use schemas::report::Route;

use crate::evidence::Evidence;
use crate::frozen::Frozen;
use crate::rule::{At, Check, Outcome, Sink};
use crate::rules::common::{Checkpoints, declare_rule};
use crate::rules::updates::tensors::{OPTIMIZER_FILE, TensorFile};

declare_rule!(
    /// `GL609`.
    CheckpointAnomalies,
    {
        code: "GL609",
        name: "checkpoint-anomalies",
        what: "Warns where a later checkpoint has the very model of an earlier step, and where every moment of the optimizer is \
               zero although updates were made.",
        why: "Updates that change nothing, or an optimizer that was reset before saving, leave digests that are all in order.",
        remedy: "Look at rates, clipping and what is saved. A warning changes no verdict.",
        reference: "docs/FORMAT.md, \"Checkpoint\"",
        gate: Route::RequestStateInventory,
    }
);

#[derive(Default)]
struct Anomalies {
    checkpoints: Checkpoints,
    /// Steps that an overflow left out.
    skipped: BTreeSet<u64>,
}

impl Anomalies {
    /// Whether a step between two states was an update.
    fn has_updates(&self, earlier: u64, later: u64) -> bool {
        let is_between = |step: &&u64| **step > earlier && **step <= later;
        let num_skipped = self.skipped.iter().filter(is_between).count();
        later.saturating_sub(earlier) > num_skipped as u64
    }
}

fn open(_: &Frozen) -> Box<dyn Check + '_> {
    Box::new(Anomalies::default())
}

/// Whether every byte of every tensor is zero; `None` where it cannot be read,
/// which other rules report.
fn is_all_zero(evidence: &Evidence, path: &str) -> Option<bool> {
    let mut file = TensorFile::open(evidence, path).ok()?;
    let mut is_zero = true;
    for tensor in file.header.tensors.clone() {
        let read = file.read(&tensor, &mut |_, bytes| {
            is_zero = bytes.iter().all(|byte| *byte == 0);
            is_zero
        });
        read.ok()?;
        if !is_zero {
            return Some(false);
        }
    }
    Some(is_zero)
}

impl Check for Anomalies {
    fn entry(&mut self, entry: &Entry, _: &mut Sink) {
        if let (Body::Step(halves), Some(step)) = (&entry.body, entry.header.step) {
            let is_skipped = halves.det.overflow.as_ref().is_some_and(|overflow| overflow.skipped);
            if is_skipped {
                self.skipped.insert(step)
            } else {
                self.skipped.remove(&step)
            };
        }
        self.checkpoints.entry(entry);
    }

    fn finish(&mut self, evidence: &Evidence, sink: &mut Sink) -> Outcome {
        let mut by_step: Vec<(u64, &CheckpointId, Digest, u64)> = Vec::new();
        let mut num_checked = 0;
        for (id, checkpoint, committed) in self.checkpoints.committed() {
            num_checked += 1;
            by_step.push((checkpoint.step, id, committed.model, committed.index));
            let path = format!("{}/{OPTIMIZER_FILE}", committed.path);
            let has_updates = self.has_updates(0, checkpoint.step);
            if has_updates && !checkpoint.is_unusable && is_all_zero(evidence, &path) == Some(true) {
                let message = format!("every moment is zero after {} updates", checkpoint.step);
                sink.warning(At::place(path), message, "moments of past gradients", "zeros");
            }
        }
        by_step.sort();
        for pair in by_step.windows(2) {
            let ((earlier, _, before, _), (later, id, after, index)) = (&pair[0], &pair[1]);
            if earlier < later && before == after && self.has_updates(*earlier, *later) {
                let message = format!("{id} has the model of step {earlier}");
                sink.warning(
                    At::entry(*index, "/body/det/model"),
                    message,
                    "a model that updates changed",
                    after,
                );
            }
        }
        Outcome::Checked(num_checked)
    }
}
