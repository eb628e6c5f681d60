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

use crate::engine::Engine;
use crate::run::error::{RunError, chain};
use crate::run::resume::ResumeState;
use crate::state::{SelectionState, SelectionTracker, StateError};

use super::error::ProbeError;
use super::state_bytes::{StateBytes, captured};

/// Classes that say how a run was executed. An engine holds neither: bits do
/// not depend on them, but what a later attempt may go on with does.
const EXECUTED: [StateClass; 2] = [StateClass::Topology, StateClass::CompilerPlan];

/// What the engine does not hold of a restored state.
#[derive(Debug)]
pub struct Restored {
    /// Whether everything that was withheld has the bytes of the initial state
    /// in the checkpoint too, so that nothing was left out.
    pub equals_initial: bool,
    /// The withheld classes that say how the run was executed, as they are in
    /// the initial state under the contract.
    pub left_out: StateBytes,
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
    // A run that begins anew has the contract's number of workers, whatever the
    // attempt had that saved the checkpoint.
    let plan_of_contract = (plan, contract.topology.workers);
    let initial = StateBytes::capture(engine, contract, plan_of_contract, &SelectionState::default())?;
    assert_refused(engine, &mut resume, contract, plan, withheld)?;
    let Some(located) = &resume.checkpoint else {
        let left_out = StateBytes::default();
        return Ok(Restored { equals_initial: true, left_out, selection: resume.selection });
    };
    let mut left_out = withheld.iter().filter_map(|class| initial.class(*class)).flatten();
    let equals_initial = left_out.all(|(path, bytes)| located.contents.get(path) == Some(bytes));
    resume.restore_without(engine, contract, plan, withheld)?;
    let is_cold = cold(contract).iter().all(|class| withheld.contains(class));
    if withheld.contains(&StateClass::DataCursor) && !is_cold {
        // The step is not the cursor's alone: the optimizer counts it too.
        let counters = Counters { examples: 0, tokens: 0, ..resume.counters };
        engine.stand_at(resume.step, counters);
    }
    let selection = if is_cold || withheld.contains(&StateClass::SelectionState) {
        resume.selection.with_state(SelectionState::default())
    } else {
        resume.selection
    };
    let is_executed = |class: &StateClass| EXECUTED.contains(class) && withheld.contains(class);
    Ok(Restored { equals_initial, left_out: initial.only(is_executed), selection })
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
        Err(RunError::State(StateError::Inventory { class, .. })) if withheld.contains(&class) => Ok(()),
        Err(other) => Err(ProbeError::NotRefused { class, found: chain(&other) }),
        Ok(()) => Err(ProbeError::NotRefused { class, found: "it was accepted".to_owned() }),
    }
}
