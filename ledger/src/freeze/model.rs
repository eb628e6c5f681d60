//! Architecture and parameter manifest: what the model is, tensor by tensor.
//!
//! The manifest is derived again from architecture and policy card, and has
//! to say the same: a parameter that nobody declared would be trained
//! without being bound.

use std::collections::BTreeSet;
use std::path::Path;

use schemas::PARAMETER_MANIFEST_FORMAT;
use schemas::contract::{Architecture, Contract, LlamaDecoder};
use schemas::parameters::{Initializer, ParameterDeclaration, ParameterManifest, ParameterStatus};
use schemas::policy_card::{Eligibility, PolicyCard};

use super::document;
use super::files::Folder;
use super::problem::Problems;
use super::{Inputs, named_document, require_tag};
use crate::canonical;

const EMBEDDING: &str = "model.embed_tokens.weight";
const HEAD: &str = "lm_head.weight";

/// Most layers; a bound on the size of the parameter manifest.
const MAX_LAYERS: u32 = 4096;

/// Checks the architecture alone. Returns whether its shape is possible.
pub(super) fn check_architecture(contract: &Contract, problems: &mut Problems) -> bool {
    let Architecture::LlamaDecoder(decoder) = &contract.architecture;
    let at = |field: &str| format!("/architecture/{field}");
    let dimensions = [
        ("context_length", decoder.context_length),
        ("head_dim", decoder.head_dim),
        ("hidden_size", decoder.hidden_size),
        ("intermediate_size", decoder.intermediate_size),
        ("num_heads", decoder.num_heads),
        ("num_kv_heads", decoder.num_kv_heads),
        ("num_layers", decoder.num_layers),
        ("vocab_size", decoder.vocab_size),
    ];
    for (field, value) in dimensions {
        problems.require_count(u64::from(value), at(field));
    }
    problems.require(
        decoder.num_layers <= MAX_LAYERS,
        at("num_layers"),
        format!("is {}; expected at most {MAX_LAYERS}", decoder.num_layers),
        "choose fewer layers",
    );
    problems.require(
        decoder.num_kv_heads == 0 || decoder.num_heads.is_multiple_of(decoder.num_kv_heads),
        at("num_kv_heads"),
        format!("is {}, which does not divide num_heads = {}", decoder.num_kv_heads, decoder.num_heads),
        "each key and value head serves the same number of query heads",
    );
    problems.require(
        decoder.head_dim.is_multiple_of(2),
        at("head_dim"),
        format!("is {}; expected an even number", decoder.head_dim),
        "rotary positions rotate pairs",
    );
    problems.require(
        decoder.vocab_size == 256,
        at("vocab_size"),
        format!("is {}; expected 256", decoder.vocab_size),
        "the tokenizer of this edition is one id a byte",
    );
    problems.require_between(decoder.dropout, 0.0..1.0, at("dropout"));
    problems.require_positive(decoder.initializer_std, at("initializer_std"));
    problems.require_positive(decoder.rms_norm_eps, at("rms_norm_eps"));
    problems.require_positive(decoder.rope_theta, at("rope_theta"));
    (1..=MAX_LAYERS).contains(&decoder.num_layers)
        && dimensions.iter().all(|(_, value)| *value > 0)
        && decoder.num_heads.is_multiple_of(decoder.num_kv_heads)
}

/// Reads the parameter manifest and compares it with what architecture and
/// card give. Returns the number of elements that it freezes.
pub(super) fn check_parameters(
    contract: &mut Contract,
    card: Option<&PolicyCard>,
    is_shape_possible: bool,
    folder: &Folder,
    inputs: &mut Inputs,
    problems: &mut Problems,
) -> u64 {
    let read = named_document(&mut contract.parameters, "/parameters", folder, inputs, problems);
    let Some((value, mut collector)) = read else { return 0 };
    let mut num_frozen = 0;
    if let Some(manifest) = document::typed::<ParameterManifest>(value, "parameter-manifest", &mut collector)
    {
        require_tag(&manifest.format, PARAMETER_MANIFEST_FORMAT, &mut collector);
        if let Some(card) = card.filter(|_| is_shape_possible) {
            let Architecture::LlamaDecoder(decoder) = &contract.architecture;
            compare(&manifest, &derive(decoder, card, problems), &mut collector);
        }
        let is_stored_frozen = |found: &&ParameterDeclaration| {
            found.tied_to.is_none() && found.status == ParameterStatus::Frozen
        };
        let frozen = manifest.parameters.iter().filter(is_stored_frozen);
        num_frozen = frozen.map(|found| num_elements(&found.shape)).fold(0, u64::saturating_add);
    }
    problems.extend(collector);
    num_frozen
}

