//! `config.json` of a candidate, byte for byte (`docs/FORMAT.md`, "Configuration"):
//! what Hugging Face tools read to build the model around the weights. A false
//! line in it would make the same weights another function.

use schemas::contract::LlamaDecoder;
use schemas::number::Float;
use serde::Serialize;

#[derive(Serialize)]
struct LlamaConfiguration {
    architectures: [&'static str; 1],
    attention_bias: bool,
    attention_dropout: Float,
    bos_token_id: Option<u32>,
    eos_token_id: Option<u32>,
    head_dim: u32,
    hidden_act: &'static str,
    hidden_size: u32,
    initializer_range: Float,
    intermediate_size: u32,
    max_position_embeddings: u32,
    mlp_bias: bool,
    model_type: &'static str,
    num_attention_heads: u32,
    num_hidden_layers: u32,
    num_key_value_heads: u32,
    pad_token_id: Option<u32>,
    rms_norm_eps: Float,
    rope_theta: Float,
    tie_word_embeddings: bool,
    torch_dtype: &'static str,
    vocab_size: u32,
}

/// The bytes of `config.json`.
///
/// # Errors
/// Never for these types; the signature is serde_json's.
pub fn config_json(shape: &LlamaDecoder) -> Result<Vec<u8>, serde_json::Error> {
    serde_json::to_vec(&LlamaConfiguration {
        architectures: ["LlamaForCausalLM"],
        attention_bias: false,
        attention_dropout: Float(0.0),
        bos_token_id: None,
        eos_token_id: None,
        head_dim: shape.head_dim,
        hidden_act: "silu",
        hidden_size: shape.hidden_size,
        initializer_range: Float(shape.initializer_std),
        intermediate_size: shape.intermediate_size,
        max_position_embeddings: shape.context_length,
        mlp_bias: false,
        model_type: "llama",
        num_attention_heads: shape.num_heads,
        num_hidden_layers: shape.num_layers,
        num_key_value_heads: shape.num_kv_heads,
        pad_token_id: None,
        rms_norm_eps: Float(shape.rms_norm_eps),
        rope_theta: Float(shape.rope_theta),
        tie_word_embeddings: shape.tied_embeddings,
        torch_dtype: "float32",
        vocab_size: shape.vocab_size,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::llama;

    #[test]
    fn the_bytes_are_those_of_the_format_page() {
        let shape = LlamaDecoder {
            context_length: 64,
            dropout: 0.1,
            head_dim: 16,
            hidden_size: 32,
            initializer_std: 0.02,
            intermediate_size: 96,
            num_heads: 2,
            num_kv_heads: 1,
            num_layers: 2,
            rms_norm_eps: 1e-6,
            rope_theta: 10_000.0,
            tied_embeddings: true,
            vocab_size: 256,
        };
        let expected = concat!(
            r#"{"architectures":["LlamaForCausalLM"],"attention_bias":false,"attention_dropout":0.0,"#,
            r#""bos_token_id":null,"eos_token_id":null,"head_dim":16,"hidden_act":"silu","hidden_size":32,"#,
            r#""initializer_range":0.02,"intermediate_size":96,"max_position_embeddings":64,"mlp_bias":false,"#,
            r#""model_type":"llama","num_attention_heads":2,"num_hidden_layers":2,"num_key_value_heads":1,"#,
            r#""pad_token_id":null,"rms_norm_eps":1e-6,"rope_theta":10000.0,"tie_word_embeddings":true,"#,
            r#""torch_dtype":"float32","vocab_size":256}"#
        );
        let bytes = config_json(&shape).expect("serialises");
        assert_eq!(String::from_utf8(bytes.clone()), Ok(expected.to_owned()));
        crate::canonical::check_entry_json(&bytes).expect("canonical");
        assert_ne!(config_json(&llama()).expect("serialises"), bytes);
    }
}
