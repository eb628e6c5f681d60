//! Saving the state of a step: an entry for each stage, and the admission of
//! what becomes a candidate.

use std::time::Instant;

use corpus::tensors::{FileKind, NamedTensor, safetensors_bytes};
use ledger::costs::micros;
use schemas::body::{
    Body, CandidateAdmittedDet, CandidateObs, CheckpointCommittedDet, CheckpointCommittedObs, CheckpointDet,
    CheckpointFailedObs, CheckpointObs, Halves,
};
use schemas::contract::{Architecture, CandidateFamily};
use schemas::digest::Digest;
use schemas::ids::{CandidateId, CheckpointId};
use schemas::number::Float;
use schemas::state::{StateClass, TensorInfo};
use serde::Serialize;

use super::Attempt;
use crate::checkpoint::{
    self, CONFIG_NAME, MODEL_NAME, OPTIMIZER_NAME, StateFile, checkpoint_id, state_digests,
};
use crate::error::LoopError;
use crate::history::Candidate;
use crate::run::last_step;

#[derive(Serialize)]
struct DataCursor {
    epoch: u64,
    examples: u64,
    position: u64,
    step: u64,
    tokens: u64,
}

#[derive(Serialize)]
struct Topology {
    learners: u32,
    workers: u32,
}

#[derive(Serialize)]
struct Plan<'a> {
    compiler: &'a schemas::contract::CompilerPlan,
    compute_dtype: schemas::contract::Dtype,
    num_workers: u32,
}

impl Attempt {
    /// Saves the state after the last step, from the request to the validation,
    /// and admits it as a candidate where the contract says so. `position` is
    /// the number of examples that updates have consumed: where a resume goes
    /// on. Returns the checkpoint's name.
    ///
    /// # Errors
    /// When no save is due, an evaluation is due before it, the tensors are not
    /// the contract's, or file system or ledger refuse. A save that fails is on
    /// record and is not tried again: the attempt takes its end alone then
    /// ([`Self::fail`], [`Self::interrupt`]), and the next one saves the step under
    /// a name of its own.
    pub fn save(
        &mut self,
        model: Vec<NamedTensor>,
        optimizer: Vec<NamedTensor>,
        position: u64,
    ) -> Result<String, LoopError> {
        let started = Instant::now();
        self.require_usable()?;
        let due = self.due();
        if !due.evaluations.is_empty() {
            return Err(self.is_due(&due));
        }
        if !due.checkpoint {
            return Err(LoopError::order(format!("no checkpoint is due at step {}", self.last_step)));
        }
        let files = self.state_files(model, optimizer, position)?;
        let digest_of = |name: &str| files.iter().find(|file| file.name == name).map(StateFile::digest);
        let model = digest_of(MODEL_NAME).ok_or_else(|| LoopError::value("model", "is missing"))?;
        let config = digest_of(CONFIG_NAME).ok_or_else(|| LoopError::value("config", "is missing"))?;
        // Taken back once all of it is on record: whichever call returns early below
        // leaves evaluations or a request that a second save would write again.
        self.must_end = true;
        for (mut det, duration) in std::mem::take(&mut self.pending) {
            det.model = Some(model);
            self.record_evaluation(det, duration)?;
        }

        // Requested, before anything is written.
        let step = self.last_step;
        let checkpoint = checkpoint_id(step, self.number);
        let body = Body::CheckpointRequested(stage(step, &checkpoint, started));
        self.record_durably(step, body)?;
        let written = self.write(&files, &checkpoint, model, started);
        let num_bytes = match &written {
            Ok(num_bytes) => *num_bytes,
            Err(_) => 0,
        };
        self.run.costs.checkpoint(started.elapsed(), num_bytes);
        if let Err(error) = written {
            if !matches!(error, LoopError::Record(_)) {
                let obs = CheckpointFailedObs { checkpoint, reason: error.chain() };
                let halves = Box::new(Halves { det: CheckpointDet { step }, obs });
                self.record_durably(step, Body::CheckpointFailed(halves))?;
            }
            return Err(error);
        }
        self.saved_step = Some(step);
        self.admit(&checkpoint, config, model)?;
        self.must_end = false;
        self.since = Instant::now();
        Ok(checkpoint.0)
    }

    /// The stages behind the request. Returns the bytes that were written.
    fn write(
        &mut self,
        files: &[StateFile],
        checkpoint: &CheckpointId,
        model: Digest,
        requested: Instant,
    ) -> Result<u64, LoopError> {
        let step = self.last_step;
        let store = self.store.clone();
        let staged = checkpoint::stage(&store, &self.run.frozen, (self.number, checkpoint, step), files)?;
        self.record(step, Body::CheckpointStaged(stage(step, checkpoint, requested)))?;
        let committed = staged.commit()?;
        let det = CheckpointCommittedDet {
            classes: state_digests(&committed.manifest),
            model,
            // Freeze refuses contracts of this profile that ask for one.
            state_root: None,
            step,
        };
        let obs = CheckpointCommittedObs {
            checkpoint: checkpoint.clone(),
            duration_us: micros(requested.elapsed()),
            manifest: committed.manifest_digest,
            num_bytes: committed.num_bytes,
            path: format!("{}/{checkpoint}", self.run.frozen.contract.checkpoints.store),
        };
        self.record(step, Body::CheckpointDurablyCommitted(Box::new(Halves { det, obs })))?;
        let renamed = Instant::now();
        checkpoint::read_back(&committed.folder, committed.manifest_digest)?;
        self.record_durably(step, Body::CheckpointValidated(stage(step, checkpoint, renamed)))?;
        Ok(committed.num_bytes)
    }

