//! Workers share an update as the contract says, and each gives new gradients.

use std::collections::VecDeque;

use schemas::body::{Body, Credit, StepDet, StepObs, WorkerShare};
use schemas::contract::{Contract, Device, FaultKind, MidAccumulation};
use schemas::digest::{Algorithm, Digest};
use schemas::entry::Entry;
use schemas::ids::WorkerId;
use schemas::parameters::{ParameterManifest, ParameterStatus};
use schemas::report::Route;

use crate::derive::order::Order;
use crate::derive::{batch, shares};
use crate::evidence::Evidence;
use crate::frozen::{ExampleTable, Frozen};
use crate::rule::{At, Check, Outcome, Sink};
use crate::rules::common::declare_rule;

declare_rule!(
    /// `GL214`.
    WorkerShares,
    {
        code: "GL214",
        name: "worker-shares",
        what: "Every update of an attempt that several workers executed, and no other, says who executed which microbatches: each \
               worker once, in order, with the part that the number of workers gives it, so that every microbatch is covered once; \
               its bytes add up, and the process that records sent none. No worker gives byte for byte the gradients that it or another \
               gave for an earlier update, or that another gives for this one over other examples, and no only process one norm over \
               two updates of other examples.",
        why: "A worker that is left out, counted twice or late with its gradients makes another update than the contract's, and the \
              loss hardly shows it.",
        remedy: "None for a finished run. Look at the worker that the message names, and let the exchange refuse what is not of its \
                 update.",
        reference: "docs/FORMAT.md, \"Workers\" and \"Shares\"; schemas::body::WorkerShare",
        gate: Route::RejectTopology,
    }
);

/// Updates of a worker that are remembered; what is sent late is young.
const MAX_REMEMBERED: usize = 64;

/// What the workers gave for an update.
struct Given {
    gradients: Vec<(WorkerId, Digest)>,
    /// Whether parameters changed since: before that the same gradients are no
    /// earlier ones.
    is_past: bool,
    step: u64,
}

/// What the only process made of the update before.
struct Norm {
    ids: Option<Digest>,
    norm: f64,
    step: u64,
}

struct Shares<'a> {
    contract: &'a Contract,
    given: VecDeque<Given>,
    norm: Option<Norm>,
    num_checked: u64,
    /// Elements of all trainable parameters; none of an unreadable manifest.
    num_elements: Option<u64>,
    num_workers: u32,
    order: Option<Order>,
    table: Option<&'a ExampleTable>,
}

fn open(frozen: &Frozen) -> Box<dyn Check + '_> {
    let table = frozen.train_examples.as_ref().ok();
    Box::new(Shares {
        contract: &frozen.contract,
        given: VecDeque::new(),
        norm: None,
        num_checked: 0,
        num_elements: frozen.parameters.as_ref().ok().and_then(num_elements),
        num_workers: frozen.contract.topology.workers,
        order: table.map(|table| Order::of(&frozen.contract, table.num_examples())),
        table,
    })
}

fn num_elements(manifest: &ParameterManifest) -> Option<u64> {
    let trainable =
        manifest.parameters.iter().filter(|p| p.status == ParameterStatus::Trainable && p.tied_to.is_none());
    trainable.map(|parameter| crate::derive::llama::num_elements(&parameter.shape)).sum()
}

/// A gradient norm with which gradients say something: finite and not zero.
fn norm_of(det: &StepDet) -> Option<f64> {
    let Credit::Backpropagation { gradient_norm, .. } = &det.credit else { return None };
    Some(gradient_norm.0).filter(|norm| norm.is_finite() && *norm > 0.0)
}

/// Whether an update changed parameters.
fn changes(det: &StepDet) -> bool {
    let is_skipped = det.overflow.as_ref().is_some_and(|overflow| overflow.skipped);
    !is_skipped && det.updates.iter().any(|update| update.learning_rate.0 > 0.0)
}

