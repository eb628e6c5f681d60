//! The training loop's state and its one transition: parameters, optimizer
//! state, step and counters, and the update that moves them on.
//!
//! An engine executes what a contract says and decides nothing else: it writes
//! no entry, saves no file and reads no clock. It refuses a contract that asks
//! for something it does not do, instead of doing something near it.
//!
//! Numbers (all binary32 unless said otherwise):
//! - A microbatch's loss is the sum of its target tokens' losses times
//!   `1 / (target tokens of the whole global batch)`, so the sum of the
//!   microbatches' gradients is the gradient of the mean over the global batch.
//! - Gradients of microbatches are added in the contract's tree ([`gradients`]).
//! - The recorded loss is the sum of the token losses in binary64, in order of
//!   consumption, over the number of tokens; it does not depend on the split.
//! - Norms and optimizer arithmetic: see [`crate::optimizer`].

pub mod check;
mod damage;
pub mod gradients;
mod inspect;
pub mod replica;
pub mod share;
pub mod state;
mod tied;
mod vary;
mod warm_start;
pub mod window;

use std::sync::atomic::AtomicBool;

use burn::tensor::{Tensor, TensorData};
use schemas::body::{Counters, Credit, Draw, GroupUpdate, Overflow, StepDet};
use schemas::contract::{AverageOrder, Contract, LlamaDecoder, MidAccumulation, OrderPolicy, ParameterView};
use schemas::number::Float;
use schemas::parameters::{ParameterManifest, ParameterStatus};
use schemas::policy_card::{Clipping, PolicyCard};

use crate::averages::AveragedParameters;
use crate::data::{DataError, ExampleSource};
use crate::device::OpenDevice;
use crate::model::decoder::{Decoder, Parameters};
use crate::model::manifest;
use crate::optimizer::adamw::{self, AdamW, Moments, SquaredNorms};
use crate::optimizer::clip;
use crate::order::DataOrder;
use crate::randomness::dropout::Dropout;
use crate::randomness::init;
use crate::scaling::LossScale;
use crate::shuffle::ShuffleBuffer;
use crate::state::split::FrozenInitial;
use crate::state::tree::RecordedState;
use check::GroupPlan;
use window::Window;

pub use check::Unsupported;
pub use state::CapturedTensors;

/// Name of the stream that updates draw from.
pub const TRAIN_STREAM: &str = "train";
/// Purpose of a draw that feeds an update.
pub const UPDATE_PURPOSE: &str = "update";

/// What an engine is made of.
#[derive(Debug)]
pub struct EngineConfig<'a> {
    /// The frozen contract.
    pub contract: &'a Contract,
    /// The optimizer policy card that it names.
    pub card: &'a PolicyCard,
    /// The parameter manifest that it names.
    pub parameters: &'a ParameterManifest,
    /// Examples of the train split.
    pub train: ExampleSource,
    /// Examples of the val split.
    pub val: ExampleSource,
    /// Where tensors live.
    pub device: OpenDevice,
}

