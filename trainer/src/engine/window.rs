//! The accumulation window: the update that is being made, microbatch by
//! microbatch, what its microbatches so far have come to, and how that is saved
//! and put back (`docs/FORMAT.md`, "Accumulation windows").
//!
//! Where the contract saves inside of windows, one that an interruption left
//! open stays open: the next call goes on with the next microbatch. Where it
//! does not, an interruption undoes the window. Which microbatch is
//! next, the data cursor says and not the sums, so that sums which were lost
//! show in the update.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

use burn::tensor::{Tensor, TensorData};
use schemas::body::Counters;
use schemas::digest::Digest;
use schemas::number::Float;
use serde::{Deserialize, Serialize};

use super::gradients::{GradientTree, Gradients};
use super::state::{matched, tensor, to_bytes};
use super::{Engine, EngineError, token_weight};
use crate::batch::{Consumption, Microbatch, Placement};
use crate::export::NamedTensor;
use crate::model::decoder::Masks;
use crate::shuffle::ShuffleBuffer;

/// Name of the class in errors.
const CLASS: &str = "accumulated_gradients";

/// What the microbatches of an unfinished update have come to.
#[derive(Debug, Clone, Default)]
pub(super) struct Window {
    pub(super) consumption: Consumption,
    /// Digests of ids and inputs that a restored state gave, until an update.
    claimed: Option<(Digest, Digest)>,
    /// Sum of their token losses.
    pub(super) nats: f64,
    pub(super) tree: GradientTree,
}

/// `accumulated_gradients.json`: a window but for its tensors.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WindowState {
    /// BLAKE3 over the ids of the examples that were consumed.
    pub ids: Digest,
    /// BLAKE3 over what was fed.
    pub inputs: Digest,
    /// Microbatches whose gradients are in the sums.
    pub microbatches: u32,
    /// Sum of the token losses.
    pub nats: Float,
}

/// What an update consumes.
pub(super) struct Drawn {
    /// The shuffle buffer behind it.
    pub(super) buffer: Option<ShuffleBuffer>,
    /// Target tokens of the global batch.
    pub(super) num_tokens: u64,
    pub(super) placements: Vec<Placement>,
}

fn refuse(reason: String) -> EngineError {
    EngineError::State { class: CLASS, reason }
}

/// Name of the sum over `size` neighbouring microbatches of one parameter.
fn sum_name(path: &str, size: u32) -> String {
    format!("{path}.sum_{size}")
}

impl Engine {
    /// Counters with what an unfinished update has consumed: the data cursor.
    #[must_use]
    pub const fn consumed(&self) -> Counters {
        self.consumed
    }

    /// Microbatches of the next update that the data cursor is behind.
    #[must_use]
    pub fn num_consumed_microbatches(&self) -> u32 {
        let ahead = self.consumed.examples.saturating_sub(self.counters.examples);
        u32::try_from(ahead / self.microbatch_examples.max(1) as u64).unwrap_or(u32::MAX)
    }

    /// Executes microbatches of the next update until so many are behind.
    /// `false` where `interrupt` was set before one of them had begun; those
    /// before it stay executed where the contract saves inside of windows.
    ///
    /// # Errors
    /// When data cannot be read, has changed, or the device fails.
    pub fn accumulate(&mut self, num_microbatches: u32, interrupt: &AtomicBool) -> Result<bool, EngineError> {
        Ok(self.accumulate_until(num_microbatches as usize, interrupt)?.is_some())
    }

    pub(super) fn accumulate_until(
        &mut self,
        end: usize,
        interrupt: &AtomicBool,
    ) -> Result<Option<Drawn>, EngineError> {
        let drawn = self.drawn()?;
        let weight = token_weight(drawn.num_tokens);
        let masks_before = self.masks.clone();
        let first = self.num_consumed_microbatches() as usize;
        let microbatches =
            drawn.placements.chunks(self.microbatch_examples).enumerate().take(end).skip(first);
        for (index, placements) in microbatches {
            if interrupt.load(Ordering::Relaxed) {
                if !self.keeps_windows {
                    self.window = Window::default();
                    self.consumed = self.counters;
                    self.masks = masks_before;
                }
                return Ok(None);
            }
            let microbatch = self.assemble(placements)?;
            self.window.consumption.add(&microbatch)?;
            let stream = self.stream_of(index);
            let (gradients, losses, drawn) = self.backward(&microbatch, weight, stream)?;
            self.window.nats = microbatch.add_targets(self.window.nats, &losses);
            self.window.tree.push(gradients);
            self.set_drawn(stream, drawn);
            self.consumed.examples += placements.len() as u64;
            self.consumed.tokens += microbatch.num_tokens();
        }
        Ok(Some(drawn))
    }

