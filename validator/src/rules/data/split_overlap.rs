//! No window of text is trained on and evaluated.

use std::collections::HashSet;

use schemas::report::Route;

use crate::frozen::Frozen;
use crate::rule::{At, Check, Outcome, unavailable};
use crate::rules::common::{at_end, declare_rule};

declare_rule!(
    /// `GL310`.
    SplitOverlap,
    {
        code: "GL310",
        name: "split-overlap",
        what: "Warns of val examples whose content is that of a train example, by their content ids, and notes train examples that \
               occur more than once.",
        why: "A val split that was trained on selects what was memorised; an example that is there twice is consumed twice as \
              often as an order over examples says.",
        remedy: "Remove the text from one of the splits, build the tables again and freeze a new contract.",
        reference: "docs/FORMAT.md, \"Examples\" and \"Evaluation, checkpoint and candidate steps\"",
        gate: Route::RejectSelectionLeakage,
    }
);

fn open(frozen: &Frozen) -> Box<dyn Check + '_> {
    let (train, val) = match (&frozen.train_examples, &frozen.val_examples) {
        (Ok(train), Ok(val)) => (train, val),
        (Err(reason), _) => return unavailable(format!("the train example table: {reason}")),
        (_, Err(reason)) => return unavailable(format!("the val example table: {reason}")),
    };
    at_end(move |_, sink| {
        let mut ids: HashSet<[u8; 32]> = HashSet::new();
        let (mut num_repeated, mut first_repeated) = (0u64, None);
        for (at, record) in (0u64..).zip(train.iter()) {
            if !ids.insert(record.id) {
                num_repeated += 1;
                first_repeated.get_or_insert(at);
            }
        }
        if let Some(first) = first_repeated {
            let at = At::place(format!("train example table, record {first}"));
            let message = "train examples occur more than once";
            sink.note(at, message, "each content once", format!("{num_repeated} repeat an earlier one"));
        }
        let (mut num_shared, mut first_shared) = (0u64, None);
        for (at, _) in (0u64..).zip(val.iter()).filter(|(_, record)| ids.contains(&record.id)) {
            num_shared += 1;
            first_shared.get_or_insert(at);
        }
        if let Some(first) = first_shared {
            let at = At::place(format!("val example table, record {first}"));
            let message = "val examples are train examples too";
            let actual = format!("{num_shared} of {}", val.num_examples());
            sink.warning(at, message, "none", actual);
        }
        Outcome::Checked(train.num_examples() + val.num_examples())
    })
}
