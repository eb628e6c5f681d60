//! The optimizer's state at step 0 is empty.

use schemas::entry::Entry;
use schemas::report::Route;

use super::tensors::{OPTIMIZER_FILE, TensorFile};
use crate::evidence::Evidence;
use crate::frozen::Frozen;
use crate::rule::{At, Check, Outcome, Sink};
use crate::rules::common::{Checkpoints, declare_rule};

declare_rule!(
    /// `GL410`.
    InitialOptimizer,
    {
        code: "GL410",
        name: "initial-optimizer",
        what: "Every moment of the checkpoint at step 0 is zero.",
        why: "Moments of an earlier training are a warm start in disguise: they carry what was learned about the gradients.",
        remedy: "None for a finished run. Start the run from an empty optimizer.",
        reference: "schemas::policy_card::UpdateRule; docs/FORMAT.md, \"Checkpoint\"",
        gate: Route::RejectIdentity,
    }
);

#[derive(Default)]
struct Moments {
    checkpoints: Checkpoints,
}

fn open(_: &Frozen) -> Box<dyn Check + '_> {
    Box::new(Moments::default())
}

fn compare(evidence: &Evidence, folder: &str, sink: &mut Sink) -> Result<u64, String> {
    let mut file = TensorFile::open(evidence, &format!("{folder}/{OPTIMIZER_FILE}"))?;
    for tensor in file.header.tensors.clone() {
        let mut is_zero = true;
        file.read(&tensor, &mut |_, bytes| {
            is_zero = bytes.iter().all(|byte| *byte == 0);
            is_zero
        })?;
        if !is_zero {
            let at = At::place(format!("{} {}", file.path, tensor.info.name));
            sink.rejected(at, "a moment is not empty before the first update", "zeros", "other values");
        }
    }
    Ok(file.header.tensors.len() as u64)
}

impl Check for Moments {
    fn ignores_steps(&self) -> bool {
        true
    }

    fn entry(&mut self, entry: &Entry, _: &mut Sink) {
        self.checkpoints.entry(entry);
    }

    fn finish(&mut self, evidence: &Evidence, sink: &mut Sink) -> Outcome {
        let (mut num_checked, mut reason) = (0, "no checkpoint of step 0 was committed".to_owned());
        for (_, checkpoint, committed) in self.checkpoints.committed() {
            if checkpoint.step != 0 || checkpoint.is_unusable {
                continue;
            }
            match compare(evidence, &committed.path, sink) {
                Ok(count) => num_checked += count,
                Err(problem) => reason = problem,
            }
        }
        if num_checked == 0 { Outcome::NotEvaluated(reason) } else { Outcome::Checked(num_checked) }
    }
}
