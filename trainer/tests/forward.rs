//! The forward pass against a plain one in binary64, written from the
//! definition of Hugging Face's `modeling_llama` token by token, with explicit
//! loops and no tensor library.

mod common;

use std::collections::BTreeMap;

use burn::tensor::{Int, Tensor, TensorData};
use schemas::contract::{Architecture, LlamaDecoder};
use trainer::model::decoder::{Decoder, Parameters};
use trainer::model::manifest;
use trainer::randomness::init;

type Weights = BTreeMap<String, Vec<f64>>;

/// `y = W x` for a weight `[out, in]`.
fn linear(weight: &[f64], x: &[f64]) -> Vec<f64> {
    weight.chunks(x.len()).map(|row| row.iter().zip(x).map(|(w, x)| w * x).sum()).collect()
}

#[allow(clippy::cast_precision_loss, reason = "small counts")]
fn rms_norm(x: &[f64], scale: &[f64], epsilon: f64) -> Vec<f64> {
    let mean = x.iter().map(|x| x * x).sum::<f64>() / x.len() as f64;
    x.iter().zip(scale).map(|(x, scale)| scale * x / (mean + epsilon).sqrt()).collect()
}

/// `q * cos + rotate_half(q) * sin` with `rotate_half(q) = (-q2, q1)`.
#[allow(clippy::cast_precision_loss, reason = "small counts")]
fn rotate(head: &[f64], position: usize, theta: f64) -> Vec<f64> {
    let half = head.len() / 2;
    (0..head.len())
        .map(|channel| {
            let frequency = 1.0 / theta.powf((2 * (channel % half)) as f64 / head.len() as f64);
            let (sine, cosine) = (position as f64 * frequency).sin_cos();
            let turned = if channel < half { -head[channel + half] } else { head[channel - half] };
            head[channel] * cosine + turned * sine
        })
        .collect()
}

#[allow(clippy::cast_precision_loss, reason = "small counts")]
fn attend(query: &[f64], keys: &[Vec<f64>], values: &[Vec<f64>]) -> Vec<f64> {
    let scale = 1.0 / (query.len() as f64).sqrt();
    let scores: Vec<f64> =
        keys.iter().map(|key| key.iter().zip(query).map(|(k, q)| k * q).sum::<f64>() * scale).collect();
    let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let weights: Vec<f64> = scores.iter().map(|score| (score - largest).exp()).collect();
    let total: f64 = weights.iter().sum();
    (0..query.len())
        .map(|channel| weights.iter().zip(values).map(|(w, value)| w / total * value[channel]).sum())
        .collect()
}

/// Losses of one example's targets.
fn token_losses(shape: &LlamaDecoder, weights: &Weights, ids: &[usize], targets: &[usize]) -> Vec<f64> {
    let hidden = shape.hidden_size as usize;
    let head_dim = shape.head_dim as usize;
    let group = (shape.num_heads / shape.num_kv_heads) as usize;
    let embedding = &weights["model.embed_tokens.weight"];
    let mut states: Vec<Vec<f64>> =
        ids.iter().map(|id| embedding[id * hidden..(id + 1) * hidden].to_vec()).collect();
    for layer in 0..shape.num_layers {
        let weight = |part: &str| weights[&format!("model.layers.{layer}.{part}.weight")].as_slice();
        let normed: Vec<Vec<f64>> =
            states.iter().map(|x| rms_norm(x, weight("input_layernorm"), shape.rms_norm_eps)).collect();
        let heads = |part: &str, turn: bool| -> Vec<Vec<Vec<f64>>> {
            let project = |(position, x): (usize, &Vec<f64>)| {
                let flat = linear(weight(part), x);
                let turned = |head: &[f64]| match turn {
                    true => rotate(head, position, shape.rope_theta),
                    false => head.to_vec(),
                };
                flat.chunks(head_dim).map(turned).collect()
            };
            normed.iter().enumerate().map(project).collect()
        };
        let queries = heads("self_attn.q_proj", true);
        let keys = heads("self_attn.k_proj", true);
        let values = heads("self_attn.v_proj", false);
        for position in 0..states.len() {
            let mut mixed = Vec::new();
            for (head, query) in queries[position].iter().enumerate() {
                let of = |all: &[Vec<Vec<f64>>]| -> Vec<Vec<f64>> {
                    all[..=position].iter().map(|heads| heads[head / group].clone()).collect()
                };
                mixed.extend(attend(query, &of(&keys), &of(&values)));
            }
            let branch = linear(weight("self_attn.o_proj"), &mixed);
            states[position].iter_mut().zip(branch).for_each(|(x, b)| *x += b);
        }
        for x in &mut states {
            let normed = rms_norm(x, weight("post_attention_layernorm"), shape.rms_norm_eps);
            let gate = linear(weight("mlp.gate_proj"), &normed);
            let up = linear(weight("mlp.up_proj"), &normed);
            let inner: Vec<f64> = gate.iter().zip(up).map(|(g, u)| g / (1.0 + (-g).exp()) * u).collect();
            let branch = linear(weight("mlp.down_proj"), &inner);
            x.iter_mut().zip(branch).for_each(|(x, b)| *x += b);
        }
    }
    let head = if shape.tied_embeddings { embedding } else { &weights["lm_head.weight"] };
    let loss = |(x, target): (&Vec<f64>, &usize)| {
        let logits = linear(head, &rms_norm(x, &weights["model.norm.weight"], shape.rms_norm_eps));
        logits.iter().map(|logit| logit.exp()).sum::<f64>().ln() - logits[*target]
    };
    states.iter().zip(targets).map(loss).collect()
}

