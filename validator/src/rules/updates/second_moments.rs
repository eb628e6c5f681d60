//! Saved second moments are those of the gradients on record.

use std::collections::BTreeMap;

use schemas::body::{Body, Credit, StepDet};
use schemas::entry::Entry;
use schemas::ids::CheckpointId;
use schemas::parameters::ParameterManifest;
use schemas::policy_card::PolicyCard;
use schemas::report::Route;

use super::tensors::{OPTIMIZER_FILE, TensorFile};
use crate::derive::adamw::{Bounds, Growth};
use crate::derive::clip;
use crate::evidence::Evidence;
use crate::frozen::Frozen;
use crate::parallel;
use crate::rule::{At, Check, Outcome, Sink, unavailable};
use crate::rules::common::{Checkpoints, declare_rule};
use crate::rules::elsewhere::Elsewhere;

declare_rule!(
    /// `GL415`.
    SecondMoments,
    {
        code: "GL415",
        name: "second-moments",
        what: "The sum of all second moments in every validated checkpoint is what the sum in the one before it, the gradient norms on \
               record since, clipped as the card says, and the card's beta2 make of it, but for rounding to binary32.",
        why: "No gradient is kept; but a norm that was made up, a step that did not happen, or another beta2 than the card's leaves \
              another sum in the saved bytes.",
        remedy: "None for a finished run. Record the norm of the gradient that was used, and update by the card.",
        reference: "docs/FORMAT.md, \"Update rule\" and \"Clipping\"",
        gate: Route::RejectNumerics,
    }
);

/// Suffix of a second moment's tensor.
const SUFFIX: &str = ".exp_avg_sq";

/// Elements that are added in one partial sum at most.
const PIECE: f64 = 16_384.0;

/// A committed checkpoint, and what lies between it and the one before it.
struct Save {
    checkpoint: CheckpointId,
    growth: Growth,
    index: u64,
    path: String,
    /// `None`: the initial state.
    since: Option<CheckpointId>,
    step: u64,
}

struct State<'a> {
    card: &'a PolicyCard,
    checkpoints: Checkpoints,
    frozen: &'a Frozen,
    growth: Growth,
    num_elements: u64,
    saves: Vec<Save>,
    since: Option<CheckpointId>,
    step: u64,
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
        growth: Growth::NONE,
        num_elements: num_moments(manifest),
        saves: Vec::new(),
        since: None,
        step: 0,
    })
}

/// Elements that have a second moment.
fn num_moments(manifest: &ParameterManifest) -> u64 {
    let trained = manifest.parameters.iter().filter(|parameter| parameter.group.is_some());
    let sizes =
        trained.map(|parameter| parameter.shape.iter().fold(1u64, |n, extent| n.saturating_mul(*extent)));
    sizes.fold(0, u64::saturating_add)
}

impl State<'_> {
    fn update(&mut self, det: &StepDet) {
        if det.overflow.as_ref().is_some_and(|overflow| overflow.skipped) {
            return;
        }
        self.growth = match &det.credit {
            Credit::Backpropagation { gradient_norm, .. } => {
                let norm = gradient_norm.0;
                let clip = clip::coefficient(&self.card.clipping, norm);
                self.growth.then(&self.card.update, clip, norm, self.num_elements)
            }
            Credit::Evolution { .. } => Growth::UNKNOWN,
        };
    }

    /// Whether the bytes of a checkpoint have to be there.
    fn is_whole(&self, save: &Save) -> bool {
        let fact = self.checkpoints.all.get(&save.checkpoint);
        fact.is_some_and(|fact| fact.validated.is_some() && !fact.is_unusable)
    }
}

