//! The registry of training state: which component holds which class, how a
//! contract declares it, how it is captured and how it is put back.
//!
//! Saving walks the registry and takes what each component gives; restoring
//! walks it again and refuses, with the name of the class, whatever is missing,
//! too many, of another form, or at another step. Nothing else in the trainer
//! knows what a class is made of: a new component is a file in `classes/` and
//! its line in [`COMPONENTS`].

use std::collections::{BTreeMap, BTreeSet};

use schemas::contract::Contract;
use schemas::digest::Digest;
use schemas::ids::WorkerId;
use schemas::state::{
    CapturedClass, CheckpointManifest, NotApplicableReason, Shard, StateClass, StateClassDeclaration,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::classes;
use super::split::{FrozenInitial, IndexPlan};
use super::{Derivation, StateError};
use crate::engine::Engine;
use crate::export::{self, FileKind, NamedTensor};

/// Every component, in the order of [`StateClass`].
static COMPONENTS: &[&dyn Component] = &[
    &classes::model::Model,
    &classes::optimizer::Optimizer,
    &classes::scheduler::Scheduler,
    &classes::rng_cpu::RngCpu,
    &classes::rng_device::RngDevice,
    &classes::loss_scaler::LossScaler,
    &classes::data_cursor::Cursor,
    &classes::sampler::Sampler,
    &classes::topology::Topology,
    &classes::compiler_plan::Plan,
    &classes::averages::Averages,
    &classes::accumulated_gradients::AccumulatedGradients,
    &classes::selection_state::Selection,
];

/// What a contract makes of a state class.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Holding {
    /// The run has such state, so that it can be captured.
    pub is_held: bool,
    /// It has to be captured: nothing else knows it.
    pub is_needed: bool,
    /// Reasons that are true of the contract, for which it may be left out.
    pub reasons: &'static [NotApplicableReason],
}

impl Holding {
    /// It is held, and has to be captured.
    pub const CAPTURED: Self = Self { is_held: true, is_needed: true, reasons: &[] };

    /// It holds nothing, for these reasons.
    #[must_use]
    pub const fn nothing(reasons: &'static [NotApplicableReason]) -> Self {
        Self { is_held: false, is_needed: false, reasons }
    }
}

/// From what state is captured.
#[derive(Debug, Clone, Copy)]
pub struct Source<'a> {
    /// From what derived shards are made.
    pub derivation: Derivation<'a>,
    /// Where everything else lives.
    pub engine: &'a Engine,
}

/// Into what state is put back.
#[derive(Debug)]
pub struct Target<'a> {
    /// What derived shards have to say.
    pub derivation: Derivation<'a>,
    /// Where everything else lives; at its initial state.
    pub engine: &'a mut Engine,
}

/// What a shard holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Content {
    /// Tensors in name order, as a safetensors file.
    Tensors(FileKind, Vec<NamedTensor>),
    /// Parameters that no update changes, in name order, with what they were
    /// made as: a file of a model.
    Frozen(Vec<NamedTensor>, FrozenInitial),
    /// The index of a model, over the shards of its class before it.
    Index(IndexPlan),
    /// Entry JSON.
    Json(Vec<u8>),
}

/// A shard that is ready to be written: a copy, which later updates do not
/// reach.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CapturedShard {
    /// File name.
    pub name: &'static str,
    /// What it holds.
    pub content: Content,
}

/// State of one step: what each captured class is made of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CapturedState {
    /// In the order of [`StateClass`].
    pub classes: Vec<(StateClass, Vec<CapturedShard>)>,
    /// Completed updates.
    pub step: u64,
}

impl CapturedState {
    /// A shard of a class by its name.
    #[must_use]
    pub fn shard(&self, class: StateClass, name: &str) -> Option<&CapturedShard> {
        let (_, shards) = self.classes.iter().find(|(captured, _)| *captured == class)?;
        shards.iter().find(|shard| shard.name == name)
    }
}

/// One part of training state.
pub trait Component: Sync {
    /// Its class; no other component has it.
    fn class(&self) -> StateClass;

