//! Saves the state of a step, with an entry for each stage: requested before
//! anything is written, staged, durably committed, validated.
//!
//! A save that fails leaves a `checkpoint.failed` entry and no folder; the
//! attempt then ends, because a run whose state cannot be kept must not go on
//! as if it could. The loop itself saves here, or a thread beside it
//! ([`super::saver`]): the stages are the same, and only who appends differs.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ledger::FrozenContract;
use schemas::body::{
    AnomalyObs, Body, CheckpointCommittedDet, CheckpointCommittedObs, CheckpointDet, CheckpointFailedObs,
    CheckpointObs, Halves,
};
use schemas::contract::{FaultPhase, ParameterView};
use schemas::digest::Digest;
use schemas::ids::{AttemptId, CheckpointId, WorkerId};
use schemas::model_index::MODEL_INDEX_NAME;
use schemas::state::{CheckpointManifest, Shard, StateClass};

use crate::checkpoint::locate::LocatedCheckpoint;
use crate::checkpoint::manifest::{self, ManifestHeader};
use crate::checkpoint::share::{self, Base};
use crate::checkpoint::validate::{self, Expected};
use crate::checkpoint::writer::{Committed, Staged, Staging};
use crate::checkpoint::{
    AVERAGES_NAME, CONFIG_NAME, CheckpointError, MODEL_NAME, OPTIMIZER_NAME, checkpoint_id,
};
use crate::faults::{self, Injector};
use crate::state::anomaly::{self, SinceLast, UpdatedShards};
use crate::state::registry::{CapturedState, Content};
use crate::state::tree::{self, RecordedState};
use crate::state::{StateError, split};
use crate::store::{self, Remote, Stored, working_folder};

use super::attempt::Attempt;
use super::costs::micros;
use super::error::{self, RunError};
use super::failpoint;
use super::progress::Console;

/// State of one step, ready to be written: a copy, which no update reaches.
#[derive(Debug, Clone, Copy)]
pub struct Snapshot<'a> {
    /// The run's contract.
    pub frozen: &'a FrozenContract,
    /// What lies between it and the checkpoint before it.
    pub since: SinceLast,
    /// Every class that it captures.
    pub state: &'a CapturedState,
}

/// A checkpoint that was validated.
#[derive(Debug, Clone)]
pub struct Saved {
    /// What was odd about it, in words; nothing of a checkpoint that was resumed
    /// from, since it was said then.
    pub anomalies: Vec<String>,
    /// BLAKE3 of the averages shard; none where no averages are kept.
    pub averages: Option<Digest>,
    /// Its name.
    pub checkpoint: CheckpointId,
    /// BLAKE3 of `config.json`.
    pub config: Digest,
    /// BLAKE3 of the model shard.
    pub model: Digest,
    /// Why a file that could have been shared was written, if one was.
    pub not_shared: Option<String>,
    /// Size of all files in bytes.
    pub num_bytes: u64,
    /// BLAKE3 of the optimizer shard.
    pub optimizer: Option<Digest>,
    /// Bytes of it that another checkpoint holds too, stored once.
    pub num_shared_bytes: u64,
}

impl Saved {
    /// Digests of what updates change.
    #[must_use]
    pub const fn updated(&self) -> UpdatedShards {
        UpdatedShards { model: self.model, optimizer: self.optimizer }
    }

    /// A checkpoint that an earlier attempt validated and this one resumed
    /// from.
    ///
    /// # Errors
    /// When it has no model or configuration shard.
    pub fn from_located(located: &LocatedCheckpoint) -> Result<Self, RunError> {
        let averages = manifest::shard(&located.manifest, StateClass::Averages, AVERAGES_NAME);
        let optimizer = manifest::shard(&located.manifest, StateClass::Optimizer, OPTIMIZER_NAME);
        let shards = located.manifest.classes.iter().flat_map(|captured| &captured.shards);
        Ok(Self {
            anomalies: Vec::new(),
            averages: averages.map(|shard| shard.digest),
            checkpoint: located.record.checkpoint.clone(),
            config: shard(&located.manifest, StateClass::Model, CONFIG_NAME)?.digest,
            model: weights(&located.manifest)?.digest,
            not_shared: None,
            num_bytes: located.record.num_bytes,
            num_shared_bytes: share::num_shared_bytes(&located.folder, shards),
            optimizer: optimizer.map(|shard| shard.digest),
        })
    }
}

