//! What the rules about anomalies follow: every save, what lies between it and
//! the one before, and what its bytes show.
//!
//! Each of them has its own copy, and each reads the bytes itself.

use std::collections::BTreeMap;

use schemas::body::{
    BF16_ONLY_MANTISSAS, Body, Credit, StateAnomaly, StepDet, UNCHANGED_STATE, ZERO_MOMENTS,
};
use schemas::digest::Digest;
use schemas::entry::Entry;
use schemas::ids::{AttemptId, CheckpointId};
use schemas::state::{CheckpointManifest, Shard, StateClass, StateDigest};

use crate::derive::mantissas::{Mantissas, are_zeros};
use crate::derive::safetensors::Tensor;
use crate::evidence::{Evidence, MAX_DOCUMENT_BYTES, describe};
use crate::rules::common::Checkpoints;
use crate::rules::updates::tensors::{OPTIMIZER_FILE, TensorFile};

/// Classes whose tensors a run keeps in binary32.
const BINARY32: [StateClass; 3] = [StateClass::Model, StateClass::Optimizer, StateClass::Averages];

/// Updates between a checkpoint and the one before it in its attempt.
#[derive(Debug, Clone, Default)]
pub(super) struct Between {
    pub(super) has_gradient: bool,
    pub(super) has_rate: bool,
    /// The record itself says that parameters moved.
    pub(super) has_moved: bool,
    pub(super) predecessor: Option<Vec<StateDigest>>,
}

impl Between {
    fn update(&mut self, det: &StepDet) {
        if det.overflow.as_ref().is_some_and(|overflow| overflow.skipped) {
            return;
        }
        if let Credit::Backpropagation { gradient_norm, .. } = &det.credit {
            self.has_gradient |= gradient_norm.0.is_finite() && gradient_norm.0 > 0.0;
        }
        for update in &det.updates {
            self.has_rate |= update.learning_rate.0 > 0.0;
            self.has_moved |= update.update_norm.is_some_and(|norm| norm.0 > 0.0);
        }
    }
}

/// One committed checkpoint.
#[derive(Debug, Clone)]
pub(super) struct Save {
    pub(super) attempt: Option<AttemptId>,
    pub(super) between: Between,
    pub(super) checkpoint: CheckpointId,
    pub(super) classes: Vec<StateDigest>,
    /// Entry that committed it.
    pub(super) index: u64,
    pub(super) manifest: Digest,
    pub(super) path: String,
    pub(super) step: u64,
}

impl Save {
    /// Whether a class is, bit for bit, that of the checkpoint before.
    pub(super) fn is_unchanged(&self, class: StateClass) -> bool {
        let digest =
            |classes: &[StateDigest]| classes.iter().find(|of| of.class == class).and_then(|of| of.digest);
        let before = self.between.predecessor.as_deref().and_then(digest);
        before.is_some() && before == digest(&self.classes)
    }

    /// Classes that updates should have changed and did not.
    pub(super) fn unchanged(&self) -> Vec<StateClass> {
        let expected =
            [(StateClass::Model, self.between.has_rate), (StateClass::Optimizer, self.between.has_gradient)];
        let should = expected.into_iter().filter(|(_, should)| *should).map(|(class, _)| class);
        should.filter(|class| self.is_unchanged(*class)).collect()
    }
}

/// Every save of a run, in logical order.
#[derive(Debug, Default)]
pub(super) struct Saves {
    between: Between,
    by_name: BTreeMap<CheckpointId, Vec<StateDigest>>,
    checkpoints: Checkpoints,
    pub(super) all: Vec<Save>,
    /// Place of the save that is committed and not yet at its end.
    pub(super) unfinished: Option<usize>,
}

