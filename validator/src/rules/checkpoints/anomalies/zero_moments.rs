//! Moments are not empty after an update.

use schemas::entry::Entry;
use schemas::report::Route;

use super::saves::{Saves, zero_moments};
use crate::evidence::Evidence;
use crate::frozen::Frozen;
use crate::rule::{At, Check, Outcome, Sink};
use crate::rules::common::declare_rule;
use crate::rules::updates::tensors::OPTIMIZER_FILE;

declare_rule!(
    /// `GL642`.
    ZeroMoments,
    {
        code: "GL642",
        name: "zero-moments",
        what: "After an update whose gradient norm is above zero no whole moment tensor of the saved optimizer is zero. Where every \
               one is, it is rejected; where some are, it is a warning.",
        why: "An optimizer that was reset before saving leaves digests that are all in order, and a resume from it begins to learn \
              about the gradients again.",
        remedy: "Save the optimizer that updates with. A parameter whose gradient vanishes everywhere is not trained: look at it, or \
                 freeze it.",
        reference: "docs/FORMAT.md, \"Anomalies of saved state\"",
        gate: Route::RequestStateInventory,
    }
);

#[derive(Default)]
struct Moments {
    saves: Saves,
}

fn open(_: &Frozen) -> Box<dyn Check + '_> {
    Box::new(Moments::default())
}

impl Check for Moments {
    fn entry(&mut self, entry: &Entry, _: &mut Sink) {
        self.saves.entry(entry);
    }

    fn finish(&mut self, evidence: &Evidence, sink: &mut Sink) -> Outcome {
        let mut num_checked = 0;
        for save in self.saves.whole() {
            let (odd, num_moments) = match zero_moments(evidence, save) {
                Ok(found) => found,
                Err(reason) => return Outcome::NotEvaluated(reason),
            };
            num_checked += 1;
            let Some(first) = odd.first() else { continue };
            let at = At::place(format!("{}/{OPTIMIZER_FILE} {}", save.path, first.info.name));
            let (expected, actual) = ("moments of past gradients", "zeros");
            if odd.len() == num_moments {
                let message =
                    format!("every moment is zero at step {}, after updates with gradients", save.step);
                sink.rejected(at, message, expected, actual);
            } else {
                let message =
                    format!("{} of {num_moments} moments are zero at step {}", odd.len(), save.step);
                sink.warning(at, message, expected, actual);
            }
        }
        if num_checked == 0 {
            return Outcome::NotEvaluated("no checkpoint was validated and is whole".to_owned());
        }
        Outcome::Checked(num_checked)
    }
}
