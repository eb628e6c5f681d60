//! Capturing and restoring the state classes that hold tensors.
//!
//! Restoring is strict: exactly the tensors that the manifest declares, with
//! their dtypes and shapes, or a refusal that names the tensor. Nothing is left
//! at its initial value because a file did not hold it.

use burn::tensor::{DType, Tensor, TensorData};
use schemas::body::Counters;
use schemas::parameters::ParameterDeclaration;

use super::{Engine, EngineError};
use crate::export::NamedTensor;
use crate::model::manifest::PARAMETER_DTYPE;
use crate::optimizer::adamw::STATE_SUFFIXES;
use crate::plateau::PlateauState;
use crate::scaling::{LossScale, ScaleState};
use crate::shuffle::{ShuffleBuffer, ShuffleState};
use crate::state::split::FrozenInitial;

/// Bytes of a binary32.
const F32_BYTES: usize = 4;

/// A consistent copy of parameters and optimizer state at one step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CapturedTensors {
    /// Parameters, in name order.
    pub model: Vec<NamedTensor>,
    /// `<path>.exp_avg` and `<path>.exp_avg_sq` of every trainable parameter,
    /// in name order.
    pub optimizer: Vec<NamedTensor>,
}

/// One pass over the memory: the loop waits for it.
pub(super) fn to_bytes(values: &[f32]) -> Vec<u8> {
    let mut bytes = vec![0; values.len() * F32_BYTES];
    let (words, _) = bytes.as_chunks_mut::<F32_BYTES>();
    for (word, value) in words.iter_mut().zip(values) {
        *word = value.to_le_bytes();
    }
    bytes
}

/// Elements of a parameter: the device's own copy, where that is as a file
/// wants it, and not a copy of it.
fn parameter_bytes(data: TensorData) -> Result<Vec<u8>, EngineError> {
    if cfg!(target_endian = "little") && data.dtype() == DType::F32 {
        let bytes = data.into_bytes();
        return Ok(bytes.try_into_vec::<u8>().unwrap_or_else(|bytes| bytes.to_vec()));
    }
    let values = data.as_slice::<f32>().map_err(|error| EngineError::device("reading parameters", &error))?;
    Ok(to_bytes(values))
}

fn to_values(bytes: &[u8]) -> Vec<f32> {
    let (words, _) = bytes.as_chunks::<F32_BYTES>();
    words.iter().map(|word| f32::from_le_bytes(*word)).collect()
}

/// Name and shape of each wanted tensor, in name order.
type Wanted<'a> = Vec<(String, &'a [u64])>;

pub(super) fn no_averages() -> EngineError {
    EngineError::State { class: "averages", reason: "the contract keeps none".to_owned() }
}

pub(super) fn tensor(name: String, shape: &[u64], bytes: Vec<u8>) -> NamedTensor {
    NamedTensor { name, dtype: PARAMETER_DTYPE.to_owned(), shape: shape.to_vec(), bytes }
}

/// Values of a parameter as a tensor of a file.
pub(super) fn named(declaration: &ParameterDeclaration, values: &[f32]) -> NamedTensor {
    tensor(declaration.path.clone(), &declaration.shape, to_bytes(values))
}

/// What frozen parameters were made as; `None` where there are none.
pub(super) fn frozen_initial(mut tensors: Vec<NamedTensor>) -> Result<Option<FrozenInitial>, EngineError> {
    if tensors.is_empty() {
        return Ok(None);
    }
    tensors.sort_by(|a, b| a.name.cmp(&b.name));
    let refused =
        |error: crate::export::ExportError| EngineError::State { class: "model", reason: error.to_string() };
    FrozenInitial::of(&tensors).map(Some).map_err(refused)
}

impl Engine {
    /// Copies parameters and optimizer state.
    ///
    /// # Errors
    /// When the device fails.
    pub fn capture(&self) -> Result<CapturedTensors, EngineError> {
        Ok(CapturedTensors { model: self.capture_model()?, optimizer: self.capture_optimizer() })
    }