/// The parameter manifest of an architecture under a card, as the bytes of its
/// file: every parameter is trained.
///
/// # Errors
/// In words, where the shape is not possible or a parameter has no group.
pub fn parameter_manifest(architecture: &Architecture, card: &PolicyCard) -> Result<Vec<u8>, String> {
    let mut problems = Problems::new(Path::new("architecture"));
    let Architecture::LlamaDecoder(decoder) = architecture;
    let parameters = match decoder.num_layers {
        1..=MAX_LAYERS => derive(decoder, card, &mut problems),
        other => return Err(format!("/num_layers is {other}; expected 1 to {MAX_LAYERS}")),
    };
    if let Some(problem) = problems.into_list().first() {
        return Err(problem.to_string());
    }
    let manifest = ParameterManifest { format: PARAMETER_MANIFEST_FORMAT.to_owned(), parameters };
    canonical::entry_json(&manifest).map_err(|error| error.to_string())
}

fn compare(manifest: &ParameterManifest, expected: &[ParameterDeclaration], problems: &mut Problems) {
    let regenerate = "write it again with `trainer parameters`";
    let names: BTreeSet<&str> = manifest.parameters.iter().map(|parameter| parameter.path.as_str()).collect();
    // A tied parameter has no storage of its own; manifests of before it was
    // listed bind the same state.
    let is_missing = |parameter: &&ParameterDeclaration| {
        parameter.tied_to.is_none() && !names.contains(parameter.path.as_str())
    };
    for parameter in expected.iter().filter(is_missing) {
        problems.add("/parameters", format!("has no {}", parameter.path), regenerate);
    }
    problems.require(
        manifest.parameters.is_empty()
            || manifest.parameters.iter().any(|found| found.status != ParameterStatus::Frozen),
        "/parameters",
        "freezes every parameter",
        "leave one to train: an update needs something to change",
    );
    let mut previous = "";
    for (index, found) in manifest.parameters.iter().enumerate() {
        let pointer = format!("/parameters/{index}");
        let message = format!("{} does not follow {previous} in byte order", found.path);
        problems.require(
            index == 0 || found.path.as_str() > previous,
            format!("{pointer}/path"),
            message,
            regenerate,
        );
        previous = &found.path;
        let Some(expected) = expected.iter().find(|parameter| parameter.path == found.path) else {
            problems.add(
                format!("{pointer}/path"),
                format!("{} is no parameter of the architecture", found.path),
                regenerate,
            );
            continue;
        };
        compare_declaration(found, expected, &pointer, problems);
        let owner = found.tied_to.as_ref();
        let owner = owner.and_then(|path| manifest.parameters.iter().find(|other| other.path == *path));
        problems.require(
            owner.is_none_or(|owner| owner.status == found.status),
            format!("{pointer}/status"),
            format!("{} is frozen, or the parameter that it is tied to, and not both", found.path),
            regenerate,
        );
    }
}

fn compare_declaration(
    found: &ParameterDeclaration,
    expected: &ParameterDeclaration,
    pointer: &str,
    problems: &mut Problems,
) {
    let mut require = |is_equal: bool, field: &str, found_value: String, expected_value: String| {
        problems.require(
            is_equal,
            format!("{pointer}/{field}"),
            format!("{}: is {found_value}; expected {expected_value}", found.path),
            "write the manifest again with `trainer parameters`, which freezes what `--freeze` names",
        );
    };
    let text = |value: &Option<String>| value.as_deref().unwrap_or("null").to_owned();
    // A parameter may be frozen; then no group moves it.
    let frozen;
    let expected = if found.status == ParameterStatus::Frozen {
        frozen = ParameterDeclaration { group: None, status: found.status, ..expected.clone() };
        &frozen
    } else {
        expected
    };
    require(found.dtype == expected.dtype, "dtype", found.dtype.clone(), expected.dtype.clone());
    require(found.group == expected.group, "group", text(&found.group), text(&expected.group));
    require(
        found.initializer == expected.initializer,
        "initializer",
        format!("{:?}", found.initializer),
        format!("{:?}", expected.initializer),
    );
    require(
        found.shape == expected.shape,
        "shape",
        format!("{:?}", found.shape),
        format!("{:?}", expected.shape),
    );
    require(
        found.status == expected.status,
        "status",
        format!("{:?}", found.status),
        format!("{:?}", expected.status),
    );
    require(found.tied_to == expected.tied_to, "tied_to", text(&found.tied_to), text(&expected.tied_to));
}

