//! A warm start is bound by its weights' bytes, and a tied head by its line in
//! the parameter manifest.

use serde_json::{Value, json};

use crate::fixture::{Fixture, lines};

const LAYERS: u64 = 2;

/// Name and shape of every stored tensor of the fixture's model, written
/// independently of the freeze.
fn tensors() -> Vec<(String, Vec<u64>)> {
    let mut all = vec![
        ("model.embed_tokens.weight".to_owned(), vec![256, 8]),
        ("model.norm.weight".to_owned(), vec![8]),
    ];
    for layer in 0..LAYERS {
        for (part, shape) in [
            ("input_layernorm", vec![8]),
            ("mlp.down_proj", vec![8, 16]),
            ("mlp.gate_proj", vec![16, 8]),
            ("mlp.up_proj", vec![16, 8]),
            ("post_attention_layernorm", vec![8]),
            ("self_attn.k_proj", vec![4, 8]),
            ("self_attn.o_proj", vec![8, 8]),
            ("self_attn.q_proj", vec![8, 8]),
            ("self_attn.v_proj", vec![4, 8]),
        ] {
            all.push((format!("model.layers.{layer}.{part}.weight"), shape));
        }
    }
    all.sort();
    all
}

/// A safetensors file of zeros.
fn safetensors(tensors: &[(String, Vec<u64>)]) -> Vec<u8> {
    let mut header = serde_json::Map::new();
    header.insert("__metadata__".to_owned(), json!({"format": "pt"}));
    let mut offset = 0;
    for (name, shape) in tensors {
        let end = offset + 4 * shape.iter().product::<u64>();
        header.insert(name.clone(), json!({"data_offsets": [offset, end], "dtype": "F32", "shape": shape}));
        offset = end;
    }
    let json = serde_json::to_vec(&header).expect("JSON");
    let mut bytes = (json.len() as u64).to_le_bytes().to_vec();
    bytes.extend(json);
    bytes.extend(std::iter::repeat_n(0, usize::try_from(offset).expect("small")));
    bytes
}

fn warm(bytes: &[u8]) -> Fixture {
    let mut fixture = Fixture::new();
    fixture.write("initial.safetensors", bytes);
    let model = format!("blake3:{}", blake3::hash(bytes).to_hex());
    let contract = "ab".repeat(32);
    fixture.contract["initialization"] = json!({
        "kind": "warm_start",
        "lineage": {
            "checkpoint": "s00000200-a1",
            "contract": format!("sha256:{contract}"),
            "head": {"root": format!("sha256:{}", "cd".repeat(32)), "size": 900},
            "model": model,
            "run": format!("{}-0123456789abcdef", &contract[..16]),
            "step": 200
        },
        "weights": {"digest": null, "num_bytes": null, "path": "initial.safetensors"}
    });
    fixture
}

/// Changes a value below `/initialization`; exactly these problems follow.
#[track_caller]
fn check(pointer: &str, value: Value, expected: &[&str]) {
    let mut fixture = warm(&safetensors(&tensors()));
    fixture.set(&format!("/initialization/{pointer}"), value);
    let found = lines(fixture.check());
    assert_eq!(found.len(), expected.len(), "{found:#?}");
    for (line, expected) in found.iter().zip(expected) {
        assert!(line.starts_with(&format!("contract.json /initialization/{expected}")), "{found:#?}");
    }
}

#[test]
fn weights_are_read_and_digested() {
    let bytes = safetensors(&tensors());
    let checked = warm(&bytes).check().expect("a warm start");
    let weights = &checked.contract.initialization.as_ref().expect("bound").warm_start().weights;
    assert_eq!(weights.num_bytes, Some(bytes.len() as u64));
    assert_eq!(weights.digest.expect("filled in").hex(), blake3::hash(&bytes).to_hex().as_str());
    // They stay a file: a ledger holds documents.
    assert!(checked.artifacts.iter().all(|artifact| artifact.pointer != "/initialization/weights"));
    // Without the block the bytes are those of before.
    let plain = Fixture::new().check().expect("no warm start");
    assert!(!String::from_utf8(plain.canonical).expect("JSON").contains("initialization\":{"));
}

