//! A model in two files: what no update changes, which is written once and
//! shared by the checkpoints after it, and the rest.
//!
//! Whether a parameter is frozen is a promise, and this module does not rest on
//! it. What frozen parameters were made as is known by digest from before the
//! first update; whatever is saved or restored in their place is hashed and
//! compared with that, and refused where it differs.

use std::collections::BTreeMap;

use schemas::digest::Digest;
use schemas::model_index::{
    FROZEN_MODEL_NAME, MODEL_INDEX_NAME, ModelIndex, ModelIndexMetadata, TRAINABLE_MODEL_NAME,
};
use schemas::state::StateClass;

use crate::checkpoint::CONFIG_NAME;
use crate::export::{self, ExportError, FileKind, NamedTensor};

use super::StateError;
use super::registry::{CapturedShard, Content};

/// Shards of the model class of a run that freezes parameters, in path order.
pub const SPLIT_NAMES: [&str; 4] = [CONFIG_NAME, FROZEN_MODEL_NAME, TRAINABLE_MODEL_NAME, MODEL_INDEX_NAME];

/// What the parameters that no update changes were made as.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FrozenInitial {
    /// BLAKE3 of their file.
    pub digest: Digest,
    /// Size of the file in bytes.
    pub num_bytes: u64,
    /// BLAKE3 of each tensor's elements, by name.
    tensors: BTreeMap<String, Digest>,
}

fn hash(bytes: &[u8]) -> Digest {
    Digest::blake3(*blake3::hash(bytes).as_bytes())
}

impl FrozenInitial {
    /// Of the initial values, in name order.
    ///
    /// # Errors
    /// When they do not make a file.
    pub fn of(tensors: &[NamedTensor]) -> Result<Self, ExportError> {
        let written = export::write(FileKind::Model, tensors, &mut std::io::sink())?;
        let tensors = tensors.iter().map(|tensor| (tensor.name.clone(), hash(&tensor.bytes))).collect();
        Ok(Self { digest: written.digest, num_bytes: written.num_bytes, tensors })
    }

    /// Whether a parameter is one of them.
    #[must_use]
    pub fn contains(&self, name: &str) -> bool {
        self.tensors.contains_key(name)
    }

    /// The first tensor that is not what it was made as, with both digests; the
    /// name of one that is missing stands with no digest.
    #[must_use]
    pub fn moved(&self, tensors: &[NamedTensor]) -> Option<(String, Digest, Option<Digest>)> {
        self.tensors.iter().find_map(|(name, expected)| {
            let found = tensors.iter().find(|tensor| tensor.name == *name).map(|tensor| hash(&tensor.bytes));
            (found != Some(*expected)).then(|| (name.clone(), *expected, found))
        })
    }

    /// Checks tensors that are about to take the place of the frozen ones.
    ///
    /// # Errors
    /// [`StateError::Mismatch`] with the first tensor that differs.
    pub fn check(&self, step: u64, tensors: &[NamedTensor]) -> Result<(), StateError> {
        let Some((name, expected, actual)) = self.moved(tensors) else { return Ok(()) };
        let actual = actual.map_or_else(|| "no such tensor".to_owned(), |digest| digest.to_string());
        Err(StateError::Mismatch {
            class: StateClass::Model,
            step,
            expected: format!("the initial values of the frozen parameter {name}, {expected}"),
            actual,
        })
    }
}

/// An index whose digests are not known yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IndexPlan {
    total_size: u64,
    weight_map: BTreeMap<String, String>,
}

impl IndexPlan {
    /// Over files and the tensors that they hold.
    #[must_use]
    pub fn new(files: &[(&str, &[NamedTensor])]) -> Self {
        let mut plan = Self { total_size: 0, weight_map: BTreeMap::new() };
        for (file, tensors) in files {
            for tensor in *tensors {
                plan.total_size += tensor.bytes.len() as u64;
                plan.weight_map.insert(tensor.name.clone(), (*file).to_owned());
            }
        }
        plan
    }

    /// The index, once the digest of every file is known.
    ///
    /// # Errors
    /// [`StateError::Inventory`] for a file without a digest.
    pub fn bytes(&self, digests: &BTreeMap<&str, Digest>) -> Result<Vec<u8>, StateError> {
        let class = StateClass::Model;
        let mut shards = BTreeMap::new();
        for file in self.weight_map.values() {
            let digest = digests.get(file.as_str()).ok_or_else(|| StateError::Inventory {
                class,
                reason: format!("{file} is not there before the index that names it"),
            })?;
            shards.insert(file.clone(), *digest);
        }
        let metadata = ModelIndexMetadata { shards, total_size: self.total_size };
        let index = ModelIndex { metadata, weight_map: self.weight_map.clone() };
        ledger::canonical::entry_json(&index).map_err(|source| StateError::Encode { class, source })
    }
}

