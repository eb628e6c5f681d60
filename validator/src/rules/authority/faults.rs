//! Injected faults are the planned ones.

use schemas::body::Body;
use schemas::contract::{Contract, Recovery};
use schemas::entry::Entry;
use schemas::report::Route;

use crate::evidence::Evidence;
use crate::frozen::Frozen;
use crate::rule::{At, Check, Outcome, Sink};
use crate::rules::common::{declare_rule, or_null};

declare_rule!(
    /// `GL707`.
    Faults,
    {
        code: "GL707",
        name: "fault-policy",
        what: "Every injected fault is one of the contract's plan, at its step and phase, and acted once; every planned fault whose \
               step was passed was injected; where recovery is refused no attempt follows a fault.",
        why: "A planned fault that never fired shows nothing about recovery, and an unplanned one is an intervention.",
        remedy: "Plan faults in the contract. A run whose faults did not act must be repeated.",
        reference: "schemas::contract::FaultPolicy",
        gate: Route::RejectTopology,
    }
);

struct Policy<'a> {
    contract: &'a Contract,
    injected: Vec<bool>,
    last_step: u64,
    num_attempts: u64,
    num_entries: u64,
    struck: Option<u64>,
}

fn open(frozen: &Frozen) -> Box<dyn Check + '_> {
    let injected = vec![false; frozen.contract.faults.plan.len()];
    let contract = &frozen.contract;
    Box::new(Policy { contract, injected, last_step: 0, num_attempts: 0, num_entries: 0, struck: None })
}

impl Check for Policy<'_> {
    fn entry(&mut self, entry: &Entry, sink: &mut Sink) {
        self.num_entries += 1;
        match &entry.body {
            Body::FaultInjected(halves) => {
                let det = &halves.det;
                let at = || At::entry(entry.index, "/body/det");
                let index = usize::try_from(det.plan_index).unwrap_or(usize::MAX);
                let planned = self.contract.faults.plan.get(index);
                let header = &entry.header;
                let agrees = planned.is_some_and(|planned| {
                    planned.fault == det.fault
                        && planned.phase == det.phase
                        && header.step == Some(planned.step)
                        && planned.worker.is_none_or(|worker| header.worker.map(|id| id.0) == Some(worker))
                });
                if !agrees {
                    let (step, worker) = (or_null(header.step), or_null(header.worker));
                    let expected = format!("{planned:?}");
                    let actual = format!("{det:?} at step {step}, worker {worker}");
                    sink.rejected(at(), "a fault was injected that is not planned", expected, actual);
                }
                if let Some(injected) = self.injected.get_mut(index)
                    && std::mem::replace(injected, true)
                {
                    sink.rejected(at(), "a planned fault was injected twice", "once", "again");
                }
            }
            Body::FaultObserved(_) => self.struck = Some(entry.index),
            Body::AttemptStart(_) => {
                self.num_attempts += 1;
                if self.contract.faults.recovery == Recovery::Refuse && self.num_attempts > 1 {
                    let actual =
                        self.struck.map_or("another attempt".to_owned(), |at| format!("after entry {at}"));
                    let at = At::entry(entry.index, "");
                    sink.rejected(at, "the recovery policy refuses to go on", "no further attempt", actual);
                }
            }
            Body::Step(_) => self.last_step = self.last_step.max(entry.header.step.unwrap_or(0)),
            _ => {}
        }
    }

    fn finish(&mut self, _: &Evidence, sink: &mut Sink) -> Outcome {
        for (index, planned) in self.contract.faults.plan.iter().enumerate() {
            if planned.step <= self.last_step && !self.injected[index] {
                let at = At::place(format!("contract /faults/plan/{index}"));
                sink.rejected(
                    at,
                    "a planned fault did not act",
                    format!("at step {}", planned.step),
                    "no fault.injected",
                );
            }
        }
        Outcome::Checked(self.num_entries)
    }
}
