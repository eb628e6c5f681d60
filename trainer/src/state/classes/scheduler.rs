//! Position in the schedule. Closed schedules are functions of the step, so
//! that a contract may leave it out.

use schemas::contract::Contract;
use schemas::state::{NotApplicableReason, StateClass};
use serde::{Deserialize, Serialize};

use crate::state::StateError;
use crate::state::registry::{self, CapturedShard, Component, Holding, Shards, Source, Target};

const NAME: &str = "scheduler.json";

#[derive(Debug)]
pub(in crate::state) struct Scheduler;

/// `scheduler.json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SchedulerState {
    /// Completed updates.
    step: u64,
}

impl Component for Scheduler {
    fn class(&self) -> StateClass {
        StateClass::Scheduler
    }

    fn holding(&self, _: &Contract) -> Holding {
        Holding { is_held: true, is_needed: false, reasons: &[NotApplicableReason::FunctionOfStep] }
    }

    fn shard_names(&self) -> &'static [&'static str] {
        &[NAME]
    }

    fn capture(&self, source: &Source<'_>) -> Result<Vec<CapturedShard>, StateError> {
        let state = SchedulerState { step: source.derivation.step };
        Ok(vec![registry::json(self.class(), NAME, &state)?])
    }

    fn restore(&self, shards: &Shards<'_>, target: &mut Target<'_>) -> Result<(), StateError> {
        let step = target.derivation.step;
        shards.check(NAME, step, &SchedulerState { step })
    }
}