    /// Copies the parameters, in name order.
    ///
    /// # Errors
    /// When the device fails.
    pub fn capture_model(&self) -> Result<Vec<NamedTensor>, EngineError> {
        self.capture_parameters(|_| None)
    }

    /// Copies the parameters, but for those that something stands in for, in
    /// name order.
    fn capture_parameters<'a>(
        &self,
        replaced: impl Fn(&str) -> Option<&'a [f32]>,
    ) -> Result<Vec<NamedTensor>, EngineError> {
        let mut tensors = Vec::new();
        for declaration in &self.manifest.parameters {
            let Some(parameter) = self.parameters.get(&declaration.path) else { continue };
            let bytes = match replaced(&declaration.path) {
                Some(values) => to_bytes(values),
                None => {
                    let data = parameter.try_to_data();
                    parameter_bytes(data.map_err(|error| EngineError::device("reading parameters", &error))?)?
                }
            };
            tensors.push(tensor(declaration.path.clone(), &declaration.shape, bytes));
        }
        tensors.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(tensors)
    }

    /// Copies the moments, in name order.
    #[must_use]
    pub fn capture_optimizer(&self) -> Vec<NamedTensor> {
        let mut tensors = Vec::new();
        for slot in &self.slots {
            let declared = self.manifest.parameters.iter().find(|declared| declared.path == slot.path);
            let Some(declaration) = declared else { continue };
            let moments = [&slot.moments.exp_avg, &slot.moments.exp_avg_sq];
            for (suffix, values) in STATE_SUFFIXES.iter().zip(moments) {
                let name = format!("{}.{suffix}", slot.path);
                tensors.push(tensor(name, &declaration.shape, to_bytes(values)));
            }
        }
        tensors.sort_by(|a, b| a.name.cmp(&b.name));
        tensors
    }

    /// Copies the averaged parameters, and the frozen ones as they are, in name
    /// order.
    ///
    /// # Errors
    /// When none are kept, or the device fails.
    pub fn capture_averages(&self) -> Result<Vec<NamedTensor>, EngineError> {
        let averages = self.averages.as_ref().ok_or_else(no_averages)?;
        let mut averaged = std::collections::BTreeMap::new();
        for (slot, values) in self.slots.iter().zip(&averages.tensors) {
            averaged.insert(slot.path.as_str(), values.as_slice());
        }
        self.capture_parameters(|path| averaged.get(path).copied())
    }

    /// Replaces the averaged parameters; what the file says of frozen ones is
    /// not needed. Nothing changes when it is refused.
    ///
    /// # Errors
    /// As [`Self::restore`], and when none are kept.
    pub fn restore_averages(&mut self, tensors: &[NamedTensor]) -> Result<(), EngineError> {
        self.refuse_second("averages", tensors)?;
        let found = matched("averages", &self.wanted_model(), tensors)?;
        let mut found = found.into_iter().collect::<std::collections::BTreeMap<_, _>>();
        let averages = self.averages.as_mut().ok_or_else(no_averages)?;
        for (slot, values) in self.slots.iter().zip(&mut averages.tensors) {
            *values = found.remove(&slot.path).unwrap_or_default();
        }
        Ok(())
    }

    /// Of each worker, the key of its stream of dropout masks and the blocks that
    /// it has drawn; empty where masks are functions of coordinates.
    #[must_use]
    pub fn dropout_streams(&self) -> Vec<([u32; 2], u64)> {
        let streams = self.masks.iter();
        streams.filter_map(|stream| Some((stream.dropout.stream_key()?, stream.drawn))).collect()
    }

    /// Lets a worker's stream of dropout masks go on after so many blocks.
    pub fn restore_dropout_stream(&mut self, worker: u32, drawn_blocks: u64) {
        self.set_drawn(worker as usize, drawn_blocks);
    }

    /// Lets every worker's stream of dropout masks begin again.
    pub fn reset_dropout_streams(&mut self) {
        self.masks.iter_mut().for_each(|stream| stream.drawn = 0);
    }

    /// The shuffle buffer; `None` where the order is a function of the position.
    #[must_use]
    pub fn shuffle_buffer(&self) -> Option<&ShuffleBuffer> {
        self.buffer.as_ref()
    }

    /// Lets the shuffle buffer go on from a state. Nothing changes when it is
    /// refused.
    ///
    /// # Errors
    /// When there is no buffer, or it could not have come to that state.
    pub fn restore_shuffle(&mut self, state: ShuffleState) -> Result<(), EngineError> {
        let refuse = |reason| EngineError::State { class: "sampler", reason };
        let buffer = self.buffer.as_mut();
        let buffer = buffer.ok_or_else(|| refuse("the contract shuffles through no buffer".to_owned()))?;
        buffer.restore(state).map_err(refuse)
    }

    /// What schedules that watch evaluations have come to, in the card's order
    /// of groups; empty where all are functions of the step.
    #[must_use]
    pub fn plateaus(&self) -> Vec<PlateauState> {
        let plateaus = self.groups.iter().filter_map(|group| group.plateau.as_ref());
        plateaus.map(|plateau| plateau.state.clone()).collect()
    }

    /// Replaces what schedules that watch evaluations have come to. Nothing
    /// changes when it is refused.
    ///
    /// # Errors
    /// When the groups are not exactly those of the contract.
    pub fn restore_plateaus(&mut self, states: Vec<PlateauState>) -> Result<(), EngineError> {
        let names = |states: &[PlateauState]| {
            states.iter().map(|state| state.group.clone()).collect::<Vec<_>>().join(", ")
        };
        let (wanted, found) = (names(&self.plateaus()), names(&states));
        if wanted != found {
            let reason = format!("the plateaus are of the groups [{found}], expected [{wanted}]");
            return Err(EngineError::State { class: "scheduler", reason });
        }
        let plateaus = self.groups.iter_mut().filter_map(|group| group.plateau.as_mut());
        for (plateau, state) in plateaus.zip(states) {
            plateau.state = state;
        }
        Ok(())
    }

    /// Every parameter.
    fn wanted_model(&self) -> Wanted<'_> {
        let declared = self.manifest.parameters.iter();
        let mut wanted: Wanted<'_> = declared.map(|d| (d.path.clone(), d.shape.as_slice())).collect();
        wanted.sort();
        wanted
    }

    /// The moments of every trainable parameter.
    fn wanted_optimizer(&self) -> Wanted<'_> {
        let declared = self.manifest.parameters.iter();
        let mut wanted: Wanted<'_> = declared
            .filter(|declaration| self.slots.iter().any(|slot| slot.path == declaration.path))
            .flat_map(|d| STATE_SUFFIXES.map(|suffix| (format!("{}.{suffix}", d.path), d.shape.as_slice())))
            .collect();
        wanted.sort();
        wanted
    }

    /// Replaces parameters, optimizer state and position by captured ones.
    /// Nothing changes when it is refused.
    ///
    /// # Errors
    /// When a tensor is missing, is not declared, occurs twice, or has another
    /// dtype or shape; the error names it.
    pub fn restore(
        &mut self,
        step: u64,
        counters: Counters,
        model: &[NamedTensor],
        optimizer: &[NamedTensor],
    ) -> Result<(), EngineError> {
        self.refuse_second("optimizer", optimizer)?;
        matched("optimizer", &self.wanted_optimizer(), optimizer)?;
        self.restore_model(model)?;
        self.restore_optimizer(optimizer)?;
        self.stand_at(step, counters);
        Ok(())
    }

    /// Replaces the parameters. Nothing changes when it is refused.
    ///
    /// # Errors
    /// As [`Self::restore`].
    pub fn restore_model(&mut self, tensors: &[NamedTensor]) -> Result<(), EngineError> {
        self.refuse_second("model", tensors)?;
        for (name, values) in matched("model", &self.wanted_model(), tensors)? {
            let data = TensorData::new(values, [self.parameters[&name].dims()[0]]);
            let tensor = Tensor::from_data(data, self.device.handle());
            self.parameters.insert(name, tensor);
        }
        Ok(())
    }

    /// Replaces the moments. Nothing changes when it is refused.
    ///
    /// # Errors
    /// As [`Self::restore`].
    pub fn restore_optimizer(&mut self, tensors: &[NamedTensor]) -> Result<(), EngineError> {
        self.refuse_second("optimizer", tensors)?;
        let states = matched("optimizer", &self.wanted_optimizer(), tensors)?;
        let mut states = states.into_iter().collect::<std::collections::BTreeMap<_, _>>();
        for slot in &mut self.slots {
            let [exp_avg, exp_avg_sq] = STATE_SUFFIXES
                .map(|suffix| states.remove(&format!("{}.{suffix}", slot.path)).unwrap_or_default());
            slot.moments.exp_avg = exp_avg;
            slot.moments.exp_avg_sq = exp_avg_sq;
        }
        Ok(())
    }

    /// Takes a position: completed updates, and what they consumed.
    pub fn stand_at(&mut self, step: u64, counters: Counters) {
        self.step = step;
        self.counters = counters;
        self.consumed = counters;
    }

    /// What the loss scaler has come to; `None` without one.
    #[must_use]
    pub fn loss_scale(&self) -> Option<&ScaleState> {
        self.scaler.as_ref().map(LossScale::state)
    }

    /// Lets the loss scaler go on from a state of a step. Nothing changes when
    /// it is refused.
    ///
    /// # Errors
    /// When there is none, or it could not have come to that state.
    pub fn restore_loss_scale(&mut self, step: u64, state: ScaleState) -> Result<(), EngineError> {
        let refuse = |reason| EngineError::State { class: "loss_scaler", reason };
        let scaler = self.scaler.as_mut();
        let scaler = scaler.ok_or_else(|| refuse("the contract scales no loss".to_owned()))?;
        scaler.restore(step, state).map_err(refuse)
    }
}