impl Saved {
    /// Bytes that it added to the disk, as far as its files tell.
    #[must_use]
    pub const fn num_new_bytes(&self) -> u64 {
        self.num_bytes.saturating_sub(self.num_shared_bytes)
    }
}

/// Who appends the entries of a save.
pub trait Stages {
    /// Number of the attempt that saves.
    fn attempt(&self) -> AttemptId;

    /// Where messages for people go.
    fn console(&self) -> &Console;

    /// Appends an entry, which becomes durable with its group.
    ///
    /// # Errors
    /// When the ledger cannot be written.
    fn append(&mut self, step: u64, body: Body) -> Result<(), RunError>;

    /// Appends an entry and returns once it is durable with a signed head.
    ///
    /// # Errors
    /// When the ledger cannot be written.
    fn append_durably(&mut self, step: u64, body: Body) -> Result<(), RunError>;

    /// As [`Self::append_durably`], of a worker.
    ///
    /// # Errors
    /// When the ledger cannot be written.
    fn append_durably_of(&mut self, worker: WorkerId, step: u64, body: Body) -> Result<(), RunError>;

    /// The faults that are planned; none in a run without such a plan.
    fn faults(&mut self) -> Option<&mut Injector>;
}

impl Stages for Attempt {
    fn attempt(&self) -> AttemptId {
        self.attempt
    }

    fn console(&self) -> &Console {
        &self.console
    }

    fn append(&mut self, step: u64, body: Body) -> Result<(), RunError> {
        self.record(step, body)
    }

    fn append_durably(&mut self, step: u64, body: Body) -> Result<(), RunError> {
        self.record_durably(step, body)
    }

    fn append_durably_of(&mut self, worker: WorkerId, step: u64, body: Body) -> Result<(), RunError> {
        self.record_durably_of(worker, step, body)
    }

    fn faults(&mut self) -> Option<&mut Injector> {
        self.faults.as_mut()
    }
}

/// Saves a snapshot, with its entries, and returns when it is validated.
///
/// # Errors
/// When the state cannot be written or read back, after `checkpoint.failed`;
/// or when the ledger cannot be written.
pub fn save(attempt: &mut Attempt, snapshot: &Snapshot<'_>, ledger_folder: &Path) -> Result<Saved, RunError> {
    let step = snapshot.state.step;
    let checkpoint = checkpoint_id(step, attempt.attempt);
    attempt.enter("checkpoint");
    let started = Instant::now();
    attempt.record_durably(step, requested(step, &checkpoint))?;
    let store = ledger_folder.join(working_folder(&snapshot.frozen.contract.checkpoints.store));
    let base = base(attempt, snapshot, &store);
    let result = finish(attempt, snapshot, &store, base.as_ref(), &checkpoint, started);
    let num_bytes = result.as_ref().map_or(0, |saved| saved.num_bytes);
    attempt.costs.checkpoint(started.elapsed(), num_bytes);
    attempt.enter("train");
    result
}

/// The checkpoint whose files a save may share; none where the state has
/// nothing that stays the same.
#[must_use]
pub fn base(attempt: &Attempt, snapshot: &Snapshot<'_>, store: &Path) -> Option<Base> {
    let shards = snapshot.state.classes.iter().flat_map(|(_, shards)| shards);
    let is_constant = |content: &Content| matches!(content, Content::Frozen(..));
    shards.into_iter().any(|shard| is_constant(&shard.content)).then_some(())?;
    Base::newest(attempt.roster(), snapshot.frozen, store)
}

/// The entry that announces a save.
#[must_use]
pub fn requested(step: u64, checkpoint: &CheckpointId) -> Body {
    Body::CheckpointRequested(Box::new(stage(step, checkpoint, Duration::ZERO)))
}