#[test]
fn a_lineage_that_does_not_fit() {
    let other = format!("blake3:{}", "00".repeat(32));
    check("lineage/model", json!(other), &["lineage/model: is blake3:0000"]);
    check("lineage/run", json!("somebody-else"), &["lineage/run: is somebody-else, which the source's"]);
    check("lineage/head/size", json!(0), &["lineage/head/size: is 0"]);
    check("lineage/head/root", json!(other), &["lineage/head/root: is blake3:"]);
    check("lineage/checkpoint", json!(" "), &["lineage/checkpoint: is empty"]);
    check("weights/path", json!("missing.safetensors"), &["weights/path: "]);
    check("weights/digest", json!(other), &["weights/digest: initial.safetensors has digest"]);
    check("lineage/also", json!(1), &["lineage: unknown field `also`"]);
    check("kind", json!("resume"), &["kind: "]);
}

#[test]
fn weights_of_another_architecture() {
    let mut other = tensors();
    other.retain(|(name, _)| name != "model.norm.weight");
    let (_, shape) = &mut other[0];
    *shape = vec![256, 9];
    other.push(("zz.weight".to_owned(), vec![3]));
    let found = lines(warm(&safetensors(&other)).check());
    assert_eq!(
        found,
        [
            "contract.json /initialization/weights: model.embed_tokens.weight is F32 [256, 9]; the architecture has \
         F32 [256, 8]",
            "contract.json /initialization/weights: has no model.norm.weight [8]",
            "contract.json /initialization/weights: zz.weight [3] is no parameter of the architecture",
        ]
    );
    let found = lines(warm(b"no tensors at all").check());
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(
        found[0].contains("/initialization/weights/path") && found[0].contains("no safetensors file"),
        "{found:?}"
    );
}

#[test]
fn weights_of_another_run_beside_frozen_parameters() {
    let fixture = warm(&safetensors(&tensors()));
    fixture.edit_file("parameters.json", |manifest| {
        let norm = manifest["parameters"].as_array_mut().expect("a list").last_mut().expect("parameters");
        norm["status"] = json!("frozen");
        norm["group"] = Value::Null;
    });
    let found = lines(fixture.check());
    assert_eq!(found.len(), 1, "{found:#?}");
    assert!(found[0].starts_with("contract.json /parameters: freezes 8 elements"), "{found:#?}");
}

#[test]
fn a_tied_head_may_be_listed_and_only_as_what_it_is() {
    let head = |fixture: &Fixture| {
        fixture.edit_file("parameters.json", |manifest| {
            let list = manifest["parameters"].as_array_mut().expect("a list");
            let mut head = list[0].clone();
            head["group"] = Value::Null;
            head["path"] = json!("lm_head.weight");
            head["tied_to"] = json!("model.embed_tokens.weight");
            list.insert(0, head);
        });
    };
    let fixture = Fixture::new();
    head(&fixture);
    assert!(fixture.check().is_ok());
    fixture.edit_file("parameters.json", |manifest| manifest["parameters"][0]["group"] = json!("embeddings"));
    assert_eq!(
        lines(fixture.check()),
        ["parameters.json /parameters/0/group: lm_head.weight: is embeddings; expected null"]
    );
    // Frozen are both or neither.
    fixture.edit_file("parameters.json", |manifest| {
        manifest["parameters"][0]["group"] = Value::Null;
        manifest["parameters"][0]["status"] = json!("frozen");
    });
    let found = lines(fixture.check());
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(
        found[0].starts_with("parameters.json /parameters/0/status: lm_head.weight is frozen, or"),
        "{found:?}"
    );
    // Of an untied model it is a parameter of its own.
    let mut fixture = Fixture::new();
    head(&fixture);
    fixture.set("/architecture/tied_embeddings", json!(false));
    let found = lines(fixture.check());
    assert!(
        found.iter().any(|line| line.contains("/parameters/0/tied_to: lm_head.weight: is model.embed")),
        "{found:?}"
    );
}
