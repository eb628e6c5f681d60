//! Which parameters an architecture has, and which group of the policy card
//! each belongs to.
//!
//! The manifest is a function of architecture and card. It refuses a card that
//! leaves a parameter without a group or names a group that takes nothing,
//! because such a card does not say what will happen.

use schemas::PARAMETER_MANIFEST_FORMAT;
use schemas::contract::{Architecture, LlamaDecoder};
use schemas::parameters::{Initializer, ParameterDeclaration, ParameterManifest, ParameterStatus};
use schemas::policy_card::{Eligibility, PolicyCard};

/// safetensors spelling of the dtype of every parameter.
pub const PARAMETER_DTYPE: &str = "F32";
/// The token embedding.
pub const EMBEDDING: &str = "model.embed_tokens.weight";
/// Scale of the last norm.
pub const FINAL_NORM: &str = "model.norm.weight";
/// The output head.
pub const HEAD: &str = "lm_head.weight";

/// Why no manifest can be made.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum ManifestError {
    /// A number that no decoder can have.
    #[error("architecture: {field} is {value}, but {requirement}")]
    Shape {
        /// JSON name of the field.
        field: &'static str,
        /// What it holds.
        value: String,
        /// What it would have to be.
        requirement: &'static str,
    },
    /// A parameter that no group takes.
    #[error("policy card {card:?}: no group takes parameter {path:?}; add a group with eligible = \"rest\"")]
    NoGroup {
        /// Name of the card.
        card: String,
        /// The parameter.
        path: String,
    },
    /// A group that takes no parameter.
    #[error("policy card {card:?}: group {group:?} takes no parameter of this architecture; remove it")]
    EmptyGroup {
        /// Name of the card.
        card: String,
        /// The group.
        group: String,
    },
}

/// Name of a parameter of a layer, such as `self_attn.q_proj`.
#[must_use]
pub fn layer_path(layer: u32, part: &str) -> String {
    format!("model.layers.{layer}.{part}.weight")
}

/// Every parameter in ascending byte order of paths. A tied head is listed with
/// what it is tied to, and is not stored ([`stored`]).
///
/// # Errors
/// When the shape is impossible, or the card's groups do not cover the
/// parameters.
pub fn parameters(
    architecture: &Architecture,
    card: &PolicyCard,
) -> Result<ParameterManifest, ManifestError> {
    let Architecture::LlamaDecoder(decoder) = architecture;
    check_shape(decoder)?;
    let mut parameters = Vec::new();
    for (path, shape) in tensors(decoder) {
        let group = group_of(&path, &shape, card)
            .ok_or_else(|| ManifestError::NoGroup { card: card.name.clone(), path: path.clone() })?;
        let initializer = match shape.len() {
            1 => Initializer::Ones,
            _ => Initializer::Normal { std: decoder.initializer_std },
        };
        parameters.push(ParameterDeclaration {
            dtype: PARAMETER_DTYPE.to_owned(),
            group: Some(group.to_owned()),
            initializer,
            path,
            shape,
            status: ParameterStatus::Trainable,
            tied_to: None,
        });
    }
    parameters.extend(
        parameters
            .iter()
            .find(|parameter| parameter.path == EMBEDDING)
            .and_then(|embedding| decoder.tied_embeddings.then(|| tied_to(embedding, HEAD))),
    );
    parameters.sort_by(|a, b| a.path.cmp(&b.path));
    for group in &card.groups {
        if !parameters.iter().any(|parameter| parameter.group.as_ref() == Some(&group.name)) {
            return Err(ManifestError::EmptyGroup { card: card.name.clone(), group: group.name.clone() });
        }
    }
    Ok(ParameterManifest { format: PARAMETER_MANIFEST_FORMAT.to_owned(), parameters })
}

/// A parameter that is another one, by identity: it has no storage, no moments
/// and no group of its own, and is updated with the other.
fn tied_to(other: &ParameterDeclaration, path: &str) -> ParameterDeclaration {
    ParameterDeclaration {
        group: None,
        path: path.to_owned(),
        tied_to: Some(other.path.clone()),
        ..other.clone()
    }
}

