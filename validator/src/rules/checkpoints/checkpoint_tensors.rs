//! The tensors of a checkpoint are those of the model and its optimizer.

use schemas::contract::Contract;
use schemas::entry::Entry;
use schemas::parameters::{ParameterManifest, ParameterStatus};
use schemas::policy_card::PolicyCard;
use schemas::report::Route;
use schemas::state::{CheckpointManifest, StateClass, TensorInfo};

use crate::derive::split;
use crate::evidence::Evidence;
use crate::frozen::Frozen;
use crate::rule::{At, Check, Outcome, Sink, unavailable};
use crate::rules::common::{Checkpoints, declare_rule};
use crate::rules::updates::model_files;
use crate::rules::updates::tensors::{self, AVERAGES_FILE, OPTIMIZER_FILE, TensorFile};

declare_rule!(
    /// `GL605`.
    CheckpointTensors,
    {
        code: "GL605",
        name: "checkpoint-tensors",
        what: "The safetensors headers of every checkpoint are strict (name order, no gaps, no other metadata), equal the manifest's \
               list, and hold exactly the parameters of the parameter manifest (the averages too, where they are kept) and the \
               card's state of every trainable one, with their dtypes and shapes.",
        why: "A header can be read in two ways, and a missing moment is re-initialised in silence by most loaders.",
        remedy: "None for a finished run. Write shards as the format page says.",
        reference: "docs/FORMAT.md, \"Checkpoint\"; schemas::policy_card::OptimizerTensor",
        gate: Route::RejectTornCheckpoint,
    }
);

struct Tensors<'a> {
    checkpoints: Checkpoints,
    model: Vec<TensorInfo>,
    optimizer: Vec<TensorInfo>,
    parameters: &'a ParameterManifest,
    contract: &'a Contract,
}

fn open(frozen: &Frozen) -> Box<dyn Check + '_> {
    match (&frozen.parameters, &frozen.card) {
        (Ok(manifest), Ok(card)) => Box::new(Tensors {
            checkpoints: Checkpoints::default(),
            model: model_tensors(manifest),
            optimizer: optimizer_tensors(manifest, card),
            parameters: manifest,
            contract: &frozen.contract,
        }),
        (Err(reason), _) => unavailable(format!("the parameter manifest: {reason}")),
        (_, Err(reason)) => unavailable(format!("the policy card: {reason}")),
    }
}

/// Tied parameters are stored once, under the other's name.
fn model_tensors(manifest: &ParameterManifest) -> Vec<TensorInfo> {
    let stored = manifest.parameters.iter().filter(|parameter| parameter.tied_to.is_none());
    let mut tensors: Vec<TensorInfo> = stored
        .map(|p| TensorInfo { dtype: p.dtype.clone(), name: p.path.clone(), shape: p.shape.clone() })
        .collect();
    tensors.sort_by(|a, b| a.name.cmp(&b.name));
    tensors
}

fn optimizer_tensors(manifest: &ParameterManifest, card: &PolicyCard) -> Vec<TensorInfo> {
    let trainable =
        manifest.parameters.iter().filter(|p| p.status == ParameterStatus::Trainable && p.tied_to.is_none());
    let mut tensors: Vec<TensorInfo> = trainable
        .flat_map(|parameter| {
            card.checkpoint_state.iter().map(|state| TensorInfo {
                dtype: state.dtype.clone(),
                name: format!("{}.{}", parameter.path, state.suffix),
                shape: parameter.shape.clone(),
            })
        })
        .collect();
    tensors.sort_by(|a, b| a.name.cmp(&b.name));
    tensors
}

/// The first place where two lists differ, in words.
fn first_difference(expected: &[TensorInfo], actual: &[TensorInfo]) -> Option<(String, String)> {
    let length = expected.len().max(actual.len());
    let describe =
        |tensor: Option<&TensorInfo>| tensor.map_or("nothing".to_owned(), |tensor| format!("{tensor:?}"));
    (0..length)
        .map(|at| (expected.get(at), actual.get(at)))
        .find(|(expected, actual)| expected != actual)
        .map(|(expected, actual)| (describe(expected), describe(actual)))
}

