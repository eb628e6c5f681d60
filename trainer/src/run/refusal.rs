//! Why this binary, here, may not execute a contract.
//!
//! Everything that is compared here is known before an attempt starts. A
//! binary that is not the contract's trainer writes nothing into its ledger.

use std::fmt::Debug;
use std::path::{Path, PathBuf};

use ledger::links::{self, Linked};
use schemas::contract::{Contract, CreditRule, Device, EquivalenceClass, MidAccumulation, StoppingRule};
use schemas::data::Split;
use schemas::digest::Digest;
use serde::Serialize;

use crate::identity::Identity;
use crate::state::{StateError, registry};
use crate::store::{self, StoreError};
use crate::workers::MAX_WORKERS;

use super::history::{History, Progress};

/// A contract that may not be executed by this binary, here.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    /// The ledger holds no contract.
    #[error("{} holds no contract, so it is not a run's ledger", path.display())]
    NoContract {
        /// The ledger.
        path: PathBuf,
    },
    /// The key in the key ring is not the contract's.
    #[error("the contract names trainer key {expected}, the key ring at {} holds {actual}", path.display())]
    Key {
        /// Public key in the contract.
        expected: String,
        /// Public key in the key ring.
        actual: String,
        /// The key ring.
        path: PathBuf,
    },
    /// Another build.
    #[error(
        "the contract froze trainer code {expected} (features [{expected_features}]), this binary is {actual} \
         (features [{actual_features}])"
    )]
    Code {
        /// In the contract.
        expected: Digest,
        /// In the contract, joined by commas.
        expected_features: String,
        /// Of this binary.
        actual: Digest,
        /// Of this binary, joined by commas.
        actual_features: String,
    },
    /// Another environment or plan.
    #[error("{what} differs: the contract froze {expected}, here is {actual}")]
    Differs {
        /// `environment` or `plan`.
        what: &'static str,
        /// As JSON.
        expected: String,
        /// As JSON.
        actual: String,
    },
    /// The command line asks for another device than the contract.
    #[error("the contract froze device {expected:?}, the command line asks for {actual:?}")]
    Device {
        /// In the contract.
        expected: Device,
        /// On the command line.
        actual: Device,
    },
    /// Something that this trainer does not execute.
    #[error("{pointer}: this trainer does not execute {found}")]
    Unsupported {
        /// JSON pointer into the contract.
        pointer: &'static str,
        /// What is there.
        found: String,
    },
    /// A state class that this trainer cannot honour.
    #[error("/state_classes")]
    State(#[from] StateError),
    /// The binary was built for diagnosis.
    #[error("this binary was built with `{feature}`, which can make a run fail on purpose")]
    Instrumented {
        /// The cargo feature.
        feature: &'static str,
    },
    /// A point at which a test crashes the process does not exist.
    #[error("the environment's crash points: {reason}")]
    CrashPoints {
        /// What is wrong.
        reason: String,
    },
    /// No attempt is left.
    #[error("the contract allows {max_attempts} attempts, and all were made")]
    Attempts {
        /// The contract's bound.
        max_attempts: u32,
    },
    /// The recovery policy forbids going on.
    #[error("the contract's recovery policy is to refuse, so that nothing follows attempt {attempt}")]
    Recovery {
        /// The attempt.
        attempt: schemas::ids::AttemptId,
    },
    /// The run has ended, and an attempt was asked to record something.
    #[error("run {run} has ended, so that no intervention can be recorded")]
    Over {
        /// The run.
        run: schemas::ids::RunId,
    },
    /// Steps were recorded, and nothing is left to go on from.
    #[error(
        "{num_steps} steps were executed, and no checkpoint can be resumed from: {reasons}; a start from the \
         initial state would throw them away"
    )]
    NothingResumable {
        /// Steps of all attempts.
        num_steps: u64,
        /// Each checkpoint, and what is wrong with it.
        reasons: String,
    },
    /// Steps were recorded, and no checkpoint is one that the recovery policy
    /// goes on from.
    #[error(
        "/faults/recovery: {num_steps} steps were executed, and none of the validated checkpoints is resume-qualified: \
         {validated}; a start from the initial state would throw them away"
    )]
    NothingQualified {
        /// Steps of all attempts.
        num_steps: u64,
        /// Those that could be probed.
        validated: String,
    },
    /// The checkpoint store cannot be used from here.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A symbolic link where the checkpoints of the run lie, or would.
    #[error(transparent)]
    Linked(#[from] Linked),
    /// Another number of workers than the contract's.
    #[error(
        "the contract has {expected} workers and permits no other number, the command line asks for {actual}"
    )]
    Workers {
        /// In the contract.
        expected: u32,
        /// On the command line.
        actual: u32,
    },
    /// Workers that cannot share a global batch evenly.
    #[error("a global batch has {num_microbatches} microbatches, which {actual} workers cannot share evenly")]
    WorkersDivide {
        /// Of a global batch.
        num_microbatches: u32,
        /// On the command line.
        actual: u32,
    },
    /// Another number of threads than the attempts before.
    #[error("earlier attempts ran {expected} threads, the command line asks for {actual}")]
    Threads {
        /// Threads of the first attempt.
        expected: u32,
        /// On the command line.
        actual: u32,
    },
}

