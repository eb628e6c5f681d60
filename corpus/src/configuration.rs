//! The Hugging Face `config.json` that lies beside the weights of a Llama-shaped
//! decoder (`docs/FORMAT.md`, "Configuration").

use schemas::contract::LlamaDecoder;
use serde::Serialize;

#[derive(Serialize)]
struct LlamaConfig<'a> {
    architectures: [&'a str; 1],
    attention_bias: bool,
    attention_dropout: f64,
    bos_token_id: Option<u32>,
    eos_token_id: Option<u32>,
    head_dim: u32,
    hidden_act: &'a str,
    hidden_size: u32,
    initializer_range: f64,
    intermediate_size: u32,
    max_position_embeddings: u32,
    mlp_bias: bool,
    model_type: &'a str,
    num_attention_heads: u32,
    num_hidden_layers: u32,
    num_key_value_heads: u32,
    pad_token_id: Option<u32>,
    rms_norm_eps: f64,
    rope_theta: f64,
    tie_word_embeddings: bool,
    torch_dtype: &'a str,
    vocab_size: u32,
}

/// `config.json` of a model, as `docs/FORMAT.md` ("Configuration") fixes it.
///
/// # Errors
/// Never for a decoder that the contract's schema accepts.
pub fn config_json(decoder: &LlamaDecoder) -> Result<String, serde_json::Error> {
    serde_json::to_string(&LlamaConfig {
        architectures: ["LlamaForCausalLM"],
        attention_bias: false,
        attention_dropout: 0.0,
        bos_token_id: None,
        eos_token_id: None,
        head_dim: decoder.head_dim,
        hidden_act: "silu",
        hidden_size: decoder.hidden_size,
        initializer_range: decoder.initializer_std,
        intermediate_size: decoder.intermediate_size,
        max_position_embeddings: decoder.context_length,
        mlp_bias: false,
        model_type: "llama",
        num_attention_heads: decoder.num_heads,
        num_hidden_layers: decoder.num_layers,
        num_key_value_heads: decoder.num_kv_heads,
        pad_token_id: None,
        rms_norm_eps: decoder.rms_norm_eps,
        rope_theta: decoder.rope_theta,
        tie_word_embeddings: decoder.tied_embeddings,
        torch_dtype: "float32",
        vocab_size: decoder.vocab_size,
    })
}