/// The entry that says that a save failed.
#[must_use]
pub fn failed(step: u64, checkpoint: &CheckpointId, failure: &RunError) -> Body {
    let obs = CheckpointFailedObs { checkpoint: checkpoint.clone(), reason: error::chain(failure) };
    Body::CheckpointFailed(Box::new(Halves { det: CheckpointDet { step }, obs }))
}

/// Everything that follows the durable request, with an entry for each stage,
/// and with one that says so where it fails.
///
/// # Errors
/// As [`save`].
pub fn finish(
    stages: &mut dyn Stages,
    snapshot: &Snapshot<'_>,
    store: &Path,
    base: Option<&Base>,
    checkpoint: &CheckpointId,
    requested: Instant,
) -> Result<Saved, RunError> {
    failpoint::pass("checkpoint.requested");
    let step = snapshot.state.step;
    let result = write(stages, snapshot, store, base, checkpoint, requested);
    if let Err(failure) = &result
        && !matches!(failure, RunError::Record(_))
    {
        stages.append_durably(step, failed(step, checkpoint, failure))?;
    }
    result
}

fn stage(step: u64, checkpoint: &CheckpointId, duration: Duration) -> Halves<CheckpointDet, CheckpointObs> {
    let obs = CheckpointObs { checkpoint: checkpoint.clone(), duration_us: micros(duration) };
    Halves { det: CheckpointDet { step }, obs }
}

fn write(
    stages: &mut dyn Stages,
    snapshot: &Snapshot<'_>,
    store: &Path,
    base: Option<&Base>,
    checkpoint: &CheckpointId,
    requested: Instant,
) -> Result<Saved, RunError> {
    let step = snapshot.state.step;

    // Staged.
    let staged = write_staging(stages, snapshot, store, base, checkpoint)?;
    stages.append(step, Body::CheckpointStaged(Box::new(stage(step, checkpoint, requested.elapsed()))))?;
    failpoint::pass("checkpoint.staged");
    faults::in_save(stages, FaultPhase::Staged, step, Some((staged.folder(), &staged.manifest)))?;

    // Durably committed.
    let committed = staged.commit()?;
    failpoint::pass("checkpoint.renamed");
    faults::in_save(stages, FaultPhase::Renamed, step, None)?;
    let remote = upload(stages, snapshot, &committed, checkpoint)?;
    let model = weights(&committed.manifest)?.digest;
    let config = shard(&committed.manifest, StateClass::Model, CONFIG_NAME)?.digest;
    let root = tree::root_of(snapshot.state, &snapshot.frozen.contract)?;
    let body = committed_body(snapshot, &committed, checkpoint, (model, root), requested.elapsed());
    stages.append(step, body)?;
    failpoint::pass("checkpoint.committed");

    // What is odd about it is on record before anybody may rely on it.
    let optimizer = manifest::shard(&committed.manifest, StateClass::Optimizer, OPTIMIZER_NAME);
    let optimizer = optimizer.map(|shard| shard.digest);
    let anomalies = anomaly::detect(snapshot.state, &snapshot.since, &UpdatedShards { model, optimizer });
    for det in &anomalies {
        let obs = AnomalyObs { description: anomaly::describe(det) };
        stages.append(step, Body::Anomaly(Box::new(Halves { det: det.clone(), obs })))?;
    }

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
    if let Some(remote) = remote {
        let stored = Stored { checkpoint, run: &snapshot.frozen.run };
        let (manifest, digest) = (&committed.manifest, committed.manifest_digest);
        store::verify::reread(&remote, stages.console(), stored, manifest, digest)?;
    }
    failpoint::pass("checkpoint.reread");
    let body = Body::CheckpointValidated(Box::new(stage(step, checkpoint, renamed.elapsed())));
    stages.append_durably(step, body)?;
    failpoint::pass("checkpoint.validated");
    let stored = (committed.folder.as_path(), &committed.manifest);
    faults::in_save(stages, FaultPhase::Validated, step, Some(stored))?;
    let averages = manifest::shard(&committed.manifest, StateClass::Averages, AVERAGES_NAME);
    Ok(Saved {
        anomalies: anomalies.iter().map(anomaly::describe).collect(),
        averages: averages.map(|shard| shard.digest),
        checkpoint: checkpoint.clone(),
        config,
        model,
        not_shared: committed.not_shared,
        num_bytes: committed.num_bytes,
        num_shared_bytes: committed.num_shared_bytes,
        optimizer,
    })
}

