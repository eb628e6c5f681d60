//! Updates change what is saved.

use schemas::entry::Entry;
use schemas::report::Route;
use schemas::state::StateClass;

use super::saves::Saves;
use crate::evidence::Evidence;
use crate::frozen::Frozen;
use crate::rule::{At, Check, Outcome, Sink};
use crate::rules::common::declare_rule;

declare_rule!(
    /// `GL643`.
    UnchangedState,
    {
        code: "GL643",
        name: "unchanged-state",
        what: "A checkpoint does not have the model of the one before it in its attempt after an update at a rate above zero, nor its \
               optimizer after one with a gradient norm above zero. Where the record itself says that it moved (an update norm above \
               zero, a gradient for moments), it is rejected; else it is a warning.",
        why: "Updates that change nothing, or a save that wrote an older copy, leave digests that are all in order.",
        remedy: "Look at rates, clipping, and which copy is saved.",
        reference: "docs/FORMAT.md, \"Anomalies of saved state\"",
        gate: Route::RequestStateInventory,
    }
);

#[derive(Default)]
struct Unchanged {
    saves: Saves,
}

fn open(_: &Frozen) -> Box<dyn Check + '_> {
    Box::new(Unchanged::default())
}

impl Check for Unchanged {
    fn entry(&mut self, entry: &Entry, _: &mut Sink) {
        self.saves.entry(entry);
    }

    fn finish(&mut self, _: &Evidence, sink: &mut Sink) -> Outcome {
        for save in &self.saves.all {
            for class in save.unchanged() {
                let at = At::entry(save.index, "/body/det/classes");
                let message = format!("{} has the {class} of the checkpoint before it", save.checkpoint);
                let expected = format!("a {class} that updates changed");
                // Moments of a gradient move whether or not parameters do.
                if class == StateClass::Optimizer || save.between.has_moved {
                    sink.rejected(at, message, expected, "the same digest");
                } else {
                    sink.warning(at, message, expected, "the same digest");
                }
            }
        }
        match self.saves.all.len() as u64 {
            0 => Outcome::NotEvaluated("no checkpoint was committed".to_owned()),
            num_checked => Outcome::Checked(num_checked),
        }
    }
}
