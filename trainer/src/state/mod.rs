//! The JSON shards of training state: data cursor, topology, compiler plan,
//! scheduler, selection state.
//!
//! Each is a function of the contract, the step and what the ledger holds, so
//! each is derived twice: when it is written and when it is restored. A shard
//! that says anything else is refused with the name of its class, because a
//! run that went on from it would not be the contract's run.

mod selection;

use schemas::body::Counters;
use schemas::contract::{CompilerPlan, Contract, Dtype};
use schemas::state::{NotApplicableReason, StateClass, StateClassDeclaration};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

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
    /// Canonical bytes could not be written.
    #[error("state class `{class}` could not be written as JSON")]
    Encode {
        /// The class.
        class: StateClass,
        /// Why.
        source: ledger::canonical::CanonicalError,
    },
}

/// `data_cursor.json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DataCursor {
    /// Epoch of the next example.
    pub epoch: u64,
    /// Examples consumed.
    pub examples: u64,
    /// Position of the next example within its epoch.
    pub position: u64,
    /// Completed updates.
    pub step: u64,
    /// Target tokens consumed.
    pub tokens: u64,
}

/// `topology.json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TopologyState {
    /// Learners.
    pub learners: u32,
    /// Worker processes.
    pub workers: u32,
}

/// `compiler_plan.json`. Threads and instrumentation are left out, since bits
/// may not depend on them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CompilerPlanState {
    /// As executed.
    pub compiler: CompilerPlan,
    /// dtype of forward and backward.
    pub compute_dtype: Dtype,
    /// Worker processes.
    pub num_workers: u32,
}

/// `scheduler.json`: the schedules are functions of the step.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SchedulerState {
    /// Completed updates.
    pub step: u64,
}

/// From what the JSON shards of one step are derived.
#[derive(Debug, Clone, Copy)]
pub struct Derivation<'a> {
    /// The run's contract.
    pub contract: &'a Contract,
    /// Counters after the step.
    pub counters: Counters,
    /// Examples of the train split.
    pub num_train_examples: u64,
    /// The plan that runs.
    pub plan: &'a CompilerPlan,
    /// Best value so far and patience, after the step's evaluations.
    pub selection: &'a SelectionState,
    /// The step.
    pub step: u64,
}

impl Derivation<'_> {
    fn data_cursor(&self) -> DataCursor {
        let examples = self.counters.examples;
        // An empty train split is refused before any step; 1 avoids a
        // division by zero and is never reached.
        let num_examples = self.num_train_examples.max(1);
        DataCursor {
            epoch: examples / num_examples,
            examples,
            position: examples % num_examples,
            step: self.step,
            tokens: self.counters.tokens,
        }
    }

    fn topology(&self) -> TopologyState {
        TopologyState { learners: self.contract.topology.learners, workers: self.contract.topology.workers }
    }

    fn compiler_plan(&self) -> CompilerPlanState {
        CompilerPlanState {
            compiler: self.plan.clone(),
            compute_dtype: self.contract.numerics.compute_dtype,
            num_workers: self.contract.topology.workers,
        }
    }

    /// Bytes of the JSON shard of a class, or `None` for the classes that are
    /// tensors.
    ///
    /// # Errors
    /// [`StateError::Encode`], and [`StateError::Declaration`] for a class that
    /// this trainer does not have.
    pub fn shard(&self, class: StateClass) -> Result<Option<Vec<u8>>, StateError> {
        let bytes = match class {
            StateClass::Model | StateClass::Optimizer => return Ok(None),
            StateClass::DataCursor => encode(class, &self.data_cursor())?,
            StateClass::Topology => encode(class, &self.topology())?,
            StateClass::CompilerPlan => encode(class, &self.compiler_plan())?,
            StateClass::Scheduler => encode(class, &SchedulerState { step: self.step })?,
            StateClass::SelectionState => encode(class, self.selection)?,
            other => return Err(undeclared(other)),
        };
        Ok(Some(bytes))
    }

    /// Checks the JSON shard of a class against what the run derives.
    ///
    /// # Errors
    /// [`StateError::Shape`] and [`StateError::Mismatch`], naming the class.
    pub fn check_shard(&self, class: StateClass, bytes: &[u8]) -> Result<(), StateError> {
        match class {
            StateClass::Model | StateClass::Optimizer => Ok(()),
            StateClass::DataCursor => self.check(class, bytes, &self.data_cursor()),
            StateClass::Topology => self.check(class, bytes, &self.topology()),
            StateClass::CompilerPlan => self.check(class, bytes, &self.compiler_plan()),
            StateClass::Scheduler => self.check(class, bytes, &SchedulerState { step: self.step }),
            StateClass::SelectionState => self.check(class, bytes, self.selection),
            other => Err(undeclared(other)),
        }
    }

    fn check<T>(&self, class: StateClass, bytes: &[u8], expected: &T) -> Result<(), StateError>
    where
        T: Serialize + DeserializeOwned + PartialEq,
    {
        let actual: T = serde_json::from_slice(bytes)
            .map_err(|error| StateError::Shape { class, reason: error.to_string() })?;
        if actual == *expected {
            return Ok(());
        }
        let json = |value: &T| serde_json::to_string(value).unwrap_or_else(|error| error.to_string());
        Err(StateError::Mismatch { class, step: self.step, expected: json(expected), actual: json(&actual) })
    }
}

