//! Only the val split selects.

use schemas::contract::{Contract, FaultKind, StoppingRule};
use schemas::data::Split;
use schemas::report::Route;

use crate::frozen::Frozen;
use crate::rule::{At, Check, Outcome, Sink};
use crate::rules::common::{at_end, declare_rule};

declare_rule!(
    /// `GL509`.
    SelectionSplit,
    {
        code: "GL509",
        name: "selection-split",
        what: "The streams that select, stop by patience or decide the quality target exist and are of the val split, with one \
               direction each, and no stream is of the qualification split.",
        why: "Selecting on training text rewards memory; selecting on the sealed set spends it before it is opened.",
        remedy: "Name a val stream in `selection`, `stopping` and `quality_target`, and freeze again.",
        reference: "docs/CONTRACT.md, \"SelectionRule\"",
        gate: Route::RejectSelectionLeakage,
    }
);

fn open(frozen: &Frozen) -> Box<dyn Check + '_> {
    let contract = &frozen.contract;
    at_end(move |_, sink| {
        let mut num_checked = 1;
        is_val(contract, "/selection/stream", &contract.selection.stream, sink);
        if let StoppingRule::Patience { stream, .. } = &contract.stopping {
            num_checked += 1;
            is_val(contract, "/stopping/stream", stream, sink);
        }
        if let Some(target) = &contract.quality_target {
            num_checked += 1;
            is_val(contract, "/quality_target/stream", &target.stream, sink);
        }
        for (at, stream) in contract.evaluation.streams.iter().enumerate() {
            num_checked += 1;
            let place = || At::place(format!("contract /evaluation/streams/{at}"));
            if stream.split == Split::Qualification {
                sink.rejected(place(), "a stream evaluates the sealed set", "train or val", "qualification");
            }
            if contract.evaluation.streams[..at].iter().any(|earlier| earlier.name == stream.name) {
                sink.rejected(place(), "two streams have one name", "distinct names", &stream.name);
            }
        }
        Outcome::Checked(num_checked)
    })
}

fn is_val(contract: &Contract, pointer: &str, name: &str, sink: &mut Sink) {
    let split =
        contract.evaluation.streams.iter().find(|stream| stream.name == name).map(|stream| stream.split);
    if split != Some(Split::Val) {
        let actual = split.map_or("no such stream", Split::name);
        sink.rejected(
            At::place(format!("contract {pointer}")).cause(FaultKind::ValidationLeakageInSelection),
            format!("stream {name} does not select"),
            "val",
            actual,
        );
    }
}
