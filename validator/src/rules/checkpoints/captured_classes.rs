//! Every checkpoint holds every declared class, at one logical step.

use schemas::contract::Contract;
use schemas::entry::Entry;
use schemas::ids::{CheckpointId, LearnerId};
use schemas::report::Route;
use schemas::state::{CapturedClass, CheckpointManifest, StateClass, StateClassDeclaration};

use crate::derive::split;
use crate::evidence::Evidence;
use crate::frozen::Frozen;
use crate::rule::{At, Check, Outcome, Sink};
use crate::rules::common::{Checkpoints, declare_rule, or_null};
use crate::rules::updates::{model_files, tensors};

declare_rule!(
    /// `GL604`.
    CapturedClasses,
    {
        code: "GL604",
        name: "captured-classes",
        what: "The manifest of every checkpoint lists exactly the contract's classes in order, of learner 0 and no worker, captured \
               in the files that belong to the class or left out for the contract's reason, all at the checkpoint's one step.",
        why: "State of two steps in one checkpoint is a state that the run was never in.",
        remedy: "None for a finished run: what was not saved cannot be restored. Repair the writer.",
        reference: "docs/FORMAT.md, \"Checkpoint\"; schemas::state::CapturedClass",
        gate: Route::RequestStateInventory,
    }
);

struct Captured<'a> {
    checkpoints: Checkpoints,
    contract: &'a Contract,
    /// Whether the model lies in two files; of an unreadable parameter manifest
    /// other rules speak.
    is_split: bool,
}

fn open(frozen: &Frozen) -> Box<dyn Check + '_> {
    let is_split = frozen.parameters.as_ref().is_ok_and(split::is_split);
    Box::new(Captured { checkpoints: Checkpoints::default(), contract: &frozen.contract, is_split })
}

/// Files of a class, in path order.
fn files(class: StateClass, is_split: bool) -> Vec<String> {
    match class {
        StateClass::Model => model_files::class_files(is_split).into_iter().map(str::to_owned).collect(),
        StateClass::Optimizer => vec!["optimizer.safetensors".to_owned()],
        StateClass::Averages => vec!["averages.safetensors".to_owned()],
        StateClass::AccumulatedGradients => {
            vec!["accumulated_gradients.json".to_owned(), "accumulated_gradients.safetensors".to_owned()]
        }
        other => vec![format!("{}.json", other.name())],
    }
}

fn compare_class(
    id: &CheckpointId,
    step: u64,
    declared: &StateClassDeclaration,
    actual: &CapturedClass,
    is_split: bool,
    sink: &mut Sink,
) {
    let at = |field: &str| At::place(format!("{id} manifest.json {} {field}", declared.class));
    if actual.step != step {
        sink.rejected(at("step"), format!("{} stands at another step", declared.class), step, actual.step);
    }
    if actual.not_applicable != declared.not_applicable {
        let (expected, actual) =
            (format!("{:?}", declared.not_applicable), format!("{:?}", actual.not_applicable));
        sink.rejected(at("not_applicable"), "the class is declared otherwise", expected, actual);
    }
    if actual.learner != LearnerId(0) || actual.worker.is_some() {
        let actual = format!("learner {}, worker {}", actual.learner, or_null(actual.worker));
        sink.rejected(at("learner"), "the class is somebody else's", "learner 0, worker null", actual);
    }
    let expected =
        if declared.not_applicable.is_none() { files(declared.class, is_split) } else { Vec::new() };
    let paths: Vec<&str> = actual.shards.iter().map(|shard| shard.path.as_str()).collect();
    if paths != expected {
        sink.rejected(
            at("shards"),
            "the class is held by other files",
            expected.join(", "),
            paths.join(", "),
        );
    }
}

impl Captured<'_> {
    fn compare(&self, id: &CheckpointId, step: u64, manifest: &CheckpointManifest, sink: &mut Sink) {
        let declared: Vec<StateClass> = self.contract.state_classes.iter().map(|d| d.class).collect();
        let listed: Vec<StateClass> = manifest.classes.iter().map(|class| class.class).collect();
        if declared != listed {
            let names = |classes: &[StateClass]| {
                classes.iter().map(|class| class.name()).collect::<Vec<_>>().join(", ")
            };
            let at = At::place(format!("{id} manifest.json /classes"));
            sink.rejected(
                at,
                "the checkpoint has other classes than the contract",
                names(&declared),
                names(&listed),
            );
        }
        for declaration in &self.contract.state_classes {
            if let Some(actual) = manifest.classes.iter().find(|class| class.class == declaration.class) {
                compare_class(id, step, declaration, actual, self.is_split, sink);
            }
        }
    }
}

impl Check for Captured<'_> {
    fn entry(&mut self, entry: &Entry, _: &mut Sink) {
        self.checkpoints.entry(entry);
    }

    fn finish(&mut self, evidence: &Evidence, sink: &mut Sink) -> Outcome {
        let (mut num_checked, mut problem) = (0, "no checkpoint was committed".to_owned());
        for (id, checkpoint, committed) in self.checkpoints.committed() {
            match tensors::manifest(evidence, committed) {
                Ok(manifest) => {
                    num_checked += manifest.classes.len() as u64;
                    self.compare(id, checkpoint.step, &manifest, sink);
                }
                Err(reason) if checkpoint.is_unusable && !checkpoint.is_retired => problem = reason,
                Err(reason) => return Outcome::NotEvaluated(reason),
            }
        }
        if num_checked == 0 { Outcome::NotEvaluated(problem) } else { Outcome::Checked(num_checked) }
    }
}