fn encode<T: Serialize>(class: StateClass, value: &T) -> Result<Vec<u8>, StateError> {
    ledger::canonical::entry_json(value).map_err(|source| StateError::Encode { class, source })
}

fn undeclared(class: StateClass) -> StateError {
    StateError::Declaration { class, declared: "captured".to_owned(), holds: "has no such state" }
}

/// File name of a class's JSON shard.
#[must_use]
pub fn shard_name(class: StateClass) -> String {
    format!("{}.json", class.name())
}

/// Checks that every class is declared in a way that this trainer can honour.
///
/// # Errors
/// [`StateError::Declaration`] for the first class that is not.
pub fn check_declarations(declarations: &[StateClassDeclaration]) -> Result<(), StateError> {
    for class in StateClass::REQUIRED {
        if !declarations.iter().any(|declaration| declaration.class == class) {
            return Err(StateError::Declaration {
                class,
                declared: "nowhere".to_owned(),
                holds: "needs every class captured or declared not applicable",
            });
        }
    }
    for declaration in declarations {
        check_declaration(declaration)?;
    }
    Ok(())
}

fn check_declaration(declaration: &StateClassDeclaration) -> Result<(), StateError> {
    use NotApplicableReason as Reason;
    use StateClass as Class;
    let refuse = |holds| {
        Err(StateError::Declaration {
            class: declaration.class,
            declared: match declaration.not_applicable {
                None => "captured".to_owned(),
                Some(reason) => format!("not applicable ({reason:?})"),
            },
            holds,
        })
    };
    match (declaration.class, declaration.not_applicable) {
        (
            Class::Model | Class::Optimizer | Class::DataCursor | Class::Topology | Class::CompilerPlan,
            Some(_),
        ) => refuse("holds it, so that it has to be captured"),
        (Class::SelectionState, Some(_)) => refuse("holds it; capture it or leave it out"),
        (
            Class::Model
            | Class::Optimizer
            | Class::DataCursor
            | Class::Topology
            | Class::CompilerPlan
            | Class::SelectionState
            | Class::Scheduler,
            None,
        )
        | (Class::Scheduler, Some(Reason::FunctionOfStep))
        | (Class::RngCpu, Some(Reason::CounterBasedRandomness))
        | (Class::RngDevice, Some(Reason::NoDeviceRandomness | Reason::CounterBasedRandomness))
        | (Class::LossScaler, Some(Reason::NoLossScaling))
        | (Class::Sampler, Some(Reason::FunctionOfPosition))
        | (Class::AccumulatedGradients, Some(Reason::UpdateBoundariesOnly)) => Ok(()),
        (_, Some(_)) => refuse("does not fit that reason"),
        (_, None) => refuse("has no such state; declare it not applicable, or leave it out"),
    }
}
