//! What a step records of its update is what its saved state gives.
//!
//! The moments that an update leaves are those that it moved the parameters by.
//! So a checkpoint alone tells what the last update before it subtracted, and
//! where the parameters were before: the card's constants and the record's
//! norms have to agree about that.

use schemas::body::{Body, StepDet};
use schemas::contract::EvidenceProfile;
use schemas::digest::Digest;
use schemas::entry::Entry;
use schemas::ids::CheckpointId;
use schemas::parameters::ParameterManifest;
use schemas::policy_card::PolicyCard;
use schemas::report::Route;

use super::model_files::ModelFiles;
use super::tensors::{OPTIMIZER_FILE, TensorFile};
use crate::derive::adamw::{Coefficients, ROUNDING};
use crate::derive::safetensors::Tensor;
use crate::evidence::Evidence;
use crate::frozen::Frozen;
use crate::parallel;
use crate::rule::{At, Check, Outcome, Sink, unavailable};
use crate::rules::common::{Checkpoints, Rewindable, declare_rule};
use crate::rules::elsewhere::Elsewhere;

declare_rule!(
    /// `GL416`.
    SavedNorms,
    {
        code: "GL416",
        name: "saved-norms",
        what: "In every validated checkpoint each group's parameters have the norm that its step records; and undoing the last update, by \
               the saved moments, the recorded rate and the card's decay, betas and epsilon, gives parameters of the norm that the step \
               before recorded, and a change of the norm that the step records, but for rounding to binary32. A run of the project's \
               trainer (profile `native`) takes both norms at every step; an external loop takes each at every step or at none, and \
               norms that it does not take are not compared.",
        why: "Epsilon, decay and betas show in no other number of the record; and a norm that fits no saved state was made up, or the \
              state is not what the step left. Where the step before was not saved, its norm is the trainer's word: norms that were made \
              to fit show only where two saved states are one update apart, or where a segment is executed again.",
        remedy: "None for a finished run. Update by the card, and save what the update left.",
        reference: "docs/FORMAT.md, \"Update rule\"; schemas::body::GroupUpdate",
        gate: Route::RejectNumerics,
    }
);

/// Elements that are added in one partial sum at most, here or in the trainer.
const PIECE: f64 = 16_384.0;

/// Elements of the trainer's partial sums.
const CHUNK: f64 = 4096.0;

/// What is lost where numbers vanish in binary32.
const UNDERFLOW: f64 = 1e-36;

/// What a step recorded of one group.
#[derive(Clone, Copy)]
struct Recorded {
    parameter_norm: Option<f64>,
    rate: f64,
    update_norm: Option<f64>,
}

/// The newest update.
#[derive(Clone)]
struct Last {
    /// Norms of the groups behind the step before it.
    before: Vec<Option<f64>>,
    groups: Vec<Recorded>,
    index: u64,
    is_skipped: bool,
}

/// Where the run stands.
#[derive(Clone, Default)]
struct Trail {
    /// Updates that were not skipped.
    count: u64,
    last: Option<Last>,
}

/// A committed checkpoint, with the update that led to it.
struct Save {
    checkpoint: CheckpointId,
    count: u64,
    last: Last,
    manifest: Digest,
    path: String,
    step: u64,
}

struct State<'a> {
    card: &'a PolicyCard,
    checkpoints: Checkpoints,
    frozen: &'a Frozen,
    manifest: &'a ParameterManifest,
    saves: Vec<Save>,
    step: u64,
    /// Whether steps take norms, of parameters and of changes: what the profile
    /// asks for, or else what the first step did.
    takes: Option<[bool; 2]>,
    trail: Rewindable<Trail>,
}

fn open(frozen: &Frozen) -> Box<dyn Check + '_> {
    let (card, manifest) = match (&frozen.card, &frozen.parameters) {
        (Ok(card), Ok(manifest)) => (card, manifest),
        (Err(reason), _) => return unavailable(format!("the policy card: {reason}")),
        (_, Err(reason)) => return unavailable(format!("the parameter manifest: {reason}")),
    };
    Box::new(State {
        card,
        checkpoints: Checkpoints::default(),
        frozen,
        manifest,
        saves: Vec::new(),
        step: 0,
        takes: is_native(frozen).then_some([true; 2]),
        trail: Rewindable::new(Trail::default()),
    })
}

