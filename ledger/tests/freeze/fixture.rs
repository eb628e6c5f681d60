//! A folder with a contract that can be frozen, made by code of its own: the
//! tables and the parameter manifest here are written independently of what
//! the freeze derives.

use std::path::{Path, PathBuf};

use ledger::freeze::{CheckedContract, FreezeError, FreezeProblem, FreezeRequest, check};
use ledger::keys::{KeyRing, Role};
use serde_json::{Value, json};
use tempfile::TempDir;

/// Context length of the fixture's model.
pub(crate) const CONTEXT_LENGTH: usize = 8;

/// The day on which the fixture is frozen.
pub(crate) const TODAY: &str = "2026-11-29";

const TRAIN: [&[u8]; 2] = [
    b"It was the best of times, it was the worst of times, it was the age of wisdom.",
    b"It was the season of light; it was the season of darkness.",
];
const VAL: &[u8] = b"It was the spring of hope, it was the winter of despair.";
pub(crate) const QUALIFICATION: &[u8] = b"We had everything before us, we had nothing before us.";

pub(crate) struct Fixture {
    folder: TempDir,
    pub(crate) contract: Value,
}

impl Fixture {
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let keys = Self::keys(folder.path());
        let fixture = Self { contract: contract(&keys), folder };
        fixture.write("data/train-0.txt", TRAIN[0]);
        fixture.write("data/train-1.txt", TRAIN[1]);
        fixture.write("data/val-0.txt", VAL);
        fixture.write_json("data/manifest.json", &manifest());
        fixture.write("data/train.examples", &table(&[(0, TRAIN[0]), (1, TRAIN[1])]));
        fixture.write("data/val.examples", &table(&[(2, VAL)]));
        fixture.write("policy.json", include_bytes!("../../../policy-cards/adamw.json"));
        fixture.write_json("parameters.json", &parameters());
        let mut sealed = b"age-encryption.org/v1\n".to_vec();
        sealed.extend(std::iter::repeat_n(0x5a, QUALIFICATION.len() + 200));
        fixture.write("sealed.age", &sealed);
        fixture
    }

    fn keys(folder: &Path) -> Value {
        let folder = folder.join("keys");
        let mut keys = json!({
            "qualifier_recipient": format!("age1{}", "q".repeat(58)), "witness_quorum": 0, "witnesses": []
        });
        for role in [Role::Owner, Role::Trainer, Role::Validator, Role::Qualifier] {
            let pair = KeyRing::generate(&folder, role).expect("a fresh key");
            keys[role.name()] = json!({"host": pair.host().to_string(), "public": pair.public_hex()});
        }
        keys
    }

    pub(crate) fn path(&self, relative: &str) -> PathBuf {
        self.folder.path().join(relative)
    }

    pub(crate) fn key_ring(&self) -> KeyRing {
        KeyRing::open(&self.path("keys")).expect("keys were made")
    }

    pub(crate) fn write(&self, relative: &str, bytes: &[u8]) {
        let path = self.path(relative);
        std::fs::create_dir_all(path.parent().expect("a parent")).expect("a folder");
        std::fs::write(path, bytes).expect("written");
    }

    pub(crate) fn write_json(&self, relative: &str, value: &Value) {
        self.write(relative, &serde_json::to_vec(value).expect("JSON"));
    }

    /// Reads a JSON file of the folder, changes it, writes it back.
    pub(crate) fn edit_file(&self, relative: &str, edit: impl FnOnce(&mut Value)) {
        let bytes = std::fs::read(self.path(relative)).expect("readable");
        let mut value = serde_json::from_slice(&bytes).expect("JSON");
        edit(&mut value);
        self.write_json(relative, &value);
    }

    /// Puts a value at a pointer of the contract; the parent must exist.
    pub(crate) fn set(&mut self, pointer: &str, value: Value) -> &mut Self {
        let (parent, name) = pointer.rsplit_once('/').expect("a pointer");
        let parent = self.contract.pointer_mut(parent).expect("the parent exists");
        match parent {
            Value::Array(list) => list[name.parse::<usize>().expect("an index")] = value,
            parent => parent[name] = value,
        }
        self
    }

    pub(crate) fn request(&self) -> FreezeRequest {
        let mut request = FreezeRequest::new(&self.path("contract.json"));
        request.today = Some(TODAY.to_owned());
        request
    }

    pub(crate) fn check(&self) -> Result<CheckedContract, FreezeError> {
        self.write_json("contract.json", &self.contract);
        check(&self.request())
    }

    pub(crate) fn check_text(&self, text: &str) -> Result<CheckedContract, FreezeError> {
        self.write("contract.json", text.as_bytes());
        check(&self.request())
    }
}