/// The sum of all second moments of a file, and how far it may be off.
fn sum(evidence: &Evidence, path: &str) -> Result<Bounds, String> {
    let mut file = TensorFile::open(evidence, path)?;
    let (mut total, mut num_pieces) = (0.0, 0.0);
    for tensor in file.header.tensors.clone() {
        if !tensor.info.name.ends_with(SUFFIX) {
            continue;
        }
        file.read(&tensor, &mut |_, bytes| {
            let (words, _) = bytes.as_chunks::<4>();
            total += words.iter().fold(0.0, |sum, word| sum + f64::from(f32::from_le_bytes(*word)));
            num_pieces += 1.0;
            true
        })?;
    }
    Ok(Bounds::about(total, (PIECE + num_pieces) * f64::EPSILON))
}

impl Check for State<'_> {
    fn entry(&mut self, entry: &Entry, _: &mut Sink) {
        self.checkpoints.entry(entry);
        match &entry.body {
            Body::AttemptStart(halves) => {
                self.step = halves.det.from_step;
                self.since = halves.det.resumed_from.as_ref().map(|point| point.checkpoint.clone());
                self.growth = Growth::NONE;
            }
            Body::Step(halves) => {
                self.step = entry.header.step.unwrap_or(self.step);
                self.update(&halves.det);
            }
            // What is told out of its place is another rule's matter.
            Body::CheckpointDurablyCommitted(halves) if halves.det.step == self.step => {
                let checkpoint = halves.obs.checkpoint.clone();
                self.saves.push(Save {
                    checkpoint: checkpoint.clone(),
                    growth: std::mem::replace(&mut self.growth, Growth::NONE),
                    index: entry.index,
                    path: format!("{}/{OPTIMIZER_FILE}", halves.obs.path),
                    since: self.since.replace(checkpoint),
                    step: halves.det.step,
                });
            }
            _ => {}
        }
    }

    fn finish(&mut self, evidence: &Evidence, sink: &mut Sink) -> Outcome {
        let mut elsewhere = Elsewhere::new(self.frozen);
        let is_read: Vec<bool> = self
            .saves
            .iter()
            .map(|save| self.is_whole(save) && !elsewhere.has(save.checkpoint.as_str(), evidence))
            .collect();
        let work: Vec<(&Save, bool)> = self.saves.iter().zip(is_read).collect();
        let sums = parallel::map(evidence.threads, &work, |(save, is_read)| {
            is_read.then(|| sum(evidence, &save.path)).transpose()
        });
        // Sums of the checkpoints so far, as read or else as they have to be.
        let mut known: BTreeMap<&CheckpointId, Bounds> = BTreeMap::new();
        let mut num_checked = 0;
        for (save, found) in self.saves.iter().zip(sums) {
            let before = match &save.since {
                None => Some(Bounds::exactly(0.0)),
                Some(since) => known.get(since).copied(),
            };
            let expected = before.and_then(|before| save.growth.of(&before));
            match found {
                Err(reason) => return Outcome::NotEvaluated(reason),
                Ok(None) => {
                    known.remove(&save.checkpoint);
                    known.extend(expected.map(|expected| (&save.checkpoint, expected)));
                }
                Ok(Some(found)) => {
                    if let Some(expected) = expected {
                        num_checked += 1;
                        if !expected.meets(&found) {
                            differs(save, &expected, &found, sink);
                        }
                    }
                    known.insert(&save.checkpoint, found);
                }
            }
        }
        if self.saves.is_empty() {
            return Outcome::NotEvaluated("no checkpoint was committed".to_owned());
        }
        elsewhere.outcome(num_checked)
    }
}

fn differs(save: &Save, expected: &Bounds, found: &Bounds, sink: &mut Sink) {
    let since = save.since.as_ref().map_or("the initial state", |since| since.as_str());
    let message = format!(
        "the second moments of step {} (entry {}) do not follow from the gradient norms on record since {since}",
        save.step, save.index
    );
    let expected = format!("a sum from {:e} to {:e}", expected.low, expected.high);
    sink.rejected(At::place(&save.path), message, expected, format!("{:e}", found.low));
}
