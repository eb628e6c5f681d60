//! What people and programs said went wrong is shown.

use schemas::body::Body;
use schemas::entry::Entry;
use schemas::report::Route;

use crate::evidence::Evidence;
use crate::frozen::Frozen;
use crate::rule::{At, Check, Outcome, Sink};
use crate::rules::common::declare_rule;

declare_rule!(
    /// `GL708`.
    Interventions,
    {
        code: "GL708",
        name: "interventions",
        what: "Shows every intervention and anomaly that the run recorded, and that an amendment names an earlier entry.",
        why: "A person who changed something during the run changed the experiment; the reader must not have to search for it.",
        remedy: "Judge whether the intervention is within what the contract allows. A warning changes no verdict.",
        reference: "docs/FORMAT.md, \"Order of entries\"; schemas::body (intervention, anomaly, amendment)",
        gate: Route::RejectFrozenInputs,
    }
);

#[derive(Default)]
struct Shown {
    num_entries: u64,
}

fn open(_: &Frozen) -> Box<dyn Check + '_> {
    Box::new(Shown::default())
}

impl Check for Shown {
    fn entry(&mut self, entry: &Entry, sink: &mut Sink) {
        self.num_entries += 1;
        let at = || At::entry(entry.index, "/body");
        match &entry.body {
            Body::Intervention(halves) => {
                let actual = format!("{}: {}", halves.det.action, halves.obs.reason);
                sink.warning(at(), "a person intervened in the run", "no intervention", actual);
            }
            Body::Anomaly(halves) => {
                let actual = format!("{}: {}", halves.det.name, halves.obs.description);
                sink.warning(at(), "the run recorded an anomaly", "none", actual);
            }
            Body::Amendment(halves) if halves.det.amends >= entry.index => {
                let at = At::entry(entry.index, "/body/det/amends");
                let expected = format!("below {}", entry.index);
                sink.rejected(
                    at,
                    "an amendment corrects an entry that does not precede it",
                    expected,
                    halves.det.amends,
                );
            }
            _ => {}
        }
    }

    fn finish(&mut self, _: &Evidence, _: &mut Sink) -> Outcome {
        Outcome::Checked(self.num_entries)
    }
}