/// The project's trainer takes both norms of every step that it executes, a
/// skipped one too; a run without them is not its.
fn is_native(frozen: &Frozen) -> bool {
    frozen.contract.ruleset.profile == EvidenceProfile::Native
}

impl Trail {
    fn update(&mut self, index: u64, det: &StepDet) {
        let is_skipped = det.overflow.as_ref().is_some_and(|overflow| overflow.skipped);
        let norms = self.last.take().map(|last| last.groups.iter().map(|of| of.parameter_norm).collect());
        let groups = det.updates.iter().map(|update| Recorded {
            parameter_norm: update.parameter_norm.map(|norm| norm.0),
            rate: update.learning_rate.0,
            update_norm: update.update_norm.map(|norm| norm.0),
        });
        self.count += u64::from(!is_skipped);
        self.last =
            Some(Last { before: norms.unwrap_or_default(), groups: groups.collect(), index, is_skipped });
    }
}

impl State<'_> {
    fn is_whole(&self, save: &Save) -> bool {
        let fact = self.checkpoints.all.get(&save.checkpoint);
        fact.is_some_and(|fact| fact.validated.is_some() && !fact.is_unusable)
    }

    /// Norms are taken at every step, or by an external loop at none: else those
    /// that nothing fits could be left out.
    fn take(&mut self, index: u64, det: &StepDet, sink: &mut Sink) {
        let (message, because) = if is_native(self.frozen) {
            ("a norm is not taken, and the project's trainer takes it at every step", "by the profile native")
        } else {
            ("a norm is taken here and not elsewhere, or elsewhere and not here", "as at first")
        };
        for (place, update) in det.updates.iter().enumerate() {
            let found = [update.parameter_norm.is_some(), update.update_norm.is_some()];
            let takes = *self.takes.get_or_insert(found);
            let names = ["parameter_norm", "update_norm"].into_iter();
            for ((name, takes), found) in names.zip(takes).zip(found) {
                if takes != found {
                    let at = At::entry(index, format!("/body/det/updates/{place}/{name}"));
                    let word = |is_taken: bool| if is_taken { "a number" } else { "null" };
                    sink.rejected(at, message, format!("{}, {because}", word(takes)), word(found));
                }
            }
        }
    }

    /// Sums of every group of a checkpoint, in the card's order; errors in words.
    fn measure(&self, evidence: &Evidence, save: &Save) -> Result<Vec<Sums>, String> {
        // Bytes that are not those of the entry are another rule's matter.
        evidence.checkpoint_manifest(&save.path, save.manifest)?;
        let mut model = ModelFiles::open(evidence, &save.path, self.manifest)?;
        let mut moments = Moments::open(evidence, &save.path)?;
        let groups = self.card.groups.iter().zip(&save.last.groups);
        let mut sums: Vec<Sums> = groups
            .map(|(group, recorded)| {
                let rule = &self.card.update;
                let of = || Coefficients::new(rule, save.count, recorded.rate, group.weight_decay);
                Sums::new((!save.last.is_skipped).then(of))
            })
            .collect();
        for parameter in &self.manifest.parameters {
            let is_own = |name: &String| Some(name) == parameter.group.as_ref();
            let place = self.card.groups.iter().position(|group| is_own(&group.name));
            let Some(sums) = place.and_then(|place| sums.get_mut(place)) else { continue };
            let path = &parameter.path;
            let found = model.find(path).ok_or_else(|| format!("{} lacks {path}", save.path))?;
            sums.add(found, &mut moments, path)?;
        }
        Ok(sums)
    }

    fn compare(&self, save: &Save, sums: &[Sums], sink: &mut Sink) -> u64 {
        let mut num_compared = 0;
        for (place, (sums, recorded)) in sums.iter().zip(&save.last.groups).enumerate() {
            let at = |field: &str| At::entry(save.last.index, format!("/body/det/updates/{place}{field}"));
            let group = self.card.groups.get(place).map_or("", |group| group.name.as_str());
            let mut compare = |norm: Option<f64>, found: Norm, field: &str, what: &str| {
                let Some(norm) = norm.filter(|norm| norm.is_finite()) else { return };
                num_compared += 1;
                let distance = (norm - found.value).abs();
                // A state that holds what is no number gives none.
                if distance.is_nan() || distance > found.error {
                    let message = format!("{what} of group {group} is not that of {}", save.checkpoint);
                    let expected = format!("{}, give or take {:e}", found.value, found.error);
                    sink.rejected(at(field), message, expected, norm);
                }
            };
            let parameter_norm = recorded.parameter_norm;
            compare(parameter_norm, sums.parameter_norm(), "/parameter_norm", "the norm");
            if let Some((before, change)) = sums.update_norms() {
                let known = save.last.before.get(place).copied().flatten();
                compare(known, before, "", "the norm before the last update");
                compare(recorded.update_norm, change, "/update_norm", "the norm of the last update");
            }
        }
        num_compared
    }
}

