//! Position in the data: examples and target tokens consumed, and what is next.

use schemas::contract::Contract;
use schemas::state::StateClass;
use serde::{Deserialize, Serialize};

use crate::state::registry::{self, CapturedShard, Component, Holding, Shards, Source, Target};
use crate::state::{Derivation, StateError};

const NAME: &str = "data_cursor.json";

#[derive(Debug)]
pub(in crate::state) struct Cursor;

/// `data_cursor.json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct DataCursor {
    /// Epoch of the next example.
    epoch: u64,
    /// Examples consumed.
    examples: u64,
    /// Position of the next example within its epoch.
    position: u64,
    /// Completed updates.
    step: u64,
    /// Target tokens consumed.
    tokens: u64,
}

fn cursor(derivation: &Derivation<'_>) -> DataCursor {
    let examples = derivation.counters.examples;
    // An empty train split is refused before any step; 1 avoids a division by
    // zero and is never reached.
    let num_examples = derivation.num_train_examples.max(1);
    DataCursor {
        epoch: examples / num_examples,
        examples,
        position: examples % num_examples,
        step: derivation.step,
        tokens: derivation.counters.tokens,
    }
}

impl Component for Cursor {
    fn class(&self) -> StateClass {
        StateClass::DataCursor
    }

    fn holding(&self, _: &Contract) -> Holding {
        Holding::CAPTURED
    }

    fn shard_names(&self) -> &'static [&'static str] {
        &[NAME]
    }

    fn capture(&self, source: &Source<'_>) -> Result<Vec<CapturedShard>, StateError> {
        Ok(vec![registry::json(self.class(), NAME, &cursor(&source.derivation))?])
    }

    fn restore(&self, shards: &Shards<'_>, target: &mut Target<'_>) -> Result<(), StateError> {
        let derivation = &target.derivation;
        shards.check(NAME, derivation.step, &cursor(derivation))?;
        target.engine.stand_at(derivation.step, derivation.counters);
        Ok(())
    }
}
