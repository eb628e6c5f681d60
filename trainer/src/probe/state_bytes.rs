//! The state of an engine as a checkpoint of it would hold it: every captured
//! class of the contract, as the bytes of its shards.

use std::collections::BTreeMap;

use schemas::contract::{CompilerPlan, Contract, ParameterView, StateTree};
use schemas::digest::Digest;
use schemas::model_index::MODEL_INDEX_NAME;
use schemas::state::{StateClass, StateDigest};

use crate::checkpoint::{AVERAGES_NAME, MODEL_NAME, manifest};
use crate::engine::Engine;
use crate::state::registry::{self, Source};
use crate::state::tree::{self, RecordedState};
use crate::state::{Derivation, SelectionState, StateError, split};

use super::error::ProbeError;

/// Shards of every captured class, by class and path.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StateBytes {
    classes: BTreeMap<StateClass, BTreeMap<String, Vec<u8>>>,
}

impl StateBytes {
    /// Captures an engine's state, as a run with so many workers would.
    ///
    /// # Errors
    /// When the device fails or the state does not make files.
    pub fn capture(
        engine: &Engine,
        contract: &Contract,
        (plan, num_workers): (&CompilerPlan, u32),
        selection: &SelectionState,
    ) -> Result<Self, ProbeError> {
        let derivation = Derivation {
            contract,
            counters: engine.consumed(),
            num_train_examples: engine.num_train_examples(),
            num_workers,
            plan,
            selection,
            step: engine.step_number(),
        };
        let mut classes = BTreeMap::new();
        for (class, shards) in registry::capture(&Source { derivation, engine })?.classes {
            let files = split::files(class, &shards)?.into_iter();
            classes.insert(class, files.map(|(name, bytes)| (name.to_owned(), bytes)).collect());
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

    /// Only the classes that are chosen.
    #[must_use]
    pub fn only(mut self, is_chosen: impl Fn(&StateClass) -> bool) -> Self {
        self.classes.retain(|class, _| is_chosen(class));
        self
    }

    /// With the classes of `other` in place of its own.
    #[must_use]
    pub fn with(mut self, other: &Self) -> Self {
        self.classes.extend(other.classes.clone());
        self
    }

    /// Digest of the weights file that an evaluation of a view is of; none
    /// where no such weights are kept.
    #[must_use]
    pub fn evaluated(&self, view: ParameterView) -> Option<Digest> {
        let file = match view {
            ParameterView::Current => {
                let model = self.classes.get(&StateClass::Model)?;
                model.get(MODEL_NAME).or_else(|| model.get(MODEL_INDEX_NAME))
            }
            ParameterView::Averages => self.classes.get(&StateClass::Averages)?.get(AVERAGES_NAME),
        };
        file.map(|bytes| digest_of(bytes))
    }

    /// What a step or a checkpoint records of it.
    ///
    /// # Errors
    /// When a file of it cannot be read back.
    pub fn recorded(&self, contract: &Contract) -> Result<RecordedState, StateError> {
        let digests = self.digests(contract);
        let root = match contract.state_tree {
            None => None,
            Some(StateTree::Tensors) => {
                let files = self.iter().flat_map(|(class, shards)| {
                    shards.iter().map(move |(path, bytes)| (class, path.as_str(), bytes.as_slice()))
                });
                Some(tree::root(&tree::leaves_of_files(files)?)?)
            }
        };
        Ok(RecordedState { digests, root })
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
