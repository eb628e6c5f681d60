//! What the contract says of code, plan, numerics and topology can be executed,
//! and does not contradict itself.

use schemas::contract::{
    Contract, CreditRule, Device, Dtype, EquivalenceClass, MidAccumulation, PermittedRewrite,
};
use schemas::digest::Algorithm;
use schemas::report::Route;

use crate::frozen::Frozen;
use crate::rule::Check;
use crate::rules::common::{at_end, declare_rule};
use crate::rules::terms::Terms;

declare_rule!(
    /// `GL222`.
    ExecutionTerms,
    {
        code: "GL222",
        name: "execution-terms",
        what: "The contract names code by SHA-256, features in order and once; kernels are not chosen by timing where the same bits \
               are claimed; parameters and sums of gradients are binary32, half precision and several workers are of the CPU, and \
               credit is backpropagation; detectors are off only beside a plan of faults; there is one learner, at most 64 workers, and a collective with a silence that can be \
               noticed exactly where there are several.",
        why: "A contract that contradicts itself, or asks for what the trainer does not execute, is kept by no run, whatever its \
              record says.",
        remedy: "Take `code`, `environment` and `plan` from `trainer identity --json`, correct the rest, and freeze again.",
        reference: "docs/CONTRACT.md, \"Numerics\", \"Topology\", \"Collective\" and \"CompilerPlan\"",
        gate: Route::RejectTopology,
    }
);

/// Most workers of this edition, which are processes of one host.
const MAX_WORKERS: u64 = 64;
/// Longest silence of a worker: an hour.
const MAX_TIMEOUT_MS: u64 = 3_600_000;
/// A floor above it is reached before the first step.
const MAX_FLOOR_BYTES: u64 = 1 << 50;

fn open(frozen: &Frozen) -> Box<dyn Check + '_> {
    let contract = &frozen.contract;
    at_end(move |_, sink| {
        let mut terms = Terms::new(sink);
        identity(contract, &mut terms);
        numerics(contract, &mut terms);
        topology(contract, &mut terms);
        let has_reason = contract.faults.detection.is_everywhere() || !contract.faults.plan.is_empty();
        let message = "the trainer's detectors are off, and no fault is planned that they would hide";
        terms.require(has_reason, "/faults/detection", message, "trainer_and_validator", "validator_alone");
        let floors = &contract.floors;
        terms.within(floors.free_disk_bytes, 0..=MAX_FLOOR_BYTES, "/floors/free_disk_bytes");
        terms.within(floors.free_memory_bytes, 0..=MAX_FLOOR_BYTES, "/floors/free_memory_bytes");
        terms.outcome()
    })
}

fn identity(contract: &Contract, terms: &mut Terms<'_>) {
    let (code, environment, plan) = (&contract.code, &contract.environment, &contract.plan);
    let is_sha256 = code.digest.algorithm == Algorithm::Sha256;
    terms.require(is_sha256, "/code/digest", "code is named by SHA-256", "sha256", code.digest);
    for (pointer, text) in [
        ("/code/package", &code.package),
        ("/code/version", &code.version),
        ("/environment/architecture", &environment.architecture),
        ("/environment/operating_system", &environment.operating_system),
        ("/environment/rustc", &environment.rustc),
        ("/plan/backend", &plan.backend),
    ] {
        terms.text(text, pointer);
    }
    for (pointer, list) in [("/code/features", &code.features), ("/plan/cpu_features", &plan.cpu_features)] {
        let is_sorted = list.is_sorted_by(|left, right| left < right);
        let message = "a list of features is not in order, or names one twice";
        terms.require(is_sorted, pointer, message, "alphabetical order", list.join(", "));
    }
    let is_bitwise = contract.numerics.determinism == EquivalenceClass::Bitwise;
    let message = "kernels are chosen by timing, and the same bits are claimed";
    terms.require(!(plan.autotune && is_bitwise), "/plan/autotune", message, "false", plan.autotune);
}

fn numerics(contract: &Contract, terms: &mut Terms<'_>) {
    let numerics = &contract.numerics;
    for (pointer, dtype) in [
        ("/numerics/accumulation_dtype", numerics.accumulation_dtype),
        ("/numerics/parameter_dtype", numerics.parameter_dtype),
    ] {
        let message = "parameters and sums of gradients have a dtype that nothing executes";
        terms.require(dtype == Dtype::F32, pointer, message, "f32", format!("{dtype:?}"));
    }
    let is_cpu = contract.plan.device == Device::Cpu;
    let message = "half precision is executed on the CPU alone";
    let (compute, device) = (numerics.compute_dtype, contract.plan.device);
    terms.require(
        is_cpu || compute == Dtype::F32,
        "/numerics/compute_dtype",
        message,
        "f32",
        format!("{compute:?} on {device:?}"),
    );
    let message = "the trainer of this edition has no other credit rule";
    let is_backpropagation = contract.credit == CreditRule::Backpropagation;
    terms.require(
        is_backpropagation,
        "/credit",
        message,
        "backpropagation",
        format!("{:?}", contract.credit),
    );
}

fn topology(contract: &Contract, terms: &mut Terms<'_>) {
    let topology = &contract.topology;
    let message = "the trainer of this edition has one learner";
    terms.require(topology.learners == 1, "/topology/learners", message, 1, topology.learners);
    terms.within(u64::from(topology.workers), 1..=MAX_WORKERS, "/topology/workers");
    let rewrites = &topology.permitted_rewrites;
    let is_once = rewrites.iter().enumerate().all(|(at, rewrite)| !rewrites[..at].contains(rewrite));
    let pointer = "/topology/permitted_rewrites";
    terms.require(is_once, pointer, "a rewrite is permitted twice", "each once", format!("{rewrites:?}"));
    let is_alone = topology.workers <= 1;
    let message = "workers that exchange nothing have a collective, or several have none";
    let (wanted, found) = (if is_alone { "none" } else { "a collective" }, &topology.collective);
    terms.require(found.is_none() == is_alone, "/topology/collective", message, wanted, format!("{found:?}"));
    let permits = rewrites.contains(&PermittedRewrite::WorkerCount);
    let message = "another number of workers is permitted where one worker has no collective";
    terms.require(!(permits && is_alone), pointer, message, "several workers", topology.workers);
    if let Some(collective) = &topology.collective {
        let at = |field: &str| format!("/topology/collective/{field}");
        let timeout_ms = u64::from(collective.timeout_ms);
        terms.within(timeout_ms, 1..=MAX_TIMEOUT_MS, &at("timeout_ms"));
        let most_ms = timeout_ms.saturating_sub(1).max(1);
        terms.within(u64::from(collective.heartbeat_ms), 1..=most_ms, &at("heartbeat_ms"));
    }
    if is_alone {
        return;
    }
    let device = contract.plan.device;
    let message = "there is no collective between devices";
    terms.require(device == Device::Cpu, "/plan/device", message, "cpu", format!("{device:?}"));
    let mid = contract.checkpoints.mid_accumulation;
    let message = "the sums of an unfinished update lie in several processes";
    terms.require(
        mid == MidAccumulation::RoundToBoundary,
        "/checkpoints/mid_accumulation",
        message,
        "round_to_boundary",
        format!("{mid:?}"),
    );
}
