//! Averaged parameters are averages of this run's parameters.

use std::collections::{BTreeMap, BTreeSet};

use schemas::body::Body;
use schemas::contract::{AverageOrder, Averages as Averaging, Contract};
use schemas::entry::Entry;
use schemas::parameters::{ParameterManifest, ParameterStatus};
use schemas::report::Route;

use crate::derive::averages;
use crate::derive::safetensors::Tensor;
use crate::evidence::Evidence;
use crate::frozen::Frozen;
use crate::rule::{At, Check, Outcome, Sink, unavailable};
use crate::rules::common::{Checkpoints, declare_rule};
use crate::rules::updates::model_files::ModelFiles;
use crate::rules::updates::tensors::{AVERAGES_FILE, TensorFile};

declare_rule!(
    /// `GL611`.
    AveragesRule,
    {
        code: "GL611",
        name: "averages",
        what: "The averages of a checkpoint are copies of its model at step 0, for frozen parameters, and until averaging begins; and \
               where the checkpoint of the step before is there, they follow from it and from the model, bit for bit. No stream that \
               selects or sets a target looks at them.",
        why: "Averages that were lost at a resume begin again from copies, and look like averages; averages of another run are a \
              better model that nobody trained.",
        remedy: "None for a finished run. Save and restore the averages with everything else.",
        reference: "docs/FORMAT.md, \"Averages\"",
        gate: Route::RejectResumeDrift,
    }
);

struct Followed<'a> {
    averaging: &'a Averaging,
    checkpoints: Checkpoints,
    contract: &'a Contract,
    manifest: &'a ParameterManifest,
    /// Steps that an overflow left out, which average nothing.
    skipped: BTreeSet<u64>,
}

struct NotKept;

impl Check for NotKept {
    fn entry(&mut self, _: &Entry, _: &mut Sink) {}

    fn finish(&mut self, _: &Evidence, _: &mut Sink) -> Outcome {
        Outcome::NotApplicable("the contract keeps no averages".to_owned())
    }
}

fn open(frozen: &Frozen) -> Box<dyn Check + '_> {
    let Some(averaging) = &frozen.contract.averages else { return Box::new(NotKept) };
    match &frozen.parameters {
        Ok(manifest) => Box::new(Followed {
            averaging,
            checkpoints: Checkpoints::default(),
            contract: &frozen.contract,
            manifest,
            skipped: BTreeSet::new(),
        }),
        Err(reason) => unavailable(format!("the parameter manifest: {reason}")),
    }
}

/// The two shards of a checkpoint that hold parameters.
struct Saved {
    averages: TensorFile,
    model: ModelFiles,
}

impl Saved {
    fn open(evidence: &Evidence, folder: &str, manifest: &ParameterManifest) -> Result<Self, String> {
        Ok(Self {
            averages: TensorFile::open(evidence, &format!("{folder}/{AVERAGES_FILE}"))?,
            model: ModelFiles::open(evidence, folder, manifest)?,
        })
    }
}

/// Elements of one tensor; empty where the file has no such tensor, which
/// another rule reports.
fn values(file: &mut TensorFile, name: &str) -> Result<Vec<f32>, String> {
    let found = file.header.tensors.iter().find(|tensor| tensor.info.name == name).cloned();
    found.map_or_else(|| Ok(Vec::new()), |tensor| elements(file, &tensor))
}

/// The same, of a model.
fn model_values(model: &mut ModelFiles, name: &str) -> Result<Vec<f32>, String> {
    model.find(name).map_or_else(|| Ok(Vec::new()), |(file, tensor)| elements(file, &tensor))
}

fn elements(file: &mut TensorFile, tensor: &Tensor) -> Result<Vec<f32>, String> {
    let mut values = Vec::new();
    file.read(tensor, &mut |_, bytes| {
        let (words, _) = bytes.as_chunks::<4>();
        values.extend(words.iter().map(|word| f32::from_le_bytes(*word)));
        true
    })?;
    Ok(values)
}

/// What each element has to be, or `None` where nothing determines it.
fn expected(
    averaging: &Averaging,
    step: u64,
    (is_frozen, is_skipped): (bool, bool),
    model: &[f32],
    before: Option<(&[f32], &[f32])>,
) -> Option<Vec<f32>> {
    let is_own_copy = averages::is_copy(averaging, step) && averaging.order == AverageOrder::AfterUpdate;
    if step == 0 || is_frozen || is_own_copy {
        return Some(model.to_vec());
    }
    let (averages_before, model_before) = before?;
    if is_skipped {
        return Some(averages_before.to_vec());
    }
    let pairs = averages_before.iter().zip(model_before).zip(model);
    Some(
        pairs
            .map(|((average, found), left)| averages::next(averaging, step, *average, *found, *left))
            .collect(),
    )
}

