//! Parameters, in the form of a candidate: weights and configuration as
//! Hugging Face tools load them.

use schemas::contract::{Architecture, Contract};
use schemas::state::StateClass;

use crate::checkpoint::{CONFIG_NAME, MODEL_NAME};
use crate::export::{self, FileKind};
use crate::state::StateError;
use crate::state::registry::{CapturedShard, Component, Content, Holding, Shards, Source, Target};

#[derive(Debug)]
pub(in crate::state) struct Model;

fn config_json(contract: &Contract) -> Result<Vec<u8>, StateError> {
    let Architecture::LlamaDecoder(decoder) = &contract.architecture;
    export::config_json(decoder)
        .map(String::into_bytes)
        .map_err(|error| StateError::Inventory { class: StateClass::Model, reason: error.to_string() })
}

impl Component for Model {
    fn class(&self) -> StateClass {
        StateClass::Model
    }

    fn holding(&self, _: &Contract) -> Holding {
        Holding::CAPTURED
    }

    fn shard_names(&self) -> &'static [&'static str] {
        &[CONFIG_NAME, MODEL_NAME]
    }

    fn capture(&self, source: &Source<'_>) -> Result<Vec<CapturedShard>, StateError> {
        let tensors = source.engine.capture_model().map_err(StateError::engine(self.class()))?;
        Ok(vec![
            CapturedShard { name: MODEL_NAME, content: Content::Tensors(FileKind::Model, tensors) },
            CapturedShard {
                name: CONFIG_NAME,
                content: Content::Json(config_json(source.derivation.contract)?),
            },
        ])
    }

    fn restore(&self, shards: &Shards<'_>, target: &mut Target<'_>) -> Result<(), StateError> {
        if shards.bytes(CONFIG_NAME)? != config_json(target.derivation.contract)? {
            let reason = format!("{CONFIG_NAME} is not that of the contract's architecture");
            return Err(StateError::Inventory { class: self.class(), reason });
        }
        let tensors = shards.tensors(MODEL_NAME, FileKind::Model)?;
        target.engine.restore_model(&tensors).map_err(StateError::engine(self.class()))
    }
}
