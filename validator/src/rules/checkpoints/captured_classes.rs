//! Every checkpoint holds every declared class, at one logical step.

use schemas::contract::Contract;
use schemas::entry::Entry;
use schemas::ids::{CheckpointId, LearnerId, WorkerId};
use schemas::report::Route;
use schemas::state::{CapturedClass, CheckpointManifest, StateClass, StateClassDeclaration};

use crate::derive::{split, streams};
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
        what: "The manifest of every checkpoint lists exactly the contract's classes in order, of learner 0 and no worker (random \
               state of several workers once for each, in order), captured in the files that belong to the class or left out for the contract's reason, all at the checkpoint's one step.",
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

/// One item that a manifest has to list: a class, or a worker's part of it.
struct Item<'a> {
    declared: &'a StateClassDeclaration,
    files: Vec<String>,
    worker: Option<WorkerId>,
}

/// Files of a class that all workers share, in path order.
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

/// What every manifest lists, in order.
fn items(contract: &Contract, is_split: bool) -> Vec<Item<'_>> {
    let mut items = Vec::new();
    for declared in &contract.state_classes {
        match declared.not_applicable {
            Some(_) => items.push(Item { declared, files: Vec::new(), worker: None }),
            // Each worker draws from a stream of its own.
            None if declared.class == StateClass::RngCpu => {
                items.extend(streams::files(contract).into_iter().map(|(worker, file)| Item {
                    declared,
                    files: vec![file],
                    worker: worker.map(WorkerId),
                }));
            }
            None => items.push(Item { declared, files: files(declared.class, is_split), worker: None }),
        }
    }
    items
}

fn compare_item(id: &CheckpointId, step: u64, item: &Item<'_>, actual: &CapturedClass, sink: &mut Sink) {
    let Item { declared, files, worker } = item;
    let at = |field: &str| At::place(format!("{id} manifest.json {} {field}", declared.class));
    if actual.step != step {
        sink.rejected(at("step"), format!("{} stands at another step", declared.class), step, actual.step);
    }
    if actual.not_applicable != declared.not_applicable {
        let (expected, actual) =
            (format!("{:?}", declared.not_applicable), format!("{:?}", actual.not_applicable));
        sink.rejected(at("not_applicable"), "the class is declared otherwise", expected, actual);
    }
    if actual.learner != LearnerId(0) || actual.worker != *worker {
        let expected = format!("learner 0, worker {}", or_null(*worker));
        let actual = format!("learner {}, worker {}", actual.learner, or_null(actual.worker));
        sink.rejected(at("learner"), "the class is somebody else's", expected, actual);
    }
    let paths: Vec<&str> = actual.shards.iter().map(|shard| shard.path.as_str()).collect();
    if paths != *files {
        sink.rejected(at("shards"), "the class is held by other files", files.join(", "), paths.join(", "));
    }
}

impl Captured<'_> {
    fn compare(&self, id: &CheckpointId, step: u64, manifest: &CheckpointManifest, sink: &mut Sink) {
        let items = items(self.contract, self.is_split);
        let expected: Vec<StateClass> = items.iter().map(|item| item.declared.class).collect();
        let listed: Vec<StateClass> = manifest.classes.iter().map(|class| class.class).collect();
        if expected != listed {
            let names = |classes: &[StateClass]| {
                classes.iter().map(|class| class.name()).collect::<Vec<_>>().join(", ")
            };
            let at = At::place(format!("{id} manifest.json /classes"));
            sink.rejected(
                at,
                "the checkpoint has other classes than the contract",
                names(&expected),
                names(&listed),
            );
        }
        // Where the lists differ, each class is still compared with one of its name.
        for (place, item) in items.iter().enumerate() {
            let of_class = |actual: &&CapturedClass| actual.class == item.declared.class;
            let in_place = manifest.classes.get(place).filter(of_class);
            if let Some(actual) = in_place.or_else(|| manifest.classes.iter().find(of_class)) {
                compare_item(id, step, item, actual, sink);
            }
        }
    }
}

impl Check for Captured<'_> {
    fn ignores_steps(&self) -> bool {
        true
    }

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