impl Tensors<'_> {
    /// Files of a class that hold tensors.
    fn files(&self, class: StateClass) -> &'static [&'static str] {
        match class {
            StateClass::Model => model_files::names(split::is_split(self.parameters)),
            StateClass::Averages => &[AVERAGES_FILE],
            _ => &[OPTIMIZER_FILE],
        }
    }

    /// Tensors of a file: of a model in two files, those that belong there.
    fn expected(&self, class: StateClass, name: &str) -> Vec<TensorInfo> {
        match class {
            StateClass::Model if split::is_split(self.parameters) => {
                let is_here = |tensor: &&TensorInfo| {
                    let mut declared = self.parameters.parameters.iter();
                    let declared = declared.find(|parameter| parameter.path == tensor.name);
                    declared.and_then(split::file_of) == Some(name)
                };
                self.model.iter().filter(is_here).cloned().collect()
            }
            StateClass::Model | StateClass::Averages => self.model.clone(),
            _ => self.optimizer.clone(),
        }
    }

    fn shard(
        &self,
        evidence: &Evidence,
        folder: &str,
        manifest: &CheckpointManifest,
        (class, name): (StateClass, &'static str),
        sink: &mut Sink,
    ) -> u64 {
        let expected = self.expected(class, name);
        let path = format!("{folder}/{name}");
        let file = match TensorFile::open(evidence, &path) {
            Ok(file) => file,
            Err(reason) => {
                sink.rejected(
                    At::place(&path),
                    "the shard cannot be read as safetensors",
                    "a strict header",
                    reason,
                );
                return 0;
            }
        };
        let listed = tensors::shard(manifest, class, name).map_or(&[][..], |shard| shard.tensors.as_slice());
        let actual: Vec<TensorInfo> = file.header.tensors.iter().map(|tensor| tensor.info.clone()).collect();
        if let Some((expected, actual)) = first_difference(listed, &actual) {
            sink.rejected(At::place(&path), "the header differs from the manifest's list", expected, actual);
        }
        if let Some((expected, actual)) = first_difference(&expected, &actual) {
            let message = format!("the shard does not hold the {} of the contract", class.name());
            sink.rejected(At::place(&path), message, expected, actual);
        }
        let is_loadable = class != StateClass::Optimizer;
        if file.header.is_marked_pt != is_loadable {
            let message = "only shards of parameters have metadata, which loaders ask for";
            sink.rejected(At::place(&path), message, is_loadable, file.header.is_marked_pt);
        }
        actual.len() as u64
    }
}

impl Check for Tensors<'_> {
    fn ignores_steps(&self) -> bool {
        true
    }

    fn entry(&mut self, entry: &Entry, _: &mut Sink) {
        self.checkpoints.entry(entry);
    }

    fn finish(&mut self, evidence: &Evidence, sink: &mut Sink) -> Outcome {
        let mut num_checked = 0;
        let captured = |class| {
            self.contract.state_classes.iter().any(|d| d.class == class && d.not_applicable.is_none())
        };
        for (_, checkpoint, committed) in self.checkpoints.committed() {
            if !checkpoint.has_model() {
                continue;
            }
            let manifest = match tensors::manifest(evidence, committed) {
                Ok(manifest) => manifest,
                Err(reason) => return Outcome::NotEvaluated(reason),
            };
            for class in [StateClass::Model, StateClass::Optimizer, StateClass::Averages]
                .into_iter()
                .filter(|class| captured(*class) && (!checkpoint.is_retired || *class == StateClass::Model))
            {
                for name in self.files(class) {
                    num_checked += self.shard(evidence, &committed.path, &manifest, (class, name), sink);
                }
            }
        }
        if num_checked == 0 && sink.num_errors() == 0 {
            return Outcome::NotEvaluated("no checkpoint was committed".to_owned());
        }
        Outcome::Checked(num_checked)
    }
}