/// Why the engine stopped. After any error but [`EngineError::Unsupported`]
/// the engine must be dropped: an update may be half done.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// The contract asks for what this trainer does not do.
    #[error("this trainer cannot execute the contract")]
    Unsupported(#[from] Unsupported),
    /// Text could not be read or has changed.
    #[error("the data cannot be used")]
    Data(#[from] DataError),
    /// The device failed.
    #[error("{operation}: the device failed: {message}")]
    Device {
        /// What was attempted.
        operation: &'static str,
        /// What the device said.
        message: String,
    },
    /// An id that is no byte.
    #[error("id {id} entered the model, but ids are bytes; the batch or the device is broken")]
    IdRange {
        /// The id.
        id: i32,
    },
    /// A trainable parameter without a gradient.
    #[error("no gradient reaches parameter {path:?}, which the manifest calls trainable")]
    NoGradient {
        /// The parameter.
        path: String,
    },
    /// Restored state that does not fit.
    #[error("{class}: {reason}; the checkpoint belongs to another contract or is damaged")]
    State {
        /// `model` or `optimizer`.
        class: &'static str,
        /// What does not fit, with the tensor's name.
        reason: String,
    },
    /// Counters or positions beyond 64 bits.
    #[error("step {step}: positions exceed 64 bits")]
    Overflow {
        /// The step.
        step: u64,
    },
}

impl EngineError {
    pub(crate) fn device(operation: &'static str, error: &dyn std::fmt::Display) -> Self {
        Self::Device { operation, message: error.to_string() }
    }
}

/// What one update was: the parts of a `step` entry that it determines.
#[derive(Debug, Clone, PartialEq)]
pub struct StepOutcome {
    /// After the update.
    pub counters: Counters,
    /// Loss, gradient norm, counts.
    pub credit: Credit,
    /// What was consumed: one draw of the train stream.
    pub draws: Vec<Draw>,
    /// By group, in the card's order.
    pub updates: Vec<GroupUpdate>,
    /// What the loss scaler did; none without one.
    pub overflow: Option<Overflow>,
    /// Mean over target tokens in nats; the same number as in `credit`.
    pub loss: f64,
}

impl StepOutcome {
    /// What a `step` entry determines, with digests of the state where they are
    /// due.
    #[must_use]
    pub fn det(&self, state: Option<RecordedState>) -> StepDet {
        let (state, state_root) = state.map_or((None, None), |state| (Some(state.digests), state.root));
        StepDet {
            counters: self.counters,
            credit: self.credit.clone(),
            draws: self.draws.clone(),
            overflow: self.overflow.clone(),
            state,
            state_root,
            updates: self.updates.clone(),
        }
    }
}

/// A trainable parameter's update state.
#[derive(Debug, Clone)]
struct Slot {
    path: String,
    group: usize,
    moments: Moments,
}

/// Where dropout masks come from, and how many blocks were drawn.
#[derive(Debug, Clone, Copy)]
struct MaskStream {
    drawn: u64,
    dropout: Dropout,
}

/// Parameters, optimizer state and position of a run. A clone goes on by
/// itself: nothing that an update changes is shared.
#[derive(Debug, Clone)]
pub struct Engine {
    /// In binary32: evaluations.
    pub(crate) decoder: Decoder,
    /// In the contract's compute dtype: updates.
    training_decoder: Decoder,
    pub(crate) device: OpenDevice,
    pub(crate) parameters: Parameters,
    pub(crate) train: ExampleSource,
    pub(crate) val: ExampleSource,
    pub(crate) microbatch_examples: usize,
    /// Of what has storage of its own.
    manifest: ParameterManifest,
    slots: Vec<Slot>,
    averages: Option<AveragedParameters>,
    groups: Vec<GroupPlan>,
    rule: AdamW,
    clipping: Clipping,
    global_examples: u64,
    order: DataOrder,
    /// In the order's place where the contract shuffles through a buffer.
    buffer: Option<ShuffleBuffer>,
    /// Empty where nothing is dropped; one stream for each worker where masks
    /// are drawn from streams, else one that all of them share.
    masks: Vec<MaskStream>,
    /// Microbatches of an update that a worker executes; as the contract says.
    microbatches_per_worker: u32,
    /// What frozen parameters were made as; none where all are trained.
    frozen: Option<FrozenInitial>,
    scaler: Option<LossScale>,
    step: u64,
    /// After the last update.
    counters: Counters,
    /// After the last microbatch: where the data cursor stands.
    consumed: Counters,
    /// Whether an update that was interrupted is gone on with.
    keeps_windows: bool,
    window: Window,
}

impl Engine {
    /// The initial state: every parameter as its initializer says, moments of
    /// zero, step 0.
    ///
    /// # Errors
    /// When the contract, card or manifest asks for what this trainer does not
    /// do.
    pub fn initial(config: EngineConfig<'_>) -> Result<Self, EngineError> {
        let plan = check::plan(config.contract, config.card, config.parameters, &config.device)?;
        let handle = config.device.handle();
        let seed = config.contract.seeds.initialization.0;
        let mut parameters = Parameters::new();
        let mut slots = Vec::new();
        let mut averaged = Vec::new();
        let mut frozen = Vec::new();
        let stored = manifest::stored(config.parameters);
        for (declaration, group) in stored.parameters.iter().zip(&plan.parameter_groups) {
            let num_elements = check::num_elements(declaration)?;
            let values = init::values(&declaration.initializer, &declaration.path, seed, num_elements);
            if group.is_some() && config.contract.averages.is_some() {
                averaged.push(values.clone());
            }
            if declaration.status == ParameterStatus::Frozen {
                frozen.push(state::named(declaration, &values));
            }
            let data = TensorData::new(values, [num_elements]);
            parameters.insert(declaration.path.clone(), Tensor::from_data(data, handle));
            if let Some(group) = *group {
                let moments = Moments::zeros(num_elements);
                slots.push(Slot { path: declaration.path.clone(), group, moments });
            }
        }
        let seeds = &config.contract.seeds;
        let shape = plan.decoder;
        Ok(Self {
            decoder: Decoder::new(shape, handle),
            training_decoder: Decoder::new(shape, handle).computing_in(plan.compute),
            parameters,
            microbatch_examples: config.contract.batch.microbatch_examples as usize,
            manifest: stored,
            slots,
            averages: config.contract.averages.as_ref().map(|of| AveragedParameters::new(of, averaged)),
            groups: plan.groups,
            rule: plan.rule,
            clipping: config.card.clipping.clone(),
            global_examples: u64::from(config.contract.batch.global_examples),
            order: DataOrder::new(TRAIN_STREAM, seeds.data_order.0, config.train.num_examples()),
            buffer: match config.contract.order {
                OrderPolicy::KeyedPermutation => None,
                OrderPolicy::ShuffleBuffer { size } => {
                    let num_examples = config.train.num_examples();
                    Some(ShuffleBuffer::new(TRAIN_STREAM, seeds.data_order.0, size, num_examples))
                }
            },
            masks: mask_streams(config.contract, shape),
            microbatches_per_worker: config.contract.batch.accumulation,
            frozen: state::frozen_initial(frozen)?,
            scaler: config.contract.numerics.loss_scaler.as_ref().map(LossScale::new),
            step: 0,
            counters: Counters::default(),
            consumed: Counters::default(),
            keeps_windows: config.contract.checkpoints.mid_accumulation == MidAccumulation::SaveGradients,
            window: Window::default(),
            device: config.device,
            train: config.train,
            val: config.val,
        })
    }

    /// Completed updates.
    #[must_use]
    pub const fn step_number(&self) -> u64 {
        self.step
    }

    /// What the parameters that no update changes were made as; `None` where
    /// every parameter is trained.
    #[must_use]
    pub const fn frozen_initial(&self) -> Option<&FrozenInitial> {
        self.frozen.as_ref()
    }

    /// Cumulative counters of the logical run.
    #[must_use]
    pub const fn counters(&self) -> Counters {
        self.counters
    }

    /// Examples of the train split, the N of the data cursor.
    #[must_use]
    pub fn num_train_examples(&self) -> u64 {
        self.train.num_examples()
    }

    /// Takes an evaluation of the current step, in step order: schedules that
    /// watch the stream go by it from the next update on.
    pub fn observe_evaluation(&mut self, stream: &str, value: f64) {
        for plateau in self.groups.iter_mut().filter_map(|group| group.plateau.as_mut()) {
            plateau.observe(stream, value);
        }
    }

    /// The parameters of a view, on the device. Averages are read where they
    /// are; the trained parameters stay in their place.
    ///
    /// # Errors
    /// When averages are asked for and none are kept.
    pub(crate) fn view(&self, view: ParameterView) -> Result<Parameters, EngineError> {
        let mut parameters = self.parameters.clone();
        if view == ParameterView::Averages {
            let averages = self.averages.as_ref().ok_or_else(state::no_averages)?;
            for (slot, values) in self.slots.iter().zip(&averages.tensors) {
                let data = TensorData::new(values.clone(), [values.len()]);
                parameters.insert(slot.path.clone(), Tensor::from_data(data, self.device.handle()));
            }
        }
        Ok(parameters)
    }

    /// Executes one update. `None` when `interrupt` was set before the last
    /// microbatch had begun; then nothing has changed, but for microbatches that
    /// were executed where the contract saves inside of windows, and the same
    /// update can be executed again.
    ///
    /// # Errors
    /// When data cannot be read, has changed, or the device fails.
    pub fn step(&mut self, interrupt: &AtomicBool) -> Result<Option<StepOutcome>, EngineError> {
        let step = self.step + 1;
        let first = self.counters.examples;

        // Gradient of the mean over the global batch's target tokens.
        let Some(drawn) = self.accumulate_until(usize::MAX, interrupt)? else { return Ok(None) };
        let Window { consumption, nats, tree, .. } = std::mem::take(&mut self.window);
        let num_microbatches = tree.num_leaves();
        let gradients = tree.finish();

        // Clip and update, or skip.
        let gradient_norm = clip::global_norm(gradients.iter().map(Vec::as_slice));
        let clip_coefficient = clip::coefficient(&self.clipping, gradient_norm);
        // One element that is not finite makes the norm so, and nothing else
        // does: squares of binary32 are far within binary64.
        let overflow = self.scaler.as_mut().map(|scaler| scaler.observe(!gradient_norm.is_finite()));
        let updates = if overflow.as_ref().is_some_and(|overflow| overflow.skipped) {
            self.skip(step, clip_coefficient)?
        } else {
            self.update(step, &gradients, clip_coefficient)?
        };

        self.step = step;
        self.buffer = drawn.buffer;
        self.counters.examples += self.global_examples;
        self.counters.tokens += drawn.num_tokens;
        self.consumed = self.counters;
        let loss = mean(nats, drawn.num_tokens);
        let (ids, inputs) = consumption.finish();
        Ok(Some(StepOutcome {
            counters: self.counters,
            credit: Credit::Backpropagation {
                gradient_norm: Float(gradient_norm),
                loss: Float(loss),
                num_microbatches,
                num_tokens: drawn.num_tokens,
            },
            draws: vec![Draw {
                ids,
                inputs,
                purpose: UPDATE_PURPOSE.to_owned(),
                ranges: self.order.ranges(first, self.global_examples),
                stream: TRAIN_STREAM.to_owned(),
            }],
            overflow,
            updates,
            loss,
        }))
    }

    /// Updates that changed the parameters, of which `step` is the next: the
    /// update rule's own count, which skipped steps do not move.
    fn num_updates(&self, step: u64) -> u64 {
        step.saturating_sub(self.scaler.as_ref().map_or(0, |scaler| scaler.state().skipped))
    }

    /// What a step records that changes nothing.
    fn skip(&self, step: u64, clip_coefficient: f64) -> Result<Vec<GroupUpdate>, EngineError> {
        let rates: Vec<f64> = self.groups.iter().map(|group| group.rate(step)).collect();
        let mut norms = vec![SquaredNorms::default(); self.groups.len()];
        for slot in &self.slots {
            let Some(tensor) = self.parameters.get(&slot.path) else { continue };
            let data =
                tensor.try_to_data().map_err(|error| EngineError::device("reading parameters", &error))?;
            let values =
                data.as_slice::<f32>().map_err(|error| EngineError::device("reading parameters", &error))?;
            norms[slot.group].parameter += adamw::squared_norm(values);
        }
        Ok(self.group_updates(rates, norms, clip_coefficient))
    }

    fn group_updates(
        &self,
        rates: Vec<f64>,
        norms: Vec<SquaredNorms>,
        clip_coefficient: f64,
    ) -> Vec<GroupUpdate> {
        let groups = self.groups.iter().zip(rates).zip(norms);
        groups
            .map(|((group, rate), norms)| GroupUpdate {
                clip_coefficient: Float(clip_coefficient),
                group: group.name.clone(),
                learning_rate: Float(rate),
                parameter_norm: Some(Float(libm::sqrt(norms.parameter))),
                update_norm: Some(Float(libm::sqrt(norms.update))),
                weight_decay: Float(group.weight_decay),
            })
            .collect()
    }

    /// Moves parameters and moments on. Not atomic: see [`EngineError`].
    fn update(
        &mut self,
        step: u64,
        gradients: &[Vec<f32>],
        clip_coefficient: f64,
    ) -> Result<Vec<GroupUpdate>, EngineError> {
        let rates: Vec<f64> = self.groups.iter().map(|group| group.rate(step)).collect();
        let count = self.num_updates(step);
        let coefficients: Vec<adamw::Coefficients> = self
            .groups
            .iter()
            .zip(&rates)
            .map(|(group, rate)| self.rule.coefficients(count, *rate, group.weight_decay, clip_coefficient))
            .collect();
        let mut norms = vec![SquaredNorms::default(); self.groups.len()];
        for (index, (slot, gradient)) in self.slots.iter_mut().zip(gradients).enumerate() {
            let Some(tensor) = self.parameters.remove(&slot.path) else { continue };
            let mut data =
                tensor.try_into_data().map_err(|error| EngineError::device("reading parameters", &error))?;
            let values = data
                .as_mut_slice::<f32>()
                .map_err(|error| EngineError::device("reading parameters", &error))?;
            let mut average = |order, values: &[f32]| {
                if let Some(averages) = self.averages.as_mut().filter(|averages| averages.order() == order) {
                    averages.add(step, index, values);
                }
            };
            average(AverageOrder::BeforeUpdate, values);
            let squared = adamw::update(values, gradient, &mut slot.moments, &coefficients[slot.group]);
            average(AverageOrder::AfterUpdate, values);
            norms[slot.group].parameter += squared.parameter;
            norms[slot.group].update += squared.update;
            self.parameters.insert(slot.path.clone(), Tensor::from_data(data, self.device.handle()));
        }
        Ok(self.group_updates(rates, norms, clip_coefficient))
    }
}

/// What masks are drawn from: a stream for each worker, or coordinates.
fn mask_streams(contract: &Contract, shape: &LlamaDecoder) -> Vec<MaskStream> {
    let seed = contract.seeds.dropout.0;
    let num_streams = if contract.dropout_draws.is_keyed() { 1 } else { contract.topology.workers };
    let dropout = Dropout::new(seed, shape.dropout, shape.hidden_size as usize);
    let streams = dropout.into_iter().flat_map(|dropout| {
        let dropout = dropout.drawn_by(contract.dropout_draws, seed);
        (0..num_streams).map(move |worker| MaskStream { drawn: 0, dropout: dropout.of_worker(seed, worker) })
    });
    streams.collect()
}

/// `1 / num_tokens`, rounded to binary32 once.
#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    reason = "a batch has far fewer than 2^53 tokens, and binary32 is meant"
)]
fn token_weight(num_tokens: u64) -> f32 {
    (1.0 / num_tokens as f64) as f32
}

#[allow(clippy::cast_precision_loss, reason = "a batch has far fewer than 2^53 tokens")]
fn mean(total: f64, count: u64) -> f64 {
    total / count as f64
}