impl Shares<'_> {
    /// Whether shares are the parts of so many workers.
    fn are_of(&self, shares: &[WorkerShare], num_workers: u32) -> bool {
        shares.len() == num_workers as usize
            && (0..num_workers).zip(shares).all(|(worker, share)| {
                let range = Some((share.first_microbatch, share.num_microbatches));
                share.worker == WorkerId(worker)
                    && shares::range(&self.contract.batch, num_workers, worker) == range
            })
    }

    fn partition(&self, entry: &Entry, shares: &[WorkerShare], sink: &mut Sink) {
        let at = |pointer: &str| At::entry(entry.index, format!("/body/obs/shares{pointer}"));
        let expected = if self.num_workers > 1 { self.num_workers } else { 0 };
        let num_shares = u32::try_from(shares.len()).unwrap_or(u32::MAX);
        if num_shares != expected {
            // Without shares one process executed it, or nobody says who did.
            let executed = num_shares.max(1);
            let is_whole = shares.is_empty() || self.are_of(shares, executed);
            let message = if is_whole {
                format!("the update was executed by {executed} workers")
            } else {
                "the update has not one share of each worker".to_owned()
            };
            let at = at("").cause(is_whole.then_some(FaultKind::TopologyChange));
            sink.rejected(at, message, format!("{expected} shares"), num_shares);
            return;
        }
        for (worker, share) in (0..expected).zip(shares) {
            let range = shares::range(&self.contract.batch, expected, worker);
            let actual = (share.first_microbatch, share.num_microbatches);
            if share.worker != WorkerId(worker) {
                let at = at(&format!("/{worker}/worker"));
                sink.rejected(at, "shares are not in the order of workers", worker, share.worker);
            }
            if share.gradients.algorithm != Algorithm::Blake3 {
                let at = at(&format!("/{worker}/gradients"));
                sink.rejected(at, "gradients are named by another algorithm", "blake3", share.gradients);
            }
            if range != Some(actual) {
                let at = at(&format!("/{worker}/first_microbatch"));
                let (first, count) = range.unwrap_or_default();
                let message = format!("worker {worker} executed other microbatches");
                let expected = format!("{count} from {first}");
                sink.rejected(at, message, expected, format!("{} from {}", actual.1, actual.0));
            }
        }
    }

    fn traffic(&self, entry: &Entry, obs: &StepObs, sink: &mut Sink) {
        let sum = obs.shares.iter().fold(0u64, |sum, share| sum.saturating_add(share.bytes_sent));
        if sum != obs.bytes_sent {
            let at = At::entry(entry.index, "/body/obs/bytes_sent");
            sink.rejected(at, "the bytes sent are not those of the workers", sum, obs.bytes_sent);
        }
        for (place, share) in obs.shares.iter().enumerate() {
            let at = || At::entry(entry.index, format!("/body/obs/shares/{place}/bytes_sent"));
            if share.worker == WorkerId(0) {
                if share.bytes_sent != 0 {
                    let message = "the process that records sent something to itself";
                    sink.rejected(at(), message, 0, share.bytes_sent);
                }
                continue;
            }
            let num_blocks = u64::from(shares::num_blocks(share.first_microbatch, share.num_microbatches));
            let block = self.num_elements.map(|count| count.saturating_mul(4).saturating_add(4));
            let least = num_blocks.saturating_mul(block.unwrap_or(1));
            if share.bytes_sent < least {
                let message = format!("worker {} sent less than its gradients", share.worker);
                sink.rejected(at(), message, format!("at least {least}"), share.bytes_sent);
            }
        }
    }

    fn gradients(&mut self, entry: &Entry, det: &StepDet, shares: &[WorkerShare], sink: &mut Sink) {
        let step = entry.header.step.unwrap_or(0);
        let says = norm_of(det).is_some() && !shares.is_empty();
        for place in (0..shares.len()).filter(|_| says) {
            self.is_earlier(entry, shares, place, sink);
            self.is_copied(entry, shares, place, sink);
        }
        // A step that is executed again takes its own place.
        self.given.retain(|earlier| earlier.step != step);
        if says {
            let gradients = shares.iter().map(|share| (share.worker, share.gradients)).collect();
            self.given.push_back(Given { gradients, is_past: false, step });
        }
        if self.given.len() > MAX_REMEMBERED {
            self.given.pop_front();
        }
        if changes(det) {
            self.given.iter_mut().for_each(|given| given.is_past = true);
        }
    }

    /// Finds gradients that somebody gave for an earlier update.
    fn is_earlier(&self, entry: &Entry, shares: &[WorkerShare], place: usize, sink: &mut Sink) {
        let step = entry.header.step.unwrap_or(0);
        let Some(share) = shares.get(place) else { return };
        let past = self.given.iter().filter(|earlier| earlier.step != step && earlier.is_past);
        let mut all = past.flat_map(|earlier| earlier.gradients.iter().map(move |of| (earlier.step, of)));
        let Some((earlier, (giver, _))) = all.find(|(_, (_, gradients))| *gradients == share.gradients)
        else {
            return;
        };
        let at = At::entry(entry.index, format!("/body/obs/shares/{place}/gradients"));
        let message = if *giver == share.worker {
            format!("worker {giver} gave the gradients of step {earlier} again")
        } else {
            format!("worker {} gave the gradients of worker {giver} of step {earlier}", share.worker)
        };
        let at = at.cause(FaultKind::StaleOrDelayedGradient);
        sink.rejected(at, message, format!("gradients of step {step}"), share.gradients);
    }

    /// Finds gradients that another worker gives for the same update, over other
    /// examples.
    fn is_copied(&mut self, entry: &Entry, shares: &[WorkerShare], place: usize, sink: &mut Sink) {
        let step = entry.header.step.unwrap_or(0);
        let Some(share) = shares.get(place) else { return };
        let Some(other) = shares.iter().take(place).find(|other| other.gradients == share.gradients) else {
            return;
        };
        let at = At::entry(entry.index, format!("/body/obs/shares/{place}/gradients"));
        let message = format!("worker {} gave the gradients of worker {}", share.worker, other.worker);
        match self.examples(step, other).zip(self.examples(step, share)) {
            Some((one, another)) if one == another => {}
            Some(_) => sink.rejected(at, message, "gradients over its own examples", share.gradients),
            None => {
                sink.not_evaluated(at, message, "a table that says over which examples", share.gradients);
            }
        }
    }

    /// Identities of the examples of a share; `None` where they cannot be derived.
    fn examples(&mut self, step: u64, share: &WorkerShare) -> Option<Vec<[u8; 32]>> {
        let (order, table) = (self.order.as_mut()?, self.table?);
        // What is none of the update's was said of the shares themselves.
        let last = u64::from(share.first_microbatch) + u64::from(share.num_microbatches);
        if last > batch::num_microbatches(&self.contract.batch) {
            return None;
        }
        let each = u64::from(self.contract.batch.microbatch_examples);
        let first = batch::first_position(&self.contract.batch, step)?
            .checked_add(u64::from(share.first_microbatch).checked_mul(each)?)?;
        let end = first.checked_add(u64::from(share.num_microbatches).checked_mul(each)?)?;
        let mut ids = Vec::new();
        order.for_each(first..end, |index| ids.push(table.get(index).map(|record| record.id)))?;
        ids.into_iter().collect()
    }

    /// One process has no shares; its norm over other examples is another one.
    fn only_process(&mut self, entry: &Entry, det: &StepDet, sink: &mut Sink) {
        let step = entry.header.step.unwrap_or(0);
        let ids = det.draws.first().map(|draw| draw.ids);
        let Some(norm) = norm_of(det) else {
            self.norm = None;
            return;
        };
        let before = self.norm.take().filter(|before| before.step.saturating_add(1) == step);
        if let Some(before) = before
            && before.norm.to_bits() == norm.to_bits()
            && before.ids != ids
        {
            let at = At::entry(entry.index, "/body/det/credit/backpropagation/gradient_norm");
            let at = at.cause(FaultKind::StaleOrDelayedGradient);
            let message = format!("step {step} has the gradient norm of step {}", before.step);
            sink.rejected(at, message, "the norm of a gradient over its own examples", norm);
        }
        self.norm = Some(Norm { ids, norm, step });
    }

    /// What the contract has to have for several workers, and for one.
    fn check_contract(&self, sink: &mut Sink) {
        let contract = self.contract;
        let mut require = |is_met: bool, pointer: &str, expected: &str, actual: String| {
            if !is_met {
                let at = At::place(format!("contract {pointer}"));
                sink.rejected(at, "several workers cannot be judged by this contract", expected, actual);
            }
        };
        let (workers, collective) = (contract.topology.workers, &contract.topology.collective);
        let is_there = collective.is_some() == (workers > 1);
        let actual = format!("{workers} workers");
        require(is_there, "/topology/collective", "there exactly where there are several workers", actual);
        if let Some(collective) = collective {
            let every = collective.replica_digest_every_steps;
            let pointer = "/topology/collective/replica_digest_every_steps";
            require(every > 0, pointer, "at least 1", every.to_string());
            let is_below = collective.heartbeat_ms > 0 && collective.heartbeat_ms < collective.timeout_ms;
            let actual = format!("{} of {}", collective.heartbeat_ms, collective.timeout_ms);
            require(is_below, "/topology/collective/heartbeat_ms", "above 0, below timeout_ms", actual);
        }
        if workers > 1 {
            let saved = contract.checkpoints.mid_accumulation;
            let is_whole = saved == MidAccumulation::RoundToBoundary;
            let pointer = "/checkpoints/mid_accumulation";
            require(is_whole, pointer, "round_to_boundary", format!("{saved:?}"));
            let device = contract.plan.device;
            require(device == Device::Cpu, "/plan/device", "cpu", format!("{device:?}"));
        }
    }
}

impl Check for Shares<'_> {
    fn entry(&mut self, entry: &Entry, sink: &mut Sink) {
        match &entry.body {
            Body::AttemptStart(halves) => {
                self.num_workers = halves.obs.plan.num_workers;
                self.norm = None;
            }
            Body::Step(halves) => {
                self.num_checked += 1;
                self.partition(entry, &halves.obs.shares, sink);
                self.traffic(entry, &halves.obs, sink);
                self.gradients(entry, &halves.det, &halves.obs.shares, sink);
                if self.num_workers <= 1 {
                    self.only_process(entry, &halves.det, sink);
                }
            }
            _ => {}
        }
    }

    fn finish(&mut self, _: &Evidence, sink: &mut Sink) -> Outcome {
        self.check_contract(sink);
        Outcome::Checked(self.num_checked)
    }
}
