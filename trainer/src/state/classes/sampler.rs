//! State of the sampler: none, since the order is a function of the position.

use schemas::contract::Contract;
use schemas::state::{NotApplicableReason, StateClass};

use crate::state::StateError;
use crate::state::registry::{CapturedShard, Component, Holding, Shards, Source, Target};

#[derive(Debug)]
pub(in crate::state) struct Sampler;

impl Component for Sampler {
    fn class(&self) -> StateClass {
        StateClass::Sampler
    }

    fn holding(&self, _: &Contract) -> Holding {
        Holding::nothing(&[NotApplicableReason::FunctionOfPosition])
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
