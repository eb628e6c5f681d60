//! Gradients of an unfinished update, where the contract saves inside of
//! accumulation windows. How far the window has come is the data cursor's to
//! say.

use schemas::contract::{Contract, MidAccumulation};
use schemas::state::{NotApplicableReason, StateClass};

use crate::checkpoint::WINDOW_NAME;
use crate::engine::window::WindowState;
use crate::export::FileKind;
use crate::state::StateError;
use crate::state::registry::{self, CapturedShard, Component, Content, Holding, Shards, Source, Target};

const TENSORS_NAME: &str = "accumulated_gradients.safetensors";

#[derive(Debug)]
pub(in crate::state) struct AccumulatedGradients;

impl Component for AccumulatedGradients {
    fn class(&self) -> StateClass {
        StateClass::AccumulatedGradients
    }

    fn holding(&self, contract: &Contract) -> Holding {
        match contract.checkpoints.mid_accumulation {
            MidAccumulation::RoundToBoundary => {
                Holding::nothing(&[NotApplicableReason::UpdateBoundariesOnly])
            }
            MidAccumulation::SaveGradients => Holding::CAPTURED,
        }
    }

    fn shard_names(&self) -> &'static [&'static str] {
        &[WINDOW_NAME, TENSORS_NAME]
    }

    fn capture(&self, source: &Source<'_>) -> Result<Vec<CapturedShard>, StateError> {
        let state = registry::json(self.class(), WINDOW_NAME, &source.engine.window())?;
        let tensors = Content::Tensors(FileKind::State, source.engine.capture_gradients());
        Ok(vec![state, CapturedShard { name: TENSORS_NAME, content: tensors }])
    }

    fn restore(&self, shards: &Shards<'_>, target: &mut Target<'_>) -> Result<(), StateError> {
        let state: WindowState = shards.json(WINDOW_NAME)?;
        let tensors = shards.tensors(TENSORS_NAME, FileKind::State)?;
        target.engine.restore_window(&state, &tensors).map_err(StateError::engine(self.class()))
    }
}
