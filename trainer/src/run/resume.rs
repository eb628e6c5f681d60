//! Where an attempt takes its state from, and how that state is put back.
//!
//! Restoring is all or nothing: every class that the contract captures comes
//! back and fits what the run derives, or the attempt is refused with the name
//! of the class. A class is never left at its initial value.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use ledger::FrozenContract;
use schemas::body::{AttemptReason, Counters, ResumePoint};
use schemas::contract::{Architecture, CompilerPlan, Contract};
use schemas::state::{CapturedClass, CheckpointManifest, StateClass};

use crate::checkpoint::locate::{self, LocatedCheckpoint, RecordedCheckpoint, UnusableCheckpoint};
use crate::checkpoint::{CONFIG_NAME, MODEL_NAME, OPTIMIZER_NAME};
use crate::engine::Engine;
use crate::export::{self, FileKind, NamedTensor};
use crate::state::{self, Derivation, SelectionTracker};

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
    /// Best value and patience after the evaluations up to `step`.
    pub selection: SelectionTracker,
    /// Completed updates.
    pub step: u64,
    /// Newer checkpoints that cannot be used, and why.
    pub unusable: Vec<UnusableCheckpoint>,
}

/// Decides where the next attempt starts: at the newest checkpoint that is
/// validated and whose bytes still match, else at the initial state.
///
/// # Errors
/// When the contract has no stream to select by.
pub fn decide(
    frozen: &FrozenContract,
    history: &History,
    ledger_folder: &Path,
) -> Result<ResumeState, Refusal> {
    decide_among(frozen, history, ledger_folder, history.usable_checkpoints())
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
    Ok(ResumeState { checkpoint, counters, selection, step, unusable })
}

impl ResumeState {
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

    /// Why not from a newer checkpoint, in words; `None` where it is the
    /// newest.
    #[must_use]
    pub fn fallback(&self) -> Option<String> {
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
        let Some(located) = &self.checkpoint else { return Ok(()) };
        check_inventory(contract, &located.manifest)?;
        let derivation = Derivation {
            contract,
            counters: self.counters,
            num_train_examples: engine.num_train_examples(),
            plan,
            selection: self.selection.state(),
            step: self.step,
        };
        let captured = located.manifest.classes.iter().filter(|captured| captured.not_applicable.is_none());
        for captured in captured {
            let class = captured.class;
            match class {
                StateClass::Model => check_config(contract, located)?,
                StateClass::Optimizer => {}
                _ => derivation.check_shard(class, content(located, class, &state::shard_name(class))?)?,
            }
        }
        let model = tensors(located, StateClass::Model, MODEL_NAME, FileKind::Model)?;
        let optimizer = tensors(located, StateClass::Optimizer, OPTIMIZER_NAME, FileKind::State)?;
        engine.restore(self.step, self.counters, &model, &optimizer)?;
        Ok(())
    }
}

/// Names of the shards that a captured class has.
#[must_use]
pub fn shard_names(class: StateClass) -> Vec<String> {
    match class {
        StateClass::Model => vec![CONFIG_NAME.to_owned(), MODEL_NAME.to_owned()],
        StateClass::Optimizer => vec![OPTIMIZER_NAME.to_owned()],
        other => vec![state::shard_name(other)],
    }
}

/// Every class of the contract, once, captured or not as declared, with
/// exactly its shards; and no other class.
fn check_inventory(contract: &Contract, manifest: &CheckpointManifest) -> Result<(), RunError> {
    let refuse = |class, reason: String| Err(RunError::Inventory { class, reason });
    let mut found: BTreeMap<StateClass, &CapturedClass> = BTreeMap::new();
    for captured in &manifest.classes {
        if found.insert(captured.class, captured).is_some() {
            return refuse(captured.class, "the checkpoint has it twice".to_owned());
        }
    }
    for declaration in &contract.state_classes {
        let class = declaration.class;
        let Some(captured) = found.remove(&class) else {
            return refuse(class, "the checkpoint does not have it".to_owned());
        };
        if captured.not_applicable != declaration.not_applicable {
            let reason = format!(
                "the contract declares {:?}, the checkpoint {:?}",
                declaration.not_applicable, captured.not_applicable
            );
            return refuse(class, reason);
        }
        let shards: BTreeSet<&str> = captured.shards.iter().map(|shard| shard.path.as_str()).collect();
        let names = if declaration.not_applicable.is_none() { shard_names(class) } else { Vec::new() };
        let wanted: BTreeSet<&str> = names.iter().map(String::as_str).collect();
        if shards != wanted || captured.shards.len() != wanted.len() {
            return refuse(class, format!("it has the shards {shards:?}, expected {wanted:?}"));
        }
    }
    match found.into_keys().next() {
        Some(class) => refuse(class, "the contract does not declare it".to_owned()),
        None => Ok(()),
    }
}

fn content<'a>(located: &'a LocatedCheckpoint, class: StateClass, name: &str) -> Result<&'a [u8], RunError> {
    let missing = || RunError::Inventory { class, reason: format!("shard {name} is missing") };
    located.contents.get(name).map(Vec::as_slice).ok_or_else(missing)
}

fn check_config(contract: &Contract, located: &LocatedCheckpoint) -> Result<(), RunError> {
    let class = StateClass::Model;
    let Architecture::LlamaDecoder(decoder) = &contract.architecture;
    let derived = export::config_json(decoder)
        .map_err(|error| RunError::Inventory { class, reason: error.to_string() })?;
    if content(located, class, CONFIG_NAME)? == derived.as_bytes() {
        Ok(())
    } else {
        let reason = format!("{CONFIG_NAME} is not that of the contract's architecture");
        Err(RunError::Inventory { class, reason })
    }
}

fn tensors(
    located: &LocatedCheckpoint,
    class: StateClass,
    name: &str,
    kind: FileKind,
) -> Result<Vec<NamedTensor>, RunError> {
    let mut bytes = content(located, class, name)?;
    let num_bytes = bytes.len() as u64;
    let (tensors, shard) =
        export::read(kind, &mut bytes, num_bytes).map_err(|source| RunError::Tensors { class, source })?;
    let listed = located.manifest.classes.iter().filter(|captured| captured.class == class);
    let listed = listed.flat_map(|captured| &captured.shards).find(|listed| listed.path == name);
    if listed.is_none_or(|listed| listed.tensors != shard.tensors) {
        let reason = format!("{name} does not hold the tensors that the manifest lists");
        return Err(RunError::Inventory { class, reason });
    }
    Ok(tensors)
}
