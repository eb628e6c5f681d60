//! Random state of the device: none, since the device draws nothing.

use schemas::contract::Contract;
use schemas::state::{NotApplicableReason, StateClass};

use crate::state::StateError;
use crate::state::registry::{CapturedShard, Component, Holding, Shards, Source, Target};

#[derive(Debug)]
pub(in crate::state) struct RngDevice;

impl Component for RngDevice {
    fn class(&self) -> StateClass {
        StateClass::RngDevice
    }

    fn holding(&self, contract: &Contract) -> Holding {
        if !contract.dropout_draws.is_keyed() {
            return Holding::nothing(&[NotApplicableReason::NoDeviceRandomness]);
        }
        Holding::nothing(&[
            NotApplicableReason::NoDeviceRandomness,
            NotApplicableReason::CounterBasedRandomness,
        ])
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
