//! State of the sampler: the shuffle buffer. There is none where the order is a
//! function of the position.

use schemas::contract::{Contract, OrderPolicy};
use schemas::state::{NotApplicableReason, StateClass};
use serde::{Deserialize, Serialize};

use crate::shuffle::ShuffleState;
use crate::state::StateError;
use crate::state::registry::{self, CapturedShard, Component, Holding, Shards, Source, Target};

const NAME: &str = "sampler.json";

#[derive(Debug)]
pub(in crate::state) struct Sampler;

/// `sampler.json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SamplerState {
    /// Examples in the buffer, by place.
    buffer: Vec<u64>,
    /// Examples drawn.
    drawn: u64,
    /// Epoch of the last draw.
    epoch: u64,
    /// Key of the draws.
    key: [u32; 2],
    /// Next example of the table that enters the buffer.
    next: u64,
    /// Completed updates.
    step: u64,
}

/// What the contract determines of the shard.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct Determined {
    drawn: u64,
    key: [u32; 2],
    step: u64,
}

fn missing(class: StateClass) -> StateError {
    StateError::Inventory { class, reason: "the contract shuffles through no buffer".to_owned() }
}

impl Component for Sampler {
    fn class(&self) -> StateClass {
        StateClass::Sampler
    }

    fn holding(&self, contract: &Contract) -> Holding {
        match contract.order {
            OrderPolicy::KeyedPermutation => Holding::nothing(&[NotApplicableReason::FunctionOfPosition]),
            OrderPolicy::ShuffleBuffer { .. } => Holding::CAPTURED,
        }
    }

    fn shard_names(&self) -> &'static [&'static str] {
        &[NAME]
    }

    fn capture(&self, source: &Source<'_>) -> Result<Vec<CapturedShard>, StateError> {
        let buffer = source.engine.shuffle_buffer().ok_or_else(|| missing(self.class()))?;
        let ShuffleState { buffer: examples, drawn, epoch, next } = buffer.state().clone();
        let step = source.derivation.step;
        let state = SamplerState { buffer: examples, drawn, epoch, key: buffer.key(), next, step };
        Ok(vec![registry::json(self.class(), NAME, &state)?])
    }

    fn restore(&self, shards: &Shards<'_>, target: &mut Target<'_>) -> Result<(), StateError> {
        let state: SamplerState = shards.json(NAME)?;
        let step = target.derivation.step;
        let key = target.engine.shuffle_buffer().ok_or_else(|| missing(self.class()))?.key();
        let drawn = step * u64::from(target.derivation.contract.batch.global_examples);
        let found = Determined { drawn: state.drawn, key: state.key, step: state.step };
        registry::same(self.class(), step, &Determined { drawn, key, step }, &found)?;
        let SamplerState { buffer, drawn, epoch, next, .. } = state;
        let state = ShuffleState { buffer, drawn, epoch, next };
        target.engine.restore_shuffle(state).map_err(StateError::engine(self.class()))
    }
}
