//! Each update drew the positions that its step number determines.

use schemas::report::Route;

use crate::derive::batch;
use crate::derive::order::UPDATE_STREAM;
use crate::derive::shift::Shift;
use crate::frozen::Frozen;
use crate::rule::{At, Check, unavailable};
use crate::rules::common::{declare_rule, each_step};

declare_rule!(
    /// `GL302`.
    DrawPositions,
    {
        code: "GL302",
        name: "draw-positions",
        what: "Every step has one draw, of stream `train` for `update`, whose ranges are the global positions (t-1)B to tB split at \
               epoch ends.",
        why: "Positions that follow from the step alone cannot be skipped or rewound by a crash, and need no trust in a sampler.",
        remedy: "None for a finished run. A trainer whose cursor went wrong must be repaired and the run repeated.",
        reference: "docs/FORMAT.md, \"Data order\"",
        gate: Route::RejectFrozenInputs,
    }
);

fn open(frozen: &Frozen) -> Box<dyn Check + '_> {
    let num_examples = match &frozen.train_examples {
        Ok(table) => table.num_examples(),
        Err(reason) => return unavailable(format!("the train example table: {reason}")),
    };
    let batch = &frozen.contract.batch;
    each_step(move |facts, sink| {
        let index = facts.entry.index;
        let [draw] = facts.det.draws.as_slice() else {
            let at = At::entry(index, "/body/det/draws");
            sink.rejected(at, "an update has one draw", 1, facts.det.draws.len());
            return;
        };
        if draw.purpose != "update" || draw.stream != UPDATE_STREAM {
            let actual = format!("{} of {}", draw.purpose, draw.stream);
            sink.rejected(
                At::entry(index, "/body/det/draws/0"),
                "the draw is of another stream",
                "update of train",
                actual,
            );
        }
        let expected = batch::ranges(batch, facts.step, num_examples);
        if expected.as_ref() != Some(&draw.ranges) {
            let shift = Shift::of_ranges(batch, facts.step, num_examples, &draw.ranges);
            let at = At::entry(index, "/body/det/draws/0/ranges").cause(shift.map(Shift::cause));
            let message = match shift {
                Some(shift) => format!("step {} drew its examples {shift}", facts.step),
                None => format!("step {} drew other positions", facts.step),
            };
            sink.rejected(
                at,
                message,
                format!("{:?}", expected.unwrap_or_default()),
                format!("{:?}", draw.ranges),
            );
        }
    })
}
