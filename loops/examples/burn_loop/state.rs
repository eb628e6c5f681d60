//! What of burn's state goes into a checkpoint and comes back out of one, and the
//! gradients of a whole module.
//!
//! Two things differ between burn and the files. burn keeps the weight of a
//! linear layer as `[in, out]`, checkpoints as `[out, in]`; and it keys moments by
//! parameter identifiers that every process draws anew, so that they are taken out
//! of the optimizer's record, and put back into one, under the path's name.

use std::fmt::Display;

use anyhow::{Context, Result, anyhow, ensure};
use burn::lr_scheduler::module_lr_scheduler::{ModuleLearningRate, ModuleLrScheduler};
use burn::module::{Module, ModuleMapper, ModuleVisitor, Param, ParamGroup, ParamId};
use burn::optim::{AdamWConfig, GradientsParams, ModuleOptimizer};
use burn::tensor::{Tensor, TensorData};
use burn_pack::{Bytes, DType, Reader, Scalar, Writer};
use loops::{NamedTensor, Resumed};
use schemas::policy_card::{PolicyCard, UpdateRule};

use crate::model::Llama;

/// Suffixes of a checkpoint's moments, and burn's names of them.
const MOMENTS: [(&str, &str); 2] = [("exp_avg", "moment_1"), ("exp_avg_sq", "moment_2")];

/// A parameter as it stands.
#[derive(Debug)]
pub(crate) struct Parameter {
    pub(crate) id: ParamId,
    /// In checkpoints: `model.norm.weight`.
    pub(crate) path: String,
    /// Row-major, as burn keeps them.
    pub(crate) values: Vec<f32>,
    /// Extents, as burn keeps them.
    shape: Vec<usize>,
    /// Whether checkpoints have rows and columns exchanged.
    is_turned: bool,
}

/// A parameter group of the policy card.
#[derive(Debug)]
pub(crate) struct Group {
    pub(crate) ids: Vec<ParamId>,
    pub(crate) name: String,
    pub(crate) weight_decay: f64,
}

/// What burn says of a failure; its error types differ.
pub(crate) fn read<T, E: Display>(what: &str, result: Result<T, E>) -> Result<T> {
    result.map_err(|error| anyhow!("{what}: {error}"))
}

/// Every parameter, in the order in which burn visits them.
pub(crate) fn parameters(model: &Llama) -> Result<Vec<Parameter>> {
    let mut visitor = Collector { found: Ok(Vec::new()), is_linear: false, place: Vec::new() };
    model.visit(&mut visitor);
    visitor.found
}

struct Collector {
    found: Result<Vec<Parameter>>,
    is_linear: bool,
    place: Vec<String>,
}

impl ModuleVisitor for Collector {
    fn enter_module(&mut self, name: &str, container_type: &str) {
        self.place.push(name.to_owned());
        // Of the struct that has the field, so that it is known at the parameter.
        self.is_linear = container_type == "Struct:Linear";
    }

    fn exit_module(&mut self, _: &str, _: &str) {
        self.place.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let place = self.place.join(".");
        let path = place.strip_suffix(".gamma").map(|norm| format!("{norm}.weight"));
        let tensor = param.val();
        let shape = tensor.dims().to_vec();
        let values = read("reading a parameter", tensor.try_into_vec_as::<f32>());
        let is_turned = self.is_linear && D == 2;
        let parameter = values.map(|values| Parameter {
            id: param.id,
            path: path.unwrap_or(place),
            values,
            shape,
            is_turned,
        });
        if let Ok(found) = &mut self.found {
            match parameter {
                Ok(parameter) => found.push(parameter),
                Err(error) => self.found = Err(error),
            }
        }
    }
}

impl Parameter {
    /// Values that lie as this parameter's, as a checkpoint's tensor.
    fn saved(&self, name: String, values: &[f32]) -> NamedTensor {
        let mut shape: Vec<u64> = self.shape.iter().map(|extent| *extent as u64).collect();
        let turned = self.rows().map(|rows| turned(values, rows));
        if turned.is_some() {
            shape.reverse();
        }
        let values = turned.as_deref().unwrap_or(values);
        let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        NamedTensor { bytes, dtype: "F32".to_owned(), name, shape }
    }

