//! Training state by class: what each class is made of ([`registry`] and the
//! components that it lists), and why one could not be saved or put back.
//!
//! Some classes hold what nothing else knows. The others are functions of the
//! contract, the step and what the ledger holds, and are derived twice: when
//! they are written and when they are restored. A shard that says anything else
//! is refused with the name of its class, because a run that went on from it
//! would not be the contract's run.

pub mod anomaly;
mod classes;
pub mod registry;
mod selection;
pub mod split;
pub mod tree;

use schemas::body::Counters;
use schemas::contract::{CompilerPlan, Contract};
use schemas::state::StateClass;

use crate::engine::EngineError;
use crate::export::ExportError;

pub use selection::{SelectionState, SelectionTracker};

/// Why state could not be captured or does not fit the run.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// The contract asks for a class in a way that this trainer cannot meet.
    #[error("state class `{class}` is declared {declared}, but this trainer {holds}")]
    Declaration {
        /// The class.
        class: StateClass,
        /// How the contract declares it.
        declared: String,
        /// What the trainer does instead.
        holds: &'static str,
    },
    /// A shard is not JSON of its class's shape.
    #[error("state class `{class}`: the shard is not of its shape: {reason}")]
    Shape {
        /// The class.
        class: StateClass,
        /// What the parser said.
        reason: String,
    },
    /// A shard says something else than what the run derives.
    #[error("state class `{class}` does not fit step {step}: expected {expected}, found {actual}")]
    Mismatch {
        /// The class.
        class: StateClass,
        /// Step that is restored.
        step: u64,
        /// As JSON.
        expected: String,
        /// As JSON.
        actual: String,
    },
    /// A state class that the contract captures is not in the checkpoint, or
    /// one that it does not know is.
    #[error("state class `{class}`: {reason}")]
    Inventory {
        /// The class.
        class: StateClass,
        /// What is missing or too many.
        reason: String,
    },
    /// Tensors of a checkpoint cannot be read.
    #[error("state class `{class}` cannot be restored")]
    Tensors {
        /// The class.
        class: StateClass,
        /// Why.
        source: Box<ExportError>,
    },
    /// The engine could not give its state, or what it is given does not fit.
    #[error("state class `{class}` cannot be taken or put back")]
    Engine {
        /// The class.
        class: StateClass,
        /// Why.
        source: Box<EngineError>,
    },
    /// Canonical bytes could not be written.
    #[error("state class `{class}` could not be written as JSON")]
    Encode {
        /// The class.
        class: StateClass,
        /// Why.
        source: ledger::canonical::CanonicalError,
    },
}

impl StateError {
    /// Says which class an error of the engine is about.
    pub(crate) fn engine(class: StateClass) -> impl FnOnce(EngineError) -> Self {
        move |source| Self::Engine { class, source: Box::new(source) }
    }
}

/// From what derived shards of one step are made.
#[derive(Debug, Clone, Copy)]
pub struct Derivation<'a> {
    /// The run's contract.
    pub contract: &'a Contract,
    /// Counters after the step; when state is captured, with what an unfinished
    /// update has consumed.
    pub counters: Counters,
    /// Examples of the train split.
    pub num_train_examples: u64,
    /// Processes that execute the attempt; when state is restored, those of the
    /// attempt that saved it.
    pub num_workers: u32,
    /// The plan that runs.
    pub plan: &'a CompilerPlan,
    /// Best value so far and patience, after the step's evaluations.
    pub selection: &'a SelectionState,
    /// The step.
    pub step: u64,
}
