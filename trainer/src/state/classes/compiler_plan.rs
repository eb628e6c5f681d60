//! What was compiled and selected. Threads and instrumentation are left out,
//! since bits may not depend on them.

use schemas::contract::{CompilerPlan, Contract, Dtype};
use schemas::state::StateClass;
use serde::{Deserialize, Serialize};

use crate::state::registry::{self, CapturedShard, Component, Holding, Shards, Source, Target};
use crate::state::{Derivation, StateError};

const NAME: &str = "compiler_plan.json";

#[derive(Debug)]
pub(in crate::state) struct Plan;

/// `compiler_plan.json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct CompilerPlanState {
    /// As executed.
    compiler: CompilerPlan,
    /// dtype of forward and backward.
    compute_dtype: Dtype,
    /// Worker processes.
    num_workers: u32,
}

fn plan(derivation: &Derivation<'_>) -> CompilerPlanState {
    CompilerPlanState {
        compiler: derivation.plan.clone(),
        compute_dtype: derivation.contract.numerics.compute_dtype,
        num_workers: derivation.num_workers,
    }
}

impl Component for Plan {
    fn class(&self) -> StateClass {
        StateClass::CompilerPlan
    }

    fn holding(&self, _: &Contract) -> Holding {
        Holding::CAPTURED
    }

    fn shard_names(&self) -> &'static [&'static str] {
        &[NAME]
    }

    fn capture(&self, source: &Source<'_>) -> Result<Vec<CapturedShard>, StateError> {
        Ok(vec![registry::json(self.class(), NAME, &plan(&source.derivation))?])
    }

    fn restore(&self, shards: &Shards<'_>, target: &mut Target<'_>) -> Result<(), StateError> {
        let derivation = &target.derivation;
        shards.check(NAME, derivation.step, &plan(derivation))
    }
}
