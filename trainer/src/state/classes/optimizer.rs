//! Moments of the update rule. Its step count is the run's own.

use schemas::contract::Contract;
use schemas::state::StateClass;

use crate::checkpoint::OPTIMIZER_NAME;
use crate::export::FileKind;
use crate::state::StateError;
use crate::state::registry::{CapturedShard, Component, Content, Holding, Shards, Source, Target};

#[derive(Debug)]
pub(in crate::state) struct Optimizer;

impl Component for Optimizer {
    fn class(&self) -> StateClass {
        StateClass::Optimizer
    }

    fn holding(&self, _: &Contract) -> Holding {
        Holding::CAPTURED
    }

    fn shard_names(&self) -> &'static [&'static str] {
        &[OPTIMIZER_NAME]
    }

    fn capture(&self, source: &Source<'_>) -> Result<Vec<CapturedShard>, StateError> {
        let tensors = source.engine.capture_optimizer();
        Ok(vec![CapturedShard { name: OPTIMIZER_NAME, content: Content::Tensors(FileKind::State, tensors) }])
    }

    fn restore(&self, shards: &Shards<'_>, target: &mut Target<'_>) -> Result<(), StateError> {
        let tensors = shards.tensors(OPTIMIZER_NAME, FileKind::State)?;
        target.engine.restore_optimizer(&tensors).map_err(StateError::engine(self.class()))
    }
}