/// The parameters that have storage of their own.
#[must_use]
pub fn stored(manifest: &ParameterManifest) -> ParameterManifest {
    let parameters = manifest.parameters.iter().filter(|parameter| parameter.tied_to.is_none());
    ParameterManifest { format: manifest.format.clone(), parameters: parameters.cloned().collect() }
}

/// Path and shape of every stored tensor, in no order. A tied head is not one:
/// it is the embedding.
#[must_use]
pub fn tensors(decoder: &LlamaDecoder) -> Vec<(String, Vec<u64>)> {
    let hidden = u64::from(decoder.hidden_size);
    let vocabulary = u64::from(decoder.vocab_size);
    let intermediate = u64::from(decoder.intermediate_size);
    let queries = u64::from(decoder.num_heads) * u64::from(decoder.head_dim);
    let keys = u64::from(decoder.num_kv_heads) * u64::from(decoder.head_dim);
    let mut tensors =
        vec![(EMBEDDING.to_owned(), vec![vocabulary, hidden]), (FINAL_NORM.to_owned(), vec![hidden])];
    if !decoder.tied_embeddings {
        tensors.push((HEAD.to_owned(), vec![vocabulary, hidden]));
    }
    for layer in 0..decoder.num_layers {
        for (part, shape) in [
            ("input_layernorm", vec![hidden]),
            ("mlp.down_proj", vec![hidden, intermediate]),
            ("mlp.gate_proj", vec![intermediate, hidden]),
            ("mlp.up_proj", vec![intermediate, hidden]),
            ("post_attention_layernorm", vec![hidden]),
            ("self_attn.k_proj", vec![keys, hidden]),
            ("self_attn.o_proj", vec![hidden, queries]),
            ("self_attn.q_proj", vec![queries, hidden]),
            ("self_attn.v_proj", vec![keys, hidden]),
        ] {
            tensors.push((layer_path(layer, part), shape));
        }
    }
    tensors
}

/// The first group that takes a parameter.
fn group_of<'a>(path: &str, shape: &[u64], card: &'a PolicyCard) -> Option<&'a str> {
    let takes = |eligible| match eligible {
        Eligibility::Matrices => shape.len() == 2 && path != EMBEDDING,
        Eligibility::Embeddings => path == EMBEDDING,
        Eligibility::Vectors => shape.len() == 1,
        Eligibility::Rest => true,
    };
    card.groups.iter().find(|group| takes(group.eligible)).map(|group| group.name.as_str())
}

fn check_shape(decoder: &LlamaDecoder) -> Result<(), ManifestError> {
    let refuse = |field, value: String, requirement| Err(ManifestError::Shape { field, value, requirement });
    for (field, value) in [
        ("context_length", decoder.context_length),
        ("head_dim", decoder.head_dim),
        ("hidden_size", decoder.hidden_size),
        ("intermediate_size", decoder.intermediate_size),
        ("num_heads", decoder.num_heads),
        ("num_kv_heads", decoder.num_kv_heads),
        ("num_layers", decoder.num_layers),
        ("vocab_size", decoder.vocab_size),
    ] {
        if value == 0 {
            return refuse(field, value.to_string(), "it must be at least 1");
        }
    }
    if !decoder.head_dim.is_multiple_of(2) {
        let requirement = "rotary positions need an even head dimension";
        return refuse("head_dim", decoder.head_dim.to_string(), requirement);
    }
    if !decoder.num_heads.is_multiple_of(decoder.num_kv_heads) {
        let requirement = "it must divide num_heads";
        return refuse("num_kv_heads", decoder.num_kv_heads.to_string(), requirement);
    }
    for (field, value) in [
        ("initializer_std", decoder.initializer_std),
        ("rms_norm_eps", decoder.rms_norm_eps),
        ("rope_theta", decoder.rope_theta),
    ] {
        if !(value.is_finite() && value > 0.0) {
            return refuse(field, value.to_string(), "it must be finite and above 0");
        }
    }
    if !(0.0..1.0).contains(&decoder.dropout) {
        return refuse("dropout", decoder.dropout.to_string(), "it must be at least 0 and below 1");
    }
    Ok(())
}
