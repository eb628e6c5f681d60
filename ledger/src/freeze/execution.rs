//! How the contract is executed: code, environment, plan, numerics, topology,
//! floors, faults, durability, credit, resume.

use schemas::contract::{
    Architecture, Contract, CreditRule, Device, Dtype, EquivalenceClass, LossScaler, Tolerance,
};
use schemas::digest::Algorithm;

use super::model::least_memory_bytes;
use super::problem::Problems;

/// Bytes that no machine has: a floor above it would end every run at once.
const MAX_FLOOR_BYTES: u64 = 1 << 50;
/// Longest time that entries may wait for the disk.
const MAX_UNSYNCED_MS: u32 = 60_000;
/// Most steps that may wait for the disk.
const MAX_UNSYNCED_STEPS: u32 = 10_000;
/// Relative difference at which a value may be anything of its own size.
const VACUOUS_RELATIVE: f64 = 1.0;
/// Absolute difference that no parameter of a trained model exceeds by
/// accident: weights start near 0.02 and stay below a few units.
const VACUOUS_ABSOLUTE: f64 = 1.0;

pub(super) fn check(contract: &Contract, is_shape_possible: bool, num_frozen: u64, problems: &mut Problems) {
    check_identity(contract, problems);
    check_numerics(contract, problems);
    check_topology(contract, problems);
    check_resume(contract, problems);
    check_durability(contract, problems);
    check_faults(contract, problems);
    let floors = [
        ("/floors/free_disk_bytes", contract.floors.free_disk_bytes),
        ("/floors/free_memory_bytes", contract.floors.free_memory_bytes),
    ];
    for (pointer, bytes) in floors {
        let message = format!("is {bytes}; expected at most {MAX_FLOOR_BYTES}");
        problems.require(
            bytes <= MAX_FLOOR_BYTES,
            pointer,
            message,
            "the run would end before its first step",
        );
    }
    problems.require(
        contract.credit == CreditRule::Backpropagation,
        "/credit/rule",
        "is \"evolution\"; expected \"backpropagation\"",
        "the trainer of this edition has no other credit rule yet",
    );
    let Architecture::LlamaDecoder(decoder) = &contract.architecture;
    if is_shape_possible {
        super::workers::check_traffic(contract, decoder, num_frozen, problems);
        let least = least_memory_bytes(decoder, num_frozen);
        problems.require(
            contract.expected.memory_bytes >= least,
            "/expected/memory_bytes",
            format!(
                "is {}; parameters, gradients and moments alone take {least}",
                contract.expected.memory_bytes
            ),
            "measure a short run, or allow for activations on top",
        );
    }
}

fn check_identity(contract: &Contract, problems: &mut Problems) {
    let see = "take the block that `trainer identity --json` prints";
    let code = &contract.code;
    problems.require(
        code.digest.algorithm == Algorithm::Sha256,
        "/code/digest",
        format!("is {}; expected a SHA-256 digest", code.digest),
        see,
    );
    problems.require_text(&code.package, "/code/package");
    problems.require_text(&code.version, "/code/version");
    require_sorted(&code.features, "/code/features", problems);
    problems.require_text(&contract.environment.architecture, "/environment/architecture");
    problems.require_text(&contract.environment.operating_system, "/environment/operating_system");
    problems.require_text(&contract.environment.rustc, "/environment/rustc");
    problems.require_text(&contract.plan.backend, "/plan/backend");
    require_sorted(&contract.plan.cpu_features, "/plan/cpu_features", problems);
    problems.require(
        !(contract.plan.autotune && contract.numerics.determinism == EquivalenceClass::Bitwise),
        "/plan/autotune",
        "is true, and /numerics/determinism claims the same bits",
        "kernels that are picked by timing change bits; set it to false",
    );
}

fn require_sorted(list: &[String], pointer: &str, problems: &mut Problems) {
    problems.require(
        list.windows(2).all(|pair| pair[0] < pair[1]),
        pointer,
        "is not in alphabetical order, or names something twice",
        "take the block that `trainer identity --json` prints",
    );
}

fn check_numerics(contract: &Contract, problems: &mut Problems) {
    let numerics = &contract.numerics;
    let dtypes = [
        ("/numerics/accumulation_dtype", numerics.accumulation_dtype),
        ("/numerics/parameter_dtype", numerics.parameter_dtype),
    ];
    for (pointer, dtype) in dtypes {
        problems.require(
            dtype == Dtype::F32,
            pointer,
            format!("is {dtype:?}; expected \"f32\""),
            "the trainer of this edition keeps parameters and sums of gradients in binary32",
        );
    }
    problems.require(
        numerics.compute_dtype == Dtype::F32 || contract.plan.device == Device::Cpu,
        "/numerics/compute_dtype",
        format!("is {:?} on a device that is not the CPU; expected \"f32\"", numerics.compute_dtype),
        "the trainer of this edition computes in half precision on the CPU only",
    );
    let Some(scaler) = &numerics.loss_scaler else {
        problems.require(
            numerics.compute_dtype != Dtype::F16,
            "/numerics/loss_scaler",
            "is null, and gradients are computed in f16, where they vanish below 6e-8",
            "name a scaler, such as {\"backoff\": 0.5, \"growth\": 2, \"growth_interval\": 2000, \"initial\": 65536}",
        );
        return;
    };
    problems.require(
        numerics.compute_dtype == Dtype::F16,
        "/numerics/loss_scaler",
        "is not null, and nothing is computed in f16",
        "set it to null",
    );
    let LossScaler { backoff, growth, growth_interval, initial } = scaler;
    problems.require_count(*growth_interval, "/numerics/loss_scaler/growth_interval");
    let factors = [
        ("backoff", *backoff, *backoff < 1.0, "below 1"),
        ("growth", *growth, *growth > 1.0, "above 1"),
        ("initial", *initial, true, "within binary32"),
    ];
    for (field, factor, is_in_range, range) in factors {
        problems.require(
            is_in_range && is_power_of_two(factor),
            format!("/numerics/loss_scaler/{field}"),
            format!("is {factor:?}; expected a power of two {range}"),
            "a factor that is none rounds every gradient",
        );
    }
}

