//! The manifest of a checkpoint: which shards hold which state class, at one
//! logical step, and the digest of each class.

use std::collections::BTreeMap;

use schemas::CHECKPOINT_MANIFEST_FORMAT;
use schemas::digest::Digest;
use schemas::ids::{AttemptId, CheckpointId, LearnerId, RunId};
use schemas::model_index::MODEL_INDEX_NAME;
use schemas::state::{
    CapturedClass, CheckpointManifest, Shard, StateClass, StateClassDeclaration, StateDigest,
};

use super::MODEL_NAME;
use crate::state::registry::worker_of;

/// What every manifest of a run says alike.
#[derive(Debug, Clone)]
pub struct ManifestHeader<'a> {
    /// Attempt that saves.
    pub attempt: AttemptId,
    /// Name of the checkpoint.
    pub checkpoint: &'a CheckpointId,
    /// SHA-256 of the contract.
    pub contract: Digest,
    /// The contract's declarations.
    pub declarations: &'a [StateClassDeclaration],
    /// The run.
    pub run: &'a RunId,
    /// Logical step of every class.
    pub step: u64,
}

/// The manifest over the shards that were written, with every class of the
/// contract in the order of [`StateClass`] and shards in path order.
#[must_use]
pub fn build(
    header: &ManifestHeader<'_>,
    mut shards: BTreeMap<StateClass, Vec<Shard>>,
) -> CheckpointManifest {
    let mut declarations: Vec<&StateClassDeclaration> = header.declarations.iter().collect();
    declarations.sort_by_key(|declaration| declaration.class);
    let classes = declarations
        .into_iter()
        .flat_map(|declaration| {
            let mut by_worker = BTreeMap::new();
            for shard in shards.remove(&declaration.class).unwrap_or_default() {
                by_worker.entry(worker_of(&shard.path)).or_insert_with(Vec::new).push(shard);
            }
            if by_worker.is_empty() {
                by_worker.insert(None, Vec::new());
            }
            by_worker.into_iter().map(|(worker, mut shards)| {
                shards.sort_by(|left, right| left.path.cmp(&right.path));
                CapturedClass {
                    class: declaration.class,
                    learner: LearnerId(0),
                    not_applicable: declaration.not_applicable,
                    shards,
                    step: header.step,
                    worker,
                }
            })
        })
        .collect();
    CheckpointManifest {
        attempt: header.attempt,
        checkpoint: header.checkpoint.clone(),
        classes,
        contract: header.contract,
        format: CHECKPOINT_MANIFEST_FORMAT.to_owned(),
        run: header.run.clone(),
        step: header.step,
    }
}

/// Digest of every class, in the manifest's order, over the shards of all
/// workers.
#[must_use]
pub fn state_digests(manifest: &CheckpointManifest) -> Vec<StateDigest> {
    let of_class = manifest.classes.chunk_by(|left, right| left.class == right.class);
    of_class.filter_map(state_digest).collect()
}

fn state_digest(captured: &[CapturedClass]) -> Option<StateDigest> {
    let first = captured.first()?;
    let shards = captured.iter().flat_map(|captured| &captured.shards);
    let mut shards: Vec<_> = shards.map(|shard| (shard.path.as_str(), shard.digest)).collect();
    shards.sort_unstable_by_key(|(path, _)| *path);
    let digest = first.not_applicable.is_none().then(|| class_digest(shards));
    Some(StateDigest { class: first.class, digest })
}

/// State digest of a class from its shards' paths and digests, in path order.
#[must_use]
pub fn class_digest<'a>(shards: impl IntoIterator<Item = (&'a str, Digest)>) -> Digest {
    let mut hasher = blake3::Hasher::new();
    for (path, digest) in shards {
        hasher.update(path.as_bytes());
        hasher.update(&[0]);
        hasher.update(&digest.bytes);
    }
    Digest::blake3(*hasher.finalize().as_bytes())
}

/// Size of all shards in bytes.
#[must_use]
pub fn num_shard_bytes(manifest: &CheckpointManifest) -> u64 {
    manifest.classes.iter().flat_map(|captured| &captured.shards).map(|shard| shard.num_bytes).sum()
}

/// The shard whose digest stands for the whole model: its one file, or the
/// index of several.
#[must_use]
pub fn weights(manifest: &CheckpointManifest) -> Option<&Shard> {
    let class = StateClass::Model;
    shard(manifest, class, MODEL_NAME).or_else(|| shard(manifest, class, MODEL_INDEX_NAME))
}

/// The shard of a class at a path.
#[must_use]
pub fn shard<'a>(manifest: &'a CheckpointManifest, class: StateClass, path: &str) -> Option<&'a Shard> {
    manifest
        .classes
        .iter()
        .filter(|captured| captured.class == class)
        .flat_map(|captured| &captured.shards)
        .find(|shard| shard.path == path)
}
