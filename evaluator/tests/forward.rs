//! The forward pass against an independent, naive one, and against damage.

mod common;

use std::collections::BTreeMap;

use common::{Shape, config_json, model_bytes, tensors};
use evaluator::forward::{Decoder, ModelError, Scratch, parse_index, score};
use proptest::prelude::*;

type Tensors = BTreeMap<String, (Vec<usize>, Vec<f32>)>;

/// A decoder in the plainest form: every position from scratch, every sum a
/// loop, binary64 throughout. Returns the logits after the last token.
struct Naive<'a> {
    shape: &'a Shape,
    tensors: &'a Tensors,
}

impl Naive<'_> {
    fn linear(&self, name: &str, input: &[f64]) -> Vec<f64> {
        let (shape, values) = &self.tensors[name];
        assert_eq!(shape[1], input.len(), "{name}");
        let mut out = Vec::new();
        for n in 0..shape[0] {
            let mut sum = 0.0;
            for (k, value) in input.iter().enumerate() {
                sum += f64::from(values[n * shape[1] + k]) * value;
            }
            out.push(sum);
        }
        out
    }

    fn norm(&self, name: &str, input: &[f64]) -> Vec<f64> {
        let weight = &self.tensors[name].1;
        let mean = input.iter().map(|x| x.powi(2)).sum::<f64>() / input.len() as f64;
        input.iter().zip(weight).map(|(x, w)| f64::from(*w) * x / (mean + self.shape.eps).sqrt()).collect()
    }

    /// The textbook rotation of complex pairs (i, i + d/2).
    fn rotated(&self, head: &[f64], position: usize) -> Vec<f64> {
        let half = head.len() / 2;
        let mut out = vec![0.0; head.len()];
        for i in 0..half {
            let angle = position as f64 / self.shape.theta.powf(2.0 * i as f64 / head.len() as f64);
            out[i] = head[i] * angle.cos() - head[i + half] * angle.sin();
            out[i + half] = head[i] * angle.sin() + head[i + half] * angle.cos();
        }
        out
    }

    /// Hidden state of position `t` entering block `layer`.
    fn hidden(&self, tokens: &[u8], layer: usize, t: usize) -> Vec<f64> {
        if layer == 0 {
            let width = self.shape.hidden;
            let first = usize::from(tokens[t]) * width;
            let row = &self.tensors["model.embed_tokens.weight"].1[first..first + width];
            return row.iter().map(|value| f64::from(*value)).collect();
        }
        let name = |part: &str| format!("model.layers.{}.{part}.weight", layer - 1);
        let states: Vec<Vec<f64>> = (0..=t).map(|s| self.hidden(tokens, layer - 1, s)).collect();
        let normed: Vec<Vec<f64>> = states.iter().map(|x| self.norm(&name("input_layernorm"), x)).collect();
        let query = self.linear(&name("self_attn.q_proj"), &normed[t]);
        let (dim, group) = (self.shape.head_dim, self.shape.heads / self.shape.kv_heads);
        let mut mixed = Vec::new();
        for head in 0..self.shape.heads {
            let columns = head / group * dim..(head / group + 1) * dim;
            let q = self.rotated(&query[head * dim..(head + 1) * dim], t);
            let mut weights = Vec::new();
            for (s, x) in normed.iter().enumerate() {
                let k = self.rotated(&self.linear(&name("self_attn.k_proj"), x)[columns.clone()], s);
                let dot: f64 = q.iter().zip(&k).map(|(a, b)| a * b).sum();
                weights.push((dot / (dim as f64).sqrt()).exp());
            }
            let total: f64 = weights.iter().sum();
            let mut out = vec![0.0; dim];
            for (weight, x) in weights.iter().zip(&normed) {
                let v = self.linear(&name("self_attn.v_proj"), x);
                out.iter_mut().zip(&v[columns.clone()]).for_each(|(out, v)| *out += weight / total * v);
            }
            mixed.extend(out);
        }
        let attended = self.linear(&name("self_attn.o_proj"), &mixed);
        let x: Vec<f64> = states[t].iter().zip(&attended).map(|(a, b)| a + b).collect();
        let normed = self.norm(&name("post_attention_layernorm"), &x);
        let (gate, up) =
            (self.linear(&name("mlp.gate_proj"), &normed), self.linear(&name("mlp.up_proj"), &normed));
        let product: Vec<f64> = gate.iter().zip(&up).map(|(g, u)| g / (1.0 + (-g).exp()) * u).collect();
        let branch = self.linear(&name("mlp.down_proj"), &product);
        x.iter().zip(&branch).map(|(a, b)| a + b).collect()
    }

    fn nats(&self, window: &[u8]) -> f64 {
        let head = if self.shape.tied { "model.embed_tokens.weight" } else { "lm_head.weight" };
        let mut total = 0.0;
        for t in 0..window.len() - 1 {
            let state = self.hidden(&window[..=t], self.shape.layers, t);
            let logits = self.linear(head, &self.norm("model.norm.weight", &state));
            let sum: f64 = logits.iter().map(|logit| logit.exp()).sum();
            total += sum.ln() - logits[usize::from(window[t + 1])];
        }
        total
    }
}