    /// What the contract makes of it.
    fn holding(&self, contract: &Contract) -> Holding;

    /// Names of its shards, in path order; empty for what never holds anything.
    fn shard_names(&self) -> &'static [&'static str];

    /// Names of its shards in a run with this engine, in path order.
    fn shards_in(&self, _: &Engine) -> &'static [&'static str] {
        self.shard_names()
    }

    /// A copy of the state.
    ///
    /// # Errors
    /// When it cannot be read or written as a file.
    fn capture(&self, source: &Source<'_>) -> Result<Vec<CapturedShard>, StateError>;

    /// Puts the state back, all of it.
    ///
    /// # Errors
    /// When a shard is missing, of another form, or does not fit the run.
    fn restore(&self, shards: &Shards<'_>, target: &mut Target<'_>) -> Result<(), StateError>;
}

/// The component of a class; `None` where this trainer has no such state.
#[must_use]
pub fn component(class: StateClass) -> Option<&'static dyn Component> {
    COMPONENTS.iter().copied().find(|component| component.class() == class)
}

/// Shards of one class as they were read back.
#[derive(Debug, Clone, Copy)]
pub struct Shards<'a> {
    class: StateClass,
    contents: &'a BTreeMap<String, Vec<u8>>,
    listed: &'a [Shard],
}

impl Shards<'_> {
    /// Bytes of a shard.
    ///
    /// # Errors
    /// [`StateError::Inventory`] where it is missing.
    pub fn bytes(&self, name: &str) -> Result<&[u8], StateError> {
        let missing = || inventory(self.class, format!("shard {name} is missing"));
        self.contents.get(name).map(Vec::as_slice).ok_or_else(missing)
    }

    /// Digest of a shard, as the manifest lists it.
    ///
    /// # Errors
    /// [`StateError::Inventory`] where it is missing.
    pub fn digest(&self, name: &str) -> Result<Digest, StateError> {
        let listed = self.listed.iter().find(|listed| listed.path == name).map(|listed| listed.digest);
        listed.ok_or_else(|| inventory(self.class, format!("shard {name} is not listed")))
    }

    /// Tensors of a shard, which are those that the manifest lists.
    ///
    /// # Errors
    /// [`StateError::Inventory`] and [`StateError::Tensors`].
    pub fn tensors(&self, name: &str, kind: FileKind) -> Result<Vec<NamedTensor>, StateError> {
        let class = self.class;
        let mut bytes = self.bytes(name)?;
        let num_bytes = bytes.len() as u64;
        let (tensors, shard) = export::read(kind, &mut bytes, num_bytes)
            .map_err(|source| StateError::Tensors { class, source: Box::new(source) })?;
        let listed = self.listed.iter().find(|listed| listed.path == name);
        if listed.is_none_or(|listed| listed.tensors != shard.tensors) {
            let reason = format!("{name} does not hold the tensors that the manifest lists");
            return Err(inventory(class, reason));
        }
        Ok(tensors)
    }

    /// A JSON shard.
    ///
    /// # Errors
    /// [`StateError::Inventory`] and [`StateError::Shape`].
    pub fn json<T: DeserializeOwned>(&self, name: &str) -> Result<T, StateError> {
        serde_json::from_slice(self.bytes(name)?)
            .map_err(|error| StateError::Shape { class: self.class, reason: error.to_string() })
    }

    /// Checks a JSON shard that contract, step and ledger determine.
    ///
    /// # Errors
    /// As [`Self::json`], and [`StateError::Mismatch`].
    pub fn check<T>(&self, name: &str, step: u64, expected: &T) -> Result<(), StateError>
    where
        T: Serialize + DeserializeOwned + PartialEq,
    {
        let actual: T = self.json(name)?;
        same(self.class, step, expected, &actual)
    }
}

