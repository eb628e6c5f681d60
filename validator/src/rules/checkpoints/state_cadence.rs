//! State digests of steps, at the frozen cadence.

use schemas::body::{Body, StepDet};
use schemas::contract::{Contract, MidAccumulation};
use schemas::digest::Digest;
use schemas::entry::Entry;
use schemas::report::Route;
use schemas::state::{StateClass, StateDigest};

use crate::derive::state_json;
use crate::evidence::Evidence;
use crate::frozen::{ExampleTable, Frozen};
use crate::rule::{At, Check, Outcome, Sink};
use crate::rules::common::declare_rule;

declare_rule!(
    /// `GL608`.
    StateCadence,
    {
        code: "GL608",
        name: "state-cadence",
        what: "Steps carry state digests exactly at multiples of the contract's cadence, of the contract's classes in order; those \
               of cursor and topology are the ones that the step determines, and a checkpoint of the same step has the same, \
               but for what stands inside of the update that follows.",
        why: "Digests between checkpoints place the first step at which two executions part.",
        remedy: "None for a finished run. Take the digests at the frozen cadence.",
        reference: "schemas::body::StepDet; docs/FORMAT.md, \"State digests\"",
        gate: Route::RejectResumeDrift,
    }
);

struct Cadence<'a> {
    contract: &'a Contract,
    /// Digests of the current step, with its entry.
    current: Option<(u64, u64, Vec<StateDigest>)>,
    num_checked: u64,
    num_examples: Option<u64>,
    /// Of the running attempt.
    num_workers: u32,
}

fn open(frozen: &Frozen) -> Box<dyn Check + '_> {
    Box::new(Cadence {
        contract: &frozen.contract,
        current: None,
        num_checked: 0,
        num_examples: frozen.train_examples.as_ref().ok().map(ExampleTable::num_examples),
        num_workers: frozen.contract.topology.workers,
    })
}

fn shard_digest(name: &str, text: &[u8]) -> Digest {
    state_json::class_digest([(name, &Digest::blake3(*blake3::hash(text).as_bytes()))])
}

impl Cadence<'_> {
    fn step(&mut self, entry: &Entry, det: &StepDet, sink: &mut Sink) {
        let step = entry.header.step.unwrap_or(0);
        let at = || At::entry(entry.index, "/body/det/state");
        self.current = None;
        let is_due = self
            .contract
            .state_digest_every_steps
            .is_some_and(|every| every > 0 && step.is_multiple_of(every));
        let Some(state) = &det.state else {
            if is_due {
                sink.rejected(
                    at(),
                    format!("step {step} has no state digests"),
                    "digests of every class",
                    "null",
                );
            }
            return;
        };
        if !is_due {
            sink.rejected(at(), format!("step {step} has state digests that are not due"), "null", "digests");
        }
        let declared = &self.contract.state_classes;
        let agrees = state.len() == declared.len()
            && state.iter().zip(declared).all(|(digest, declaration)| {
                digest.class == declaration.class
                    && digest.digest.is_some() == declaration.not_applicable.is_none()
            });
        if !agrees {
            sink.rejected(
                at(),
                "the digests are of other classes",
                "the contract's classes",
                format!("{state:?}"),
            );
        }
        self.derivable(entry.index, step, det, state, sink);
        self.current = Some((step, entry.index, state.clone()));
    }

    /// Digests that a checkpoint of the step shares, which may stand inside of
    /// the update that follows.
    fn of_boundary(&self, state: &[StateDigest]) -> Vec<StateDigest> {
        let is_moved = |class| {
            matches!(class, StateClass::AccumulatedGradients | StateClass::DataCursor | StateClass::RngCpu)
        };
        let is_inside = self.contract.checkpoints.mid_accumulation == MidAccumulation::SaveGradients;
        let shared = state.iter().filter(|digest| !(is_inside && is_moved(digest.class)));
        shared.cloned().collect()
    }

    fn derivable(&self, index: u64, step: u64, det: &StepDet, state: &[StateDigest], sink: &mut Sink) {
        let cursor = self
            .num_examples
            .and_then(|count| state_json::data_cursor(self.contract, count, step, det.counters.tokens))
            .map(|text| (StateClass::DataCursor, shard_digest("data_cursor.json", &text)));
        let topology = state_json::topology(self.contract, self.num_workers)
            .map(|text| (StateClass::Topology, shard_digest("topology.json", &text)));
        for (class, expected) in cursor.into_iter().chain(topology) {
            let Some(actual) =
                state.iter().find(|digest| digest.class == class).and_then(|digest| digest.digest)
            else {
                continue;
            };
            if actual != expected {
                let at = At::entry(index, "/body/det/state");
                sink.rejected(
                    at,
                    format!("{class} at step {step} is not what the step determines"),
                    expected,
                    actual,
                );
            }
        }
    }
}

impl Check for Cadence<'_> {
    fn entry(&mut self, entry: &Entry, sink: &mut Sink) {
        match &entry.body {
            Body::AttemptStart(halves) => self.num_workers = halves.obs.plan.num_workers,
            Body::Step(halves) => {
                self.num_checked += 1;
                self.step(entry, &halves.det, sink);
            }
            Body::CheckpointDurablyCommitted(halves) => {
                if let Some((step, index, state)) = &self.current
                    && *step == halves.det.step
                    && self.of_boundary(state) != self.of_boundary(&halves.det.classes)
                {
                    let at = At::entry(entry.index, "/body/det/classes");
                    let message =
                        format!("the checkpoint of step {step} differs from the step's own digests");
                    sink.rejected(at, message, format!("the digests of entry {index}"), "others");
                }
            }
            _ => {}
        }
    }

    fn finish(&mut self, _: &Evidence, _: &mut Sink) -> Outcome {
        Outcome::Checked(self.num_checked)
    }
}