    /// The stream of masks of the worker whose microbatch it is.
    fn stream_of(&self, microbatch: usize) -> usize {
        if self.masks.len() > 1 { microbatch / self.microbatches_per_worker.max(1) as usize } else { 0 }
    }

    pub(super) fn set_drawn(&mut self, stream: usize, drawn: u64) {
        if let Some(stream) = self.masks.get_mut(stream) {
            stream.drawn = drawn;
        }
    }

    /// What the next update consumes, from its first example on.
    pub(super) fn drawn(&mut self) -> Result<Drawn, EngineError> {
        let overflow = || EngineError::Overflow { step: self.step + 1 };
        // The data cursor is the number of examples consumed; it is restored on
        // its own, so that a cursor which was lost shows in what is drawn.
        let first = self.counters.examples;
        let end = first.checked_add(self.global_examples).ok_or_else(overflow)?;
        let mut drawn = Drawn { buffer: self.buffer.clone(), num_tokens: 0, placements: Vec::new() };
        for position in first..end {
            let example = match &mut drawn.buffer {
                Some(buffer) => buffer.draw(),
                None => self.order.example(position),
            };
            drawn.num_tokens += u64::from(self.train.num_targets(example)?);
            drawn.placements.push(Placement { position, example });
        }
        Ok(drawn)
    }

    pub(super) fn assemble(&self, placements: &[Placement]) -> Result<Microbatch, EngineError> {
        let context_length = self.decoder.shape().context_length as usize;
        Ok(Microbatch::assemble(&self.train, placements, context_length, self.device.handle())?)
    }

    /// Gradient of `weight` times the summed token losses, the token losses, and
    /// the blocks that the stream of masks has drawn then.
    pub(super) fn backward(
        &self,
        microbatch: &Microbatch,
        weight: f32,
        stream: usize,
    ) -> Result<(Gradients, Vec<f32>, u64), EngineError> {
        let stream = self.masks.get(stream);
        let drawn = Cell::new(stream.map_or(0, |stream| stream.drawn));
        let mut leaves = self.parameters.clone();
        for slot in &self.slots {
            if let Some(tensor) = leaves.get_mut(&slot.path) {
                *tensor = tensor.clone().autodiff().require_grad();
            }
        }
        let positions = &microbatch.positions;
        let masks = stream.map(|stream| Masks { drawn: &drawn, dropout: &stream.dropout, positions });
        let (inputs, targets) = (microbatch.inputs.clone(), microbatch.targets.clone());
        let losses = self.training_decoder.token_losses(&leaves, inputs, targets, masks);
        let factor = self.scaler.as_ref().map(crate::scaling::LossScale::factor);
        let weights = microbatch.weights(weight * factor.unwrap_or(1.0));
        let weights = TensorData::new(weights, losses.dims());
        let weights = Tensor::<1>::from_data(weights, self.device.handle());
        let mut tape = losses.clone().mul(weights).sum().backward();
        let losses = losses
            .inner()
            .try_into_vec_as::<f32>()
            .map_err(|error| EngineError::device("reading token losses", &error))?;
        let mut gradients = Vec::with_capacity(self.slots.len());
        for slot in &self.slots {
            let gradient = leaves.get(&slot.path).and_then(|leaf| leaf.grad_remove(&mut tape));
            let gradient = gradient.ok_or_else(|| EngineError::NoGradient { path: slot.path.clone() })?;
            let mut gradient = gradient
                .try_into_vec_as::<f32>()
                .map_err(|error| EngineError::device("reading a gradient", &error))?;
            if let Some(factor) = factor {
                // At once, so that a window holds true gradients.
                let inverse = factor.recip();
                gradient.iter_mut().for_each(|value| *value *= inverse);
            }
            gradients.push(gradient);
        }
        Ok((gradients, losses, drawn.get()))
    }

    /// What the unfinished update has come to, but for its tensors.
    #[must_use]
    pub fn window(&self) -> WindowState {
        let (ids, inputs) = self.window.consumption.finish();
        let microbatches = self.window.tree.num_leaves();
        WindowState { ids, inputs, microbatches, nats: Float(self.window.nats) }
    }