/// The problems of a refusal.
#[track_caller]
pub(crate) fn problems(result: Result<CheckedContract, FreezeError>) -> Vec<FreezeProblem> {
    match result {
        Err(FreezeError::Refused { problems, .. }) => problems,
        Err(other) => panic!("refused for another reason: {other}"),
        Ok(_) => panic!("nothing was refused"),
    }
}

/// `file pointer: message` of each problem, with the folder left out.
#[track_caller]
pub(crate) fn lines(result: Result<CheckedContract, FreezeError>) -> Vec<String> {
    let line = |problem: FreezeProblem| {
        assert!(!problem.hint.is_empty(), "{problem} has no hint");
        let file = problem.file.file_name().map(|name| name.to_string_lossy().into_owned());
        format!("{} {}: {}", file.unwrap_or_default(), problem.pointer, problem.message)
    };
    problems(result).into_iter().map(line).collect()
}

fn hash(bytes: &[u8]) -> String {
    format!("blake3:{}", blake3::hash(bytes).to_hex())
}

fn shard(path: &str, split: &str, bytes: &[u8]) -> Value {
    json!({
        "digest": hash(bytes), "license_class": "green", "num_bytes": bytes.len(), "path": path,
        "source": "A Tale of Two Cities", "split": split
    })
}

fn manifest() -> Value {
    json!({
        "barrier": null, "format": "data-manifest/1", "name": "fixture", "tokenizer": "bytes",
        "shards": [
            shard("train-0.txt", "train", TRAIN[0]),
            shard("train-1.txt", "train", TRAIN[1]),
            shard("val-0.txt", "val", VAL),
        ]
    })
}

/// An example table from shard index and bytes.
pub(crate) fn table(shards: &[(u32, &[u8])]) -> Vec<u8> {
    let mut records = Vec::new();
    for (index, bytes) in shards {
        let mut offset = 0;
        while offset + 1 < bytes.len() {
            let num_targets = CONTEXT_LENGTH.min(bytes.len() - 1 - offset);
            let mut record = index.to_le_bytes().to_vec();
            record.extend(u32::try_from(num_targets).expect("small").to_le_bytes());
            record.extend((offset as u64).to_le_bytes());
            record.extend(blake3::hash(&bytes[offset..=offset + num_targets]).as_bytes());
            records.push(record);
            offset += CONTEXT_LENGTH;
        }
    }
    let mut bytes = b"GLEXMPL1".to_vec();
    bytes.extend((records.len() as u64).to_le_bytes());
    bytes.extend(records.concat());
    bytes
}

/// Two layers of width 8 with two query heads and one key and value head.
fn parameters() -> Value {
    let matrix = |path: &str, group: &str, shape: [u64; 2]| {
        json!({
            "dtype": "F32", "group": group, "initializer": {"scheme": "normal", "std": 0.02}, "path": path,
            "shape": shape, "status": "trainable", "tied_to": null
        })
    };
    let vector = |path: String| {
        json!({
            "dtype": "F32", "group": "vectors", "initializer": {"scheme": "ones"}, "path": path, "shape": [8],
            "status": "trainable", "tied_to": null
        })
    };
    let mut list = vec![matrix("model.embed_tokens.weight", "embeddings", [256, 8])];
    for layer in 0..2 {
        let name = |part: &str| format!("model.layers.{layer}.{part}.weight");
        list.push(vector(name("input_layernorm")));
        list.push(matrix(&name("mlp.down_proj"), "matrices", [8, 16]));
        list.push(matrix(&name("mlp.gate_proj"), "matrices", [16, 8]));
        list.push(matrix(&name("mlp.up_proj"), "matrices", [16, 8]));
        list.push(vector(name("post_attention_layernorm")));
        list.push(matrix(&name("self_attn.k_proj"), "matrices", [4, 8]));
        list.push(matrix(&name("self_attn.o_proj"), "matrices", [8, 8]));
        list.push(matrix(&name("self_attn.q_proj"), "matrices", [8, 8]));
        list.push(matrix(&name("self_attn.v_proj"), "matrices", [4, 8]));
    }
    list.push(vector("model.norm.weight".to_owned()));
    json!({"format": "parameter-manifest/1", "parameters": list})
}

fn binding(path: &str) -> Value {
    json!({"digest": null, "num_bytes": null, "path": path})
}