/// Values of exactly the wanted tensors, which are in name order.
pub(super) fn matched(
    class: &'static str,
    wanted: &[(String, &[u64])],
    found: &[NamedTensor],
) -> Result<Vec<(String, Vec<f32>)>, EngineError> {
    let refuse = |reason: String| EngineError::State { class, reason };
    for tensor in found {
        if !wanted.iter().any(|(name, _)| *name == tensor.name) {
            return Err(refuse(format!("tensor {:?} is not declared", tensor.name)));
        }
    }
    let mut values = Vec::with_capacity(wanted.len());
    for (name, shape) in wanted {
        let mut matches = found.iter().filter(|tensor| tensor.name == *name);
        let tensor = matches.next().ok_or_else(|| refuse(format!("tensor {name:?} is missing")))?;
        if matches.next().is_some() {
            return Err(refuse(format!("tensor {name:?} occurs twice")));
        }
        if tensor.dtype != PARAMETER_DTYPE || tensor.shape != *shape {
            return Err(refuse(format!(
                "tensor {name:?} is {} {:?}, declared is {PARAMETER_DTYPE} {shape:?}",
                tensor.dtype, tensor.shape
            )));
        }
        let expected = shape.iter().product::<u64>() * F32_BYTES as u64;
        if tensor.bytes.len() as u64 != expected {
            return Err(refuse(format!("tensor {name:?} has {} bytes of {expected}", tensor.bytes.len())));
        }
        values.push((name.clone(), to_values(&tensor.bytes)));
    }
    Ok(values)
}
