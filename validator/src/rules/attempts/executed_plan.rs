//! The plan that ran is the plan that was frozen.

use schemas::body::{AttemptStartObs, Body};
use schemas::contract::{Contract, EquivalenceClass, FaultKind, PermittedRewrite};
use schemas::digest::Algorithm;
use schemas::entry::Entry;
use schemas::report::Route;

use crate::derive::shares;
use crate::evidence::Evidence;
use crate::frozen::Frozen;
use crate::rule::{At, Check, Outcome, Sink};
use crate::rules::common::declare_rule;

declare_rule!(
    /// `GL207`.
    ExecutedPlanRule,
    {
        code: "GL207",
        name: "executed-plan",
        what: "Every attempt ran the contract's compiler plan, compute dtype and number of workers (another that shares the \
               microbatches evenly where the contract permits `worker_count`, which a bitwise resume and streams of masks do not \
               allow), with the same number of threads throughout unless the contract permits `thread_count`, and without \
               diagnostic instrumentation, on a host that is named by SHA-256.",
        why: "CPU features, kernels, threads and dtypes decide bits; a bitwise claim needs the same plan. Instrumentation such \
              as fail points changes what runs.",
        remedy: "Run on hardware with the frozen features, with an ordinary build; or permit the rewrite in a new contract.",
        reference: "docs/CONTRACT.md, \"CompilerPlan\"; docs/FORMAT.md, \"Another number of workers\"; schemas::body::ExecutedPlan",
        gate: Route::RejectTopology,
    }
);

struct Plan<'a> {
    contract: &'a Contract,
    first_threads: Option<u32>,
    num_attempts: u64,
}

fn open(frozen: &Frozen) -> Box<dyn Check + '_> {
    Box::new(Plan { contract: &frozen.contract, first_threads: None, num_attempts: 0 })
}

impl Plan<'_> {
    fn permits_worker_count(&self) -> bool {
        self.contract.topology.permitted_rewrites.contains(&PermittedRewrite::WorkerCount)
    }

    /// Whether so many workers may run instead of the contract's.
    fn permits(&self, num_workers: u32) -> bool {
        self.permits_worker_count() && shares::range(&self.contract.batch, num_workers, 0).is_some()
    }

    /// A permission that the contract's own claims take back.
    fn check_permission(&self, sink: &mut Sink) {
        let at = || At::place("contract /topology/permitted_rewrites");
        let contract = self.contract;
        if !self.permits_worker_count() {
            return;
        }
        if contract.resume.class == EquivalenceClass::Bitwise {
            let message = "worker_count is permitted beside a bitwise resume";
            sink.rejected(at(), message, "a weaker class: the claim is order-bounded", "bitwise");
        }
        if !contract.dropout_draws.is_keyed() || contract.topology.workers < 2 {
            let message = "worker_count is permitted where another number cannot go on";
            let expected = "masks that are functions of coordinates, and several workers";
            sink.rejected(at(), message, expected, "a stream for each worker, or one worker");
        }
    }

    fn compare(&mut self, index: u64, obs: &AttemptStartObs, sink: &mut Sink) {
        let (contract, plan) = (self.contract, &obs.plan);
        let at = |field: &str| At::entry(index, format!("/body/obs/plan/{field}"));
        if obs.host.algorithm != Algorithm::Sha256 {
            let at = At::entry(index, "/body/obs/host");
            sink.rejected(at, "a host is named by another algorithm", "sha256", obs.host);
        }
        if plan.compiler != contract.plan {
            let (expected, actual) = (format!("{:?}", contract.plan), format!("{:?}", plan.compiler));
            sink.rejected(at("compiler"), "another compiler plan ran", expected, actual);
        }
        if plan.compute_dtype != contract.numerics.compute_dtype {
            let (expected, actual) = (contract.numerics.compute_dtype, plan.compute_dtype);
            sink.rejected(
                at("compute_dtype").cause(FaultKind::PrecisionPolicyChange),
                "another dtype computed",
                format!("{expected:?}"),
                format!("{actual:?}"),
            );
        }
        if plan.num_workers != contract.topology.workers && !self.permits(plan.num_workers) {
            sink.rejected(
                at("num_workers").cause(FaultKind::TopologyChange),
                "another number of workers ran",
                contract.topology.workers,
                plan.num_workers,
            );
        }
        if !plan.instrumentation.is_empty() {
            let message = "diagnostic instrumentation was compiled in";
            sink.rejected(at("instrumentation"), message, "none", plan.instrumentation.join(", "));
        }
        let first = *self.first_threads.get_or_insert(plan.num_threads);
        let permits = contract.topology.permitted_rewrites.contains(&PermittedRewrite::ThreadCount);
        if plan.num_threads != first && !permits {
            let message = "the number of threads changed, which the contract does not permit";
            sink.rejected(at("num_threads"), message, first, plan.num_threads);
        }
    }
}

impl Check for Plan<'_> {
    fn ignores_steps(&self) -> bool {
        true
    }

    fn entry(&mut self, entry: &Entry, sink: &mut Sink) {
        if let Body::AttemptStart(halves) = &entry.body {
            self.num_attempts += 1;
            self.compare(entry.index, &halves.obs, sink);
        }
    }

    fn finish(&mut self, _: &Evidence, sink: &mut Sink) -> Outcome {
        self.check_permission(sink);
        Outcome::Checked(self.num_attempts)
    }
}
