//! Learners and workers.

use schemas::contract::Contract;
use schemas::state::StateClass;
use serde::{Deserialize, Serialize};

use crate::state::registry::{self, CapturedShard, Component, Holding, Shards, Source, Target};
use crate::state::{Derivation, StateError};

const NAME: &str = "topology.json";

#[derive(Debug)]
pub(in crate::state) struct Topology;

/// `topology.json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct TopologyState {
    /// Learners.
    learners: u32,
    /// Worker processes.
    workers: u32,
}

fn topology(derivation: &Derivation<'_>) -> TopologyState {
    TopologyState { learners: derivation.contract.topology.learners, workers: derivation.num_workers }
}

impl Component for Topology {
    fn class(&self) -> StateClass {
        StateClass::Topology
    }

    fn holding(&self, _: &Contract) -> Holding {
        Holding::CAPTURED
    }

    fn shard_names(&self) -> &'static [&'static str] {
        &[NAME]
    }

    fn capture(&self, source: &Source<'_>) -> Result<Vec<CapturedShard>, StateError> {
        Ok(vec![registry::json(self.class(), NAME, &topology(&source.derivation))?])
    }

    fn restore(&self, shards: &Shards<'_>, target: &mut Target<'_>) -> Result<(), StateError> {
        let derivation = &target.derivation;
        shards.check(NAME, derivation.step, &topology(derivation))
    }
}
