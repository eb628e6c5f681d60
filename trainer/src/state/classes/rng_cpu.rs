//! Random state of the host: none, since every draw is a function of its
//! coordinates.

use schemas::contract::Contract;
use schemas::state::{NotApplicableReason, StateClass};

use crate::state::StateError;
use crate::state::registry::{CapturedShard, Component, Holding, Shards, Source, Target};

#[derive(Debug)]
pub(in crate::state) struct RngCpu;

impl Component for RngCpu {
    fn class(&self) -> StateClass {
        StateClass::RngCpu
    }

    fn holding(&self, _: &Contract) -> Holding {
        Holding::nothing(&[NotApplicableReason::CounterBasedRandomness])
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