fn contract(keys: &Value) -> Value {
    let captured = |class: &str| json!({"class": class, "not_applicable": null});
    let left_out = |class: &str, reason: &str| json!({"class": class, "not_applicable": reason});
    let rate = |group: &str| {
        json!({"group": group, "shape": {
            "kind": "warmup_cosine", "floor": 0.0001, "peak": 0.001, "total_steps": 20, "warmup_steps": 2
        }})
    };
    json!({
        "architecture": {
            "family": "llama_decoder", "context_length": CONTEXT_LENGTH, "dropout": 0.1, "head_dim": 4,
            "hidden_size": 8, "initializer_std": 0.02, "intermediate_size": 16, "num_heads": 2,
            "num_kv_heads": 1, "num_layers": 2, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
            "tied_embeddings": true, "vocab_size": 256
        },
        "batch": {"accumulation": 2, "data_parallel": 1, "global_examples": 4, "microbatch_examples": 2},
        "budget": {"max_attempts": 5, "max_steps": 20, "max_tokens": null, "max_wall_s": 600},
        "checkpoints": {
            "candidate_stage": "validated", "every_steps": 5, "keep": {"kind": "all"},
            "mid_accumulation": "round_to_boundary", "mode": "synchronous", "store": "checkpoints"
        },
        "code": {
            "digest": format!("sha256:{}", "ab".repeat(32)), "features": ["flex"], "package": "trainer",
            "version": "0.1.0"
        },
        "credit": {"rule": "backpropagation"},
        "data": {
            "admitted_license_classes": ["green"], "expires": "2027-12-31",
            "manifest": binding("data/manifest.json"), "terms": "public domain",
            "train_examples": binding("data/train.examples"), "val_examples": binding("data/val.examples")
        },
        "durability": {"max_unsynced_ms": 250, "max_unsynced_steps": 50},
        "environment": {"architecture": "x86_64", "operating_system": "linux", "rustc": "rustc 1.95.0"},
        "evaluation": {"streams": [{
            "direction": "minimize", "every_steps": 5, "metric": "bits_per_byte", "name": "val",
            "num_examples": null, "split": "val", "view": "current"
        }]},
        "expected": {"communication_bytes_per_step": 0, "memory_bytes": 100_000_000},
        "extensions": [],
        "faults": {"plan": [], "recovery": "restart_from_last_validated"},
        "floors": {"free_disk_bytes": 1_000_000, "free_memory_bytes": 1_000_000},
        "format": "contract/1",
        "keys": keys,
        "membership": {"kind": "standalone"},
        "name": "fixture",
        "nonclaims": ["That the model is of any use."],
        "numerics": {
            "accumulation_dtype": "f32", "compute_dtype": "f32", "determinism": "bitwise", "loss_scaler": null,
            "parameter_dtype": "f32", "reduction": "microbatch_tree"
        },
        "objective": "next_token_cross_entropy",
        "order": {"scheme": "keyed_permutation/1"},
        "parameters": binding("parameters.json"),
        "plan": {"autotune": false, "backend": "burn-flex 0.22.1", "cpu_features": ["avx", "fma"], "device": "cpu"},
        "purpose": {
            "authority": {
                "expires": "2027-12-31", "granted_by": "the maintainers", "non_authorities": ["to release"],
                "scope": "to train on this machine"
            },
            "statement": "Test of the freeze."
        },
        "qualification": {
            "metric": "bits_per_byte", "plaintext": hash(QUALIFICATION), "sealed": binding("sealed.age")
        },
        "quality_target": {"derivation": "a guess", "stream": "val", "threshold": 7.5},
        "residuals": [{"description": "one host", "owner": "the maintainers"}],
        "resume": {"class": "bitwise", "tolerance": null},
        "retention": {"custodian": "the maintainers", "days": 30},
        "ruleset": {"edition": "2026.1", "profile": "native"},
        "schedule": [rate("matrices"), rate("embeddings"), rate("vectors")],
        "seeds": {"data_order": "1", "dropout": "2", "initialization": "18446744073709551615"},
        "selection": {"family": "every_evaluated_checkpoint", "stream": "val", "tie": "earliest"},
        "state_classes": [
            captured("model"), captured("optimizer"), left_out("scheduler", "function_of_step"),
            left_out("rng_cpu", "counter_based_randomness"), left_out("rng_device", "no_device_randomness"),
            left_out("loss_scaler", "no_loss_scaling"), captured("data_cursor"),
            left_out("sampler", "function_of_position"), captured("topology"), captured("compiler_plan"),
            left_out("accumulated_gradients", "update_boundaries_only"),
        ],
        "state_digest_every_steps": null,
        "stopping": {"kind": "at_step", "step": 20},
        "topology": {"learners": 1, "permitted_rewrites": ["thread_count"], "workers": 1},
        "update": {"card": binding("policy.json")}
    })
}
