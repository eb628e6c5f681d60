//! Position in the data: examples and target tokens consumed, and what is next.

use schemas::body::Counters;
use schemas::contract::{Contract, MidAccumulation};
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

fn cursor(derivation: &Derivation<'_>, consumed: Counters) -> DataCursor {
    let examples = consumed.examples;
    // An empty train split is refused before any step; 1 avoids a division by
    // zero and is never reached.
    let num_examples = derivation.num_train_examples.max(1);
    DataCursor {
        epoch: examples / num_examples,
        examples,
        position: examples % num_examples,
        step: derivation.step,
        tokens: consumed.tokens,
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
        let derivation = &source.derivation;
        Ok(vec![registry::json(self.class(), NAME, &cursor(derivation, derivation.counters))?])
    }

    fn restore(&self, shards: &Shards<'_>, target: &mut Target<'_>) -> Result<(), StateError> {
        let derivation = &target.derivation;
        let found: DataCursor = shards.json(NAME)?;
        let consumed = consumed(derivation, &found);
        registry::same(self.class(), derivation.step, &cursor(derivation, consumed), &found)?;
        target.engine.stand_at(derivation.step, derivation.counters);
        target.engine.stand_in_window(consumed);
        Ok(())
    }
}

/// Where the cursor has to stand: at the boundary, or where the contract saves
/// inside of accumulation windows behind any microbatch of the next update.
fn consumed(derivation: &Derivation<'_>, found: &DataCursor) -> Counters {
    let Contract { batch, checkpoints, .. } = derivation.contract;
    let boundary = derivation.counters;
    let ahead = found.examples.saturating_sub(boundary.examples);
    let is_inside = checkpoints.mid_accumulation == MidAccumulation::SaveGradients
        && (1..u64::from(batch.global_examples)).contains(&ahead)
        && ahead.is_multiple_of(u64::from(batch.microbatch_examples));
    if is_inside { Counters { examples: found.examples, tokens: found.tokens, ..boundary } } else { boundary }
}