impl Refusal {
    /// What can be done about it.
    #[must_use]
    pub fn hint(&self) -> &'static str {
        match self {
            Self::NoContract { .. } => "freeze a contract first: `ledger freeze contract.json`",
            Self::Key { .. } => "point `--keys` at the folder with the trainer key of this contract",
            Self::Code { .. } => {
                "run the build that was frozen, or freeze a new contract with this one's `trainer identity --json`"
            }
            Self::Differs { .. } => {
                "run on the machine and toolchain that were frozen, or freeze a new contract with \
                 `trainer identity --json`"
            }
            Self::Device { .. } => "leave out `--device`, or freeze another contract",
            Self::NothingResumable { .. } => {
                "restore the checkpoints' files and run the same command again; `trainer resume --explain` says \
                 what each lacks, and `trainer run --restart` starts again from the initial state"
            }
            Self::NothingQualified { .. } => {
                "probe one of them: `trainer probe --ledger run.db --checkpoint ID`, and run the same command again; \
                 `trainer run --restart` starts again from the initial state"
            }
            Self::Threads { .. } => {
                "leave out `--threads`; a contract that permits another number says so in \
                 /topology/permitted_rewrites"
            }
            Self::Workers { .. } => {
                "leave out `--workers`; a contract that permits another number says `worker_count` in \
                 /topology/permitted_rewrites"
            }
            Self::WorkersDivide { .. } => "name a number that divides it, 64 at most",
            Self::Store(error) => error.hint(),
            Self::Linked(_) => Linked::HINT,
            Self::Unsupported { .. } | Self::State(_) => "change the contract and freeze it again",
            Self::Instrumented { .. } => {
                "use an ordinary build; a deliberate test sets LEDGER_ALLOW_INSTRUMENTATION=1"
            }
            Self::CrashPoints { .. } => "see ledger/src/failpoint.rs for how FAILPOINTS is written",
            Self::Attempts { .. } => "the run is over; freeze a new contract for another run",
            Self::Over { .. } => "leave out `--intervention`; nothing that was done since belongs to the run",
            Self::Recovery { .. } => "the run is over by its own contract; freeze a new one for another run",
        }
    }
}

/// Compares what runs with what was frozen.
///
/// # Errors
/// [`Refusal::Code`], [`Refusal::Differs`].
pub fn check_identity(contract: &Contract, identity: &Identity) -> Result<(), Refusal> {
    if contract.code != identity.code {
        return Err(Refusal::Code {
            expected: contract.code.digest,
            expected_features: contract.code.features.join(","),
            actual: identity.code.digest,
            actual_features: identity.code.features.join(","),
        });
    }
    same("environment", &contract.environment, &identity.environment)?;
    same("plan", &contract.plan, &identity.plan)
}

