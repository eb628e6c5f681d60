//! Gradients of an unfinished update: none, since state is saved at update
//! boundaries only.

use schemas::contract::Contract;
use schemas::state::{NotApplicableReason, StateClass};

use crate::state::StateError;
use crate::state::registry::{CapturedShard, Component, Holding, Shards, Source, Target};

#[derive(Debug)]
pub(in crate::state) struct AccumulatedGradients;

impl Component for AccumulatedGradients {
    fn class(&self) -> StateClass {
        StateClass::AccumulatedGradients
    }

    fn holding(&self, _: &Contract) -> Holding {
        Holding::nothing(&[NotApplicableReason::UpdateBoundariesOnly])
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