fn check_against_naive(shape: &Shape) {
    let tensors = tensors(shape, 7);
    let decoder = Decoder::from_bytes(&config_json(shape), &model_bytes(&tensors)).expect("a model");
    let mut scratch = Scratch::default();
    for window in [&b"ab"[..], b"hello, world", &[0, 255, 128, 7, 7, 7, 9], b"abc"] {
        let expected = Naive { shape, tensors: &tensors }.nats(window);
        let found = decoder.nats(window, &mut scratch);
        let per_token = (found - expected).abs() / (window.len() - 1) as f64;
        // Operands are rounded to binary32 (6e-8 relative); more is a mistake.
        assert!(per_token < 2e-6, "{shape:?} on {window:?}: {found} for {expected}");
        let uniform = 256f64.ln() * (window.len() - 1) as f64;
        assert!((expected - uniform).abs() > 1e-3, "a model that says nothing tests nothing");
    }
}

#[test]
fn it_agrees_with_a_naive_one_for_every_shape_of_head() {
    check_against_naive(&Shape { layers: 1, ..Shape::TINY });
    check_against_naive(&Shape::TINY);
    check_against_naive(&Shape { kv_heads: 4, ..Shape::TINY });
    check_against_naive(&Shape { kv_heads: 1, tied: false, ..Shape::TINY });
    check_against_naive(&Shape { head_dim: 6, intermediate: 13, eps: 0.1, theta: 50.0, ..Shape::TINY });
}