/// Brings a checkpoint into a store by URL, before any entry calls it
/// committed. Where that fails the working folder does not keep it either: the
/// record will say that it failed.
fn upload(
    stages: &dyn Stages,
    snapshot: &Snapshot<'_>,
    committed: &Committed,
    checkpoint: &CheckpointId,
) -> Result<Option<Arc<Remote>>, RunError> {
    let uploaded = store::remote(&snapshot.frozen.contract.checkpoints.store)
        .map_err(CheckpointError::from)
        .and_then(|remote| {
            let Some(remote) = remote else { return Ok(None) };
            let stored = Stored { checkpoint, run: &snapshot.frozen.run };
            store::upload::upload(&remote, stages.console(), stored, committed)?;
            Ok(Some(remote))
        });
    if uploaded.is_err()
        && let Err(error) = std::fs::remove_dir_all(&committed.folder)
    {
        let folder = committed.folder.display();
        stages.console().say(&format!("warning: could not remove {folder}: {error}"));
    }
    Ok(uploaded?)
}

/// The shard whose digest stands for the model.
fn weights(manifest: &CheckpointManifest) -> Result<&Shard, RunError> {
    manifest::weights(manifest).ok_or_else(|| missing_model("was not written").into())
}

fn missing_model(what: &str) -> StateError {
    StateError::Inventory { class: StateClass::Model, reason: format!("{MODEL_NAME} {what}") }
}

fn shard<'a>(manifest: &'a CheckpointManifest, class: StateClass, name: &str) -> Result<&'a Shard, RunError> {
    manifest::shard(manifest, class, name)
        .ok_or_else(|| StateError::Inventory { class, reason: format!("{name} was not written") }.into())
}

fn committed_body(
    snapshot: &Snapshot<'_>,
    committed: &Committed,
    checkpoint: &CheckpointId,
    (model, state_root): (Digest, Option<Digest>),
    duration: Duration,
) -> Body {
    let det = CheckpointCommittedDet {
        classes: manifest::state_digests(&committed.manifest),
        model,
        state_root,
        step: snapshot.state.step,
    };
    let obs = CheckpointCommittedObs {
        checkpoint: checkpoint.clone(),
        duration_us: micros(duration),
        manifest: committed.manifest_digest,
        num_bytes: committed.num_bytes,
        path: format!("{}/{checkpoint}", working_folder(&snapshot.frozen.contract.checkpoints.store)),
    };
    Body::CheckpointDurablyCommitted(Box::new(Halves { det, obs }))
}

/// Writes every captured class into a staging folder.
fn write_staging(
    stages: &mut dyn Stages,
    snapshot: &Snapshot<'_>,
    store: &Path,
    base: Option<&Base>,
    checkpoint: &CheckpointId,
) -> Result<Staged, RunError> {
    let contract = &snapshot.frozen.contract;
    let mut staging = Staging::begin(store, checkpoint)?;
    let mut is_first = true;
    for (class, shards) in &snapshot.state.classes {
        let mut digests = std::collections::BTreeMap::new();
        for shard in shards {
            let digest = match &shard.content {
                Content::Tensors(kind, tensors) => staging.add_tensors(*class, shard.name, *kind, tensors)?,
                Content::Frozen(tensors, initial) => {
                    staging.add_frozen(*class, shard.name, tensors, initial, base)?
                }
                Content::Index(plan) => staging.add_bytes(*class, shard.name, &plan.bytes(&digests)?)?,
                Content::Json(bytes) => staging.add_bytes(*class, shard.name, bytes)?,
            };
            digests.insert(shard.name, digest);
            failpoint::pass("shard.written");
            if std::mem::take(&mut is_first) {
                faults::in_save(stages, FaultPhase::ShardWritten, snapshot.state.step, None)?;
            }
        }
    }
    let header = ManifestHeader {
        attempt: stages.attempt(),
        checkpoint,
        contract: snapshot.frozen.digest,
        declarations: &contract.state_classes,
        run: &snapshot.frozen.run,
        step: snapshot.state.step,
    };
    Ok(staging.finish(&header)?)
}