/// Compares what a shard says with what it has to say.
///
/// # Errors
/// [`StateError::Mismatch`].
pub fn same<T: Serialize + PartialEq>(
    class: StateClass,
    step: u64,
    expected: &T,
    actual: &T,
) -> Result<(), StateError> {
    if actual == expected {
        return Ok(());
    }
    let json = |value: &T| serde_json::to_string(value).unwrap_or_else(|error| error.to_string());
    Err(StateError::Mismatch { class, step, expected: json(expected), actual: json(actual) })
}

/// A JSON shard.
///
/// # Errors
/// [`StateError::Encode`].
pub fn json<T: Serialize>(
    class: StateClass,
    name: &'static str,
    value: &T,
) -> Result<CapturedShard, StateError> {
    let bytes =
        ledger::canonical::entry_json(value).map_err(|source| StateError::Encode { class, source })?;
    Ok(CapturedShard { name, content: Content::Json(bytes) })
}

fn inventory(class: StateClass, reason: String) -> StateError {
    StateError::Inventory { class, reason }
}

/// Worker whose state a shard holds; `None` where workers share it.
#[must_use]
pub fn worker_of(path: &str) -> Option<WorkerId> {
    classes::rng_cpu::worker_of(path).map(WorkerId)
}

/// Copies every class that the contract captures.
///
/// # Errors
/// When a class has no component, or cannot be captured.
pub fn capture(source: &Source<'_>) -> Result<CapturedState, StateError> {
    let declared = &source.derivation.contract.state_classes;
    let mut classes = Vec::new();
    for declaration in declared.iter().filter(|declaration| declaration.not_applicable.is_none()) {
        let component = component(declaration.class).ok_or_else(|| unknown(declaration))?;
        classes.push((declaration.class, component.capture(source)?));
    }
    Ok(CapturedState { classes, step: source.derivation.step })
}

/// Puts every class that the contract captures back into an engine that stands
/// at its initial state. Classes in `left_out` stay there: a cold control, and
/// never a resume.
///
/// # Errors
/// When a class is missing, is too many, is of another step or form, or does
/// not fit the run. The engine must then be dropped.
pub fn restore(
    manifest: &CheckpointManifest,
    contents: &BTreeMap<String, Vec<u8>>,
    target: &mut Target<'_>,
    left_out: &[StateClass],
) -> Result<(), StateError> {
    let contract = target.derivation.contract;
    check_inventory(contract, manifest, target.derivation.step, target.engine)?;
    let captured = manifest.classes.iter().filter(|captured| captured.not_applicable.is_none());
    // Of each worker one item, where workers have state of their own.
    let mut listed: BTreeMap<StateClass, Vec<Shard>> = BTreeMap::new();
    for captured in captured.filter(|captured| !left_out.contains(&captured.class)) {
        listed.entry(captured.class).or_default().extend(captured.shards.iter().cloned());
    }
    for (class, listed) in &listed {
        let class = *class;
        let component =
            component(class).ok_or_else(|| inventory(class, "this trainer has no such state".to_owned()))?;
        component.restore(&Shards { class, contents, listed }, target)?;
    }
    if left_out.is_empty() {
        let class = StateClass::AccumulatedGradients;
        target.engine.check_window().map_err(StateError::engine(class))?;
    }
    Ok(())
}