/// A norm, and how far a record may be from it.
struct Norm {
    error: f64,
    value: f64,
}

/// Squares of a group, summed.
struct Sums {
    before: f64,
    change: f64,
    /// `None` where the update was skipped.
    coefficients: Option<Coefficients>,
    num_elements: f64,
    parameter: f64,
    /// Of what is rounded: decayed parameters, and those that the update left.
    rounded: f64,
}

/// The optimizer's file, with room for a piece of each tensor.
struct Moments {
    bytes: [Vec<u8>; 3],
    file: TensorFile,
}

impl Moments {
    fn open(evidence: &Evidence, folder: &str) -> Result<Self, String> {
        let file = TensorFile::open(evidence, &format!("{folder}/{OPTIMIZER_FILE}"))?;
        Ok(Self { bytes: Default::default(), file })
    }

    /// A moment of a parameter, which has to have its size.
    fn find(&self, path: &str, suffix: &str, num_bytes: u64) -> Result<Tensor, String> {
        let name = format!("{path}.{suffix}");
        let found = self.file.header.tensors.iter().find(|tensor| tensor.info.name == name);
        let found = found.filter(|tensor| tensor.num_bytes == num_bytes);
        found.cloned().ok_or_else(|| format!("{} has no {name} of {num_bytes} bytes", self.file.path))
    }
}

/// The numbers in a piece.
fn numbers(bytes: &[u8]) -> impl Iterator<Item = f32> {
    let (words, _) = bytes.as_chunks::<4>();
    words.iter().map(|word| f32::from_le_bytes(*word))
}

impl Sums {
    const fn new(coefficients: Option<Coefficients>) -> Self {
        Self { before: 0.0, change: 0.0, coefficients, num_elements: 0.0, parameter: 0.0, rounded: 0.0 }
    }

    /// One parameter more.
    fn add(
        &mut self,
        (model, tensor): (&mut TensorFile, Tensor),
        moments: &mut Moments,
        path: &str,
    ) -> Result<(), String> {
        let first = moments.find(path, "exp_avg", tensor.num_bytes)?;
        let second = moments.find(path, "exp_avg_sq", tensor.num_bytes)?;
        let Moments { bytes: [parameters, firsts, seconds], file } = moments;
        let mut offset = 0;
        while offset < tensor.num_bytes {
            model.piece(&tensor, offset, parameters)?;
            file.piece(&first, offset, firsts)?;
            file.piece(&second, offset, seconds)?;
            self.add_piece(parameters, firsts, seconds);
            offset += parameters.len() as u64;
        }
        Ok(())
    }