/// Whether a number is a power of two that a normal binary32 holds.
fn is_power_of_two(value: f64) -> bool {
    let is_normal = (f64::from(f32::MIN_POSITIVE)..=f64::from(f32::MAX)).contains(&value);
    is_normal && value.to_bits().trailing_zeros() >= 52
}

fn check_topology(contract: &Contract, problems: &mut Problems) {
    let topology = &contract.topology;
    problems.require_count(u64::from(topology.learners), "/topology/learners");
    problems.require_count(u64::from(topology.workers), "/topology/workers");
    problems.require(
        topology.learners <= 1,
        "/topology/learners",
        format!("is {}; expected 1", topology.learners),
        "the trainer of this edition has one learner",
    );
    super::workers::check(contract, problems);
    let rewrites = &topology.permitted_rewrites;
    problems.require(
        rewrites.iter().enumerate().all(|(index, rewrite)| !rewrites[..index].contains(rewrite)),
        "/topology/permitted_rewrites",
        "names a rewrite twice",
        "name each rewrite once",
    );
}

/// Rank of a claim, strongest first.
fn rank(class: EquivalenceClass) -> u8 {
    match class {
        EquivalenceClass::Bitwise => 0,
        EquivalenceClass::OperationOrderBounded => 1,
        EquivalenceClass::Statistical => 2,
    }
}

fn check_resume(contract: &Contract, problems: &mut Problems) {
    let resume = &contract.resume;
    problems.require(
        rank(resume.class) >= rank(contract.numerics.determinism),
        "/resume/class",
        format!(
            "{:?} is a stronger claim than /numerics/determinism, {:?}",
            resume.class, contract.numerics.determinism
        ),
        "a resumed run cannot be closer to an uninterrupted one than two uninterrupted ones are",
    );
    match (resume.class, &resume.tolerance) {
        (EquivalenceClass::Bitwise | EquivalenceClass::Statistical, None) => {}
        (EquivalenceClass::Bitwise, Some(_)) => problems.add(
            "/resume/tolerance",
            "is given, and the class is bitwise",
            "bytes are equal or not; set the tolerance to null",
        ),
        (EquivalenceClass::Statistical, Some(_)) => problems.add(
            "/resume/tolerance",
            "is given, and the class is statistical",
            "it is judged by /resume/test alone; set the tolerance to null",
        ),
        (EquivalenceClass::OperationOrderBounded, None) => problems.add(
            "/resume/tolerance",
            "is null, and the class is operation_order_bounded",
            "freeze the bounds: max_absolute and max_relative",
        ),
        (EquivalenceClass::OperationOrderBounded, Some(tolerance)) => check_tolerance(tolerance, problems),
    }
    super::equivalence::check(contract, problems);
}

fn check_tolerance(tolerance: &Tolerance, problems: &mut Problems) {
    let bounds = [
        ("/resume/tolerance/max_absolute", tolerance.max_absolute, VACUOUS_ABSOLUTE),
        ("/resume/tolerance/max_relative", tolerance.max_relative, VACUOUS_RELATIVE),
    ];
    for (pointer, bound, vacuous) in bounds {
        problems.require(
            (0.0..vacuous).contains(&bound),
            pointer,
            format!("is {bound:?}; expected at least 0 and below {vacuous:?}: a bound that nothing exceeds is vacuous"),
            "freeze a bound that a wrong resume would exceed, such as 1e-6",
        );
    }
    problems.require(
        tolerance.max_absolute > 0.0 || tolerance.max_relative > 0.0,
        "/resume/tolerance",
        "both bounds are 0, which is equality",
        "claim \"bitwise\", or freeze bounds above 0",
    );
}

fn check_durability(contract: &Contract, problems: &mut Problems) {
    let durability = &contract.durability;
    let bounds = [
        ("/durability/max_unsynced_ms", durability.max_unsynced_ms, MAX_UNSYNCED_MS),
        ("/durability/max_unsynced_steps", durability.max_unsynced_steps, MAX_UNSYNCED_STEPS),
    ];
    for (pointer, bound, limit) in bounds {
        problems.require(
            (1..=limit).contains(&bound),
            pointer,
            format!("is {bound}; expected 1 to {limit}"),
            "this bounds what a crash may lose; 50 steps or 250 ms are usual",
        );
    }
}

fn check_faults(contract: &Contract, problems: &mut Problems) {
    super::faults::check(contract, problems);
    problems.require(
        contract.faults.detection.is_everywhere() || !contract.faults.plan.is_empty(),
        "/faults/detection",
        "turns the trainer's detectors off, and no fault is planned",
        "leave it out",
    );
}
