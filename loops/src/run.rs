//! A run that is opened for recording: key, lock, contract, code, history.
//!
//! What can be known before anything is written is checked here and leaves no
//! trace in the ledger.

use std::path::{Path, PathBuf};

use ledger::FrozenContract;
use ledger::costs::CostMeter;
use ledger::keys::{KeyRing, Role};
use ledger::links;
use ledger::reader::Reader;
use ledger::recorder::{Record, Recorder};
use schemas::body::{Body, CostTotals, Halves, Outcome, RunEndDet, RunEndObs};
use schemas::contract::{
    Contract, Device, EvidenceProfile, KeepPolicy, OrderPolicy, PermittedRewrite, Recovery, SaveMode,
    StoppingRule,
};

use crate::attempt::Attempt;
use crate::begin;
use crate::code::{self, Identity};
use crate::error::LoopError;
use crate::history::History;
use crate::inputs::Inputs;

/// What a loop says of itself when it opens its run.
#[derive(Debug, Clone, Default)]
pub struct LoopOptions {
    /// What executes tensors, with its version, as in `/plan/backend`.
    pub backend: String,
    /// Where tensors live; `None`: where the contract says.
    pub device: Option<Device>,
    /// Folder of the role keys; `None`: `$LEDGER_KEYS`, or `keys` beside the ledger.
    pub keys: Option<PathBuf>,
    /// The ledger: `run.db`. The files that the contract names are looked for in
    /// its folder.
    pub ledger: PathBuf,
    /// Whether to start again from the initial state where nothing can be resumed.
    pub may_restart: bool,
    /// Threads that compute.
    pub num_threads: u32,
    /// The program that runs, which has to be a file of the loop; `None` where
    /// the caller cannot tell.
    pub program: Option<PathBuf>,
    /// What the loop runs in, with its version, as in `/environment/rustc`:
    /// `Python 3.11.2`.
    pub runtime: String,
}

/// The environment variable that names the folder of keys.
const KEYS_VARIABLE: &str = "LEDGER_KEYS";

/// A run that can be recorded.
#[derive(Debug)]
pub struct Run {
    pub(crate) costs: CostMeter,
    pub(crate) folder: PathBuf,
    pub(crate) frozen: FrozenContract,
    pub(crate) history: History,
    pub(crate) identity: Identity,
    pub(crate) inputs: Inputs,
    pub(crate) options: LoopOptions,
    pub(crate) recorder: Recorder,
}

/// How a run ended.
#[derive(Debug, Clone, PartialEq)]
pub struct Finished {
    /// The selected candidate; `None` where none was.
    pub candidate: Option<String>,
    /// The last step.
    pub last_step: u64,
    /// Whether the contract's quality target was met; `None` without one.
    pub target_met: Option<bool>,
}

impl Run {
    /// Opens the ledger of an external loop's contract and takes its lock.
    ///
    /// # Errors
    /// When the contract is `native` or asks for what no loop can record, code
    /// or environment are not the frozen ones, the data changed, another writer
    /// has the ledger, a checkpoint lies or would be saved behind a symbolic link,
    /// or the run is over. Nothing is written then, but for the
    /// end of a run whose last attempt had ended it.
    pub fn open(options: LoopOptions) -> Result<Self, LoopError> {
        let costs = CostMeter::start();
        let folder = match options.ledger.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
            _ => PathBuf::from("."),
        };
        // Before the lock: a run of another profile is none of this crate's.
        let reader = Reader::open(&options.ledger)?;
        let frozen = reader.contract()?;
        if frozen.contract.ruleset.profile != EvidenceProfile::ExternalLoop {
            return Err(LoopError::Native { path: options.ledger.clone() });
        }
        check_supported(&frozen.contract)?;
        let identity = code::identify(&frozen.contract, &folder, &options)?;
        let key = KeyRing::open(&key_folder(&options, &folder))?.get(Role::Trainer)?;
        let recorder = Recorder::open(&options.ledger, key)?;
        let frozen = recorder
            .contract()
            .cloned()
            .ok_or_else(|| LoopError::NoContract { path: options.ledger.clone() })?;
        // The lock is held now, so that nothing is added behind what is read.
        let reader = Reader::open(&options.ledger)?;
        let mut history = History::default();
        for entry in reader.entries(0) {
            history.observe(&entry?);
        }
        if let Some(end) = &history.end {
            return Err(LoopError::Over { run: frozen.run.clone(), reason: end.reason.clone() });
        }
        check_links(&frozen.contract, &history, &folder)?;
        if let Some(reason) = begin::end_without_attempt(&recorder, &frozen, &history)? {
            recorder.close()?;
            return Err(LoopError::Over { run: frozen.run, reason });
        }
        check_threads(&frozen.contract, &history, options.num_threads.max(1))?;
        let inputs = Inputs::load(&frozen.contract, &reader, &folder)?;
        Ok(Self { costs, folder, frozen, history, identity, inputs, options, recorder })
    }

    /// The frozen contract.
    #[must_use]
    pub const fn contract(&self) -> &Contract {
        &self.frozen.contract
    }

    /// The run's identifier.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.frozen.run.0
    }

    /// Starts an attempt: says what became of earlier ones, and where it begins.
    ///
    /// # Errors
    /// When steps are on record and nothing can be resumed from, or the ledger
    /// cannot be written.
    pub fn begin(self) -> Result<Attempt, LoopError> {
        begin::begin(self)
    }
}

