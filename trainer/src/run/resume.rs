//! Where an attempt takes its state from, and how that state is put back.
//!
//! Restoring is all or nothing: every class that the contract captures comes
//! back and fits what the run derives, or the attempt is refused with the name
//! of the class. A class is never left at its initial value.

use std::cmp::Reverse;
use std::path::Path;

use ledger::FrozenContract;
use schemas::body::{AttemptReason, Counters, ResumePoint};
use schemas::contract::{CompilerPlan, Contract, Recovery};
use schemas::ids::CheckpointId;
use schemas::state::StateClass;

use crate::checkpoint::WINDOW_NAME;
use crate::checkpoint::locate::{self, LocatedCheckpoint, RecordedCheckpoint, UnusableCheckpoint};
use crate::engine::Engine;
use crate::engine::window::WindowState;
use crate::state::registry::{self, Target};
use crate::state::{Derivation, SelectionTracker, StateError};
use crate::store;

use super::doubt::{self, DoubtfulCheckpoint};
use super::error::RunError;
use super::history::History;
use super::refusal::Refusal;

/// Everything that a resumed loop starts from, in one place. For the initial
/// state `checkpoint` is `None` and everything else is zero.
#[derive(Debug)]
pub struct ResumeState {
    /// The checkpoint, with the bytes that were checked.
    pub checkpoint: Option<LocatedCheckpoint>,
    /// Cumulative counters at `step`.
    pub counters: Counters,
    /// Checkpoints that a fault puts in doubt, newest first, where the recovery
    /// policy goes back behind them.
    pub doubtful: Vec<DoubtfulCheckpoint>,
    /// Processes that executed the attempt which saved the checkpoint.
    pub num_workers: u32,
    /// Best value and patience after the evaluations up to `step`.
    pub selection: SelectionTracker,
    /// Completed updates.
    pub step: u64,
    /// The newest checkpoint that is validated, newer, and passed over because
    /// no probe has qualified it.
    pub unqualified: Option<CheckpointId>,
    /// Newer checkpoints that cannot be used, and why.
    pub unusable: Vec<UnusableCheckpoint>,
}

/// Decides where the next attempt starts: at the newest checkpoint that is
/// validated (or resume-qualified, or not in doubt, where the recovery policy
/// goes by that) and whose bytes still match, else at the initial state.
///
/// # Errors
/// When the contract has no stream to select by.
pub fn decide(
    frozen: &FrozenContract,
    history: &History,
    ledger_folder: &Path,
) -> Result<ResumeState, Refusal> {
    let resume = decide_among(frozen, history, ledger_folder, eligible(&frozen.contract, history))?;
    match frozen.contract.faults.recovery {
        Recovery::RestartFromLastValidated | Recovery::Refuse => Ok(resume),
        Recovery::RestartFromLastQualified => Ok(passing_over(frozen, history, ledger_folder, resume)),
        Recovery::RollBack => Ok(ResumeState { doubtful: doubt::doubtful(history), ..resume }),
    }
}

/// Looks at the checkpoints that are newer than the qualified one. Nothing goes on
/// from them, but they count as saved, and an audit reads them: one whose bytes
/// changed is told and given up, as it is where attempts go on from them.
fn passing_over(
    frozen: &FrozenContract,
    history: &History,
    ledger_folder: &Path,
    resume: ResumeState,
) -> ResumeState {
    let age = |record: &RecordedCheckpoint| (record.step, record.attempt);
    let from = resume.checkpoint.as_ref().map(|located| age(&located.record));
    let mut newer = history.usable_checkpoints();
    newer.retain(|record| from.is_none_or(|from| age(record) > from));
    let newest = newer.iter().max_by_key(|record| age(record)).map(|record| record.checkpoint.clone());
    let mut unusable = resume.unusable;
    // A copy beside the ledger says nothing of what a store by URL holds.
    if !store::is_url(&frozen.contract.checkpoints.store) {
        let is_named = |id: &CheckpointId| unusable.iter().any(|known| known.record.checkpoint == *id);
        newer.retain(|record| !is_named(&record.checkpoint));
        unusable.extend(locate::unusable_among(ledger_folder, &frozen.run, frozen.digest, newer));
        unusable.sort_by_key(|known| Reverse(age(&known.record)));
    }
    // One whose bytes changed is named for that.
    let is_named = |id: &CheckpointId| unusable.iter().any(|known| known.record.checkpoint == *id);
    let unqualified = newest.filter(|id| !is_named(id));
    ResumeState { unqualified, unusable, ..resume }
}

