//! Loss scale: none, since binary32 needs no scaling.

use schemas::contract::Contract;
use schemas::state::{NotApplicableReason, StateClass};

use crate::state::StateError;
use crate::state::registry::{CapturedShard, Component, Holding, Shards, Source, Target};

#[derive(Debug)]
pub(in crate::state) struct LossScaler;

impl Component for LossScaler {
    fn class(&self) -> StateClass {
        StateClass::LossScaler
    }

    fn holding(&self, _: &Contract) -> Holding {
        Holding::nothing(&[NotApplicableReason::NoLossScaling])
    }

    fn shard_names(&self) -> &'static [&'static str] {
        &[]
    }

    fn capture(&self, _: &Source<'_>) -> Result<Vec<CapturedShard>, StateError> {
        Ok(Vec::new())
    }

    fn restore(&self, _: &Shards<'_>, _: &mut Target<'_>) -> Result<(), StateError> {
        Ok(())
    }
}
