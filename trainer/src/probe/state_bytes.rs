//! The state of an engine as a checkpoint of it would hold it: every captured
//! class of the contract, as the bytes of its shards.

use std::collections::BTreeMap;

use schemas::contract::{Architecture, CompilerPlan, Contract};
use schemas::digest::Digest;
use schemas::state::{StateClass, StateDigest};

use crate::checkpoint::{CONFIG_NAME, MODEL_NAME, OPTIMIZER_NAME, manifest};
use crate::engine::Engine;
use crate::export::{self, ExportError, FileKind};
use crate::run::error::RunError;
use crate::state::{self, Derivation, SelectionState};

use super::error::ProbeError;

/// Shards of every captured class, by class and path.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StateBytes {
    classes: BTreeMap<StateClass, BTreeMap<String, Vec<u8>>>,
}

impl StateBytes {
    /// Captures an engine's state.
    ///
    /// # Errors
    /// When the device fails or the state does not make files.
    pub fn capture(
        engine: &Engine,
        contract: &Contract,
        plan: &CompilerPlan,
        selection: &SelectionState,
    ) -> Result<Self, ProbeError> {
        let tensors = engine.capture()?;
        let derivation = Derivation {
            contract,
            counters: engine.counters(),
            num_train_examples: engine.num_train_examples(),
            plan,
            selection,
            step: engine.step_number(),
        };
        let mut classes = BTreeMap::new();
        for class in captured(contract) {
            let failed = |source: ExportError| RunError::Tensors { class, source };
            let shards = match class {
                StateClass::Model => {
                    let Architecture::LlamaDecoder(decoder) = &contract.architecture;
                    let config = export::config_json(decoder)
                        .map_err(|error| RunError::Inventory { class, reason: error.to_string() })?;
                    let model = export::safetensors_bytes(FileKind::Model, &tensors.model).map_err(failed)?;
                    vec![(CONFIG_NAME.to_owned(), config.into_bytes()), (MODEL_NAME.to_owned(), model)]
                }
                StateClass::Optimizer => {
                    let bytes =
                        export::safetensors_bytes(FileKind::State, &tensors.optimizer).map_err(failed)?;
                    vec![(OPTIMIZER_NAME.to_owned(), bytes)]
                }
                _ => {
                    let shard = derivation.shard(class)?;
                    shard.into_iter().map(|bytes| (state::shard_name(class), bytes)).collect()
                }
            };
            classes.insert(class, shards.into_iter().collect());
        }
        Ok(Self { classes })
    }

    /// The captured classes with their shards, in order.
    pub fn iter(&self) -> impl Iterator<Item = (StateClass, &BTreeMap<String, Vec<u8>>)> {
        self.classes.iter().map(|(class, shards)| (*class, shards))
    }

    /// Shards of one class; none where it is not captured.
    #[must_use]
    pub fn class(&self, class: StateClass) -> Option<&BTreeMap<String, Vec<u8>>> {
        self.classes.get(&class)
    }

    /// Digest of the model's weights file.
    #[must_use]
    pub fn model(&self) -> Option<Digest> {
        self.classes.get(&StateClass::Model)?.get(MODEL_NAME).map(|bytes| digest_of(bytes))
    }

    /// Digest of every class of the contract, in class order.
    #[must_use]
    pub fn digests(&self, contract: &Contract) -> Vec<StateDigest> {
        let mut declared: Vec<StateClass> =
            contract.state_classes.iter().map(|declaration| declaration.class).collect();
        declared.sort();
        let digest = |class| self.classes.get(&class).map(class_digest);
        declared.into_iter().map(|class| StateDigest { class, digest: digest(class) }).collect()
    }
}

/// Classes that the contract captures, in order.
#[must_use]
pub fn captured(contract: &Contract) -> Vec<StateClass> {
    let declarations = contract.state_classes.iter().filter(|declared| declared.not_applicable.is_none());
    let mut classes: Vec<StateClass> = declarations.map(|declared| declared.class).collect();
    classes.sort();
    classes
}

/// BLAKE3 of bytes.
#[must_use]
pub fn digest_of(bytes: &[u8]) -> Digest {
    Digest::blake3(*blake3::hash(bytes).as_bytes())
}

fn class_digest(shards: &BTreeMap<String, Vec<u8>>) -> Digest {
    let digests: Vec<(&str, Digest)> =
        shards.iter().map(|(path, bytes)| (path.as_str(), digest_of(bytes))).collect();
    manifest::class_digest(digests)
}
