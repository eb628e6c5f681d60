//! Saves the state of a step, with an entry for each stage: requested before
//! anything is written, staged, durably committed, validated.
//!
//! A save that fails leaves a `checkpoint.failed` entry and no folder; the
//! attempt then ends, because a run whose state cannot be kept must not go on
//! as if it could.

use std::path::Path;
use std::time::{Duration, Instant};

use ledger::FrozenContract;
use schemas::body::{
    Body, CheckpointCommittedDet, CheckpointCommittedObs, CheckpointDet, CheckpointFailedObs, CheckpointObs,
    Halves,
};
use schemas::contract::Architecture;
use schemas::digest::Digest;
use schemas::ids::CheckpointId;
use schemas::state::{CheckpointManifest, Shard, StateClass, StateDigest};

use crate::checkpoint::locate::LocatedCheckpoint;
use crate::checkpoint::manifest::{self, ManifestHeader};
use crate::checkpoint::validate::{self, Expected};
use crate::checkpoint::writer::{Committed, Staged, Staging};
use crate::checkpoint::{CONFIG_NAME, CheckpointError, MODEL_NAME, OPTIMIZER_NAME, checkpoint_id};
use crate::engine::CapturedTensors;
use crate::export::{self, FileKind};
use crate::state::{self, Derivation};

use super::attempt::Attempt;
use super::costs::micros;
use super::error::{self, RunError};
use super::failpoint;

/// State of one step, ready to be written.
#[derive(Debug, Clone, Copy)]
pub struct Snapshot<'a> {
    /// From what the JSON shards are derived.
    pub derivation: Derivation<'a>,
    /// The run's contract.
    pub frozen: &'a FrozenContract,
    /// Model and optimizer.
    pub tensors: &'a CapturedTensors,
}

/// A checkpoint that was validated.
#[derive(Debug, Clone)]
pub struct Saved {
    /// Its name.
    pub checkpoint: CheckpointId,
    /// BLAKE3 of `config.json`.
    pub config: Digest,
    /// BLAKE3 of the model shard.
    pub model: Digest,
    /// Size of all files in bytes.
    pub num_bytes: u64,
}

impl Saved {
    /// A checkpoint that an earlier attempt validated and this one resumed
    /// from.
    ///
    /// # Errors
    /// When it has no model or configuration shard.
    pub fn from_located(located: &LocatedCheckpoint) -> Result<Self, RunError> {
        Ok(Self {
            checkpoint: located.record.checkpoint.clone(),
            config: shard(&located.manifest, StateClass::Model, CONFIG_NAME)?.digest,
            model: shard(&located.manifest, StateClass::Model, MODEL_NAME)?.digest,
            num_bytes: located.record.num_bytes,
        })
    }
}

/// Saves a snapshot, with its entries.
///
/// # Errors
/// When the state cannot be written or read back, after `checkpoint.failed`;
/// or when the ledger cannot be written.
pub fn save(attempt: &mut Attempt, snapshot: &Snapshot<'_>, ledger_folder: &Path) -> Result<Saved, RunError> {
    let step = snapshot.derivation.step;
    let checkpoint = checkpoint_id(step, attempt.attempt);
    attempt.enter("checkpoint");
    let started = Instant::now();
    let stage = |duration| Box::new(stage(step, &checkpoint, duration));
    attempt.record_durably(step, Body::CheckpointRequested(stage(Duration::ZERO)))?;
    failpoint::pass("checkpoint.requested");

    let store = ledger_folder.join(&snapshot.frozen.contract.checkpoints.store);
    let result = write(attempt, snapshot, &store, &checkpoint, started);
    let num_bytes = result.as_ref().map_or(0, |saved| saved.num_bytes);
    attempt.costs.checkpoint(started.elapsed(), num_bytes);
    attempt.enter("train");
    if let Err(failure) = &result
        && !matches!(failure, RunError::Record(_))
    {
        let obs = CheckpointFailedObs { checkpoint, reason: error::chain(failure) };
        let halves = Box::new(Halves { det: CheckpointDet { step }, obs });
        attempt.record_durably(step, Body::CheckpointFailed(halves))?;
    }
    result
}

