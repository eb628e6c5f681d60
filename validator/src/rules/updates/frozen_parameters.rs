//! Frozen parameters keep their initial bytes.

use schemas::entry::Entry;
use schemas::parameters::{ParameterManifest, ParameterStatus};
use schemas::report::Route;

use super::model_files::ModelFiles;
use crate::derive::initial::InitialValues;
use crate::evidence::Evidence;
use crate::frozen::Frozen;
use crate::rule::{At, Check, Outcome, Sink, unavailable};
use crate::rules::common::{Checkpoints, declare_rule};

declare_rule!(
    /// `GL409`.
    FrozenParameters,
    {
        code: "GL409",
        name: "frozen-parameters",
        what: "A parameter that the manifest calls frozen has its initial values in every saved checkpoint, retired candidates too.",
        why: "A claim that only a part of the model learned rests on the rest not moving.",
        remedy: "Declare the parameter trainable, or keep it out of the update.",
        reference: "schemas::parameters::ParameterStatus",
        gate: Route::RejectNumerics,
    }
);

struct FrozenValues<'a> {
    checkpoints: Checkpoints,
    manifest: &'a ParameterManifest,
    seed: u64,
}

fn open(frozen: &Frozen) -> Box<dyn Check + '_> {
    match &frozen.parameters {
        Ok(manifest) => Box::new(FrozenValues {
            checkpoints: Checkpoints::default(),
            manifest,
            seed: frozen.contract.seeds.initialization.0,
        }),
        Err(reason) => unavailable(format!("the parameter manifest: {reason}")),
    }
}

impl FrozenValues<'_> {
    fn compare(&self, evidence: &Evidence, folder: &str, sink: &mut Sink) -> Result<u64, String> {
        let mut model = ModelFiles::open(evidence, folder, self.manifest)?;
        let mut num_checked = 0;
        for parameter in self.manifest.parameters.iter().filter(|p| p.status == ParameterStatus::Frozen) {
            let Some((file, tensor)) = model.find(&parameter.path) else { continue };
            let values = InitialValues::new(&parameter.initializer, &parameter.path, self.seed);
            let mut mismatch = None;
            file.read(&tensor, &mut |offset, bytes| {
                mismatch = values.first_mismatch(offset / 4, bytes);
                mismatch.is_none()
            })?;
            num_checked += 1;
            if let Some(mismatch) = mismatch {
                let at = At::place(format!("{} {}[{}]", file.path, parameter.path, mismatch.element));
                let (expected, actual) = (f32::from_bits(mismatch.expected), f32::from_bits(mismatch.actual));
                sink.rejected(at, "a frozen parameter moved", expected, actual);
            }
        }
        Ok(num_checked)
    }
}

impl Check for FrozenValues<'_> {
    fn ignores_steps(&self) -> bool {
        true
    }

    fn entry(&mut self, entry: &Entry, _: &mut Sink) {
        self.checkpoints.entry(entry);
    }

    fn finish(&mut self, evidence: &Evidence, sink: &mut Sink) -> Outcome {
        if !self.manifest.parameters.iter().any(|parameter| parameter.status == ParameterStatus::Frozen) {
            return Outcome::NotApplicable("the parameter manifest freezes none".to_owned());
        }
        let mut num_checked = 0;
        for (_, checkpoint, committed) in self.checkpoints.committed() {
            if !checkpoint.has_model() {
                continue;
            }
            match self.compare(evidence, &committed.path, sink) {
                Ok(count) => num_checked += count,
                Err(reason) => return Outcome::NotEvaluated(reason),
            }
        }
        Outcome::Checked(num_checked)
    }
}