fn key_folder(options: &LoopOptions, folder: &Path) -> PathBuf {
    options
        .keys
        .clone()
        .or_else(|| std::env::var_os(KEYS_VARIABLE).map(PathBuf::from))
        .unwrap_or_else(|| folder.join("keys"))
}

/// Bits depend on the number of threads in most frameworks.
fn check_threads(contract: &Contract, history: &History, actual: u32) -> Result<(), LoopError> {
    let permits = contract.topology.permitted_rewrites.contains(&PermittedRewrite::ThreadCount);
    match history.num_threads {
        Some(expected) if expected != actual && !permits => Err(LoopError::Differs {
            what: "the number of threads",
            expected: format!("that of the first attempt, {expected}"),
            actual: actual.to_string(),
        }),
        _ => Ok(()),
    }
}

/// No audit reads a checkpoint through a link, so that none is saved through one or
/// resumed from one. Of what was given up nothing is read.
fn check_links(contract: &Contract, history: &History, folder: &Path) -> Result<(), LoopError> {
    Ok(links::check(folder, &contract.checkpoints.store, history.standing_folders())?)
}

/// What `ledger freeze` refuses too; a contract may have been frozen elsewhere.
fn check_supported(contract: &Contract) -> Result<(), LoopError> {
    let checkpoints = &contract.checkpoints;
    let terms = [
        ("/topology/workers", contract.topology.workers == 1, contract.topology.workers.to_string()),
        ("/checkpoints/mode", checkpoints.mode == SaveMode::Synchronous, format!("{:?}", checkpoints.mode)),
        ("/checkpoints/keep", checkpoints.keep == KeepPolicy::All, format!("{:?}", checkpoints.keep)),
        ("/checkpoints/store", !checkpoints.store.contains("://"), checkpoints.store.clone()),
        ("/checkpoints/every_steps", checkpoints.every_steps > 0, "0".to_owned()),
        ("/faults/plan", contract.faults.plan.is_empty(), "planned faults".to_owned()),
        (
            "/faults/recovery",
            contract.faults.recovery == Recovery::RestartFromLastValidated,
            format!("{:?}", contract.faults.recovery),
        ),
        (
            "/stopping",
            matches!(contract.stopping, StoppingRule::AtStep { .. }),
            format!("{:?}", contract.stopping),
        ),
        ("/budget/max_tokens", contract.budget.max_tokens.is_none(), "a number of tokens".to_owned()),
        ("/budget/max_wall_s", contract.budget.max_wall_s.is_none(), "a time".to_owned()),
        ("/order", contract.order == OrderPolicy::KeyedPermutation, format!("{:?}", contract.order)),
        (
            "/state_digest_every_steps",
            contract.state_digest_every_steps.is_none(),
            "digests of steps".to_owned(),
        ),
    ];
    match terms.into_iter().find(|(_, holds, _)| !holds) {
        Some((pointer, _, what)) => Err(LoopError::Unsupported { pointer, what }),
        None => Ok(()),
    }
}

/// Writes `run.end`.
pub(crate) fn end_run(
    recorder: &Recorder,
    history: &History,
    det: RunEndDet,
    cost: Option<CostTotals>,
) -> Result<(), LoopError> {
    let num_earlier = u32::try_from(history.attempts.len()).unwrap_or(u32::MAX);
    let obs = RunEndObs {
        cost: cost.map_or_else(|| history.cost(), |cost| ledger::costs::add(history.cost(), cost)),
        num_attempts: num_earlier + u32::from(cost.is_some()),
        num_attempts_incomplete: history.num_incomplete(),
    };
    let last_step = det.last_step;
    recorder.append_durable(Record::new(Body::RunEnd(Box::new(Halves { det, obs }))).step(last_step))?;
    Ok(())
}

/// The last step of a run, how it ends there, and why.
pub(crate) fn last_step(contract: &Contract) -> (u64, Outcome, String) {
    let by_rule = match contract.stopping {
        StoppingRule::AtStep { step } => step,
        StoppingRule::Patience { max_step, .. } => max_step,
    };
    let max_steps = contract.budget.max_steps;
    if by_rule <= max_steps {
        let reason = format!("the stopping rule ends the run at step {by_rule}");
        return (by_rule, Outcome::Completed, reason);
    }
    (max_steps, Outcome::BudgetExhausted, format!("the budget of {max_steps} steps is used"))
}