/// Every class of the contract, once, captured or not as declared, at the step,
/// with exactly its shards; and no other class.
fn check_inventory(
    contract: &Contract,
    manifest: &CheckpointManifest,
    step: u64,
    engine: &Engine,
) -> Result<(), StateError> {
    let mut found: BTreeMap<(StateClass, Option<WorkerId>), &CapturedClass> = BTreeMap::new();
    for captured in &manifest.classes {
        if found.insert((captured.class, captured.worker), captured).is_some() {
            return Err(inventory(captured.class, "the checkpoint has it twice".to_owned()));
        }
    }
    for declaration in &contract.state_classes {
        let class = declaration.class;
        let names = match (declaration.not_applicable, component(class)) {
            (None, Some(component)) => component.shards_in(engine),
            _ => &[],
        };
        let workers: BTreeSet<Option<WorkerId>> = if names.is_empty() {
            BTreeSet::from([None])
        } else {
            names.iter().map(|name| worker_of(name)).collect()
        };
        for worker in workers {
            let Some(captured) = found.remove(&(class, worker)) else {
                let whose = worker.map_or_else(String::new, |worker| format!(" of worker {worker}"));
                return Err(inventory(class, format!("the checkpoint does not have it{whose}")));
            };
            if captured.not_applicable != declaration.not_applicable {
                let (wanted, actual) = (declaration.not_applicable, captured.not_applicable);
                let reason = format!("the contract declares {wanted:?}, the checkpoint {actual:?}");
                return Err(inventory(class, reason));
            }
            if captured.step != step {
                let reason =
                    format!("it stands at step {}, and the checkpoint at step {step}", captured.step);
                return Err(inventory(class, reason));
            }
            let wanted: BTreeSet<&str> =
                names.iter().copied().filter(|name| worker_of(name) == worker).collect();
            let shards: BTreeSet<&str> = captured.shards.iter().map(|shard| shard.path.as_str()).collect();
            if shards != wanted || captured.shards.len() != wanted.len() {
                return Err(inventory(class, format!("it has the shards {shards:?}, expected {wanted:?}")));
            }
        }
    }
    match found.into_keys().next() {
        Some((class, Some(worker))) => {
            Err(inventory(class, format!("the checkpoint has it of worker {worker}, and the run has not")))
        }
        Some((class, None)) => Err(inventory(class, "the contract does not declare it".to_owned())),
        None => Ok(()),
    }
}

/// Checks that every class is declared as this trainer holds it.
///
/// # Errors
/// [`StateError::Declaration`] for the first class that is not.
pub fn check_declarations(contract: &Contract) -> Result<(), StateError> {
    let declared = |class| contract.state_classes.iter().find(|declaration| declaration.class == class);
    for component in COMPONENTS {
        let class = component.class();
        let is_needed = component.holding(contract).is_needed;
        if declared(class).is_none() && (is_needed || StateClass::REQUIRED.contains(&class)) {
            let holds = "needs every class captured or declared not applicable";
            return Err(StateError::Declaration { class, declared: "nowhere".to_owned(), holds });
        }
    }
    for declaration in &contract.state_classes {
        let component = component(declaration.class).ok_or_else(|| unknown(declaration))?;
        let holding = component.holding(contract);
        let holds = match declaration.not_applicable {
            None if holding.is_held => continue,
            None => "has no such state; declare it not applicable, or leave it out",
            Some(reason) if holding.reasons.contains(&reason) => continue,
            Some(_) if holding.is_held && holding.reasons.is_empty() => {
                "holds it, so that it has to be captured"
            }
            Some(_) => "does not fit that reason",
        };
        let declared = described(declaration);
        return Err(StateError::Declaration { class: declaration.class, declared, holds });
    }
    Ok(())
}

fn unknown(declaration: &StateClassDeclaration) -> StateError {
    let holds = "has no such state; declare it not applicable, or leave it out";
    StateError::Declaration { class: declaration.class, declared: described(declaration), holds }
}

fn described(declaration: &StateClassDeclaration) -> String {
    match declaration.not_applicable {
        None => "captured".to_owned(),
        Some(reason) => format!("not applicable ({reason:?})"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_class_has_one_component_and_every_shard_one_owner() {
        let classes: Vec<StateClass> = COMPONENTS.iter().map(|component| component.class()).collect();
        assert!(classes.is_sorted_by(|a, b| a < b), "{classes:?}");
        for class in StateClass::REQUIRED {
            assert!(classes.contains(&class), "{class} has no component");
        }
        let mut names: Vec<&str> =
            COMPONENTS.iter().flat_map(|component| component.shard_names()).copied().collect();
        let num_names = names.len();
        assert!(num_names > 0);
        for component in COMPONENTS {
            assert!(component.shard_names().is_sorted(), "{}", component.class());
        }
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), num_names);
    }
}
