//! A tied parameter is one tensor, and an untied one is two.

use schemas::contract::{Architecture, Contract};
use schemas::entry::Entry;
use schemas::report::Route;
use schemas::state::StateClass;

use crate::derive::llama::{EMBEDDING, HEAD};
use crate::derive::split;
use crate::evidence::Evidence;
use crate::frozen::Frozen;
use crate::rule::{At, Check, Outcome, Sink};
use crate::rules::common::{Checkpoints, declare_rule};
use crate::rules::updates::model_files;
use crate::rules::updates::tensors::{AVERAGES_FILE, OPTIMIZER_FILE, TensorFile};

declare_rule!(
    /// `GL645`.
    TiedParameters,
    {
        code: "GL645",
        name: "tied-parameters",
        what: "Where the architecture ties the output head to the embedding, no saved state holds a tensor or a moment under the \
               head's name; where it does not, model and averages hold the head beside the embedding.",
        why: "A second tensor comes back as a second parameter, and the two drift apart from the first update on; a head that is \
              missing comes back tied, or drawn anew.",
        remedy: "None for a finished run. Save a tied parameter once, under the name of the one that owns the storage.",
        reference: "docs/FORMAT.md, \"Tied parameters\"; schemas::parameters::ParameterDeclaration",
        gate: Route::RequestStateInventory,
    }
);

struct Tied<'a> {
    checkpoints: Checkpoints,
    contract: &'a Contract,
    is_split: bool,
}

fn open(frozen: &Frozen) -> Box<dyn Check + '_> {
    Box::new(Tied {
        checkpoints: Checkpoints::default(),
        contract: &frozen.contract,
        is_split: frozen.parameters.as_ref().is_ok_and(split::is_split),
    })
}

impl Tied<'_> {
    /// Files with tensors by parameter, by the class that holds them.
    fn files(&self) -> [(StateClass, &'static [&'static str]); 3] {
        [
            (StateClass::Model, model_files::names(self.is_split)),
            (StateClass::Optimizer, &[OPTIMIZER_FILE]),
            (StateClass::Averages, &[AVERAGES_FILE]),
        ]
    }
}

/// Whether a tensor is the head's, or state of it.
fn is_of_head(name: &str) -> bool {
    name.strip_prefix(HEAD).is_some_and(|suffix| suffix.is_empty() || suffix.starts_with('.'))
}

impl Check for Tied<'_> {
    fn ignores_steps(&self) -> bool {
        true
    }

    fn entry(&mut self, entry: &Entry, _: &mut Sink) {
        self.checkpoints.entry(entry);
    }

    fn finish(&mut self, evidence: &Evidence, sink: &mut Sink) -> Outcome {
        let Architecture::LlamaDecoder(shape) = &self.contract.architecture;
        let is_captured = |class| {
            self.contract.state_classes.iter().any(|d| d.class == class && d.not_applicable.is_none())
        };
        let mut num_checked = 0;
        for (_, checkpoint, committed) in self.checkpoints.committed() {
            if checkpoint.is_unusable {
                continue;
            }
            for (class, names) in self.files().into_iter().filter(|(class, _)| is_captured(*class)) {
                let mut second = None;
                for name in names {
                    let path = format!("{}/{name}", committed.path);
                    let file = match TensorFile::open(evidence, &path) {
                        Ok(file) => file,
                        Err(reason) => return Outcome::NotEvaluated(reason),
                    };
                    num_checked += 1;
                    let mut names = file.header.tensors.into_iter().map(|tensor| tensor.info.name);
                    second = second.or_else(|| Some((path, names.find(|name| is_of_head(name))?)));
                }
                match second {
                    Some((path, name)) if shape.tied_embeddings => {
                        let message = format!("{HEAD} is tied to {EMBEDDING}, and has a tensor of its own");
                        let at = At::place(format!("{path} {name}"));
                        sink.rejected(at, message, "one tensor", "a second one");
                    }
                    None if !shape.tied_embeddings && class != StateClass::Optimizer => {
                        let message = format!("{HEAD} is not tied to {EMBEDDING}, and has no tensor");
                        let at = At::place(format!("{} {class} {HEAD}", committed.path));
                        sink.rejected(at, message, "a tensor of its own", "none");
                    }
                    _ => {}
                }
            }
        }
        if num_checked == 0 {
            return Outcome::NotEvaluated("no checkpoint is whole".to_owned());
        }
        Outcome::Checked(num_checked)
    }
}
