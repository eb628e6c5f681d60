//! Best value so far and patience: a function of the evaluations.

use schemas::contract::{Contract, StoppingRule};
use schemas::state::StateClass;

use crate::state::registry::{self, CapturedShard, Component, Holding, Shards, Source, Target};
use crate::state::{Derivation, SelectionState, StateError};

const NAME: &str = "selection_state.json";

#[derive(Debug)]
pub(in crate::state) struct Selection;

fn selection(derivation: &Derivation<'_>) -> SelectionState {
    derivation.selection.clone()
}

impl Component for Selection {
    fn class(&self) -> StateClass {
        StateClass::SelectionState
    }

    fn holding(&self, contract: &Contract) -> Holding {
        let is_needed = matches!(contract.stopping, StoppingRule::Patience { .. });
        Holding { is_held: true, is_needed, reasons: &[] }
    }

    fn shard_names(&self) -> &'static [&'static str] {
        &[NAME]
    }

    fn capture(&self, source: &Source<'_>) -> Result<Vec<CapturedShard>, StateError> {
        Ok(vec![registry::json(self.class(), NAME, &selection(&source.derivation))?])
    }

    fn restore(&self, shards: &Shards<'_>, target: &mut Target<'_>) -> Result<(), StateError> {
        let derivation = &target.derivation;
        shards.check(NAME, derivation.step, &selection(derivation))
    }
}