/// Whether attempts go on from checkpoints that a probe has qualified, and from
/// no others.
#[must_use]
pub fn is_by_qualification(contract: &Contract) -> bool {
    contract.faults.recovery == Recovery::RestartFromLastQualified
}

/// Checkpoints that the recovery policy lets an attempt go on from, whatever
/// their bytes are.
#[must_use]
pub fn eligible(contract: &Contract, history: &History) -> Vec<RecordedCheckpoint> {
    match contract.faults.recovery {
        Recovery::RestartFromLastValidated | Recovery::Refuse => history.usable_checkpoints(),
        Recovery::RestartFromLastQualified => history.qualified_checkpoints(),
        Recovery::RollBack => doubt::undoubted(history),
    }
}

/// As [`decide`], but among these checkpoints only.
///
/// # Errors
/// As [`decide`].
pub fn decide_among(
    frozen: &FrozenContract,
    history: &History,
    ledger_folder: &Path,
    records: Vec<RecordedCheckpoint>,
) -> Result<ResumeState, Refusal> {
    let contract = &frozen.contract;
    let mut selection = SelectionTracker::new(contract).ok_or_else(|| Refusal::Unsupported {
        pointer: "/selection/stream",
        found: contract.selection.stream.clone(),
    })?;
    let (checkpoint, unusable) = locate::newest_usable(ledger_folder, &frozen.run, frozen.digest, records);
    let step = checkpoint.as_ref().map_or(0, |located| located.record.step);
    let counters = checkpoint.as_ref().map_or_else(Counters::default, |located| located.record.counters);
    if checkpoint.is_some()
        && let Some(values) = history.evaluations.get(selection.stream()).cloned()
    {
        for (evaluated, value) in values.range(..=step) {
            selection.observe(*evaluated, *value);
        }
    }
    let doubtful = Vec::new();
    let saver = checkpoint.as_ref().and_then(|located| history.num_workers_of(located.record.attempt));
    let num_workers = saver.unwrap_or(contract.topology.workers);
    Ok(ResumeState {
        checkpoint,
        counters,
        doubtful,
        num_workers,
        selection,
        step,
        unqualified: None,
        unusable,
    })
}

impl ResumeState {
    /// Microbatches of the next update that the checkpoint holds the gradients
    /// of; 0 at an update's boundary.
    ///
    /// # Errors
    /// When the checkpoint's account of them is not one.
    pub fn num_microbatches(&self) -> Result<u32, StateError> {
        let bytes = self.checkpoint.as_ref().and_then(|located| located.contents.get(WINDOW_NAME));
        let Some(bytes) = bytes else { return Ok(0) };
        let state: WindowState = serde_json::from_slice(bytes).map_err(|error| StateError::Shape {
            class: StateClass::AccumulatedGradients,
            reason: error.to_string(),
        })?;
        Ok(state.microbatches)
    }

    /// Why the attempt starts, and from which checkpoint, as `attempt.start`
    /// says it.
    #[must_use]
    pub fn reason(&self, history: &History) -> (AttemptReason, Option<ResumePoint>) {
        match &self.checkpoint {
            Some(located) => {
                let record = &located.record;
                let point = ResumePoint {
                    checkpoint: record.checkpoint.clone(),
                    manifest: record.manifest,
                    step: record.step,
                };
                (AttemptReason::Resume, Some(point))
            }
            None if history.attempts.is_empty() => (AttemptReason::Start, None),
            None => (AttemptReason::Restart, None),
        }
    }

