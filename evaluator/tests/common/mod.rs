//! Small models with known weights.
#![allow(dead_code, reason = "each test program uses a part")]

use std::collections::BTreeMap;

use safetensors::Dtype;
use safetensors::tensor::{TensorView, serialize};

/// Shape of a test model.
#[derive(Debug, Clone)]
pub(crate) struct Shape {
    pub(crate) context: usize,
    pub(crate) eps: f64,
    pub(crate) head_dim: usize,
    pub(crate) heads: usize,
    pub(crate) hidden: usize,
    pub(crate) intermediate: usize,
    pub(crate) kv_heads: usize,
    pub(crate) layers: usize,
    pub(crate) theta: f64,
    pub(crate) tied: bool,
}

impl Shape {
    pub(crate) const TINY: Self = Self {
        context: 32,
        eps: 1e-5,
        head_dim: 4,
        heads: 4,
        hidden: 8,
        intermediate: 12,
        kv_heads: 2,
        layers: 2,
        theta: 10_000.0,
        tied: true,
    };
}

/// A Hugging Face `config.json`.
pub(crate) fn config_json(shape: &Shape) -> Vec<u8> {
    let value = serde_json::json!({
        "architectures": ["LlamaForCausalLM"],
        "attention_bias": false,
        "head_dim": shape.head_dim,
        "hidden_act": "silu",
        "hidden_size": shape.hidden,
        "intermediate_size": shape.intermediate,
        "max_position_embeddings": shape.context,
        "mlp_bias": false,
        "model_type": "llama",
        "num_attention_heads": shape.heads,
        "num_hidden_layers": shape.layers,
        "num_key_value_heads": shape.kv_heads,
        "rms_norm_eps": shape.eps,
        "rope_theta": shape.theta,
        "tie_word_embeddings": shape.tied,
        "vocab_size": 256,
    });
    serde_json::to_vec(&value).expect("a value serialises")
}

/// Weights from a seed (splitmix64, Steele, Lea, Flood 2014), of mixed size.
pub(crate) fn tensors(shape: &Shape, seed: u64) -> BTreeMap<String, (Vec<usize>, Vec<f32>)> {
    let mut state = seed;
    let mut draw = move || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 40) as f32 / (1u32 << 24) as f32 - 0.5
    };
    let mut tensors = BTreeMap::new();
    let mut put = |name: String, extents: Vec<usize>, scale: f32| {
        let count = extents.iter().product();
        let values =
            (0..count).map(|_| draw() * scale + if extents.len() == 1 { 1.0 } else { 0.0 }).collect();
        tensors.insert(name, (extents, values));
    };
    let (hidden, query, key) = (shape.hidden, shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim);
    put("model.embed_tokens.weight".to_owned(), vec![256, hidden], 2.0);
    for layer in 0..shape.layers {
        let mut layer_put = |part: &str, extents: Vec<usize>| {
            put(format!("model.layers.{layer}.{part}.weight"), extents, 1.5);
        };
        layer_put("input_layernorm", vec![hidden]);
        layer_put("self_attn.q_proj", vec![query, hidden]);
        layer_put("self_attn.k_proj", vec![key, hidden]);
        layer_put("self_attn.v_proj", vec![key, hidden]);
        layer_put("self_attn.o_proj", vec![hidden, query]);
        layer_put("post_attention_layernorm", vec![hidden]);
        layer_put("mlp.gate_proj", vec![shape.intermediate, hidden]);
        layer_put("mlp.up_proj", vec![shape.intermediate, hidden]);
        layer_put("mlp.down_proj", vec![hidden, shape.intermediate]);
    }
    put("model.norm.weight".to_owned(), vec![hidden], 0.5);
    if !shape.tied {
        put("lm_head.weight".to_owned(), vec![256, hidden], 1.0);
    }
    tensors
}

/// A safetensors file.
pub(crate) fn model_bytes(tensors: &BTreeMap<String, (Vec<usize>, Vec<f32>)>) -> Vec<u8> {
    let data: Vec<(&String, &Vec<usize>, Vec<u8>)> = tensors
        .iter()
        .map(|(name, (shape, values))| (name, shape, values.iter().flat_map(|v| v.to_le_bytes()).collect()))
        .collect();
    let views = data.iter().map(|(name, shape, bytes)| {
        (name.as_str(), TensorView::new(Dtype::F32, (*shape).clone(), bytes).expect("bytes fit the shape"))
    });
    serialize(views, None).expect("tensors serialise")
}