    /// Copies the sums of the unfinished update, in name order: of each
    /// parameter one for each complete subtree of the contract's tree.
    #[must_use]
    pub fn capture_gradients(&self) -> Vec<NamedTensor> {
        let mut tensors = Vec::new();
        for (size, gradients) in self.window.tree.subtrees() {
            for (slot, values) in self.slots.iter().zip(gradients) {
                let declared = self.manifest.parameters.iter().find(|declared| declared.path == slot.path);
                let Some(declaration) = declared else { continue };
                tensors.push(tensor(sum_name(&slot.path, *size), &declaration.shape, to_bytes(values)));
            }
        }
        tensors.sort_by(|a, b| a.name.cmp(&b.name));
        tensors
    }

    /// Replaces the sums of the unfinished update. What its microbatches
    /// consumed is read again; [`Self::check_window`] compares. Nothing changes
    /// when it is refused.
    ///
    /// # Errors
    /// When there are more microbatches than an update has before its last, or
    /// a tensor is missing, is not declared or has another form.
    pub fn restore_window(
        &mut self,
        state: &WindowState,
        tensors: &[NamedTensor],
    ) -> Result<(), EngineError> {
        let drawn = self.drawn()?;
        let num_microbatches = drawn.placements.len().div_ceil(self.microbatch_examples);
        if state.microbatches as usize >= num_microbatches {
            let reason = format!("{} microbatches of {num_microbatches} are summed", state.microbatches);
            return Err(refuse(reason));
        }
        let sizes = GradientTree::sizes(state.microbatches);
        let mut wanted = Vec::new();
        for slot in &self.slots {
            let declared = self.manifest.parameters.iter().find(|declared| declared.path == slot.path);
            let Some(declaration) = declared else { continue };
            let names = sizes.iter().map(|size| sum_name(&slot.path, *size));
            wanted.extend(names.map(|name| (name, declaration.shape.as_slice())));
        }
        wanted.sort();
        let mut found: BTreeMap<String, Vec<f32>> = matched(CLASS, &wanted, tensors)?.into_iter().collect();
        let of_size = |found: &mut BTreeMap<String, Vec<f32>>, size: u32| -> Gradients {
            let of_slot = |slot: &super::Slot| found.remove(&sum_name(&slot.path, size)).unwrap_or_default();
            self.slots.iter().map(of_slot).collect()
        };
        let subtrees = sizes.iter().map(|size| (*size, of_size(&mut found, *size))).collect();
        let mut consumption = Consumption::default();
        let consumed = drawn.placements.chunks(self.microbatch_examples).take(state.microbatches as usize);
        for placements in consumed {
            consumption.add(&self.assemble(placements)?)?;
        }
        let tree = GradientTree::from_subtrees(subtrees);
        let claimed = Some((state.ids, state.inputs));
        self.window = Window { consumption, claimed, nats: state.nats.0, tree };
        Ok(())
    }

    /// Takes what an unfinished update has consumed, after [`Self::stand_at`].
    pub fn stand_in_window(&mut self, consumed: Counters) {
        self.consumed = consumed;
    }

    /// Checks that cursor and sums speak of the same microbatches, and that
    /// these consumed what they say.
    ///
    /// # Errors
    /// When they do not.
    pub fn check_window(&mut self) -> Result<(), EngineError> {
        let (consumed, summed) = (self.num_consumed_microbatches(), self.window.tree.num_leaves());
        if consumed != summed {
            let reason =
                format!("{summed} microbatches are summed, and the data cursor is behind {consumed}");
            return Err(refuse(reason));
        }
        if self.window.claimed.is_some_and(|claimed| claimed != self.window.consumption.finish()) {
            let reason = "its microbatches consumed other examples than the data cursor gives";
            return Err(refuse(reason.to_owned()));
        }
        let drawn = self.drawn()?;
        let mut num_tokens = 0;
        for placement in drawn.placements.iter().take(summed as usize * self.microbatch_examples) {
            num_tokens += u64::from(self.train.num_targets(placement.example)?);
        }
        let found = self.consumed.tokens.saturating_sub(self.counters.tokens);
        if found != num_tokens {
            let reason = format!("the data cursor is behind {found} tokens, and {num_tokens} are summed");
            return Err(refuse(reason));
        }
        Ok(())
    }
}
