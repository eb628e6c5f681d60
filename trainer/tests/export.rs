//! The export against the layout of Hugging Face's Llama, and strict reading.

mod common;

use std::collections::BTreeMap;

use anyhow::Result;
use common::{Fixture, decoder};
use safetensors::SafeTensors;
use schemas::contract::LlamaDecoder;
use trainer::export::{self, FileKind, NamedTensor};

/// Names and shapes of `LlamaForCausalLM`'s state dictionary, written out from
/// its documentation for the test's shape, not derived from ours.
fn llama_layout(untied: bool) -> BTreeMap<String, Vec<usize>> {
    let mut layout = BTreeMap::from([
        ("model.embed_tokens.weight".to_owned(), vec![256, 16]),
        ("model.norm.weight".to_owned(), vec![16]),
    ]);
    for layer in ["model.layers.0", "model.layers.1"] {
        for (name, shape) in [
            ("self_attn.q_proj.weight", vec![16, 16]),
            ("self_attn.k_proj.weight", vec![8, 16]),
            ("self_attn.v_proj.weight", vec![8, 16]),
            ("self_attn.o_proj.weight", vec![16, 16]),
            ("mlp.gate_proj.weight", vec![24, 16]),
            ("mlp.up_proj.weight", vec![24, 16]),
            ("mlp.down_proj.weight", vec![16, 24]),
            ("input_layernorm.weight", vec![16]),
            ("post_attention_layernorm.weight", vec![16]),
        ] {
            layout.insert(format!("{layer}.{name}"), shape);
        }
    }
    if untied {
        layout.insert("lm_head.weight".to_owned(), vec![256, 16]);
    }
    layout
}

fn model(shape: &LlamaDecoder) -> Result<Vec<NamedTensor>> {
    let folder = tempfile::tempdir()?;
    let fixture = Fixture::write(folder.path(), shape, 2, 1)?;
    Ok(fixture.engine(folder.path())?.capture()?.model)
}

#[test]
fn names_shapes_and_dtypes_are_those_of_llama() -> Result<()> {
    for tied_embeddings in [true, false] {
        let shape = LlamaDecoder { tied_embeddings, ..decoder() };
        let tensors = model(&shape)?;
        let bytes = export::safetensors_bytes(FileKind::Model, &tensors)?;
        let (_, metadata) = SafeTensors::read_metadata(&bytes)?;
        let file = SafeTensors::deserialize(&bytes)?;
        let format = metadata.metadata().as_ref().and_then(|texts| texts.get("format").cloned());
        assert_eq!(format.as_deref(), Some("pt"));
        let found: BTreeMap<String, Vec<usize>> = file
            .iter()
            .map(|(name, view)| {
                assert_eq!(view.dtype(), safetensors::Dtype::F32);
                (name.to_owned(), view.shape().to_vec())
            })
            .collect();
        assert_eq!(found, llama_layout(!tied_embeddings));
        for tensor in &tensors {
            assert_eq!(file.tensor(&tensor.name)?.data(), tensor.bytes, "{}", tensor.name);
        }
        assert_eq!((u64::from_le_bytes(bytes[..8].try_into()?) + 8) % 8, 0);
    }
    Ok(())
}

#[test]
fn config_is_what_the_format_page_fixes() -> Result<()> {
    let text = export::config_json(&LlamaDecoder { tied_embeddings: false, ..decoder() })?;
    let expected = concat!(
        r#"{"architectures":["LlamaForCausalLM"],"attention_bias":false,"attention_dropout":0.0,"#,
        r#""bos_token_id":null,"eos_token_id":null,"head_dim":4,"hidden_act":"silu","hidden_size":16,"#,
        r#""initializer_range":0.05,"intermediate_size":24,"max_position_embeddings":16,"mlp_bias":false,"#,
        r#""model_type":"llama","num_attention_heads":4,"num_hidden_layers":2,"num_key_value_heads":2,"#,
        r#""pad_token_id":null,"rms_norm_eps":0.00001,"rope_theta":10000.0,"tie_word_embeddings":false,"#,
        r#""torch_dtype":"float32","vocab_size":256}"#
    );
    assert_eq!(text, expected);
    Ok(())
}

#[test]
fn reading_gives_back_what_was_written() -> Result<()> {
    let tensors = model(&decoder())?;
    for kind in [FileKind::Model, FileKind::State] {
        let mut bytes = Vec::new();
        let written = export::write(kind, &tensors, &mut bytes)?;
        assert_eq!(written.num_bytes, bytes.len() as u64);
        assert_eq!(written.digest, common::digest_of(&bytes));
        let (read, shard) = export::read(kind, &mut bytes.as_slice(), bytes.len() as u64)?;
        assert_eq!(read, tensors);
        assert_eq!(shard, written);
    }
    Ok(())
}

#[test]
fn other_forms_of_the_same_tensors_are_refused() -> Result<()> {
    let tensors = model(&decoder())?;
    let bytes = export::safetensors_bytes(FileKind::State, &tensors)?;
    let refused = |bytes: &[u8], kind| {
        let mut input = bytes;
        export::read(kind, &mut input, bytes.len() as u64).expect_err("refused").to_string()
    };
    assert!(refused(&bytes, FileKind::Model).contains("canonical"));
    let model_bytes = export::safetensors_bytes(FileKind::Model, &tensors)?;
    assert!(refused(&model_bytes, FileKind::State).contains("is not a tensor"));

    // The same header with eight more spaces is another spelling, which the
    // safetensors crate accepts.
    let length = u64::from_le_bytes(bytes[..8].try_into()?);
    let mut padded = (length + 8).to_le_bytes().to_vec();
    padded.extend(&bytes[8..8 + usize::try_from(length)?]);
    padded.extend([b' '; 8]);
    padded.extend(&bytes[8 + usize::try_from(length)?..]);
    assert!(SafeTensors::deserialize(&padded).is_ok());
    assert!(refused(&padded, FileKind::State).contains("canonical"));

    let mut longer = bytes.clone();
    longer.push(0);
    assert!(refused(&longer, FileKind::State).contains("in a file of"));
    assert!(refused(&bytes[..bytes.len() - 1], FileKind::State).contains("in a file of"));
    assert!(refused(&bytes[..20], FileKind::State).contains("announces"));
    let mut absurd = bytes.clone();
    absurd[..8].copy_from_slice(&u64::MAX.to_le_bytes());
    assert!(refused(&absurd, FileKind::State).contains("announces"));

    // No single byte of the header may change.
    let header_end = 8 + usize::try_from(u64::from_le_bytes(bytes[..8].try_into()?))?;
    for at in 0..header_end {
        let mut flipped = bytes.clone();
        flipped[at] ^= 1;
        let read = export::read(FileKind::State, &mut flipped.as_slice(), flipped.len() as u64);
        if let Ok((read, _)) = read {
            assert_ne!(read, tensors, "byte {at} is without effect");
        }
    }
    Ok(())
}

#[test]
fn writing_refuses_disorder_and_wrong_sizes() -> Result<()> {
    let mut tensors = model(&decoder())?;
    tensors[2].bytes.pop();
    assert!(export::safetensors_bytes(FileKind::State, &tensors).is_err());
    let mut tensors = model(&decoder())?;
    tensors.swap(0, 1);
    assert!(export::safetensors_bytes(FileKind::State, &tensors).is_err());
    tensors[1] = tensors[0].clone();
    assert!(export::safetensors_bytes(FileKind::State, &tensors).is_err());
    Ok(())
}