#[test]
fn any_number_of_threads_gives_the_same_bits() {
    let shape = Shape::TINY;
    let decoder =
        Decoder::from_bytes(&config_json(&shape), &model_bytes(&tensors(&shape, 3))).expect("a model");
    let text: Vec<u8> = (0..700u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let windows: Vec<&[u8]> = text.chunks(23).collect();
    let one = score(&decoder, &windows, 1, &|_| {});
    for num_threads in [2, 3, 8, 64] {
        let last = std::sync::atomic::AtomicU64::new(0);
        let many = score(&decoder, &windows, num_threads, &|done| {
            last.fetch_max(done, std::sync::atomic::Ordering::Relaxed);
        });
        assert_eq!(many.total_nats.to_bits(), one.total_nats.to_bits(), "{num_threads} threads");
        assert_eq!(last.into_inner(), one.num_tokens);
    }
    assert_eq!(one.num_tokens, text.len() as u64 - windows.len() as u64);
    let alone: f64 = windows.iter().map(|window| decoder.nats(window, &mut Scratch::default())).sum();
    assert_eq!(alone.to_bits(), one.total_nats.to_bits());
}

#[test]
fn a_model_of_zeros_says_eight_bits_a_byte() {
    let shape = Shape::TINY;
    let mut tensors = tensors(&shape, 1);
    tensors.values_mut().for_each(|(_, values)| values.fill(0.0));
    let decoder = Decoder::from_bytes(&config_json(&shape), &model_bytes(&tensors)).expect("a model");
    let score = score(&decoder, &[b"sixteen letters."], 1, &|_| {});
    assert!((score.bits_per_byte() - 8.0).abs() < 1e-12, "{score:?}");
}

#[test]
fn wrong_tensors_are_named() {
    let shape = Shape::TINY;
    let config = config_json(&shape);
    let honest = tensors(&shape, 1);
    let error = |change: &dyn Fn(&mut Tensors)| {
        let mut tensors = honest.clone();
        change(&mut tensors);
        Decoder::from_bytes(&config, &model_bytes(&tensors)).expect_err("it was changed").to_string()
    };
    let message = error(&|tensors| drop(tensors.remove("model.layers.1.mlp.up_proj.weight")));
    assert!(message.contains("no tensor model.layers.1.mlp.up_proj.weight"), "{message}");
    let message = error(&|tensors| drop(tensors.insert("model.extra".to_owned(), (vec![1], vec![0.0]))));
    assert!(message.contains("model.extra"), "{message}");
    let message = error(&|tensors| tensors.get_mut("model.norm.weight").expect("it is there").0 = vec![2, 4]);
    assert!(message.contains("model.norm.weight is F32 [2, 4]"), "{message}");
}

#[test]
fn configurations_of_other_functions_are_refused() {
    let shape = Shape::TINY;
    let model = model_bytes(&tensors(&shape, 1));
    let honest: serde_json::Value = serde_json::from_slice(&config_json(&shape)).expect("JSON");
    for (field, value) in [
        ("model_type", serde_json::json!("mistral")),
        ("hidden_act", serde_json::json!("gelu")),
        ("attention_bias", serde_json::json!(true)),
        ("rope_scaling", serde_json::json!({"rope_type": "yarn"})),
        ("rope_parameters", serde_json::json!({"rope_type": "linear", "rope_theta": 10000.0})),
        ("rope_parameters", serde_json::json!({"rope_type": "default", "rope_theta": 1.0})),
        ("head_dim", serde_json::json!(3)),
        ("num_key_value_heads", serde_json::json!(3)),
        ("num_attention_heads", serde_json::json!(0)),
        ("hidden_size", serde_json::json!(1u64 << 40)),
        ("vocab_size", serde_json::json!(255)),
        ("rms_norm_eps", serde_json::json!(-1.0)),
        ("rope_theta", serde_json::json!("10000")),
        ("tie_word_embeddings", serde_json::Value::Null),
    ] {
        let mut config = honest.clone();
        config[field] = value.clone();
        let bytes = serde_json::to_vec(&config).expect("JSON");
        let error = Decoder::from_bytes(&bytes, &model).expect_err("another function");
        assert!(matches!(error, ModelError::Config(_)), "{field} = {value}: {error}");
        assert!(error.to_string().contains(field), "{error}");
    }
    assert!(Decoder::from_bytes(b"[]", &model).is_err());
    assert!(Decoder::from_bytes(b"{", &model).is_err());
}

/// A model in two files: the same numbers, and nothing else than its index says.
#[test]
fn a_model_in_two_files_is_the_model_and_its_index_is_held_to() {
    const FILES: [&str; 2] = ["model-frozen.safetensors", "model-trainable.safetensors"];
    let shape = Shape::TINY;
    let all = tensors(&shape, 3);
    let (still, moved): (Tensors, Tensors) =
        all.clone().into_iter().partition(|(name, _)| name.contains("embed") || name.contains("mlp"));
    assert!(!still.is_empty() && !moved.is_empty());
    let digest = |bytes: &[u8]| format!("blake3:{}", blake3::hash(bytes).to_hex());
    let bytes = [model_bytes(&still), model_bytes(&moved)];
    let size: usize = all.values().map(|(_, values)| 4 * values.len()).sum();
    let mut index = serde_json::json!({
        "metadata": {
            "shards": {FILES[0]: digest(&bytes[0]), FILES[1]: digest(&bytes[1])},
            "total_size": size,
        },
        "weight_map": {},
    });
    for name in all.keys() {
        let file = FILES[usize::from(!still.contains_key(name))];
        index["weight_map"][name] = file.into();
    }
    let files: Vec<(&str, &[u8])> =
        FILES.iter().zip(&bytes).map(|(name, bytes)| (*name, &bytes[..])).collect();
    let parse = |index: &serde_json::Value| parse_index(index.to_string().as_bytes());
    let read = |index: &serde_json::Value, files: &[(&str, &[u8])]| {
        Decoder::from_files(&config_json(&shape), Some(&parse(index)?), files)
    };
    let whole = Decoder::from_bytes(&config_json(&shape), &model_bytes(&all)).expect("a model");
    let split = read(&index, &files).expect("a model");
    let nats = |decoder: &Decoder| decoder.nats(b"the same text", &mut Scratch::default()).to_bits();
    assert_eq!(nats(&whole), nats(&split));

    let refused = |files: &[(&str, &[u8])], pointer: &str, value: serde_json::Value, reason: &str| {
        let mut index = index.clone();
        *index.pointer_mut(pointer).expect("a member") = value;
        let said = read(&index, files).expect_err(reason).to_string();
        assert!(said.contains(reason), "{reason}: {said}");
    };
    let embedding = "/weight_map/model.embed_tokens.weight";
    refused(&files, embedding, FILES[1].into(), "is not in model-trainable.safetensors");
    refused(&files, embedding, "../model.safetensors".into(), "of which it has no digest");
    refused(&files, "/metadata/total_size", 1.into(), "it says 1 bytes");
    refused(&files, "/metadata/shards", serde_json::json!({}), "0 files");
    refused(&files, "/weight_map", serde_json::json!({}), "no tensor is in");
    let twice = [files[0], files[1], ("model-other.safetensors", files[1].1)];
    refused(&twice, "/metadata/total_size", size.into(), "and in model-other.safetensors");
    refused(&files[..1], "/metadata/total_size", size.into(), "is not in model-trainable.safetensors");
    for name in ["../model-frozen.safetensors", "model.safetensors", "config.json"] {
        let mut other = index.clone();
        other["metadata"]["shards"][name] = digest(b"").into();
        other["weight_map"]["x"] = name.into();
        let said = parse(&other).expect_err(name).to_string();
        assert!(said.contains("is no name of a weights file"), "{said}");
    }
    let mut less = index.clone();
    less["weight_map"].as_object_mut().expect("an object").remove("model.norm.weight");
    let said = read(&less, &files).expect_err("a tensor too many").to_string();
    assert!(said.contains("it has no model.norm.weight"), "{said}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn damaged_weights_never_panic(at in any::<prop::sample::Index>(), byte in any::<u8>(), cut in any::<prop::sample::Index>(), do_cut in any::<bool>()) {
        let shape = Shape { layers: 1, ..Shape::TINY };
        let mut bytes = model_bytes(&tensors(&shape, 1));
        // The header is where structure lies: half of the damage goes there.
        let header = 8 + 1200;
        let place = if byte.is_multiple_of(2) { at.index(header) } else { at.index(bytes.len()) };
        bytes[place] = byte;
        if do_cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        if let Ok(decoder) = Decoder::from_bytes(&config_json(&shape), &bytes) {
            let nats = decoder.nats(b"text", &mut Scratch::default());
            prop_assert!(nats.is_nan() || nats >= 0.0);
        }
    }

    #[test]
    fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200), length in 0u64..200) {
        let mut bytes = bytes;
        if bytes.len() >= 8 {
            bytes[..8].copy_from_slice(&length.to_le_bytes());
        }
        let config = config_json(&Shape::TINY);
        prop_assert!(Decoder::from_bytes(&config, &bytes).is_err());
        prop_assert!(Decoder::from_bytes(&bytes, &bytes).is_err());
    }
}
