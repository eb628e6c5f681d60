//! Parameters, in the form of a candidate: weights and configuration as
//! Hugging Face tools load them; in two files where some of them are frozen.

use std::collections::BTreeMap;

use schemas::contract::{Architecture, Contract};
use schemas::model_index::{FROZEN_MODEL_NAME, MODEL_INDEX_NAME, TRAINABLE_MODEL_NAME};
use schemas::state::StateClass;

use crate::checkpoint::{CONFIG_NAME, MODEL_NAME};
use crate::engine::Engine;
use crate::export::{self, FileKind, NamedTensor};
use crate::state::StateError;
use crate::state::registry::{CapturedShard, Component, Content, Holding, Shards, Source, Target};
use crate::state::split::{self, FrozenInitial, IndexPlan, SPLIT_NAMES};

#[derive(Debug)]
pub(in crate::state) struct Model;

fn config_json(contract: &Contract) -> Result<Vec<u8>, StateError> {
    let Architecture::LlamaDecoder(decoder) = &contract.architecture;
    export::config_json(decoder)
        .map(String::into_bytes)
        .map_err(|error| StateError::Inventory { class: StateClass::Model, reason: error.to_string() })
}

/// Both files of a model, once its index names them, and the frozen parameters
/// are what they were made as.
fn split_tensors(
    shards: &Shards<'_>,
    initial: &FrozenInitial,
    step: u64,
) -> Result<Vec<NamedTensor>, StateError> {
    let mut frozen = shards.tensors(FROZEN_MODEL_NAME, FileKind::Model)?;
    let mut trainable = shards.tensors(TRAINABLE_MODEL_NAME, FileKind::Model)?;
    let plan = IndexPlan::new(&[(FROZEN_MODEL_NAME, &frozen), (TRAINABLE_MODEL_NAME, &trainable)]);
    let mut digests = BTreeMap::new();
    for name in [FROZEN_MODEL_NAME, TRAINABLE_MODEL_NAME] {
        digests.insert(name, shards.digest(name)?);
    }
    if shards.bytes(MODEL_INDEX_NAME)? != plan.bytes(&digests)? {
        let reason = format!("{MODEL_INDEX_NAME} is not the index of the files beside it");
        return Err(StateError::Inventory { class: StateClass::Model, reason });
    }
    initial.check(step, &frozen)?;
    frozen.append(&mut trainable);
    frozen.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(frozen)
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

    fn shards_in(&self, engine: &Engine) -> &'static [&'static str] {
        if engine.frozen_initial().is_some() { &SPLIT_NAMES } else { self.shard_names() }
    }

    fn capture(&self, source: &Source<'_>) -> Result<Vec<CapturedShard>, StateError> {
        let tensors = source.engine.capture_model().map_err(StateError::engine(self.class()))?;
        let mut shards = match source.engine.frozen_initial() {
            Some(initial) => split::shards(tensors, initial),
            None => {
                vec![CapturedShard { name: MODEL_NAME, content: Content::Tensors(FileKind::Model, tensors) }]
            }
        };
        let config = Content::Json(config_json(source.derivation.contract)?);
        shards.push(CapturedShard { name: CONFIG_NAME, content: config });
        Ok(shards)
    }

    fn restore(&self, shards: &Shards<'_>, target: &mut Target<'_>) -> Result<(), StateError> {
        if shards.bytes(CONFIG_NAME)? != config_json(target.derivation.contract)? {
            let reason = format!("{CONFIG_NAME} is not that of the contract's architecture");
            return Err(StateError::Inventory { class: self.class(), reason });
        }
        let tensors = match target.engine.frozen_initial() {
            Some(initial) => split_tensors(shards, initial, target.derivation.step)?,
            None => shards.tensors(MODEL_NAME, FileKind::Model)?,
        };
        target.engine.restore_model(&tensors).map_err(StateError::engine(self.class()))
    }
}