    /// Admits the checkpoint that the attempt begins from, where a crash came
    /// between its validation and its admission.
    pub(crate) fn admit_resumed(&mut self) -> Result<(), LoopError> {
        let Some(resumed) = &self.resumed else { return Ok(()) };
        let checkpoint = resumed.checkpoint.clone();
        let shards = resumed.manifest.classes.iter().flat_map(|captured| &captured.shards);
        let digest = |name: &str| shards.clone().find(|shard| shard.path == name).map(|shard| shard.digest);
        let Some((config, model)) = digest(CONFIG_NAME).zip(digest(MODEL_NAME)) else { return Ok(()) };
        self.admit(&checkpoint, config, model)
    }

    fn admit(&mut self, checkpoint: &CheckpointId, config: Digest, model: Digest) -> Result<(), LoopError> {
        let step = self.last_step;
        let contract = self.contract();
        let is_last = step >= last_step(contract).0;
        let is_of_family = match contract.selection.family {
            CandidateFamily::EveryEvaluatedCheckpoint => step > 0,
            CandidateFamily::FinalOnly => is_last,
        };
        let value = self.values.get(&contract.selection.stream).and_then(|values| values.get(&step)).copied();
        let is_known = self.candidates.get(&step).is_some_and(|known| known.checkpoint == *checkpoint);
        let Some(value) = value.filter(|_| is_of_family && !is_known) else { return Ok(()) };
        let det = CandidateAdmittedDet { config, model, step, value: Float(value) };
        let candidate = CandidateId(format!("candidate-{checkpoint}"));
        let obs = CandidateObs { candidate: candidate.clone(), checkpoint: checkpoint.clone() };
        self.record(step, Body::CandidateAdmitted(Box::new(Halves { det: det.clone(), obs })))?;
        self.candidates.insert(step, Candidate { candidate, checkpoint: checkpoint.clone(), det });
        Ok(())
    }

    /// Every file of the checkpoint.
    fn state_files(
        &self,
        model: Vec<NamedTensor>,
        optimizer: Vec<NamedTensor>,
        position: u64,
    ) -> Result<Vec<StateFile>, LoopError> {
        let contract = self.contract();
        let tensors =
            |class, name: &'static str, kind, mut given: Vec<NamedTensor>, expected: &[TensorInfo]| {
                given.sort_by(|left, right| left.name.cmp(&right.name));
                compare(name, &given, expected)?;
                let bytes = safetensors_bytes(kind, &given)?;
                let tensors = given.iter().map(NamedTensor::info).collect();
                Ok::<_, LoopError>(StateFile { bytes, class, name, tensors })
            };
        let Architecture::LlamaDecoder(decoder) = &contract.architecture;
        let config =
            corpus::configuration::config_json(decoder).map_err(|error| json_error(&error))?.into_bytes();
        let num_examples = self.run.inputs.train.num_examples().max(1);
        let cursor = DataCursor {
            epoch: position / num_examples,
            examples: position,
            position: position % num_examples,
            step: self.last_step,
            tokens: self.counters.tokens,
        };
        let topology = Topology { learners: contract.topology.learners, workers: 1 };
        let plan = Plan {
            compiler: &self.run.identity.plan,
            compute_dtype: contract.numerics.compute_dtype,
            num_workers: 1,
        };
        let inputs = &self.run.inputs;
        Ok(vec![
            tensors(StateClass::Model, MODEL_NAME, FileKind::Model, model, &inputs.model_tensors())?,
            StateFile::json(StateClass::Model, CONFIG_NAME, config),
            tensors(
                StateClass::Optimizer,
                OPTIMIZER_NAME,
                FileKind::State,
                optimizer,
                &inputs.optimizer_tensors(),
            )?,
            StateFile::json(StateClass::DataCursor, "data_cursor.json", json(&cursor)?),
            StateFile::json(StateClass::Topology, "topology.json", json(&topology)?),
            StateFile::json(StateClass::CompilerPlan, "compiler_plan.json", json(&plan)?),
        ])
    }
}

/// Fields are declared in key order, and there are no floats: entry JSON.
fn json<T: Serialize>(value: &T) -> Result<Vec<u8>, LoopError> {
    serde_json::to_vec(value).map_err(|error| json_error(&error))
}

fn json_error(error: &serde_json::Error) -> LoopError {
    LoopError::value("state", error.to_string())
}

/// Tensors that are not the contract's are refused before anything is recorded.
fn compare(name: &str, given: &[NamedTensor], expected: &[TensorInfo]) -> Result<(), LoopError> {
    let given: Vec<TensorInfo> = given.iter().map(NamedTensor::info).collect();
    for wanted in expected {
        let Some(found) = given.iter().find(|tensor| tensor.name == wanted.name) else {
            return Err(LoopError::value(name, format!("lacks {}", wanted.name)));
        };
        if found != wanted {
            let reason = format!(
                "{} is {} {:?}; the contract has {} {:?}",
                wanted.name, found.dtype, found.shape, wanted.dtype, wanted.shape
            );
            return Err(LoopError::value(name, reason));
        }
    }
    match given.iter().find(|tensor| !expected.contains(tensor)) {
        Some(tensor) => {
            Err(LoopError::value(name, format!("has {}, which the contract does not", tensor.name)))
        }
        None => Ok(()),
    }
}

fn stage(step: u64, checkpoint: &CheckpointId, since: Instant) -> Box<Halves<CheckpointDet, CheckpointObs>> {
    let obs = CheckpointObs { checkpoint: checkpoint.clone(), duration_us: micros(since.elapsed()) };
    Box::new(Halves { det: CheckpointDet { step }, obs })
}
