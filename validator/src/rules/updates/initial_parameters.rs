//! The initial state is what the seed gives.

use schemas::entry::Entry;
use schemas::parameters::ParameterManifest;
use schemas::report::Route;

use super::model_files::ModelFiles;
use super::tensors::{TensorFile, is_settled};
use crate::derive::initial::InitialValues;
use crate::evidence::Evidence;
use crate::frozen::Frozen;
use crate::rule::{At, Check, Outcome, Sink, unavailable};
use crate::rules::common::{Checkpoints, Committed, at_end, declare_rule};

declare_rule!(
    /// `GL408`.
    InitialParameters,
    {
        code: "GL408",
        name: "initial-parameters",
        what: "Every parameter of the checkpoint at step 0 has, bit for bit, the values that seed and path determine, unless the \
               contract names the weights of another run (then see GL646).",
        why: "A run that starts from trained weights is a warm start with another lineage, and would look like a miracle of \
              learning.",
        remedy: "None for a finished run. Restore the checkpoint of step 0 to let the rule run; a warm start is another verb.",
        reference: "docs/FORMAT.md, \"Initial values\"",
        gate: Route::RejectIdentity,
    }
);

struct Initial<'a> {
    checkpoints: Checkpoints,
    manifest: &'a ParameterManifest,
    seed: u64,
}

fn open(frozen: &Frozen) -> Box<dyn Check + '_> {
    if frozen.contract.initialization.is_some() {
        return at_end(|_, _| {
            Outcome::NotApplicable("the contract starts from another run's weights".to_owned())
        });
    }
    match &frozen.parameters {
        Ok(manifest) => Box::new(Initial {
            checkpoints: Checkpoints::default(),
            manifest,
            seed: frozen.contract.seeds.initialization.0,
        }),
        Err(reason) => unavailable(format!("the parameter manifest: {reason}")),
    }
}

impl Initial<'_> {
    /// Number of parameters compared; an error says why the file cannot be used.
    fn compare(&self, evidence: &Evidence, committed: &Committed, sink: &mut Sink) -> Result<u64, String> {
        let folder = committed.path.as_str();
        let is_settled = |file: &TensorFile| is_settled(INFO.code, evidence, committed, file);
        let mut model = ModelFiles::open(evidence, folder, self.manifest)?;
        let mut num_checked = 0;
        for file in &mut model.files {
            if is_settled(file) {
                num_checked += file.header.tensors.len() as u64;
            } else {
                num_checked += self.compare_file(file, sink)?;
            }
        }
        Ok(num_checked)
    }

    fn compare_file(&self, file: &mut TensorFile, sink: &mut Sink) -> Result<u64, String> {
        for tensor in file.header.tensors.clone() {
            let name = &tensor.info.name;
            let Some(parameter) = self.manifest.parameters.iter().find(|parameter| parameter.path == *name)
            else {
                continue;
            };
            let values = InitialValues::new(&parameter.initializer, &parameter.path, self.seed);
            let mut mismatch = None;
            file.read(&tensor, &mut |offset, bytes| {
                mismatch = values.first_mismatch(offset / 4, bytes);
                mismatch.is_none()
            })?;
            if let Some(mismatch) = mismatch {
                let at = At::place(format!("{} {name}[{}]", file.path, mismatch.element));
                let (expected, actual) = (f32::from_bits(mismatch.expected), f32::from_bits(mismatch.actual));
                sink.rejected(at, "an initial value is not what the seed gives", expected, actual);
            }
        }
        Ok(file.header.tensors.len() as u64)
    }
}

impl Check for Initial<'_> {
    fn entry(&mut self, entry: &Entry, _: &mut Sink) {
        self.checkpoints.entry(entry);
    }

    fn finish(&mut self, evidence: &Evidence, sink: &mut Sink) -> Outcome {
        let (mut num_checked, mut reason) = (0, "no checkpoint of step 0 was committed".to_owned());
        for (_, checkpoint, committed) in self.checkpoints.committed() {
            if checkpoint.step != 0 || checkpoint.is_unusable {
                continue;
            }
            match self.compare(evidence, committed, sink) {
                Ok(count) => num_checked += count,
                Err(problem) => reason = problem,
            }
        }
        if num_checked == 0 { Outcome::NotEvaluated(reason) } else { Outcome::Checked(num_checked) }
    }
}
