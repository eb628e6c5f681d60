//! Restoring a checkpoint with state classes left out on purpose: the controls
//! of a probe.
//!
//! What is left out gets the bytes of the initial state, as a loader does that
//! skips a file in silence. An ordinary resume refuses such a checkpoint; that
//! it does, and names the class, is asserted here before the refusal is passed
//! by.

use schemas::body::Counters;
use schemas::contract::{CompilerPlan, Contract};
use schemas::state::StateClass;
use serde::de::DeserializeOwned;

use crate::checkpoint::locate::LocatedCheckpoint;
use crate::checkpoint::{MODEL_NAME, OPTIMIZER_NAME};
use crate::engine::Engine;
use crate::export::{self, FileKind, NamedTensor};
use crate::run::error::{RunError, chain};
use crate::run::resume::ResumeState;
use crate::state::{self, DataCursor, SelectionState, SelectionTracker};

use super::error::ProbeError;
use super::state_bytes::{StateBytes, captured};

/// What the engine does not hold of a restored state.
#[derive(Debug)]
pub struct Restored {
    /// Whether everything that was withheld has the bytes of the initial state
    /// in the checkpoint too, so that nothing was left out.
    pub equals_initial: bool,
    /// Best value and patience.
    pub selection: SelectionTracker,
}

/// Every captured class but the model: the cold control.
#[must_use]
pub fn cold(contract: &Contract) -> Vec<StateClass> {
    captured(contract).into_iter().filter(|class| *class != StateClass::Model).collect()
}

/// Restores a checkpoint into an engine that stands at the initial state, with
/// the withheld classes as they are there. Where only the model is taken, the
/// step is 0 too, because nothing that was restored holds it.
///
/// # Errors
/// When an ordinary resume would not have refused, or what is left does not
/// fit the run.
pub fn restore(
    engine: &mut Engine,
    mut resume: ResumeState,
    contract: &Contract,
    plan: &CompilerPlan,
    withheld: &[StateClass],
) -> Result<Restored, ProbeError> {
    let initial = StateBytes::capture(engine, contract, plan, &SelectionState::default())?;
    assert_refused(engine, &mut resume, contract, plan, withheld)?;
    let Some(mut located) = resume.checkpoint.take() else {
        return Ok(Restored { equals_initial: true, selection: resume.selection });
    };
    let mut equals_initial = true;
    for class in withheld {
        for (path, bytes) in initial.class(*class).into_iter().flatten() {
            let saved = located.contents.insert(path.clone(), bytes.clone());
            equals_initial &= saved.as_ref() == Some(bytes);
        }
    }
    let classes = captured(contract);
    let counters = if classes.contains(&StateClass::DataCursor) {
        let cursor: DataCursor = document(&located, StateClass::DataCursor)?;
        Counters {
            evaluations: resume.counters.evaluations,
            examples: cursor.examples,
            tokens: cursor.tokens,
        }
    } else {
        resume.counters
    };
    let is_cold = cold(contract).iter().all(|class| withheld.contains(class));
    let selection = if classes.contains(&StateClass::SelectionState) {
        resume.selection.with_state(document(&located, StateClass::SelectionState)?)
    } else if is_cold {
        resume.selection.with_state(SelectionState::default())
    } else {
        resume.selection
    };
    let model = tensors(&located, StateClass::Model, MODEL_NAME, FileKind::Model)?;
    let optimizer = tensors(&located, StateClass::Optimizer, OPTIMIZER_NAME, FileKind::State)?;
    let step = if is_cold { 0 } else { resume.step };
    engine.restore(step, counters, &model, &optimizer)?;
    Ok(Restored { equals_initial, selection })
}

/// An ordinary resume from a checkpoint without these classes names one of
/// them.
fn assert_refused(
    engine: &mut Engine,
    resume: &mut ResumeState,
    contract: &Contract,
    plan: &CompilerPlan,
    withheld: &[StateClass],
) -> Result<(), ProbeError> {
    let Some(class) = withheld.first().copied() else { return Ok(()) };
    let Some(located) = &mut resume.checkpoint else { return Ok(()) };
    let whole = located.manifest.clone();
    located.manifest.classes.retain(|captured| !withheld.contains(&captured.class));
    let result = resume.restore(engine, contract, plan);
    if let Some(located) = &mut resume.checkpoint {
        located.manifest = whole;
    }
    match result {
        Err(RunError::Inventory { class, .. }) if withheld.contains(&class) => Ok(()),
        Err(other) => Err(ProbeError::NotRefused { class, found: chain(&other) }),
        Ok(()) => Err(ProbeError::NotRefused { class, found: "it was accepted".to_owned() }),
    }
}

fn content<'a>(
    located: &'a LocatedCheckpoint,
    class: StateClass,
    name: &str,
) -> Result<&'a [u8], ProbeError> {
    let missing = || RunError::Inventory { class, reason: format!("shard {name} is missing") };
    Ok(located.contents.get(name).map(Vec::as_slice).ok_or_else(missing)?)
}

fn document<T: DeserializeOwned>(located: &LocatedCheckpoint, class: StateClass) -> Result<T, ProbeError> {
    let bytes = content(located, class, &state::shard_name(class))?;
    serde_json::from_slice(bytes)
        .map_err(|error| state::StateError::Shape { class, reason: error.to_string() }.into())
}

fn tensors(
    located: &LocatedCheckpoint,
    class: StateClass,
    name: &str,
    kind: FileKind,
) -> Result<Vec<NamedTensor>, ProbeError> {
    let mut bytes = content(located, class, name)?;
    let num_bytes = bytes.len() as u64;
    let (tensors, _) =
        export::read(kind, &mut bytes, num_bytes).map_err(|source| RunError::Tensors { class, source })?;
    Ok(tensors)
}