fn check(shape: &LlamaDecoder) {
    let device = burn::tensor::Device::flex();
    let manifest = manifest::stored(
        &manifest::parameters(&Architecture::LlamaDecoder(shape.clone()), &common::card())
            .expect("the card covers the shape"),
    );
    let mut parameters = Parameters::new();
    let mut weights = Weights::new();
    for parameter in &manifest.parameters {
        let count = usize::try_from(parameter.shape.iter().product::<u64>()).expect("a tiny shape");
        let mut values = init::values(&parameter.initializer, &parameter.path, 3, count);
        if parameter.shape.len() == 1 {
            // Scales of one would hide a scale that is not applied.
            let normal = schemas::parameters::Initializer::Normal { std: 0.5 };
            values = init::values(&normal, &parameter.path, 3, count);
        }
        weights.insert(parameter.path.clone(), values.iter().map(|value| f64::from(*value)).collect());
        let data = TensorData::new(values, [count]);
        parameters.insert(parameter.path.clone(), Tensor::from_data(data, &device));
    }
    let context = shape.context_length as usize;
    let ids: Vec<usize> = (0..2 * context + 1).map(|i| (i * i * 31 + 7 * i) % 256).collect();
    let tensor = |ids: &[usize]| -> Tensor<2, Int> {
        let ids: Vec<i32> = ids.iter().map(|id| i32::try_from(*id).expect("a byte")).collect();
        Tensor::from_data(TensorData::new(ids, [2, context]), &device)
    };
    let (inputs, targets) = (&ids[..2 * context], &ids[1..]);
    let losses =
        Decoder::new(shape, &device).token_losses(&parameters, tensor(inputs), tensor(targets), None);
    let actual = losses.try_into_vec_as::<f32>().expect("readable");
    let mut expected = token_losses(shape, &weights, &inputs[..context], &targets[..context]);
    expected.extend(token_losses(shape, &weights, &inputs[context..], &targets[context..]));
    assert_eq!(actual.len(), expected.len());
    let spread = expected.iter().copied().fold(0.0, f64::max) - expected.iter().copied().fold(99.0, f64::min);
    assert!(spread > 0.5, "the losses must tell positions apart: {spread}");
    for (position, (actual, expected)) in actual.iter().zip(&expected).enumerate() {
        let difference = (f64::from(*actual) - expected).abs();
        assert!(difference < 1e-4, "position {position}: {actual} is not {expected}");
    }
}

#[test]
fn grouped_keys_and_a_tied_head() {
    check(&LlamaDecoder { dropout: 0.0, initializer_std: 0.4, ..common::decoder() });
}

#[test]
fn heads_that_do_not_fill_the_width_and_an_untied_head() {
    check(&LlamaDecoder {
        dropout: 0.0,
        head_dim: 6,
        initializer_std: 0.4,
        num_heads: 3,
        num_kv_heads: 1,
        rope_theta: 100.0,
        tied_embeddings: false,
        ..common::decoder()
    });
}
