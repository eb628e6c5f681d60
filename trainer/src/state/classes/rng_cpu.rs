//! Random state of the host: the stream that dropout masks are drawn from, of
//! each worker its own. There is none where every draw is a function of its
//! coordinates.

use std::sync::LazyLock;

use schemas::contract::Contract;
use schemas::state::{NotApplicableReason, StateClass};
use serde::{Deserialize, Serialize};

use crate::engine::Engine;
use crate::state::StateError;
use crate::state::registry::{self, CapturedShard, Component, Holding, Shards, Source, Target};
use crate::workers::MAX_WORKERS;

const NAMES: [&str; 1] = ["rng_cpu.json"];

/// One for each worker where there are several, in the order of workers; kept
/// for the life of the process, which has few workers.
static WORKER_NAMES: LazyLock<Vec<&'static str>> =
    LazyLock::new(|| (0..MAX_WORKERS).map(|worker| &*format!("rng_cpu.{worker}.json").leak()).collect());

/// Name of the stream's file of each worker of an engine.
fn names(engine: &Engine) -> &'static [&'static str] {
    let num_streams = engine.dropout_streams().len();
    if num_streams > 1 { WORKER_NAMES.get(..num_streams).unwrap_or_default() } else { &NAMES }
}

/// Worker whose random state a shard holds; `None` where it is that of the only
/// one, or another class's.
#[must_use]
pub(in crate::state) fn worker_of(path: &str) -> Option<u32> {
    path.strip_prefix("rng_cpu.")?.strip_suffix(".json")?.parse().ok()
}

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
        &NAMES
    }

    fn shards_in(&self, engine: &Engine) -> &'static [&'static str] {
        names(engine)
    }

    fn capture(&self, source: &Source<'_>) -> Result<Vec<CapturedShard>, StateError> {
        let class = self.class();
        let reason = || "there is no stream of dropout masks, since nothing is dropped".to_owned();
        let streams = source.engine.dropout_streams();
        if streams.is_empty() {
            return Err(StateError::Inventory { class, reason: reason() });
        }
        let named = names(source.engine).iter().zip(streams);
        let step = source.derivation.step;
        named
            .map(|(name, (key, blocks))| registry::json(class, name, &RngState { blocks, key, step }))
            .collect()
    }

    fn restore(&self, shards: &Shards<'_>, target: &mut Target<'_>) -> Result<(), StateError> {
        let (step, class) = (target.derivation.step, self.class());
        let streams = target.engine.dropout_streams();
        for ((worker, name), (key, _)) in (0..).zip(names(target.engine)).zip(streams) {
            let state: RngState = shards.json(name)?;
            // Another key would be another stream, and another step another place.
            registry::same(class, step, &RngState { blocks: state.blocks, key, step }, &state)?;
            target.engine.restore_dropout_stream(worker, state.blocks);
        }
        Ok(())
    }
}