fn stage(step: u64, checkpoint: &CheckpointId, duration: Duration) -> Halves<CheckpointDet, CheckpointObs> {
    let obs = CheckpointObs { checkpoint: checkpoint.clone(), duration_us: micros(duration) };
    Halves { det: CheckpointDet { step }, obs }
}

fn write(
    attempt: &mut Attempt,
    snapshot: &Snapshot<'_>,
    store: &Path,
    checkpoint: &CheckpointId,
    requested: Instant,
) -> Result<Saved, RunError> {
    let step = snapshot.derivation.step;

    // Staged.
    let staged = write_staging(attempt, snapshot, store, checkpoint)?;
    attempt.record(step, Body::CheckpointStaged(Box::new(stage(step, checkpoint, requested.elapsed()))))?;
    failpoint::pass("checkpoint.staged");

    // Durably committed.
    let committed = staged.commit()?;
    failpoint::pass("checkpoint.renamed");
    let model = shard(&committed.manifest, StateClass::Model, MODEL_NAME)?.digest;
    let config = shard(&committed.manifest, StateClass::Model, CONFIG_NAME)?.digest;
    let body = committed_body(snapshot, &committed, checkpoint, model, requested.elapsed());
    attempt.record(step, body)?;

    // Validated.
    let renamed = Instant::now();
    let expected = Expected {
        checkpoint,
        contract: snapshot.frozen.digest,
        manifest: committed.manifest_digest,
        run: &snapshot.frozen.run,
        step,
    };
    validate::reread(&committed.folder, &expected)?;
    let body = Body::CheckpointValidated(Box::new(stage(step, checkpoint, renamed.elapsed())));
    attempt.record_durably(step, body)?;
    failpoint::pass("checkpoint.validated");
    Ok(Saved { checkpoint: checkpoint.clone(), config, model, num_bytes: committed.num_bytes })
}

fn shard<'a>(manifest: &'a CheckpointManifest, class: StateClass, name: &str) -> Result<&'a Shard, RunError> {
    manifest::shard(manifest, class, name)
        .ok_or_else(|| RunError::Inventory { class, reason: format!("{name} was not written") })
}

fn committed_body(
    snapshot: &Snapshot<'_>,
    committed: &Committed,
    checkpoint: &CheckpointId,
    model: Digest,
    duration: Duration,
) -> Body {
    let det = CheckpointCommittedDet {
        classes: manifest::state_digests(&committed.manifest),
        model,
        step: snapshot.derivation.step,
    };
    let obs = CheckpointCommittedObs {
        checkpoint: checkpoint.clone(),
        duration_us: micros(duration),
        manifest: committed.manifest_digest,
        num_bytes: committed.num_bytes,
        path: format!("{}/{checkpoint}", snapshot.frozen.contract.checkpoints.store.trim_end_matches('/')),
    };
    Body::CheckpointDurablyCommitted(Box::new(Halves { det, obs }))
}

/// Writes every captured class into a staging folder.
fn write_staging(
    attempt: &Attempt,
    snapshot: &Snapshot<'_>,
    store: &Path,
    checkpoint: &CheckpointId,
) -> Result<Staged, RunError> {
    let contract = &snapshot.frozen.contract;
    let mut staging = Staging::begin(store, checkpoint)?;
    for class in captured_classes(snapshot) {
        match class {
            StateClass::Model => {
                staging.add_tensors(class, MODEL_NAME, FileKind::Model, &snapshot.tensors.model)?;
                staging.add_bytes(class, CONFIG_NAME, &config_json(snapshot)?)?;
            }
            StateClass::Optimizer => {
                staging.add_tensors(class, OPTIMIZER_NAME, FileKind::State, &snapshot.tensors.optimizer)?;
            }
            _ => {
                if let Some(bytes) = snapshot.derivation.shard(class)? {
                    staging.add_bytes(class, &state::shard_name(class), &bytes)?;
                }
            }
        }
    }
    let header = ManifestHeader {
        attempt: attempt.attempt,
        checkpoint,
        contract: snapshot.frozen.digest,
        declarations: &contract.state_classes,
        run: &snapshot.frozen.run,
        step: snapshot.derivation.step,
    };
    Ok(staging.finish(&header)?)
}

