//! Capturing and restoring the state classes that hold tensors.
//!
//! Restoring is strict: exactly the tensors that the manifest declares, with
//! their dtypes and shapes, or a refusal that names the tensor. Nothing is left
//! at its initial value because a file did not hold it.

use burn::tensor::{Tensor, TensorData};
use schemas::body::Counters;

use super::{Engine, EngineError};
use crate::export::NamedTensor;
use crate::model::manifest::PARAMETER_DTYPE;
use crate::optimizer::adamw::STATE_SUFFIXES;

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

fn to_bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

fn to_values(bytes: &[u8]) -> Vec<f32> {
    let (words, _) = bytes.as_chunks::<F32_BYTES>();
    words.iter().map(|word| f32::from_le_bytes(*word)).collect()
}

impl Engine {
    /// Copies every tensor of the state.
    ///
    /// # Errors
    /// When the device fails.
    pub fn capture(&self) -> Result<CapturedTensors, EngineError> {
        let tensor = |name: String, shape: &[u64], values: &[f32]| NamedTensor {
            name,
            dtype: PARAMETER_DTYPE.to_owned(),
            shape: shape.to_vec(),
            bytes: to_bytes(values),
        };
        let mut model = Vec::new();
        let mut optimizer = Vec::new();
        let mut slots = self.slots.iter().peekable();
        for declaration in &self.manifest.parameters {
            let path = &declaration.path;
            if let Some(parameter) = self.parameters.get(path) {
                let data = parameter
                    .try_to_data()
                    .map_err(|error| EngineError::device("reading parameters", &error))?;
                let values = data
                    .as_slice::<f32>()
                    .map_err(|error| EngineError::device("reading parameters", &error))?;
                model.push(tensor(path.clone(), &declaration.shape, values));
            }
            if let Some(slot) = slots.next_if(|slot| slot.path == *path) {
                let moments = [&slot.moments.exp_avg, &slot.moments.exp_avg_sq];
                for (suffix, values) in STATE_SUFFIXES.iter().zip(moments) {
                    optimizer.push(tensor(format!("{path}.{suffix}"), &declaration.shape, values));
                }
            }
        }
        model.sort_by(|a, b| a.name.cmp(&b.name));
        optimizer.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(CapturedTensors { model, optimizer })
    }

    /// Replaces the whole state by a captured one. Nothing changes when it is
    /// refused.
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
        let mut wanted: Vec<(String, &[u64])> =
            self.manifest.parameters.iter().map(|d| (d.path.clone(), d.shape.as_slice())).collect();
        wanted.sort();
        let parameters = matched("model", &wanted, model)?;
        let mut wanted: Vec<(String, &[u64])> = self
            .manifest
            .parameters
            .iter()
            .filter(|declaration| self.slots.iter().any(|slot| slot.path == declaration.path))
            .flat_map(|d| STATE_SUFFIXES.map(|suffix| (format!("{}.{suffix}", d.path), d.shape.as_slice())))
            .collect();
        wanted.sort();
        let states = matched("optimizer", &wanted, optimizer)?;
        for (name, values) in parameters {
            let data = TensorData::new(values, [self.parameters[&name].dims()[0]]);
            let tensor = Tensor::from_data(data, self.device.handle());
            self.parameters.insert(name, tensor);
        }
        let mut states = states.into_iter().collect::<std::collections::BTreeMap<_, _>>();
        for slot in &mut self.slots {
            let [exp_avg, exp_avg_sq] = STATE_SUFFIXES
                .map(|suffix| states.remove(&format!("{}.{suffix}", slot.path)).unwrap_or_default());
            slot.moments.exp_avg = exp_avg;
            slot.moments.exp_avg_sq = exp_avg_sq;
        }
        self.step = step;
        self.counters = counters;
        Ok(())
    }
}

/// Values of exactly the wanted tensors, which are in name order.
fn matched(
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
