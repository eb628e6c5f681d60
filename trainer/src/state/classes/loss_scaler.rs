//! Loss scale, and what moves it next. There is none where nothing is computed
//! in binary16.

use schemas::contract::Contract;
use schemas::state::{NotApplicableReason, StateClass};

use crate::scaling::ScaleState;
use crate::state::StateError;
use crate::state::registry::{self, CapturedShard, Component, Holding, Shards, Source, Target};

const NAME: &str = "loss_scaler.json";

#[derive(Debug)]
pub(in crate::state) struct LossScaler;

impl Component for LossScaler {
    fn class(&self) -> StateClass {
        StateClass::LossScaler
    }

    fn holding(&self, contract: &Contract) -> Holding {
        if contract.numerics.loss_scaler.is_none() {
            return Holding::nothing(&[NotApplicableReason::NoLossScaling]);
        }
        Holding::CAPTURED
    }

    fn shard_names(&self) -> &'static [&'static str] {
        &[NAME]
    }

    fn capture(&self, source: &Source<'_>) -> Result<Vec<CapturedShard>, StateError> {
        let class = self.class();
        let reason = || "the engine scales no loss".to_owned();
        let state = source.engine.loss_scale();
        let state = state.ok_or_else(|| StateError::Inventory { class, reason: reason() })?;
        Ok(vec![registry::json(class, NAME, state)?])
    }

    fn restore(&self, shards: &Shards<'_>, target: &mut Target<'_>) -> Result<(), StateError> {
        let state: ScaleState = shards.json(NAME)?;
        let step = target.derivation.step;
        target.engine.restore_loss_scale(step, state).map_err(StateError::engine(self.class()))
    }
}
