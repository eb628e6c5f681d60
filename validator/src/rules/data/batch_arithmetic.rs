//! Microbatches, accumulation and workers multiply to the global batch.

use schemas::body::{Body, Credit};
use schemas::contract::Contract;
use schemas::entry::Entry;
use schemas::report::Route;

use crate::derive::batch;
use crate::evidence::Evidence;
use crate::frozen::Frozen;
use crate::rule::{At, Check, Outcome, Sink};
use crate::rules::common::declare_rule;

declare_rule!(
    /// `GL301`.
    BatchArithmetic,
    {
        code: "GL301",
        name: "batch-arithmetic",
        what: "The contract's global batch is microbatch times accumulation times workers, and every update was made from \
               accumulation times workers microbatches.",
        why: "The effective batch is part of the optimizer: a run with another one is another experiment, whatever it is called.",
        remedy: "Correct `batch` in a new contract; `ledger freeze` refuses one that does not multiply out.",
        reference: "schemas::contract::Batch; docs/FORMAT.md, \"Data order\"",
        gate: Route::RejectFrozenInputs,
    }
);

struct Arithmetic<'a> {
    contract: &'a Contract,
    num_checked: u64,
}

fn open(frozen: &Frozen) -> Box<dyn Check + '_> {
    Box::new(Arithmetic { contract: &frozen.contract, num_checked: 0 })
}

impl Check for Arithmetic<'_> {
    fn entry(&mut self, entry: &Entry, sink: &mut Sink) {
        let Body::Step(halves) = &entry.body else { return };
        self.num_checked += 1;
        let Credit::Backpropagation { num_microbatches, .. } = halves.det.credit else { return };
        let expected = batch::num_microbatches(&self.contract.batch);
        if u64::from(num_microbatches) != expected {
            let at = At::entry(entry.index, "/body/det/credit/backpropagation/num_microbatches");
            sink.rejected(
                at,
                "the update was made from another number of microbatches",
                expected,
                num_microbatches,
            );
        }
    }

    fn finish(&mut self, _: &Evidence, sink: &mut Sink) -> Outcome {
        let batch = &self.contract.batch;
        if !batch::reconciles(batch) {
            let (micro, accumulation, workers) =
                (batch.microbatch_examples, batch.accumulation, batch.data_parallel);
            sink.rejected(
                At::place("contract /batch"),
                "the batch arithmetic does not reconcile",
                format!("{micro} x {accumulation} x {workers}"),
                batch.global_examples,
            );
        }
        if batch.data_parallel != self.contract.topology.workers {
            let at = At::place("contract /batch/data_parallel");
            sink.rejected(
                at,
                "batch and topology have different workers",
                self.contract.topology.workers,
                batch.data_parallel,
            );
        }
        Outcome::Checked(self.num_checked + 1)
    }
}
