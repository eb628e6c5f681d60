//! Averaged parameters, in the form of a model: every parameter, the frozen
//! ones as they are.

use schemas::contract::Contract;
use schemas::state::StateClass;

use crate::checkpoint::AVERAGES_NAME;
use crate::export::FileKind;
use crate::state::StateError;
use crate::state::registry::{CapturedShard, Component, Content, Holding, Shards, Source, Target};

#[derive(Debug)]
pub(in crate::state) struct Averages;

impl Component for Averages {
    fn class(&self) -> StateClass {
        StateClass::Averages
    }

    fn holding(&self, contract: &Contract) -> Holding {
        match contract.averages {
            Some(_) => Holding::CAPTURED,
            None => Holding::nothing(&[]),
        }
    }

    fn shard_names(&self) -> &'static [&'static str] {
        &[AVERAGES_NAME]
    }

    fn capture(&self, source: &Source<'_>) -> Result<Vec<CapturedShard>, StateError> {
        let tensors = source.engine.capture_averages().map_err(StateError::engine(self.class()))?;
        Ok(vec![CapturedShard { name: AVERAGES_NAME, content: Content::Tensors(FileKind::Model, tensors) }])
    }

    fn restore(&self, shards: &Shards<'_>, target: &mut Target<'_>) -> Result<(), StateError> {
        let tensors = shards.tensors(AVERAGES_NAME, FileKind::Model)?;
        target.engine.restore_averages(&tensors).map_err(StateError::engine(self.class()))
    }
}