/// What an evaluation can be of: the shards that hold parameters, by digest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EvaluatedShards {
    /// BLAKE3 of the averages shard; none where no averages are kept.
    pub averages: Option<Digest>,
    /// BLAKE3 of the model shard.
    pub model: Digest,
}

impl EvaluatedShards {
    /// Those of a checkpoint.
    #[must_use]
    pub const fn of_saved(saved: &Saved) -> Self {
        Self { averages: saved.averages, model: saved.model }
    }

    /// Those that a state would be saved as, without writing it.
    ///
    /// # Errors
    /// When the state has no model, or its tensors do not make a file.
    pub fn of_state(state: &CapturedState) -> Result<Self, RunError> {
        let of_class = |class: StateClass| {
            let found = state.classes.iter().find(|(captured, _)| *captured == class);
            found.map(|(_, shards)| split::digests(class, shards)).transpose()
        };
        let model = of_class(StateClass::Model)?.unwrap_or_default();
        let model = model.get(MODEL_NAME).or_else(|| model.get(MODEL_INDEX_NAME));
        let averages = of_class(StateClass::Averages)?.unwrap_or_default();
        Ok(Self {
            averages: averages.get(AVERAGES_NAME).copied(),
            model: *model.ok_or_else(|| missing_model("is missing"))?,
        })
    }

    /// The shard of a view.
    #[must_use]
    pub const fn of_view(&self, view: ParameterView) -> Option<Digest> {
        match view {
            ParameterView::Current => Some(self.model),
            ParameterView::Averages => self.averages,
        }
    }
}

/// Digest of every class of the contract, as a checkpoint of the snapshot
/// would have them, and the root of its state tree, without writing one.
///
/// # Errors
/// When the state does not make files.
pub fn recorded_state(attempt: &Attempt, snapshot: &Snapshot<'_>) -> Result<RecordedState, RunError> {
    let mut shards = std::collections::BTreeMap::new();
    for (class, captured) in &snapshot.state.classes {
        let mut of_class = Vec::new();
        for (name, digest) in split::digests(*class, captured)? {
            of_class.push(Shard { digest, num_bytes: 0, path: name.to_owned(), tensors: Vec::new() });
        }
        shards.insert(*class, of_class);
    }
    let step = snapshot.state.step;
    let header = ManifestHeader {
        attempt: attempt.attempt,
        checkpoint: &checkpoint_id(step, attempt.attempt),
        contract: snapshot.frozen.digest,
        declarations: &snapshot.frozen.contract.state_classes,
        run: &snapshot.frozen.run,
        step,
    };
    let digests = manifest::state_digests(&manifest::build(&header, shards));
    Ok(RecordedState { digests, root: tree::root_of(snapshot.state, &snapshot.frozen.contract)? })
}

/// Checks that what was written is what the evaluations of the step were said
/// to be of: the same bytes by two paths.
///
/// # Errors
/// [`CheckpointError::Digest`] where they differ.
pub fn check_evaluated(saved: &Saved, evaluated: EvaluatedShards, store: &Path) -> Result<(), RunError> {
    let pairs = [
        (MODEL_NAME, Some(evaluated.model), Some(saved.model)),
        (AVERAGES_NAME, evaluated.averages, saved.averages),
    ];
    for (name, expected, actual) in pairs {
        if let (Some(expected), Some(actual)) = (expected, actual)
            && expected != actual
        {
            let folder = store.join(saved.checkpoint.as_str());
            let is_index = name == MODEL_NAME && folder.join(MODEL_INDEX_NAME).exists();
            let path = folder.join(if is_index { MODEL_INDEX_NAME } else { name });
            return Err(CheckpointError::Digest { path, expected, actual }.into());
        }
    }
    Ok(())
}