impl Saves {
    pub(super) fn entry(&mut self, entry: &Entry) {
        self.checkpoints.entry(entry);
        match &entry.body {
            Body::AttemptStart(halves) => {
                self.unfinished = None;
                let from = halves.det.resumed_from.as_ref();
                let predecessor = from.and_then(|from| self.by_name.get(&from.checkpoint)).cloned();
                self.between = Between { predecessor, ..Between::default() };
            }
            Body::Step(halves) => self.between.update(&halves.det),
            Body::CheckpointDurablyCommitted(halves) => {
                let classes = halves.det.classes.clone();
                self.unfinished = Some(self.all.len());
                self.by_name.insert(halves.obs.checkpoint.clone(), classes.clone());
                let behind = Between { predecessor: Some(classes.clone()), ..Between::default() };
                self.all.push(Save {
                    attempt: entry.header.attempt,
                    between: std::mem::replace(&mut self.between, behind),
                    checkpoint: halves.obs.checkpoint.clone(),
                    classes,
                    index: entry.index,
                    manifest: halves.obs.manifest,
                    path: halves.obs.path.clone(),
                    step: halves.det.step,
                });
            }
            Body::CheckpointValidated(_) | Body::CheckpointFailed(_) => self.unfinished = None,
            _ => {}
        }
    }

    /// Saves that were read back by the run and whose bytes have to be there.
    pub(super) fn whole(&self) -> impl Iterator<Item = &Save> {
        self.all.iter().filter(|save| self.is_whole(save))
    }

    /// Whether a save was read back, and its bytes have to be there.
    pub(super) fn is_whole(&self, save: &Save) -> bool {
        let fact = self.checkpoints.all.get(&save.checkpoint);
        fact.is_some_and(|fact| fact.validated.is_some() && !fact.is_unusable)
    }
}

/// Tensors of a shard that are odd, in name order; errors in words.
pub(super) fn odd_tensors(
    file: &mut TensorFile,
    is_odd: &mut dyn FnMut(&mut TensorFile, &Tensor) -> Result<bool, String>,
) -> Result<Vec<Tensor>, String> {
    let mut odd = Vec::new();
    for tensor in file.header.tensors.clone() {
        if tensor.info.dtype == "F32" && tensor.num_bytes > 0 && is_odd(file, &tensor)? {
            odd.push(tensor);
        }
    }
    odd.sort_by(|a, b| a.info.name.cmp(&b.info.name));
    Ok(odd)
}

/// Whether a tensor holds nothing that bfloat16 could not.
pub(super) fn is_bf16_only(file: &mut TensorFile, tensor: &Tensor) -> Result<bool, String> {
    let mut mantissas = Mantissas::default();
    file.read(tensor, &mut |_, bytes| mantissas.take(bytes))?;
    Ok(mantissas.are_bf16_only())
}

/// Whether every element of a tensor is zero.
pub(super) fn is_zero(file: &mut TensorFile, tensor: &Tensor) -> Result<bool, String> {
    let mut is_zero = true;
    file.read(tensor, &mut |_, bytes| {
        is_zero = are_zeros(bytes);
        is_zero
    })?;
    Ok(is_zero)
}

/// A tensor, and the name of the file that holds it.
#[derive(Debug)]
pub(super) struct Odd {
    pub(super) file: String,
    pub(super) tensor: Tensor,
}

/// Shards of a class that hold tensors: a model may have two
/// (`docs/FORMAT.md`, "Checkpoint").
pub(super) fn tensor_shards(
    manifest: &CheckpointManifest,
    class: StateClass,
) -> impl Iterator<Item = &Shard> {
    let classes = manifest.classes.iter().filter(move |captured| captured.class == class);
    classes.flat_map(|captured| &captured.shards).filter(|shard| !shard.tensors.is_empty())
}

/// Tensors of a save that bfloat16 could hold, by class and in name order;
/// classes that have none are left out. Errors in words.
pub(super) fn bf16_only(evidence: &Evidence, save: &Save) -> Result<Vec<(StateClass, Vec<Odd>)>, String> {
    let manifest = evidence.checkpoint_manifest(&save.path, save.manifest)?;
    let mut found = Vec::new();
    for class in BINARY32 {
        let mut odd = Vec::new();
        for shard in tensor_shards(&manifest, class) {
            let mut file = TensorFile::open(evidence, &format!("{}/{}", save.path, shard.path))?;
            let tensors = odd_tensors(&mut file, &mut is_bf16_only)?;
            odd.extend(tensors.into_iter().map(|tensor| Odd { file: shard.path.clone(), tensor }));
        }
        odd.sort_by(|a, b| a.tensor.info.name.cmp(&b.tensor.info.name));
        if !odd.is_empty() {
            found.push((class, odd));
        }
    }
    Ok(found)
}