/// Tensors of a model in two files, and their index behind them.
#[must_use]
pub fn shards(tensors: Vec<NamedTensor>, initial: &FrozenInitial) -> Vec<CapturedShard> {
    let (frozen, trainable): (Vec<_>, Vec<_>) =
        tensors.into_iter().partition(|tensor| initial.contains(&tensor.name));
    let plan = IndexPlan::new(&[(FROZEN_MODEL_NAME, &frozen), (TRAINABLE_MODEL_NAME, &trainable)]);
    vec![
        CapturedShard { name: FROZEN_MODEL_NAME, content: Content::Frozen(frozen, initial.clone()) },
        CapturedShard { name: TRAINABLE_MODEL_NAME, content: Content::Tensors(FileKind::Model, trainable) },
        CapturedShard { name: MODEL_INDEX_NAME, content: Content::Index(plan) },
    ]
}

/// Digests of a class's shards as they would be written, without writing them.
///
/// # Errors
/// When tensors do not make a file.
pub fn digests(
    class: StateClass,
    shards: &[CapturedShard],
) -> Result<BTreeMap<&'static str, Digest>, StateError> {
    let mut digests = BTreeMap::new();
    for shard in shards {
        let digest = match &shard.content {
            Content::Json(bytes) => hash(bytes),
            Content::Index(plan) => hash(&plan.bytes(&digests)?),
            Content::Frozen(tensors, _) => written(class, FileKind::Model, tensors)?,
            Content::Tensors(kind, tensors) => written(class, *kind, tensors)?,
        };
        digests.insert(shard.name, digest);
    }
    Ok(digests)
}

fn written(class: StateClass, kind: FileKind, tensors: &[NamedTensor]) -> Result<Digest, StateError> {
    let written = export::write(kind, tensors, &mut std::io::sink());
    Ok(written.map_err(|source| StateError::Tensors { class, source: Box::new(source) })?.digest)
}

/// A class's shards as the files that they would be.
///
/// # Errors
/// As [`digests`].
pub fn files(
    class: StateClass,
    shards: &[CapturedShard],
) -> Result<BTreeMap<&'static str, Vec<u8>>, StateError> {
    let mut files = BTreeMap::new();
    let mut digests = BTreeMap::new();
    for shard in shards {
        let tensors = |kind, tensors: &[NamedTensor]| {
            export::safetensors_bytes(kind, tensors)
                .map_err(|source| StateError::Tensors { class, source: Box::new(source) })
        };
        let bytes = match &shard.content {
            Content::Json(bytes) => bytes.clone(),
            Content::Index(plan) => plan.bytes(&digests)?,
            Content::Frozen(frozen, _) => tensors(FileKind::Model, frozen)?,
            Content::Tensors(kind, named) => tensors(*kind, named)?,
        };
        digests.insert(shard.name, hash(&bytes));
        files.insert(shard.name, bytes);
    }
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tensor(name: &str, value: f32) -> NamedTensor {
        let bytes = value.to_le_bytes().to_vec();
        NamedTensor { name: name.to_owned(), dtype: "F32".to_owned(), shape: vec![1], bytes }
    }

    #[test]
    fn a_model_is_split_by_name_and_its_index_names_every_file_by_digest() {
        let initial = FrozenInitial::of(&[tensor("b", 2.0)]).expect("a file");
        let shards = shards(vec![tensor("a", 1.0), tensor("b", 2.0), tensor("c", 3.0)], &initial);
        let names: Vec<&str> = shards.iter().map(|shard| shard.name).collect();
        assert_eq!(names, SPLIT_NAMES[1..]);
        assert!(SPLIT_NAMES.is_sorted());
        let files = files(StateClass::Model, &shards).expect("files");
        let digests = digests(StateClass::Model, &shards).expect("digests");
        for (name, bytes) in &files {
            assert_eq!(digests[name], hash(bytes), "{name}");
        }
        assert_eq!(digests[FROZEN_MODEL_NAME], initial.digest);
        let index: ModelIndex = serde_json::from_slice(&files[MODEL_INDEX_NAME]).expect("an index");
        assert_eq!(index.metadata.total_size, 12);
        assert_eq!(index.metadata.shards[TRAINABLE_MODEL_NAME], digests[TRAINABLE_MODEL_NAME]);
        assert_eq!(index.weight_map["b"], FROZEN_MODEL_NAME);
        assert_eq!(index.weight_map["c"], TRAINABLE_MODEL_NAME);
        // An index over files that nobody hashed is no index.
        let Content::Index(plan) = &shards[2].content else { panic!("the index comes last") };
        assert!(plan.bytes(&BTreeMap::new()).is_err());
    }

    #[test]
    fn a_frozen_parameter_that_moved_or_is_gone_is_named() {
        let initial = FrozenInitial::of(&[tensor("a", 1.0), tensor("b", 2.0)]).expect("a file");
        assert_eq!(initial.moved(&[tensor("a", 1.0), tensor("b", 2.0)]), None);
        let moved = [tensor("a", 1.0), tensor("b", 2.000_000_2)];
        assert_eq!(initial.moved(&moved).expect("b moved").0, "b");
        let error = initial.check(7, &moved).expect_err("refused").to_string();
        assert!(error.contains("frozen parameter b") && error.contains("step 7"), "{error}");
        let error = initial.check(7, &[tensor("a", 1.0)]).expect_err("refused").to_string();
        assert!(error.contains("no such tensor"), "{error}");
    }
}