    /// The values of a checkpoint's tensor, to lie as this parameter's.
    fn restored(&self, saved: &[NamedTensor], name: &str) -> Result<Vec<f32>> {
        let found = saved.iter().find(|tensor| tensor.name == name);
        let found = found.with_context(|| format!("the checkpoint has no {name}"))?;
        let values = numbers(&found.bytes);
        ensure!(values.len() == self.values.len(), "{name} of the checkpoint has another size");
        match self.shape.last() {
            // The rows of the file are the columns here.
            Some(columns) if self.is_turned => Ok(turned(&values, *columns)),
            _ => Ok(values),
        }
    }

    /// Rows, where they are exchanged with columns.
    fn rows(&self) -> Option<usize> {
        self.shape.first().copied().filter(|_| self.is_turned)
    }
}

/// A matrix of so many rows with rows and columns exchanged.
fn turned(values: &[f32], rows: usize) -> Vec<f32> {
    let columns = values.len() / rows.max(1);
    (0..columns).flat_map(|column| values.iter().skip(column).step_by(columns).copied()).collect()
}

fn numbers(bytes: &[u8]) -> Vec<f32> {
    let (words, _) = bytes.as_chunks::<4>();
    words.iter().map(|word| f32::from_le_bytes(*word)).collect()
}

/// The model's half of a checkpoint.
pub(crate) fn model_tensors(parameters: &[Parameter]) -> Vec<NamedTensor> {
    parameters.iter().map(|parameter| parameter.saved(parameter.path.clone(), &parameter.values)).collect()
}

/// The model with the parameters of a checkpoint.
pub(crate) fn restore_model(model: Llama, resumed: &Resumed) -> Result<Llama> {
    let saved = resumed.model()?;
    let mut values = Vec::new();
    for parameter in parameters(&model)? {
        values.push((parameter.id, parameter.restored(&saved, &parameter.path)?));
    }
    Ok(model.map(&mut Loader { values }))
}

struct Loader {
    values: Vec<(ParamId, Vec<f32>)>,
}

impl ModuleMapper for Loader {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let Some(place) = self.values.iter().position(|(id, _)| *id == param.id) else { return param };
        let (_, values) = self.values.swap_remove(place);
        param.map(|tensor| {
            let data = TensorData::new(values, tensor.dims());
            Tensor::<D>::from_data(data, &tensor.device()).require_grad()
        })
    }
}

/// burn's AdamW with the groups and constants of the policy card.
#[allow(clippy::cast_possible_truncation, reason = "burn's optimizers are configured in binary32")]
pub(crate) fn optimizer(card: &PolicyCard, groups: &[Group]) -> ModuleOptimizer {
    let UpdateRule::Adamw { beta1, beta2, epsilon, .. } = &card.update;
    let config = AdamWConfig::new()
        .with_beta_1(*beta1 as f32)
        .with_beta_2(*beta2 as f32)
        .with_epsilon(*epsilon as f32)
        .with_weight_decay(0.0);
    groups.iter().fold(config.init(), |optimizer, group| {
        let of_group = config.clone().with_weight_decay(group.weight_decay as f32);
        optimizer.with_group(ParamGroup::from_ids(group.ids.clone()), of_group.build(), None)
    })
}

/// One rate for each group, for burn's optimizer.
pub(crate) fn rates<'a>(groups: impl IntoIterator<Item = (&'a Group, f64)>) -> ModuleLearningRate {
    // The schedule is the contract's: each of these constants is asked once.
    let mut rates = groups.into_iter().fold(ModuleLrScheduler::new(0.0_f64), |rates, (group, rate)| {
        rates.with_group(ParamGroup::from_ids(group.ids.clone()), rate)
    });
    rates.step()
}

