//! What was frozen beside the contract: policy card, parameter manifest, data.
//!
//! Documents come from the ledger, where the freeze stored them. Text is read
//! from its shards on demand; every shard is digested once when a run is opened,
//! and every window again when it is read.

use std::path::Path;

use corpus::examples::ExampleTable;
use corpus::order::DataOrder;
use corpus::source::ExampleSource;
use ledger::reader::Reader;
use schemas::contract::{Architecture, Contract, FileBinding};
use schemas::data::{DataManifest, Split};
use schemas::digest::Digest;
use schemas::parameters::{ParameterManifest, ParameterStatus};
use schemas::policy_card::PolicyCard;
use schemas::state::TensorInfo;
use serde::de::DeserializeOwned;

use crate::error::LoopError;

/// Name of the stream that updates draw from.
pub(crate) const UPDATE_STREAM: &str = "train";

/// The frozen inputs.
#[derive(Debug)]
pub(crate) struct Inputs {
    pub(crate) card: PolicyCard,
    pub(crate) order: DataOrder,
    pub(crate) parameters: ParameterManifest,
    pub(crate) train: ExampleSource,
    pub(crate) val: ExampleSource,
}

impl Inputs {
    /// Reads all of them.
    ///
    /// # Errors
    /// When a document or a shard is missing or not what was frozen.
    pub(crate) fn load(contract: &Contract, reader: &Reader, folder: &Path) -> Result<Self, LoopError> {
        let card: PolicyCard = document("/update/card", &contract.update.card, reader, folder)?;
        let parameters: ParameterManifest = document("/parameters", &contract.parameters, reader, folder)?;
        let data: DataManifest = document("/data/manifest", &contract.data.manifest, reader, folder)?;
        let Architecture::LlamaDecoder(decoder) = &contract.architecture;
        let data_folder = match contract.data.manifest.path.rsplit_once('/') {
            Some((parent, _)) => folder.join(parent),
            None => folder.to_owned(),
        };
        verify_shards(&data, &data_folder)?;
        let open = |pointer: &'static str, binding: &FileBinding, split| {
            let table = ExampleTable::from_bytes(&bytes(pointer, binding, reader, folder)?)?;
            let source =
                ExampleSource::open(&data, &data_folder, split, table.records, decoder.context_length)?;
            Ok::<_, LoopError>(source)
        };
        let train = open("/data/train_examples", &contract.data.train_examples, Split::Train)?;
        let val = open("/data/val_examples", &contract.data.val_examples, Split::Val)?;
        let order = DataOrder::new(UPDATE_STREAM, contract.seeds.data_order.0, train.num_examples());
        Ok(Self { card, order, parameters, train, val })
    }

    /// Tensors of `model.safetensors`, in name order.
    pub(crate) fn model_tensors(&self) -> Vec<TensorInfo> {
        let stored = self.parameters.parameters.iter().filter(|parameter| parameter.tied_to.is_none());
        let tensors = stored.map(|parameter| TensorInfo {
            dtype: parameter.dtype.clone(),
            name: parameter.path.clone(),
            shape: parameter.shape.clone(),
        });
        sorted(tensors)
    }

    /// Tensors of `optimizer.safetensors`, in name order.
    pub(crate) fn optimizer_tensors(&self) -> Vec<TensorInfo> {
        let trained = self.parameters.parameters.iter();
        let trained = trained.filter(|parameter| {
            parameter.status == ParameterStatus::Trainable && parameter.tied_to.is_none()
        });
        sorted(trained.flat_map(|parameter| {
            self.card.checkpoint_state.iter().map(|state| TensorInfo {
                dtype: state.dtype.clone(),
                name: format!("{}.{}", parameter.path, state.suffix),
                shape: parameter.shape.clone(),
            })
        }))
    }
}

fn sorted(tensors: impl Iterator<Item = TensorInfo>) -> Vec<TensorInfo> {
    let mut tensors: Vec<TensorInfo> = tensors.collect();
    tensors.sort_by(|left, right| left.name.cmp(&right.name));
    tensors
}

/// A frozen file's bytes: from the ledger, or from disk where it stored none.
fn bytes(
    pointer: &'static str,
    binding: &FileBinding,
    reader: &Reader,
    folder: &Path,
) -> Result<Vec<u8>, LoopError> {
    let refuse = |reason: String| LoopError::Document { pointer, reason };
    let expected = binding.digest.ok_or_else(|| refuse("the contract binds no digest".to_owned()))?;
    if let Ok(bytes) = reader.artifact(&expected) {
        return Ok(bytes);
    }
    let path = folder.join(&binding.path);
    let bytes = std::fs::read(&path).map_err(LoopError::io("read", &path))?;
    let actual = Digest::blake3(*blake3::hash(&bytes).as_bytes());
    if actual == expected {
        Ok(bytes)
    } else {
        Err(refuse(format!("{} has digest {actual}, {expected} was frozen", path.display())))
    }
}

fn document<T: DeserializeOwned>(
    pointer: &'static str,
    binding: &FileBinding,
    reader: &Reader,
    folder: &Path,
) -> Result<T, LoopError> {
    let bytes = bytes(pointer, binding, reader, folder)?;
    serde_json::from_slice(&bytes).map_err(|error| LoopError::Document { pointer, reason: error.to_string() })
}

fn verify_shards(data: &DataManifest, folder: &Path) -> Result<(), LoopError> {
    for shard in data.shards.iter().filter(|shard| shard.split != Split::Qualification) {
        let path = folder.join(&shard.path);
        let file = std::fs::File::open(&path).map_err(LoopError::io("read", &path))?;
        let mut hasher = blake3::Hasher::new();
        hasher.update_reader(file).map_err(LoopError::io("read", &path))?;
        let actual = Digest::blake3(*hasher.finalize().as_bytes());
        if actual != shard.digest {
            let reason = format!("{} has digest {actual}, {} was frozen", path.display(), shard.digest);
            return Err(LoopError::Document { pointer: "/data/manifest", reason });
        }
    }
    Ok(())
}