/// Moments of a save that are zero although an update had a gradient, and how
/// many moments there are.
pub(super) fn zero_moments(evidence: &Evidence, save: &Save) -> Result<(Vec<Tensor>, usize), String> {
    let mut file = TensorFile::open(evidence, &format!("{}/{OPTIMIZER_FILE}", save.path))?;
    let num_moments = file.header.tensors.len();
    let odd = if save.between.has_gradient { odd_tensors(&mut file, &mut is_zero)? } else { Vec::new() };
    Ok((odd, num_moments))
}

/// Elements of a tensor.
fn num_elements(shape: &[u64]) -> u64 {
    shape.iter().fold(1, |product, extent| product.saturating_mul(*extent))
}

fn of_tensors<'a>(class: StateClass, odd: impl Iterator<Item = &'a Tensor> + Clone) -> Option<StateAnomaly> {
    let first = odd.clone().next()?;
    Some(StateAnomaly {
        class,
        num_elements: odd.clone().map(|tensor| num_elements(&tensor.info.shape)).fold(0, u64::saturating_add),
        num_tensors: odd.count() as u64,
        tensor: Some(first.info.name.clone()),
    })
}

/// Name of the anomaly of workers with one stream.
const SHARED_RANDOM_STREAM: &str = "shared_random_stream";

/// Whether two workers have streams with one key, of which blocks are drawn.
/// Errors in words.
fn has_shared_stream(
    evidence: &Evidence,
    save: &Save,
    manifest: &CheckpointManifest,
) -> Result<bool, String> {
    let captured = manifest.classes.iter().filter(|of| of.class == StateClass::RngCpu);
    let mut drawn: Vec<serde_json::Value> = Vec::new();
    for shard in captured.filter(|of| of.worker.is_some()).flat_map(|of| &of.shards) {
        let path = format!("{}/{}", save.path, shard.path);
        let bytes = evidence.read(&path, MAX_DOCUMENT_BYTES).map_err(|error| describe(&error))?;
        let stream: serde_json::Value =
            serde_json::from_slice(&bytes).map_err(|error| format!("{path}: {error}"))?;
        let is_drawn = stream.get("blocks").and_then(serde_json::Value::as_u64).is_some_and(|n| n > 0);
        if let Some(key) = stream.get("key").filter(|_| is_drawn) {
            drawn.push(key.clone());
        }
    }
    Ok(drawn.iter().enumerate().any(|(place, key)| drawn[..place].contains(key)))
}

/// Everything that is odd about a save, by name and class, as its entries have
/// to say it.
pub(super) fn shown(evidence: &Evidence, save: &Save) -> Result<Vec<(&'static str, StateAnomaly)>, String> {
    let mut shown = Vec::new();
    for (class, odd) in bf16_only(evidence, save)? {
        let tensors = odd.iter().map(|odd| &odd.tensor);
        shown.extend(of_tensors(class, tensors).map(|state| (BF16_ONLY_MANTISSAS, state)));
    }
    let manifest = evidence.checkpoint_manifest(&save.path, save.manifest)?;
    if has_shared_stream(evidence, save, &manifest)? {
        let class = StateClass::RngCpu;
        let state = StateAnomaly { class, num_elements: 0, num_tensors: 0, tensor: None };
        shown.push((SHARED_RANDOM_STREAM, state));
    }
    let unchanged = save.unchanged();
    if !unchanged.is_empty() {
        for class in unchanged {
            let tensors = tensor_shards(&manifest, class).flat_map(|shard| &shard.tensors);
            let shapes: Vec<u64> = tensors.map(|tensor| num_elements(&tensor.shape)).collect();
            let state = StateAnomaly {
                class,
                num_elements: shapes.iter().fold(0, |sum, count| sum.saturating_add(*count)),
                num_tensors: shapes.len() as u64,
                tensor: None,
            };
            shown.push((UNCHANGED_STATE, state));
        }
    }
    let (odd, _) = zero_moments(evidence, save)?;
    shown.extend(of_tensors(StateClass::Optimizer, odd.iter()).map(|state| (ZERO_MOMENTS, state)));
    Ok(shown)
}