/// The optimizer's half of a checkpoint: both moments of each parameter. Before the
/// first update burn has none, which are zeros.
pub(crate) fn optimizer_tensors(
    optimizer: &ModuleOptimizer,
    parameters: &[Parameter],
) -> Result<Vec<NamedTensor>> {
    let record = read("writing the optimizer's record", optimizer.into_bytes())?;
    let record = read("reading the optimizer's record", Reader::from_bytes(record))?;
    let is_empty = record.tensor_names().is_empty();
    let mut tensors = Vec::new();
    for parameter in parameters {
        for (suffix, field) in MOMENTS {
            let values = if is_empty {
                vec![0.0; parameter.values.len()]
            } else {
                let name = format!("{}.momentum.{field}", parameter.id.val());
                numbers(&read("taking a moment out of the optimizer's record", record.tensor_data(&name))?)
            };
            ensure!(values.len() == parameter.values.len(), "{}.{suffix} has another size", parameter.path);
            tensors.push(parameter.saved(format!("{}.{suffix}", parameter.path), &values));
        }
    }
    Ok(tensors)
}

/// The optimizer as a checkpoint left it, for the parameters of this process. Beside
/// the moments burn counts updates, by which it corrects their bias; that number is
/// the checkpoint's step.
pub(crate) fn restore_optimizer(
    optimizer: ModuleOptimizer,
    parameters: &[Parameter],
    resumed: &Resumed,
) -> Result<ModuleOptimizer> {
    if resumed.step() == 0 {
        return Ok(optimizer);
    }
    let saved = resumed.optimizer()?;
    let mut tensors = Vec::new();
    for parameter in parameters {
        let id = parameter.id.val();
        for (suffix, field) in MOMENTS {
            let values = parameter.restored(&saved, &format!("{}.{suffix}", parameter.path))?;
            let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
            tensors.push(burn_pack::Tensor::new(
                format!("{id}.momentum.{field}"),
                DType::F32,
                parameter.shape.clone(),
                Some(id),
                Bytes::from_bytes_vec(bytes),
            ));
        }
    }
    let mut record = Writer::new(tensors);
    for parameter in parameters {
        let id = parameter.id.val();
        record = record.with_scalar(&format!("{id}.__rank"), Scalar::from(parameter.shape.len()));
        record = record.with_scalar(&format!("{id}.momentum.time"), Scalar::from(resumed.step()));
    }
    let record = read("writing the optimizer's record", record.into_bytes())?;
    read("loading the optimizer's record", optimizer.from_bytes(record))
}

/// Norm of a gradient over the whole module, in binary64.
pub(crate) fn norm(model: &Llama, gradients: &GradientsParams) -> Result<f64> {
    let mut visitor = Squares { gradients, total: Ok(0.0) };
    model.visit(&mut visitor);
    visitor.total.map(f64::sqrt)
}

struct Squares<'a> {
    gradients: &'a GradientsParams,
    total: Result<f64>,
}

impl ModuleVisitor for Squares<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let Some(gradient) = self.gradients.get::<D>(param.id) else { return };
        if let Ok(total) = &mut self.total {
            match read("reading a gradient", gradient.try_into_vec_as::<f32>()) {
                Ok(values) => *total += squares(values.into_iter().map(f64::from)),
                Err(error) => self.total = Err(error),
            }
        }
    }
}

/// Sum of squares.
pub(crate) fn squares(values: impl Iterator<Item = f64>) -> f64 {
    values.map(|value| value * value).sum()
}

/// Multiplies the gradient of the whole module.
pub(crate) fn scale(model: &Llama, gradients: &mut GradientsParams, by: f64) {
    model.visit(&mut Scale { by, gradients });
}

struct Scale<'a> {
    by: f64,
    gradients: &'a mut GradientsParams,
}

impl ModuleVisitor for Scale<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if let Some(gradient) = self.gradients.remove::<D>(param.id) {
            self.gradients.register(param.id, gradient.mul_scalar(self.by));
        }
    }
}
