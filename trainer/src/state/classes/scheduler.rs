//! Position in the schedule, and what schedules that watch evaluations have
//! come to. Closed schedules are functions of the step, so that a contract may
//! leave the class out.

use schemas::contract::{Contract, ScheduleShape};
use schemas::state::{NotApplicableReason, StateClass};
use serde::{Deserialize, Serialize};

use crate::plateau::PlateauState;
use crate::state::StateError;
use crate::state::registry::{self, CapturedShard, Component, Holding, Shards, Source, Target};

const NAME: &str = "scheduler.json";

#[derive(Debug)]
pub(in crate::state) struct Scheduler;

/// `scheduler.json` of schedules that are functions of the step.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ClosedState {
    /// Completed updates.
    step: u64,
}

/// `scheduler.json` where a schedule watches evaluations.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct WatchingState {
    /// The groups with such a schedule, in the card's order.
    plateaus: Vec<PlateauState>,
    /// Completed updates.
    step: u64,
}

fn watches(contract: &Contract) -> bool {
    contract.schedule.iter().any(|group| matches!(group.shape, ScheduleShape::Plateau { .. }))
}

impl Component for Scheduler {
    fn class(&self) -> StateClass {
        StateClass::Scheduler
    }

    fn holding(&self, contract: &Contract) -> Holding {
        if watches(contract) {
            return Holding::CAPTURED;
        }
        Holding { is_held: true, is_needed: false, reasons: &[NotApplicableReason::FunctionOfStep] }
    }

    fn shard_names(&self) -> &'static [&'static str] {
        &[NAME]
    }

    fn capture(&self, source: &Source<'_>) -> Result<Vec<CapturedShard>, StateError> {
        let step = source.derivation.step;
        let shard = if watches(source.derivation.contract) {
            let state = WatchingState { plateaus: source.engine.plateaus(), step };
            registry::json(self.class(), NAME, &state)?
        } else {
            registry::json(self.class(), NAME, &ClosedState { step })?
        };
        Ok(vec![shard])
    }

    fn restore(&self, shards: &Shards<'_>, target: &mut Target<'_>) -> Result<(), StateError> {
        let step = target.derivation.step;
        if !watches(target.derivation.contract) {
            return shards.check(NAME, step, &ClosedState { step });
        }
        let state: WatchingState = shards.json(NAME)?;
        let found = ClosedState { step: state.step };
        registry::same(self.class(), step, &ClosedState { step }, &found)?;
        target.engine.restore_plateaus(state.plateaus).map_err(StateError::engine(self.class()))
    }
}