    fn add_piece(&mut self, parameters: &[u8], firsts: &[u8], seconds: &[u8]) {
        let (mut parameter, mut before, mut change, mut rounded) = (0.0, 0.0, 0.0, 0.0);
        match &self.coefficients {
            Some(coefficients) => {
                let keep = f64::from(coefficients.keep);
                let is_decayed = keep < 1.0;
                let elements = numbers(parameters).zip(numbers(firsts)).zip(numbers(seconds));
                for ((p, m), v) in elements {
                    let (p, subtracted) = (f64::from(p), f64::from(coefficients.subtracted(m, v)));
                    let found = (p + subtracted) / keep;
                    // A product with 1 and a difference with 0 are exact.
                    let of_decay = if is_decayed { (found * keep).abs() } else { 0.0 };
                    let most = of_decay + if subtracted == 0.0 { 0.0 } else { p.abs() };
                    rounded += most * most;
                    parameter += p * p;
                    before += found * found;
                    change += (p - found) * (p - found);
                }
            }
            None => parameter = numbers(parameters).fold(0.0, |sum, p| sum + f64::from(p) * f64::from(p)),
        }
        self.parameter += parameter;
        self.before += before;
        self.change += change;
        self.rounded += rounded;
        self.num_elements += (parameters.len() / 4) as f64;
    }

    /// Relative error of two sums of so many squares in binary64, of which one is
    /// the trainer's.
    fn error(&self) -> f64 {
        (PIECE + CHUNK + 2.0 * self.num_elements / CHUNK) * f64::EPSILON
    }

    fn parameter_norm(&self) -> Norm {
        let value = self.parameter.sqrt();
        Norm { error: value * self.error() + UNDERFLOW, value }
    }

    /// Norms of the parameters before the update and of the change; `None` where
    /// there was none, or where decay left nothing to undo it by.
    fn update_norms(&self) -> Option<(Norm, Norm)> {
        let keep = f64::from(self.coefficients.as_ref()?.keep);
        let (before, change) = (self.before.sqrt(), self.change.sqrt());
        if keep.is_nan() || keep <= 0.0 {
            return None;
        }
        // Both the decayed parameter and the difference were rounded, each by at most
        // half a unit of itself; norms differ by at most the norm of that.
        let rounding = 1.01 * ROUNDING * self.rounded.sqrt() / keep + UNDERFLOW;
        let norm = |value: f64| Norm { error: value * self.error() + rounding, value };
        Some((norm(before), norm(change)))
    }
}

impl Check for State<'_> {
    fn entry(&mut self, entry: &Entry, sink: &mut Sink) {
        self.checkpoints.entry(entry);
        match &entry.body {
            Body::AttemptStart(halves) => self.step = halves.det.from_step,
            Body::Step(halves) => {
                self.step = entry.header.step.unwrap_or(self.step);
                self.take(entry.index, &halves.det, sink);
                self.trail.now.update(entry.index, &halves.det);
            }
            Body::CheckpointDurablyCommitted(halves) if halves.det.step == self.step => {
                let last = self.trail.now.last.clone();
                let num_groups = self.card.groups.len();
                self.saves.extend(last.filter(|last| last.groups.len() == num_groups).map(|last| Save {
                    checkpoint: halves.obs.checkpoint.clone(),
                    count: self.trail.now.count,
                    last,
                    manifest: halves.obs.manifest,
                    path: halves.obs.path.clone(),
                    step: halves.det.step,
                }));
            }
            _ => {}
        }
        self.trail.entry(entry);
    }

    fn finish(&mut self, evidence: &Evidence, sink: &mut Sink) -> Outcome {
        let mut elsewhere = Elsewhere::new(self.frozen);
        let mut saves: Vec<&Save> = self.saves.iter().filter(|save| self.is_whole(save)).collect();
        saves.retain(|save| !elsewhere.has(save.checkpoint.as_str(), evidence));
        let measured = parallel::map(evidence.threads, &saves, |save| self.measure(evidence, save));
        let mut num_compared = 0;
        for (save, measured) in saves.iter().zip(measured) {
            match measured {
                Ok(sums) => num_compared += self.compare(save, &sums, sink),
                Err(reason) => {
                    return Outcome::NotEvaluated(format!("step {}: {reason}", save.step));
                }
            }
        }
        if num_compared == 0 && self.takes == Some([false; 2]) {
            return Outcome::NotApplicable("the external loop takes no norms".to_owned());
        }
        elsewhere.outcome(num_compared)
    }
}