fn captured_classes(snapshot: &Snapshot<'_>) -> Vec<StateClass> {
    let declarations = &snapshot.frozen.contract.state_classes;
    declarations
        .iter()
        .filter(|declaration| declaration.not_applicable.is_none())
        .map(|declaration| declaration.class)
        .collect()
}

fn config_json(snapshot: &Snapshot<'_>) -> Result<Vec<u8>, RunError> {
    let Architecture::LlamaDecoder(decoder) = &snapshot.frozen.contract.architecture;
    export::config_json(decoder)
        .map(String::into_bytes)
        .map_err(|error| RunError::Inventory { class: StateClass::Model, reason: error.to_string() })
}

/// BLAKE3 of the model shard that the snapshot would be saved as, without
/// writing it.
///
/// # Errors
/// When the tensors do not make a file.
pub fn model_digest(tensors: &CapturedTensors) -> Result<Digest, RunError> {
    digest_of(StateClass::Model, FileKind::Model, &tensors.model)
}

fn digest_of(class: StateClass, kind: FileKind, tensors: &[export::NamedTensor]) -> Result<Digest, RunError> {
    let written = export::write(kind, tensors, &mut std::io::sink());
    Ok(written.map_err(|source| RunError::Tensors { class, source })?.digest)
}

/// Digest of every class of the contract, as a checkpoint of the snapshot
/// would have them, without writing one.
///
/// # Errors
/// When the state does not make files.
pub fn state_digests(attempt: &Attempt, snapshot: &Snapshot<'_>) -> Result<Vec<StateDigest>, RunError> {
    let mut shards = std::collections::BTreeMap::new();
    let shard =
        |path: &str, digest| Shard { digest, num_bytes: 0, path: path.to_owned(), tensors: Vec::new() };
    let hash = |bytes: &[u8]| Digest::blake3(*blake3::hash(bytes).as_bytes());
    for class in captured_classes(snapshot) {
        let of_class = match class {
            StateClass::Model => vec![
                shard(MODEL_NAME, model_digest(snapshot.tensors)?),
                shard(CONFIG_NAME, hash(&config_json(snapshot)?)),
            ],
            StateClass::Optimizer => {
                let digest = digest_of(class, FileKind::State, &snapshot.tensors.optimizer)?;
                vec![shard(OPTIMIZER_NAME, digest)]
            }
            _ => match snapshot.derivation.shard(class)? {
                Some(bytes) => vec![shard(&state::shard_name(class), hash(&bytes))],
                None => Vec::new(),
            },
        };
        shards.insert(class, of_class);
    }
    let step = snapshot.derivation.step;
    let header = ManifestHeader {
        attempt: attempt.attempt,
        checkpoint: &checkpoint_id(step, attempt.attempt),
        contract: snapshot.frozen.digest,
        declarations: &snapshot.frozen.contract.state_classes,
        run: &snapshot.frozen.run,
        step,
    };
    Ok(manifest::state_digests(&manifest::build(&header, shards)))
}

/// Checks that what was written is what the evaluations of the step were said
/// to be of: the same bytes by two paths.
///
/// # Errors
/// [`CheckpointError::Digest`] where they differ.
pub fn check_model(saved: &Saved, evaluated: Digest, store: &Path) -> Result<(), RunError> {
    if saved.model == evaluated {
        return Ok(());
    }
    let path = store.join(saved.checkpoint.as_str()).join(MODEL_NAME);
    Err(CheckpointError::Digest { path, expected: evaluated, actual: saved.model }.into())
}