    /// Refuses to throw recorded steps away because nothing is left to go on
    /// from, unless that was asked for.
    ///
    /// # Errors
    /// [`Refusal::NothingResumable`], [`Refusal::NothingQualified`].
    pub fn check_restart(
        &self,
        contract: &Contract,
        history: &History,
        may_restart: bool,
    ) -> Result<(), Refusal> {
        let num_steps = history.cost().num_steps_executed;
        if self.checkpoint.is_some() || num_steps == 0 || may_restart {
            return Ok(());
        }
        let was_qualified = |of: &UnusableCheckpoint| {
            let past = history.checkpoints.get(&of.record.checkpoint);
            past.is_some_and(|past| past.was_qualified)
        };
        if is_by_qualification(contract) && !self.unusable.iter().any(was_qualified) {
            let is_changed = |id: &CheckpointId| self.unusable.iter().any(|of| of.record.checkpoint == *id);
            let validated = history.usable_checkpoints().into_iter().map(|record| record.checkpoint);
            let validated: Vec<String> = validated.filter(|id| !is_changed(id)).map(|id| id.0).collect();
            if !validated.is_empty() {
                return Err(Refusal::NothingQualified { num_steps, validated: validated.join(", ") });
            }
        }
        let unusable = self.unusable.iter().map(|unusable| {
            format!("{} ({})", unusable.record.checkpoint, super::error::chain(&unusable.error))
        });
        let known = history.roster.facts().into_iter().filter(|fact| !fact.stage.is_usable());
        let known = known.map(|fact| format!("{} ({})", fact.checkpoint, fact.stage.name()));
        let doubtful = self.doubtful.iter();
        let doubtful = doubtful.map(|known| format!("{} ({})", known.record.checkpoint, known.reason()));
        let reasons: Vec<String> = doubtful.chain(unusable).chain(known).collect();
        let reasons = if reasons.is_empty() { "there is none".to_owned() } else { reasons.join(", ") };
        Err(Refusal::NothingResumable { num_steps, reasons })
    }

    /// Why not from a newer checkpoint, in words; `None` where it is the
    /// newest.
    #[must_use]
    pub fn fallback(&self) -> Option<String> {
        if let Some(checkpoint) = &self.unqualified {
            return Some(format!("{checkpoint}: it is validated, and not resume-qualified"));
        }
        if let Some(newest) = self.doubtful.first() {
            return Some(format!("{}: {}", newest.record.checkpoint, newest.reason()));
        }
        let first = self.unusable.first()?;
        Some(format!("{}: {}", first.record.checkpoint, super::error::chain(&first.error)))
    }

    /// Puts the checkpoint's state into an engine that stands at the initial
    /// state. For the initial state there is nothing to do.
    ///
    /// # Errors
    /// When a class is missing, is too many, or does not fit the run.
    pub fn restore(
        &self,
        engine: &mut Engine,
        contract: &Contract,
        plan: &CompilerPlan,
    ) -> Result<(), RunError> {
        self.restore_without(engine, contract, plan, &[])
    }

    /// As [`Self::restore`], but for the classes in `left_out`, which stay at
    /// their initial values: the cold control of a probe.
    ///
    /// # Errors
    /// As [`Self::restore`].
    pub fn restore_without(
        &self,
        engine: &mut Engine,
        contract: &Contract,
        plan: &CompilerPlan,
        left_out: &[StateClass],
    ) -> Result<(), RunError> {
        let Some(located) = &self.checkpoint else { return Ok(()) };
        let derivation = Derivation {
            contract,
            counters: self.counters,
            num_train_examples: engine.num_train_examples(),
            num_workers: self.num_workers,
            plan,
            selection: self.selection.state(),
            step: self.step,
        };
        let mut target = Target { derivation, engine };
        Ok(registry::restore(&located.manifest, &located.contents, &mut target, left_out)?)
    }
}