/// Every parameter in ascending byte order of paths, with the first group of
/// the card that takes it.
fn derive(decoder: &LlamaDecoder, card: &PolicyCard, problems: &mut Problems) -> Vec<ParameterDeclaration> {
    let mut parameters = Vec::new();
    for (path, shape) in tensors(decoder) {
        let group = card.groups.iter().find(|group| takes(group.eligible, &path, &shape));
        if group.is_none() {
            problems.add(
                "/update/card",
                format!("no group of the card takes {path}"),
                "add a group with `eligible` = \"rest\" to the card",
            );
        }
        let initializer = match shape.len() {
            1 => Initializer::Ones,
            _ => Initializer::Normal { std: decoder.initializer_std },
        };
        parameters.push(ParameterDeclaration {
            dtype: "F32".to_owned(),
            group: group.map(|group| group.name.clone()),
            initializer,
            path,
            shape,
            status: ParameterStatus::Trainable,
            tied_to: None,
        });
    }
    if let Some(embedding) =
        parameters.iter().find(|p| p.path == EMBEDDING).filter(|_| decoder.tied_embeddings)
    {
        // By identity: nothing of its own but the name.
        let tied_to = Some(embedding.path.clone());
        let head = ParameterDeclaration { group: None, path: HEAD.to_owned(), tied_to, ..embedding.clone() };
        parameters.push(head);
    }
    for group in &card.groups {
        problems.require(
            parameters.iter().any(|parameter| parameter.group.as_ref() == Some(&group.name)),
            "/update/card",
            format!("group {:?} of the card takes no parameter of this architecture", group.name),
            "remove the group from card and schedule; an earlier group may take everything that it would",
        );
    }
    parameters.sort_by(|a, b| a.path.cmp(&b.path));
    parameters
}

fn takes(eligible: Eligibility, path: &str, shape: &[u64]) -> bool {
    match eligible {
        Eligibility::Matrices => shape.len() == 2 && path != EMBEDDING,
        Eligibility::Embeddings => path == EMBEDDING,
        Eligibility::Vectors => shape.len() == 1,
        Eligibility::Rest => true,
    }
}

/// Path and shape of every stored tensor, as Hugging Face names them.
pub(super) fn tensors(decoder: &LlamaDecoder) -> Vec<(String, Vec<u64>)> {
    let hidden = u64::from(decoder.hidden_size);
    let intermediate = u64::from(decoder.intermediate_size);
    let vocabulary = u64::from(decoder.vocab_size);
    let queries = u64::from(decoder.num_heads) * u64::from(decoder.head_dim);
    let keys = u64::from(decoder.num_kv_heads) * u64::from(decoder.head_dim);
    let mut tensors = vec![
        (EMBEDDING.to_owned(), vec![vocabulary, hidden]),
        ("model.norm.weight".to_owned(), vec![hidden]),
    ];
    if !decoder.tied_embeddings {
        tensors.push((HEAD.to_owned(), vec![vocabulary, hidden]));
    }
    for layer in 0..decoder.num_layers {
        let parts = [
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
        tensors.extend(
            parts.into_iter().map(|(part, shape)| (format!("model.layers.{layer}.{part}.weight"), shape)),
        );
    }
    tensors
}

/// Elements of a tensor. Saturates.
fn num_elements(shape: &[u64]) -> u64 {
    shape.iter().fold(1, |product: u64, extent| product.saturating_mul(*extent))
}

/// Bytes of parameters, and of gradients and two moments of those that are not
/// frozen, in binary32: what any run of the architecture holds at least.
/// Saturates.
pub(super) fn least_memory_bytes(decoder: &LlamaDecoder, num_frozen: u64) -> u64 {
    const BYTES_PER_ELEMENT: u64 = 4;
    const BYTES_PER_TRAINED: u64 = 12;
    let elements = num_parameters(decoder);
    let trained = elements.saturating_sub(num_frozen).saturating_mul(BYTES_PER_TRAINED);
    elements.saturating_mul(BYTES_PER_ELEMENT).saturating_add(trained)
}

/// Elements of all stored parameters. Saturates.
pub(super) fn num_parameters(decoder: &LlamaDecoder) -> u64 {
    let elements = tensors(decoder).into_iter().map(|(_, shape)| num_elements(&shape));
    elements.fold(0, u64::saturating_add)
}