impl Followed<'_> {
    fn compare(
        &self,
        step: u64,
        saved: &mut Saved,
        mut before: Option<&mut Saved>,
        sink: &mut Sink,
    ) -> Result<u64, String> {
        let mut num_checked = 0;
        for parameter in self.manifest.parameters.iter().filter(|parameter| parameter.tied_to.is_none()) {
            let path = &parameter.path;
            let model = model_values(&mut saved.model, path)?;
            let before = match before.as_deref_mut() {
                Some(before) => {
                    Some((values(&mut before.averages, path)?, model_values(&mut before.model, path)?))
                }
                None => None,
            };
            let before = before.as_ref().map(|(averages, model)| (averages.as_slice(), model.as_slice()));
            let is_frozen = parameter.status != ParameterStatus::Trainable;
            let kind = (is_frozen, self.skipped.contains(&step));
            let Some(expected) = expected(self.averaging, step, kind, &model, before) else { continue };
            let actual = values(&mut saved.averages, path)?;
            num_checked += 1;
            let differs = expected.iter().zip(&actual).position(|(a, b)| a.to_bits() != b.to_bits());
            let differs = differs.or((expected.len() != actual.len()).then_some(0));
            if let Some(element) = differs {
                let at = At::place(format!("{} {path}[{element}]", saved.averages.path));
                let shown = |values: &[f32]| values.get(element).map_or("nothing".to_owned(), f32::to_string);
                let message = format!("the average of step {step} does not follow from the run's parameters");
                sink.rejected(at, message, shown(&expected), shown(&actual));
            }
        }
        Ok(num_checked)
    }

    /// A candidate is the model shard: a value of the averages may not choose it.
    fn check_deciding(&self, sink: &mut Sink) {
        let contract = self.contract;
        let target = contract.quality_target.as_ref().map(|target| &target.stream);
        for name in std::iter::once(&contract.selection.stream).chain(target) {
            let stream = contract.evaluation.streams.iter().find(|stream| stream.name == *name);
            if stream.is_some_and(|stream| stream.view == schemas::contract::ParameterView::Averages) {
                let at = At::place(format!("contract /evaluation/streams {name} /view"));
                let message = "a stream that decides about candidates is measured on the averages";
                sink.rejected(at, message, "current", "averages");
            }
        }
    }
}

impl Check for Followed<'_> {
    fn entry(&mut self, entry: &Entry, _: &mut Sink) {
        if let (Body::Step(halves), Some(step)) = (&entry.body, entry.header.step) {
            let is_skipped = halves.det.overflow.as_ref().is_some_and(|overflow| overflow.skipped);
            if is_skipped {
                self.skipped.insert(step)
            } else {
                self.skipped.remove(&step)
            };
        }
        self.checkpoints.entry(entry);
    }

    fn finish(&mut self, evidence: &Evidence, sink: &mut Sink) -> Outcome {
        self.check_deciding(sink);
        let mut num_checked = 0;
        let mut by_step: BTreeMap<u64, Saved> = BTreeMap::new();
        let mut committed = self.checkpoints.committed();
        committed.retain(|(_, checkpoint, _)| !checkpoint.is_unusable);
        committed.sort_by_key(|(_, checkpoint, committed)| (checkpoint.step, committed.index));
        for (_, checkpoint, committed) in committed {
            let step = checkpoint.step;
            let compared = Saved::open(evidence, &committed.path, self.manifest).and_then(|mut saved| {
                let before = step.checked_sub(1).and_then(|before| by_step.get_mut(&before));
                let count = self.compare(step, &mut saved, before, sink)?;
                Ok((saved, count))
            });
            match compared {
                Ok((saved, count)) => {
                    num_checked += count;
                    by_step.insert(step, saved);
                    // Only the step before is needed, and files stay open.
                    by_step.retain(|kept, _| kept + 1 >= step);
                }
                Err(reason) => return Outcome::NotEvaluated(reason),
            }
        }
        if num_checked == 0 && sink.num_errors() == 0 {
            return Outcome::NotEvaluated("no checkpoint determines its averages".to_owned());
        }
        Outcome::Checked(num_checked)
    }
}
