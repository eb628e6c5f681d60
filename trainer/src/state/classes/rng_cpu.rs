//! Random state of the host: the stream that dropout masks are drawn from. There
//! is none where every draw is a function of its coordinates.

use schemas::contract::Contract;
use schemas::state::{NotApplicableReason, StateClass};
use serde::{Deserialize, Serialize};

use crate::state::StateError;
use crate::state::registry::{self, CapturedShard, Component, Holding, Shards, Source, Target};

const NAME: &str = "rng_cpu.json";

#[derive(Debug)]
pub(in crate::state) struct RngCpu;

/// `rng_cpu.json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RngState {
    /// Blocks of four words that were drawn.
    blocks: u64,
    /// Key of the stream.
    key: [u32; 2],
    /// Completed updates.
    step: u64,
}

impl Component for RngCpu {
    fn class(&self) -> StateClass {
        StateClass::RngCpu
    }

    fn holding(&self, contract: &Contract) -> Holding {
        if contract.dropout_draws.is_keyed() {
            return Holding::nothing(&[NotApplicableReason::CounterBasedRandomness]);
        }
        Holding::CAPTURED
    }

    fn shard_names(&self) -> &'static [&'static str] {
        &[NAME]
    }

    fn capture(&self, source: &Source<'_>) -> Result<Vec<CapturedShard>, StateError> {
        let class = self.class();
        let reason = || "there is no stream of dropout masks, since nothing is dropped".to_owned();
        let stream = source.engine.dropout_stream();
        let (key, blocks) = stream.ok_or_else(|| StateError::Inventory { class, reason: reason() })?;
        let state = RngState { blocks, key, step: source.derivation.step };
        Ok(vec![registry::json(class, NAME, &state)?])
    }

    fn restore(&self, shards: &Shards<'_>, target: &mut Target<'_>) -> Result<(), StateError> {
        let state: RngState = shards.json(NAME)?;
        let (step, class) = (target.derivation.step, self.class());
        // Another key would be another stream, and another step another place.
        let key = target.engine.dropout_stream().map_or(state.key, |(key, _)| key);
        registry::same(class, step, &RngState { blocks: state.blocks, key, step }, &state)?;
        target.engine.restore_dropout_stream(state.blocks);
        Ok(())
    }
}
