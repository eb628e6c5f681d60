//! The parameters that a Llama-shaped decoder has, from its shape alone:
//! Hugging Face names, extents, initialisers and groups.
//!
//! A tied head is the embedding, and has no storage.

use schemas::contract::LlamaDecoder;
use schemas::parameters::{Initializer, ParameterDeclaration, ParameterStatus};
use schemas::policy_card::{Eligibility, PolicyCard};

/// Path of the token embedding.
pub const EMBEDDING: &str = "model.embed_tokens.weight";
/// Path of an untied head.
pub const HEAD: &str = "lm_head.weight";

/// Largest number of blocks that is expanded; a contract is at most 16 MiB, but
/// a number in it may be any.
pub const MAX_LAYERS: u32 = 4096;

/// Every parameter in path order, all trainable; `None` for more than
/// [`MAX_LAYERS`] blocks. A parameter that no group takes has group `None`.
#[must_use]
pub fn parameters(shape: &LlamaDecoder, card: &PolicyCard) -> Option<Vec<ParameterDeclaration>> {
    if shape.num_layers > MAX_LAYERS {
        return None;
    }
    let hidden = u64::from(shape.hidden_size);
    let intermediate = u64::from(shape.intermediate_size);
    let queries = u64::from(shape.num_heads) * u64::from(shape.head_dim);
    let keys = u64::from(shape.num_kv_heads) * u64::from(shape.head_dim);
    let vocabulary = u64::from(shape.vocab_size);
    let mut all = vec![(EMBEDDING.to_owned(), vec![vocabulary, hidden])];
    for layer in 0..shape.num_layers {
        let block: [(&str, Vec<u64>); 9] = [
            ("input_layernorm", vec![hidden]),
            ("mlp.down_proj", vec![hidden, intermediate]),
            ("mlp.gate_proj", vec![intermediate, hidden]),
            ("mlp.up_proj", vec![intermediate, hidden]),
            ("post_attention_layernorm", vec![hidden]),
            ("self_attn.k_proj", vec![keys, hidden]),
            ("self_attn.o_proj", vec![hidden, queries]),
            ("self_attn.q_proj", vec![queries, hidden]),
            ("self_attn.v_proj", vec![keys, hidden]),
        ];
        all.extend(block.map(|(name, extents)| (format!("model.layers.{layer}.{name}.weight"), extents)));
    }
    all.push(("model.norm.weight".to_owned(), vec![hidden]));
    if !shape.tied_embeddings {
        all.push((HEAD.to_owned(), vec![vocabulary, hidden]));
    }
    all.sort();
    Some(all.into_iter().map(|(path, extents)| declaration(shape, card, path, extents)).collect())
}

/// The line of a tied head: the embedding under another name, with nothing of
/// its own; `None` where the head is not tied.
#[must_use]
pub fn tied_head(shape: &LlamaDecoder, parameters: &[ParameterDeclaration]) -> Option<ParameterDeclaration> {
    let embedding = parameters.iter().find(|parameter| parameter.path == EMBEDDING)?;
    shape.tied_embeddings.then(|| ParameterDeclaration {
        group: None,
        path: HEAD.to_owned(),
        tied_to: Some(EMBEDDING.to_owned()),
        ..embedding.clone()
    })
}

fn declaration(
    shape: &LlamaDecoder,
    card: &PolicyCard,
    path: String,
    extents: Vec<u64>,
) -> ParameterDeclaration {
    let initializer = match extents.len() {
        1 => Initializer::Ones,
        _ => Initializer::Normal { std: shape.initializer_std },
    };
    ParameterDeclaration {
        dtype: "F32".to_owned(),
        group: group(card, &path, extents.len()),
        initializer,
        path,
        shape: extents,
        status: ParameterStatus::Trainable,
        tied_to: None,
    }
}

/// The first group of the card that takes a parameter.
#[must_use]
pub fn group(card: &PolicyCard, path: &str, num_dimensions: usize) -> Option<String> {
    let takes = |eligible: Eligibility| match eligible {
        Eligibility::Embeddings => path == EMBEDDING,
        Eligibility::Matrices => num_dimensions == 2 && path != EMBEDDING,
        Eligibility::Vectors => num_dimensions == 1,
        Eligibility::Rest => true,
    };
    card.groups.iter().find(|group| takes(group.eligible)).map(|group| group.name.clone())
}

/// Number of elements; `None` beyond 64 bits.
#[must_use]
pub fn num_elements(shape: &[u64]) -> Option<u64> {
    shape.iter().try_fold(1u64, |product, extent| product.checked_mul(*extent))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{card, llama};

    #[test]
    fn names_shapes_and_groups_of_one_block() {
        let shape = LlamaDecoder { num_heads: 4, num_kv_heads: 2, head_dim: 8, num_layers: 1, ..llama() };
        let all = parameters(&shape, &card(1)).expect("few layers");
        let find = |path: &str| all.iter().find(|p| p.path == path).expect("listed");
        assert_eq!(all.len(), 11);
        assert!(all.is_sorted_by(|a, b| a.path < b.path));
        assert_eq!(find("model.layers.0.self_attn.q_proj.weight").shape, [32, u64::from(shape.hidden_size)]);
        assert_eq!(find("model.layers.0.self_attn.k_proj.weight").shape, [16, u64::from(shape.hidden_size)]);
        assert_eq!(find("model.layers.0.self_attn.o_proj.weight").shape, [u64::from(shape.hidden_size), 32]);
        assert_eq!(find("model.norm.weight").initializer, Initializer::Ones);
        assert_eq!(find("model.norm.weight").group.as_deref(), Some("vectors"));
        assert_eq!(find(EMBEDDING).group.as_deref(), Some("embeddings"));
        assert_eq!(find("model.layers.0.mlp.up_proj.weight").group.as_deref(), Some("matrices"));
    }

    #[test]
    fn an_untied_head_is_a_matrix_and_an_absurd_depth_is_refused() {
        let all =
            parameters(&LlamaDecoder { tied_embeddings: false, ..llama() }, &card(1)).expect("few layers");
        assert_eq!(all[0].path, HEAD);
        assert_eq!(all[0].group.as_deref(), Some("matrices"));
        assert_eq!(parameters(&LlamaDecoder { num_layers: u32::MAX, ..llama() }, &card(1)), None);
        assert_eq!(num_elements(&[u64::MAX, 2]), None);
        assert_eq!(num_elements(&[]), Some(1));
    }
}