fn same<T: PartialEq + Serialize>(what: &'static str, expected: &T, actual: &T) -> Result<(), Refusal> {
    if expected == actual {
        return Ok(());
    }
    let json = |value: &T| serde_json::to_string(value).unwrap_or_else(|error| error.to_string());
    Err(Refusal::Differs { what, expected: json(expected), actual: json(actual) })
}

/// Checks that the contract asks for nothing that this trainer does not do.
/// Numbers and groups are checked by the engine that uses them.
///
/// # Errors
/// [`Refusal::Unsupported`] and [`Refusal::State`].
pub fn check_supported(contract: &Contract) -> Result<(), Refusal> {
    if let CreditRule::Evolution { .. } = contract.credit {
        return unsupported("/credit/rule", &contract.credit);
    }
    if contract.topology.learners != 1 {
        return unsupported("/topology/learners", &contract.topology.learners);
    }
    let workers = contract.topology.workers;
    if !(1..=MAX_WORKERS).contains(&workers) || contract.batch.data_parallel != workers {
        return unsupported("/topology/workers", &workers);
    }
    if contract.topology.collective.is_some() != (workers > 1) {
        return unsupported("/topology/collective", &contract.topology.collective);
    }
    if workers > 1 && contract.checkpoints.mid_accumulation == MidAccumulation::SaveGradients {
        return unsupported("/checkpoints/mid_accumulation", &contract.checkpoints.mid_accumulation);
    }
    if workers > 1 && contract.plan.device != Device::Cpu {
        return unsupported("/plan/device", &contract.plan.device);
    }
    if let Some(count) = contract.checkpoints.after_microbatches
        && !(contract.checkpoints.mid_accumulation == MidAccumulation::SaveGradients
            && (1..contract.batch.accumulation).contains(&count))
    {
        return unsupported("/checkpoints/after_microbatches", &count);
    }
    if contract.resume.class == EquivalenceClass::Statistical
        && contract.checkpoints.mid_accumulation == MidAccumulation::SaveGradients
    {
        return unsupported("/checkpoints/mid_accumulation", &contract.checkpoints.mid_accumulation);
    }
    if store::is_url(&contract.checkpoints.store) {
        store::Location::parse(&contract.checkpoints.store)?;
    }
    if contract.checkpoints.every_steps == 0 {
        return unsupported("/checkpoints/every_steps", &0);
    }
    if let Some(extension) = contract.extensions.iter().find(|extension| extension.critical) {
        return unsupported("/extensions", &extension.name);
    }
    check_streams(contract)?;
    registry::check_declarations(contract)?;
    Ok(())
}

/// Checks that no checkpoint of the run lies, or would be saved, behind a symbolic
/// link, through which no audit reads it. Of what was given up nothing is read, and
/// a run that has ended saves nothing more.
///
/// # Errors
/// [`Refusal::Linked`].
pub fn check_links(contract: &Contract, history: &History, ledger_folder: &Path) -> Result<(), Refusal> {
    if history.end.is_some() {
        return Ok(());
    }
    let store = store::working_folder(&contract.checkpoints.store);
    let known = history.checkpoints.values();
    let committed = known.filter(|known| known.committed.is_some() && known.progress != Progress::Ended);
    let folders = committed.map(|known| Path::new(store).join(known.checkpoint.as_str()));
    Ok(links::check(ledger_folder, store, folders)?)
}

fn check_streams(contract: &Contract) -> Result<(), Refusal> {
    let stream = |name: &str| contract.evaluation.streams.iter().find(|known| known.name == name);
    if contract.evaluation.streams.iter().any(|known| known.every_steps == 0) {
        return unsupported("/evaluation/streams/*/every_steps", &0);
    }
    match stream(&contract.selection.stream) {
        Some(known) if known.split == Split::Val => {}
        _ => return unsupported("/selection/stream", &contract.selection.stream),
    }
    if let StoppingRule::Patience { stream: name, .. } = &contract.stopping
        && stream(name).is_none()
    {
        return unsupported("/stopping/stream", name);
    }
    Ok(())
}

fn unsupported<T: Debug>(pointer: &'static str, found: &T) -> Result<(), Refusal> {
    Err(Refusal::Unsupported { pointer, found: format!("{found:?}") })
}
