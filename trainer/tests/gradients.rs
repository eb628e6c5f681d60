//! The gradient of the loss against central differences, parameter by
//! parameter, with grouped keys, a tied and an untied head, and dropout.

use burn::tensor::{Int, Tensor, TensorData};
use schemas::contract::{Architecture, Device, LlamaDecoder};
use trainer::model::decoder::{Decoder, Masks, Parameters};
use trainer::model::manifest::{self, HEAD};
use trainer::randomness::dropout::Dropout;
use trainer::randomness::init;

mod common;

/// Half of the difference between the two evaluations. Losses are binary32, so
/// a smaller one drowns in rounding and a larger one in curvature.
const STEP: f32 = 4e-3;
const POSITIONS: [u64; 2] = [5, 9];

struct Problem {
    decoder: Decoder,
    shape: LlamaDecoder,
    device: burn::tensor::Device,
    values: Vec<(String, Vec<f32>)>,
    dropout: Option<Dropout>,
}

impl Problem {
    fn new(shape: &LlamaDecoder) -> Self {
        assert!(trainer::device::open(Device::Cpu).is_ok());
        let device = burn::tensor::Device::flex();
        let manifest = manifest::stored(
            &manifest::parameters(&Architecture::LlamaDecoder(shape.clone()), &common::card())
                .expect("the card covers the shape"),
        );
        let values = manifest
            .parameters
            .iter()
            .map(|parameter| {
                let count = parameter.shape.iter().product::<u64>();
                let count = usize::try_from(count).expect("a tiny shape");
                let values = init::values(&parameter.initializer, &parameter.path, 3, count);
                (parameter.path.clone(), values)
            })
            .collect();
        Self {
            decoder: Decoder::new(shape, &device),
            shape: shape.clone(),
            device,
            values,
            dropout: Dropout::new(4, shape.dropout, shape.hidden_size as usize),
        }
    }

    fn parameters(&self) -> Parameters {
        let tensor = |values: &Vec<f32>| {
            Tensor::<1>::from_data(TensorData::new(values.clone(), [values.len()]), &self.device)
        };
        self.values.iter().map(|(path, values)| (path.clone(), tensor(values))).collect()
    }

    fn ids(&self, shift: usize) -> Tensor<2, Int> {
        let context = self.shape.context_length as usize;
        let ids = (0..2 * context).map(|i| i32::try_from((i + shift) * 37 % 256).expect("a byte"));
        Tensor::from_data(TensorData::new(ids.collect::<Vec<i32>>(), [2, context]), &self.device)
    }

    fn losses(&self, parameters: &Parameters) -> Tensor<1> {
        let drawn = std::cell::Cell::new(0);
        let drawn = &drawn;
        let masks = self.dropout.as_ref().map(|dropout| Masks { drawn, dropout, positions: &POSITIONS });
        self.decoder.token_losses(parameters, self.ids(0), self.ids(1), masks)
    }

    fn total(&self) -> f64 {
        let losses = self.losses(&self.parameters()).try_into_vec_as::<f32>().expect("readable");
        losses.iter().map(|loss| f64::from(*loss)).sum()
    }
}

fn check(shape: &LlamaDecoder) {
    let mut problem = Problem::new(shape);
    let leaves: Parameters = problem
        .parameters()
        .into_iter()
        .map(|(path, tensor)| (path, tensor.autodiff().require_grad()))
        .collect();
    let mut tape = problem.losses(&leaves).sum().backward();
    for index in 0..problem.values.len() {
        let (path, values) = problem.values[index].clone();
        let gradient = leaves[&path].grad_remove(&mut tape).expect("the loss reaches every parameter");
        let gradient = gradient.try_into_vec_as::<f32>().expect("readable");
        // The largest entry and two others.
        let largest = (0..gradient.len())
            .max_by(|a, b| gradient[*a].abs().total_cmp(&gradient[*b].abs()))
            .expect("parameters are not empty");
        for element in [largest, gradient.len() / 3, gradient.len() - 1] {
            let mut at = |change: f32| {
                problem.values[index].1[element] = values[element] + change;
                problem.total()
            };
            let (above, below) = (at(STEP), at(-STEP));
            problem.values[index].1[element] = values[element];
            let numeric = (above - below) / f64::from(2.0 * STEP);
            let analytic = f64::from(gradient[element]);
            let tolerance = 2e-2 * analytic.abs() + 2e-2;
            assert!(
                (numeric - analytic).abs() < tolerance,
                "{path}[{element}]: backward gives {analytic}, differences give {numeric}"
            );
        }
        assert!(gradient[largest].abs() > 1e-3, "{path}: the test must see a gradient");
    }
    assert_eq!(problem.values.iter().any(|(path, _)| path == HEAD), !shape.tied_embeddings);
}

#[test]
fn tied_head_grouped_keys_and_dropout() {
    check(&LlamaDecoder { dropout: 0.25, initializer_std: 0.3, ..common::decoder() });
}

#[test]
fn untied_head_one_key_head_for_each_query_head() {
    check(&LlamaDecoder {
        dropout: 0.0,
        initializer_std: 0.3,
        num_kv_heads: 4,
        tied_embeddings: false,
        ..common::decoder()
    });
}
